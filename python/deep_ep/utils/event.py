# SPDX-License-Identifier: Apache-2.0
"""Events: points in a stream's work for which other streams can wait.

On CUDA an event marks work queued on a stream. Without CUDA the calls of this package have done their work when they
return, so events mark nothing and waits return at once, except for an event that stands for unfinished host work.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch

_NOTHING = nullcontext()


def profiled(name: str) -> AbstractContextManager[object]:
    """A range deep_ep::`name` in what a profiler records, for work without a kernel of the name that scripts look for.

    Nothing where no profiler is on, which costs 0.1 us.
    """
    if not torch.autograd.profiler._is_profiler_enabled:
        return _NOTHING
    return torch.profiler.record_function(f"deep_ep::{name}")


class EventHandle:
    """The work queued so far on the current CUDA stream (nothing where this process has not used CUDA).

    Copies mark the same work. `tensors_to_record` holds what must stay allocated while the handle lives.
    """

    __slots__ = ("_event", "_host_wait", "tensors_to_record")

    def __init__(self) -> None:
        self._event: torch.cuda.Event | None = None
        self._host_wait: Callable[[], object] | None = None
        self.tensors_to_record: tuple[Any, ...] = ()
        # Before torch has initialised CUDA nothing can be queued, and asking for a stream would initialise it.
        if torch.cuda.is_initialized():
            self._event = torch.cuda.current_stream().record_event()

    @classmethod
    def on_stream(cls, stream: "torch.cuda.Stream") -> "EventHandle":
        """The work queued so far on `stream`."""
        handle = cls.__new__(cls)
        handle._event, handle._host_wait, handle.tensors_to_record = stream.record_event(), None, ()
        return handle

    @classmethod
    def on_host(cls, wait: Callable[[], object]) -> "EventHandle":
        """Host work that is finished when `wait()` returns; `wait` may be called again, and raises what failed."""
        handle = cls.__new__(cls)
        handle._event, handle._host_wait, handle.tensors_to_record = None, wait, ()
        return handle

    @property
    def cuda_event(self) -> int | None:
        """The cudaEvent_t as an integer; None where there is no CUDA work to wait for."""
        return None if self._event is None else self._event.cuda_event

    def current_stream_wait(self) -> None:
        """Makes the current stream wait; the host waits only for host work."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)
        if self._host_wait is not None:
            self._host_wait()


class EventOverlap:
    """An event and what its user wants kept or done until it is waited for.

    As a context manager it waits at the end of the block, so that the block overlaps with the communication:

        with event_overlap:
            compute()

    `event` may be None (a call that was not asynchronous); the context manager then does nothing. `extra_tensors` live
    as long as this object.
    """

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[torch.Tensor, ...] | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors
        self.hook_after_wait: Callable[[], object] | None = None
        self._release_handle_by_call = False

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Makes the current stream wait for the event, then runs the registered hook once.

        `release_handle` drops the event (and the tensors it holds) afterwards. AssertionError where there is no event.
        """
        assert self.event is not None, "no event to wait for: the call was not asynchronous, or its handle was released"
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, hook: Callable[[], object]) -> None:
        """Runs `hook` once after the next wait. AssertionError where one is registered already."""
        assert self.hook_after_wait is None, "a hook is registered already and has not run"
        self.hook_after_wait = hook

    def __call__(self, release_handle: bool = False) -> "EventOverlap":
        """For `with event(release_handle=True):`, which drops the event at the end of the block."""
        self._release_handle_by_call = release_handle
        return self

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.event is not None:
            self.current_stream_wait(self._release_handle_by_call)
        self._release_handle_by_call = False
