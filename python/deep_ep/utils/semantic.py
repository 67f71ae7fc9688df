# SPDX-License-Identifier: Apache-2.0
"""Small language helpers: defaults, caches per object, and DeepEP's native errors."""

import functools
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


def value_or(value: T | None, default: T) -> T:
    """`value`, or `default` for None. 0, False and empty containers are values."""
    return default if value is None else value


def weak_lru(maxsize: int | None = 128, typed: bool = False) -> Callable[[Callable], Callable]:
    """Decorator of methods: a `functools.lru_cache` per object that keeps no object alive.

    `maxsize` results per object. The object and the arguments must be hashable.
    """

    def decorate(method: Callable) -> Callable:
        caches: weakref.WeakKeyDictionary[Any, Callable] = weakref.WeakKeyDictionary()

        @functools.wraps(method)
        def cached(self: Any, *args: Any, **kwargs: Any) -> Any:
            cache = caches.get(self)
            if cache is None:
                # A strong reference in the cache would keep its own key alive.
                owner = weakref.ref(self)
                cache = functools.lru_cache(maxsize, typed)(
                    lambda *a, **k: method(owner(), *a, **k)
                )
                caches[self] = cache
            return cache(*args, **kwargs)

        return cached

    return decorate


def native_assert(condition: bool, text: str) -> None:
    """Raises RuntimeError("Assertion exception (...)"), as DeepEP's native part, unless
    `condition`.

    `text` states the requirement and the value. Checks of DeepEP's Python part raise AssertionError
    instead.
    """
    if not condition:
        native_fail(text)


def native_fail(text: str) -> NoReturn:
    """native_assert(False, text), for hot paths, which build the text only for an error."""
    raise RuntimeError(f"Assertion exception (deep_ep): {text}")
