# SPDX-License-Identifier: Apache-2.0
"""Exceptions that unwind through the owner of a world reach the messages of the other PEs.

An object cannot see that an exception destroys it. It is closed or destroyed while the exception is
handled, when its handler ends and drops the exception, which holds the frames that it left, or when
the interpreter or a process of multiprocessing ends because of it.
"""

from __future__ import annotations

import contextlib
import opcode
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

# For each world the exception that was handled when it was opened, by id: a program may run inside
# an except block.
_handled_at_start: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def handled_exception() -> int:
    """The id of the exception that this thread handles; it is valid while it is handled."""
    return id(sys.exc_info()[1])


def unwinding_exception(before: int = id(None)) -> BaseException | None:
    """The exception that this thread handles, or that ended the program; None: no failure.

    ``before``: handled_exception() at a time from which on exceptions count. SystemExit stands for
    the exception that was handled when it was raised, and for no failure where its code is 0.
    """
    error = sys.exc_info()[1]
    if id(error) == before:
        error = None
    if error is None and not hasattr(sys, "ps1"):
        # Set before the interpreter ends by an exception. An interactive one continues after it.
        error = getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return None
        cause = error.__context__
        return error if cause is None or id(cause) == before else cause
    return None if isinstance(error, GeneratorExit) else error


def releasing_exception(before: int) -> BaseException | None:
    """The exception because of which an owner is released, for the function of at_end.

    Where its handler has ended, a RuntimeError that says where it was handled stands for it.
    """
    error = unwinding_exception(before)
    if error is not None:
        return error
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_CALLERS):
        frame = frame.f_back
    if frame is None or not _ends_handler(frame.f_code.co_code, frame.f_lasti):
        return None
    name = os.path.basename(frame.f_code.co_filename)
    return RuntimeError(
        f"an exception that {frame.f_code.co_name} handled ({name}:{frame.f_lineno}) left the code "
        "that had opened the world"
    )


_CALLERS = ("weakref", "shoal.", "deep_ep.", "multiprocessing.")
_POP_EXCEPT, _LOAD_CONST = opcode.opmap["POP_EXCEPT"], opcode.opmap["LOAD_CONST"]
_STORES = {code for name, code in opcode.opmap.items() if name.startswith("STORE_")}


def _ends_handler(code: bytes, at: int) -> bool:
    """Return true if the instruction at this offset drops the exception of an `except` block.

    It is POP_EXCEPT, or for `except ... as name` the None that is stored in the name after it.
    """
    if at < 0 or code[at] == _POP_EXCEPT:
        return at >= 0
    before = [one for one in code[max(0, at - 10) : at : 2] if one != opcode.EXTENDED_ARG]
    return code[at] in _STORES and before[-2:] == [_POP_EXCEPT, _LOAD_CONST]


def at_end(owner: Any, function: Callable[..., None], *arguments: Any) -> None:
    """Calls ``function`` once: when ``owner`` is released, at the latest when the process ends.

    A process of multiprocessing ends before the interpreter does, while the exception that ends it
    is still known.
    """
    end = weakref.finalize(owner, function, *arguments)
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, end, exitpriority=100)


def fail_world(world: Any, error: BaseException) -> None:
    """Makes the calls of the other PEs fail with ``error``; never raises."""
    with contextlib.suppress(Exception):
        if world.is_open:
            world.__exit__(type(error), error, None)


def watch_world(owner: Any, world: Any) -> None:
    """Fails ``world`` where an exception unwinds through ``owner``, another handle of it."""
    _handled_at_start[owner] = handled_exception()
    at_end(owner, _leave, world, handled_exception())


def unwinding_through(owner: Any) -> BaseException | None:
    """The exception while which ``owner`` is closed; None for worlds that are not watched."""
    before = _handled_at_start.get(owner)
    if before is None or sys.exc_info()[1] is None:
        return None
    return unwinding_exception(before)


def _leave(world: Any, before: int) -> None:
    error = releasing_exception(before)
    if error is not None:
        fail_world(world, error)
