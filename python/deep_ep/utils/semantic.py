# SPDX-License-Identifier: Apache-2.0
"""Small language helpers: defaults, per-object caches, and the check behind errors of the native class."""

import functools
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


def value_or(value: T | None, default: T) -> T:
    """`value`, or `default` where it is None (0, False and empty containers are values)."""
    return default if value is None else value


def weak_lru(maxsize: int | None = 128, typed: bool = False) -> Callable[[Callable], Callable]:
    """Decorator of methods: `functools.lru_cache` per object, of `maxsize` results each, that keeps no object alive.

    Arguments must be hashable, as must the object.
    """

    def decorate(method: Callable) -> Callable:
        caches: weakref.WeakKeyDictionary[Any, Callable] = weakref.WeakKeyDictionary()

        @functools.wraps(method)
        def cached(self: Any, *args: Any, **kwargs: Any) -> Any:
            cache = caches.get(self)
            if cache is None:
                owner = weakref.ref(self)  # a strong reference in the cache would keep its own key alive
                cache = functools.lru_cache(maxsize, typed)(lambda *a, **k: method(owner(), *a, **k))
                caches[self] = cache
            return cache(*args, **kwargs)

        return cached

    return decorate


def native_assert(condition: bool, text: str) -> None:
    """Raises the error class of the native part, RuntimeError("Assertion exception (...)"), unless `condition`.

    `text` says what is required and what was got. Checks of the Python part are AssertionErrors instead.
    """
    if not condition:
        native_fail(text)


def native_fail(text: str) -> NoReturn:
    """As native_assert(False, text): for calls where every microsecond counts, which make the text only then."""
    raise RuntimeError(f"Assertion exception (deep_ep): {text}")
