# SPDX-License-Identifier: Apache-2.0
"""Events: points in the work of a stream for which other streams can wait.

On CUDA an event marks work queued on a stream. On the CPU calls are complete when they return, so
an event marks nothing and waits return at once, except for an event of unfinished host work.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch

from .streams import current_stream

_NOTHING = nullcontext()

# Profiling programs look for these words in each call: parts of the name of a kernel or, where
# Shoal has no such kernel and on the CPU, of a range (profiled). They divide by the times found.
PROFILER_NAMES = {
    "Buffer.dispatch": ("dispatch_impl",),
    "Buffer.combine": ("combine_impl",),
    "Buffer.low_latency_dispatch": ("dispatch",),
    "Buffer.low_latency_combine": ("combine",),
    "ElasticBuffer.dispatch": ("dispatch_impl", "dispatch_copy_epilogue_impl"),
    "ElasticBuffer.combine": ("combine_impl", "combine_reduce_epilogue_impl"),
    "ElasticBuffer.barrier": ("barrier",),
    "ElasticBuffer.pp_send": ("send_impl",),
    "ElasticBuffer.pp_recv": ("recv_impl",),
    "ElasticBuffer.engram_fetch": ("engram_fetch_impl", "engram_fetch_wait_impl"),
}


def profiling() -> bool:
    """Return true if a profiler of torch runs."""
    return torch.autograd.profiler._is_profiler_enabled


def profiled(name: str) -> AbstractContextManager[object]:
    """A profiler range deep_ep::`name`, for work without a kernel of a name in PROFILER_NAMES.

    Has no effect without a profiler; costs 0.1 us then.
    """
    if not profiling():
        return _NOTHING
    return torch.profiler.record_function(f"deep_ep::{name}")


class EventHandle:
    """The work queued so far on the current CUDA stream; nothing before the first use of CUDA.

    Copies mark the same work. `tensors_to_record` keeps tensors allocated while the handle lives.
    """

    __slots__ = ("_event", "_host_wait", "tensors_to_record")

    def __init__(self) -> None:
        self._event: torch.cuda.Event | None = None
        self._host_wait: Callable[[], object] | None = None
        self.tensors_to_record: tuple[Any, ...] = ()
        # Nothing is queued before torch initialises CUDA, and current_stream() would initialise it.
        if torch.cuda.is_initialized():
            self._event = current_stream().record_event()

    @classmethod
    def on_stream(cls, stream: "torch.cuda.Stream") -> "EventHandle":
        """The work queued so far on `stream`."""
        handle = cls.__new__(cls)
        handle._event, handle._host_wait, handle.tensors_to_record = stream.record_event(), None, ()
        return handle

    @classmethod
    def on_host(cls, wait: Callable[[], object]) -> "EventHandle":
        """Host work that is complete when `wait()` returns.

        `wait` may be called again, and raises the error of the work.
        """
        handle = cls.__new__(cls)
        handle._event, handle._host_wait, handle.tensors_to_record = None, wait, ()
        return handle

    @property
    def cuda_event(self) -> int | None:
        """The cudaEvent_t as an integer; None without CUDA work."""
        return None if self._event is None else self._event.cuda_event

    def current_stream_wait(self) -> None:
        """Makes the current stream wait; the host waits only for host work."""
        if self._event is not None:
            current_stream().wait_event(self._event)
        if self._host_wait is not None:
            self._host_wait()


class EventOverlap:
    """An event, with tensors to keep and a hook to run when it is waited for.

    As a context manager it waits at the end of the block, so the block overlaps with communication:

        with event_overlap:
            compute()

    `event` is None for a call that was not asynchronous; the context manager has no effect then.
    `extra_tensors` live as long as this object.
    """

    def __init__(
        self,
        event: EventHandle | None = None,
        extra_tensors: tuple[torch.Tensor, ...] | None = None,
    ) -> None:
        self.event = event
        self.extra_tensors = extra_tensors
        self.hook_after_wait: Callable[[], object] | None = None
        self._release_handle_by_call = False

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Makes the current stream wait for the event, then runs the registered hook once.

        `release_handle` then drops the event and its tensors. Raises AssertionError without an
        event.
        """
        assert self.event is not None, (
            "no event to wait for: the call was not asynchronous, or its handle was released"
        )
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], object]) -> None:
        """Runs `hook` once after the next wait. Raises AssertionError where a hook is
        registered."""
        assert self.hook_after_wait is None, "a hook is registered already and has not run"
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> "EventOverlap":
        """For `with event(release_handle=True):`, which drops the event at the end of the block."""
        self._release_handle_by_call = release_handle
        return self

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        if self.event is not None:
            self.current_stream_wait(self._release_handle_by_call)
        self._release_handle_by_call = False
