# SPDX-License-Identifier: Apache-2.0
"""Gather sessions: each rank puts its tensors to the same offset of every rank's buffer.

A session allocates from the start of the buffer. A signal per call and source carries the number
of the session, so signals are never reset. A session starts when all ranks have ended the previous
one. On GPUs that reach each other, the comm stream puts, by one kernel or the copy engines, and the
current stream waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import shoal

from ...utils.math import align
from ...utils.semantic import native_assert, native_fail
from ..checks import describe
from ..groups import to_torch
from ..runtime import Runtime
from .streams import StreamCalls, refuse_capture, settle

_MOST_VIEWS = 256
_ONE_KERNEL = 128 << 10  # bytes that shoal puts to all ranks by one kernel


class GatherSessions:
    """The gather buffer of one rank, which its sessions share."""

    def __init__(self, runtime: Runtime, streams: StreamCalls | None):
        self._runtime, self._streams = runtime, streams
        self._bytes = self._calls = 0
        self._active = False

    def configure(self, max_bytes: int, max_calls: int) -> None:
        """Allocates the buffer and frees that of an earlier configuration. Collective."""
        native_assert(
            max_bytes > 0,
            f"agrs_set_config: num_max_session_bytes is {max_bytes}; at least 1 is allowed",
        )
        native_assert(
            1 <= max_calls <= 32,
            f"agrs_set_config: num_max_all_gathers_per_session is {max_calls}; allowed: 1 to 32",
        )
        native_assert(not self._active, "agrs_set_config: a session is active")
        world = self._runtime.world
        if self._bytes:
            settle(self._runtime)
            self._data.free()
            self._arrived.free()
        self._bytes, self._calls, self._session = max_bytes, max_calls, 0
        self._data = world.zeros((align(max_bytes, 32),), "uint8")
        self._arrived = world.zeros((max_calls * self._runtime.num_ranks,), "int64")
        self._local = to_torch(self._data.local)
        # Places by offset, shape and dtype: sessions repeat them, and a new view takes time.
        self._views: dict[tuple[int, torch.Size, torch.dtype], torch.Tensor] = {}

    def begin(self) -> None:
        native_assert(self._bytes > 0, "create_agrs_session: agrs_set_config has not been called")
        native_assert(not self._active, "create_agrs_session: a session is active")
        if self._streams is not None:
            refuse_capture(self._runtime, "create_agrs_session")
            self._streams.barrier(self._runtime.current_stream(), True)
        else:
            self._runtime.synchronize_stream()
            shoal.barrier(self._runtime.team)
        self._session += 1
        self._active, self._used, self._call = True, 0, 0

    def end(self) -> None:
        native_assert(self._active, "destroy_agrs_session: no session is active")
        self._active = False

    def inplace(self, shapes: Any, dtype: torch.dtype) -> torch.Tensor | tuple[torch.Tensor, ...]:
        single = isinstance(shapes, torch.Size) or not isinstance(shapes[0], Sequence)
        wanted = [torch.Size(shape) for shape in ([shapes] if single else shapes)]
        _, places, _ = self._places("agrs_get_inplace_tensor", [(shape, dtype) for shape in wanted])
        mine = tuple(place[self._runtime.rank] for place in places)
        return mine[0] if single else mine

    def all_gather(self, tensors: torch.Tensor | Sequence[torch.Tensor]) -> tuple[Any, ...]:
        call = "all_gather"
        parts = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        for part in parts:
            if not part.is_contiguous() or part.numel() == 0:
                native_fail(f"{call}: {describe(part)} is empty or not contiguous")
        starts, places, end = self._places(call, [(part.shape, part.dtype) for part in parts])
        if self._call >= self._calls:
            native_fail(
                f"{call}: call {self._call + 1} of a session; agrs_set_config allows {self._calls}"
            )
        slot, session = self._call, self._session
        if self._streams is not None:
            self._put_on_stream(self._streams, parts, starts, places, slot)
        else:
            self._put_on_host(parts, places, slot)
        self._used, self._call = end, self._call + 1
        if self._streams is not None:
            self._streams.check()
        return *places, self._waiter(slot, session)

    def _put_on_stream(
        self,
        streams: StreamCalls,
        parts: list[torch.Tensor],
        starts: list[int],
        places: list[torch.Tensor],
        slot: int,
    ) -> None:
        runtime = self._runtime
        refuse_capture(runtime, "all_gather")
        sizes = [part.numel() * part.itemsize for part in parts]
        # This rank's copy of many bytes overlaps with the transfers.
        apart = sum(sizes) > _ONE_KERNEL
        blocks = [
            (part.data_ptr(), start + runtime.rank * size, size, apart)
            for part, start, size in zip(parts, starts, sizes)
        ]
        streams.put_to_all(
            runtime.current_stream(),
            self._data,
            blocks,
            self._arrived,
            slot * runtime.num_ranks,
            self._session,
        )
        for part in parts:
            runtime.used_on_comm_stream(part)
        if not apart:
            return
        for part, place in zip(parts, places):
            mine = place[runtime.rank]
            if mine.data_ptr() != part.data_ptr():
                mine.copy_(part.detach())

    def _put_on_host(
        self, parts: list[torch.Tensor], places: list[torch.Tensor], slot: int
    ) -> None:
        runtime = self._runtime
        for part, place in zip(parts, places):
            mine = place[runtime.rank]
            if mine.data_ptr() != part.data_ptr():
                mine.copy_(part.detach())
        runtime.synchronize_stream()
        for step in range(1, runtime.num_ranks):
            peer = (runtime.rank + step) % runtime.num_ranks
            for place in places:
                source = place[runtime.rank].view(-1).view(torch.uint8)
                start = source.storage_offset()
                runtime.world.put(self._data.on(peer)[start : start + source.numel()], source)
            runtime.world.fence()
            runtime.world.signal(
                self._arrived.on(peer)[slot * runtime.num_ranks + runtime.rank], self._session
            )

    def _waiter(self, slot: int, session: int) -> Callable[[], None]:
        runtime = self._runtime

        def wait() -> None:
            if not self._active or self._session != session:
                native_fail("all_gather: call the handle before its session ends")
            if self._streams is not None:
                refuse_capture(runtime, "all_gather")
                self._streams.wait_for_all(
                    runtime.current_stream(), self._arrived, slot * runtime.num_ranks, session
                )
                self._streams.check()
                return
            for peer in range(runtime.num_ranks):
                if peer != runtime.rank:
                    runtime.world.wait_until(
                        self._arrived, ">=", session, index=slot * runtime.num_ranks + peer
                    )

        return wait

    def _places(
        self, call: str, parts: list[tuple[torch.Size, torch.dtype]]
    ) -> tuple[list[int], list[torch.Tensor], int]:
        """For each of ``parts`` the offset of its place in the buffer and the place, a tensor [R,
        *shape]; and the offset of their end."""
        if not self._active:
            native_fail(f"{call}: no session is active")
        starts, places, at = [], [], self._used
        for shape, dtype in parts:
            size = self._runtime.num_ranks * shape.numel() * dtype.itemsize
            if at + size > self._bytes:
                native_fail(
                    f"{call}: the session needs {at + size} bytes; "
                    f"agrs_set_config allows {self._bytes}"
                )
            place = self._views.get((at, shape, dtype))
            if place is None:
                place = self._local[at : at + size].view(dtype)
                place = place.view(self._runtime.num_ranks, *shape)
                if len(self._views) < _MOST_VIEWS and not place.is_inference():
                    self._views[at, shape, dtype] = place
            starts.append(at)
            places.append(place.detach())  # the caller's own object
            at += align(size, 32)
        return starts, places, at
