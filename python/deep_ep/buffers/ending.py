# SPDX-License-Identifier: Apache-2.0
"""How a buffer ends and how messages name it, the same for all interfaces."""

from __future__ import annotations

from types import FunctionType
from typing import Any, Protocol

from .checks import expect
from .runtime import Runtime


class Destroyable(Protocol):
    runtime: Runtime | None
    explicitly_destroy: bool


def close(buffer: Destroyable) -> bool:
    """Closes the runtime of the buffer; False if that has been done. Collective.

    Raises AssertionError without explicitly_destroy.
    """
    expect(
        buffer.explicitly_destroy,
        "destroy: this buffer was created without explicitly_destroy=True",
    )
    if buffer.runtime is None:
        return False
    buffer.runtime.await_preparation()
    buffer.runtime.close()
    buffer.runtime = None
    return True


def warn_unless_destroyed(buffer: Destroyable) -> None:
    """For ``__del__``. A constructor sets ``explicitly_destroy`` last, so that there is no warning
    about a buffer whose constructor has raised."""
    if (
        getattr(buffer, "explicitly_destroy", False)
        and buffer.runtime is not None
        and buffer.runtime.is_available()  # not in a child that the rank has forked
    ):
        print(
            f"WARNING: deep_ep.{type(buffer).__name__} was created with explicitly_destroy=True "
            "and released without destroy()",
            flush=True,
        )


def with_own_methods(buffer_class: type) -> type:
    """A class decorator: messages of Python name inherited methods by this class, which users know,
    and not by the private one that defines them."""
    for base in buffer_class.__mro__[1:-1]:
        for name, member in vars(base).items():
            if isinstance(member, FunctionType | staticmethod):
                getattr(member, "__func__", member).__qualname__ = f"{buffer_class.__name__}.{name}"
    return buffer_class


def description(buffer: Any, *names: str) -> str:
    """For ``__repr__``: the rank and these attributes, or that the buffer is closed."""
    kind, runtime = f"deep_ep.{type(buffer).__name__}", getattr(buffer, "runtime", None)
    if runtime is None or not runtime.is_available():
        return f"{kind}(closed)"
    shown = ", ".join(f"{name}={getattr(buffer, name, None)}" for name in names)
    return f"{kind}(rank {runtime.rank} of {runtime.num_ranks}, {runtime.device}, {shown})"
