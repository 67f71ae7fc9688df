# SPDX-License-Identifier: Apache-2.0
"""State of every buffer: a World, its normal-mode groups, and the stream of its operations."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

import torch

import shoal
from shoal._unwinding import at_end, fail_world, handled_exception, releasing_exception

from ..utils.event import EventHandle, EventOverlap
from ..utils.streams import current_stream, switch_stream
from .checks import expect
from .groups import GroupPool

_GPUS_PER_NODE = 8  # DeepEP counts ranks in nodes of eight


def pick_device() -> torch.device:
    """The device of a buffer's tensors: SHOAL_HEAP decides, else whether torch sees a GPU."""
    heap = os.environ.get("SHOAL_HEAP") or ("cuda" if torch.cuda.is_available() else "host")
    return (
        torch.device("cuda", torch.cuda.current_device()) if heap == "cuda" else torch.device("cpu")
    )


def timeout_of_environment(default: float) -> float:
    """The limit of waits in seconds: SHOAL_TIMEOUT_MS, else ``default``."""
    try:
        return float(os.environ["SHOAL_TIMEOUT_MS"]) / 1000
    except (KeyError, ValueError):
        return default


def new_comm_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream of high priority."""
    return torch.cuda.Stream(device, priority=-1)


@functools.cache
def shared_comm_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that all elastic buffers of a GPU in this process share, as in DeepEP."""
    return new_comm_stream(device)


class Runtime:
    """A World over the ranks of a torch group or an mpi4py communicator. Collective.

    num_bytes: the size that the caller asked for. The heap reserves more address space than that,
    because groups are sized by what calls need; memory is taken when it is first used.
    SHOAL_SYMMETRIC_SIZE overrides the size of the heap.
    timeout: limit of a wait for another rank, in seconds; SHOAL_TIMEOUT_MS overrides it.
    share_stream: operations run on shared_comm_stream in place of a stream of this object.
    nvshmem: whether NVSHMEM_* variables count. DeepEP reads them only where it starts NVSHMEM.
    network: further settings, asked with whether the heap is in GPU memory.
    """

    def __init__(
        self,
        group: Any,
        comm: Any,
        num_bytes: int,
        timeout: float = 100.0,
        share_stream: bool = False,
        nvshmem: bool = False,
        network: Callable[[bool], dict[str, Any]] | None = None,
    ):
        self.device = pick_device()
        on_gpu = self.device.type == "cuda"
        settings: dict[str, Any] = {
            "heap": "cuda" if on_gpu else "host",
            "nvshmem_variables": nvshmem,
            "deep_ep_variables": True,
        }
        if network is not None:
            settings |= network(on_gpu)
        if self.device.type == "cuda":
            settings["device"] = self.device.index
        if "SHOAL_SYMMETRIC_SIZE" not in os.environ:
            settings["symmetric_size"] = (64 << 30) + 4 * num_bytes
        if "SHOAL_TIMEOUT_MS" not in os.environ:
            settings["timeout"] = float(timeout)
        self.timeout = timeout_of_environment(timeout)
        if group is not None:
            self.world = shoal.World.from_torch(group, settings)
        elif comm is not None:
            self.world = shoal.World.from_mpi4py(comm, settings)
        else:
            raise ValueError(
                "deep_ep: a buffer needs group= (torch.distributed) or comm= (mpi4py); got neither"
            )
        at_end(self, _end, self.world, handled_exception())
        self.team = self.world.team
        self.rank, self.num_ranks = self.world.my_pe, self.world.n_pes
        self.groups = GroupPool(self.team, self.device)
        self.preparation: Any = None  # a warmup.Preparation in progress
        self.comm_stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self.comm_stream = (shared_comm_stream if share_stream else new_comm_stream)(
                self.device
            )

    def await_preparation(self) -> None:
        """Waits for a warm-up in the background and raises its error; nothing in its thread."""
        preparation = self.preparation
        if preparation is not None and not preparation.is_here():
            self.preparation = None
            preparation.wait()

    def is_available(self) -> bool:
        """True if the world is open."""
        return self.world.is_open

    def get_num_rdma_ranks(self) -> int:
        """Number of nodes of eight ranks; 1 where eight does not divide the number of ranks."""
        return self.num_ranks // _GPUS_PER_NODE if self.num_ranks % _GPUS_PER_NODE == 0 else 1

    def get_rdma_rank(self) -> int:
        """Index of this rank's node."""
        return self.rank // _GPUS_PER_NODE if self.get_num_rdma_ranks() > 1 else 0

    def get_local_device_id(self) -> int:
        """Index of the GPU; -1 on the CPU."""
        return self.device.index if self.device.type == "cuda" else -1

    def current_stream(self) -> int | None:
        """The current stream as a number for shoal; None on the CPU."""
        if self.device.type != "cuda":
            return None
        # The function of torch's compiled code; torch.cuda.current_stream() is much slower.
        return torch._C._cuda_getCurrentRawStream(self.device.index) or 1  # 0 is no stream in shoal

    def comm_event(self) -> EventHandle:
        """The work queued so far on the comm stream."""
        return (
            EventHandle() if self.comm_stream is None else EventHandle.on_stream(self.comm_stream)
        )

    def used_on_comm_stream(self, tensor: torch.Tensor) -> None:
        """Keeps the memory of a tensor of the current stream until work that is queued on the comm
        stream has ended."""
        if self.comm_stream is not None:
            tensor.record_stream(self.comm_stream)

    def synchronize_stream(self) -> None:
        """Waits on the host for the current stream; nothing on the CPU."""
        if self.device.type == "cuda":
            current_stream().synchronize()

    def capturing(self) -> bool:
        """True if a CUDA graph captures the current stream; the host cannot exchange sizes then."""
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def operation(
        self,
        call: str,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Operation:
        """An operation on the comm stream; the arguments obey DeepEP's rule."""
        if allocate_on_comm_stream:
            expect(
                previous_event is not None and async_finish,
                f"{call}: allocate_on_comm_stream=True needs previous_event and async_finish=True",
            )
        return Operation(self, previous_event, async_finish)

    def close(self) -> None:
        """Closes the world. Collective. Tensors in its heap stay readable.

        While an exception unwinds, as in `finally`, the world fails with it: the other ranks would
        not come to close it.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.world.close()


def _end(world: shoal.World, before: int) -> None:
    """Closes the world of a buffer that was released without destroy(), at the latest at exit.

    Never raises. Where an exception releases the buffer or ends the program, it fails the world in
    place of closing it, so that the other ranks do not wait for this one.
    """
    failure = releasing_exception(before)
    if failure is not None:
        fail_world(world, failure)
    with contextlib.suppress(Exception):
        if failure is None and world.is_open:
            world.close()


class Operation:
    """A context whose work runs on the comm stream.

    The comm stream first waits for ``previous_event``, or for the current stream where there is no
    event. Unless ``asynchronous``, the current stream waits for the comm stream at the end. Work
    that has neither runs on the current stream, which gives the same order without events. On the
    CPU every call is complete when it returns, and events are always set.
    """

    def __init__(self, runtime: Runtime, previous_event: Any, asynchronous: bool):
        self._comm = runtime.comm_stream
        self._previous = getattr(previous_event, "event", previous_event)
        self._also: list[Any] = []
        self._asynchronous = asynchronous
        self._event: EventHandle | None = None

    def also_wait(self, event: Any) -> None:
        """Adds an event that the comm stream waits for first; None adds nothing."""
        if event is not None:
            self._also.append(getattr(event, "event", event))

    def __enter__(self) -> Operation:
        if self._comm is not None and not (
            self._asynchronous or self._also or self._previous is not None
        ):
            # The current stream would wait for the comm stream on both sides.
            self._comm = None
        elif self._comm is not None:
            self._switch(self._comm)
        return self

    def _switch(self, comm: torch.cuda.Stream) -> None:
        """Makes the comm stream current, behind what it waits for."""
        self._compute = current_stream()
        device = comm.device_index
        same = self._compute.device_index == device
        self._replaced = self._compute if same else current_stream(device)
        switch_stream(comm)
        try:
            if self._previous is None:
                comm.wait_stream(self._compute)
            else:
                self._previous.current_stream_wait()
            for event in self._also:
                event.current_stream_wait()
        except BaseException:
            self._switch_back()
            raise

    def _switch_back(self) -> None:
        if self._replaced is not self._compute:
            switch_stream(self._replaced)
        switch_stream(self._compute)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._asynchronous and kind is None:
            comm = self._comm
            self._event = EventHandle() if comm is None else EventHandle.on_stream(comm)
        if self._comm is not None:
            self._switch_back()
            if not self._asynchronous:
                self._compute.wait_stream(self._comm)

    def overlap(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> EventOverlap:
        """The event for the caller; records the streams that use the memory of the tensors, also of
        those in tuples; other values do not count."""
        if self._comm is not None:
            for tensors, stream in ((inputs, self._comm), (outputs, self._compute)):
                for one in tensors:
                    for tensor in one if type(one) is tuple else (one,):
                        if isinstance(tensor, torch.Tensor):
                            tensor.record_stream(stream)
        return EventOverlap(self._event)
