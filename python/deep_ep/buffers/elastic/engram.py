# SPDX-License-Identifier: Apache-2.0
"""Engram storage: a table distributed over the ranks. On GPUs that reach each other one kernel
fetches entries on the comm stream; elsewhere the host gets them one by one."""

from __future__ import annotations

import struct
from collections.abc import Callable

import torch

import shoal
from shoal._allocation import empty_strided

from ...utils.math import align
from ...utils.semantic import native_assert, native_fail
from ..checks import describe
from ..groups import to_torch
from ..runtime import Runtime
from .layout import column_major
from .streams import StreamCalls, settle

Fetched = tuple[torch.Tensor, torch.Tensor | None]

_COUNT = struct.Struct("<2q")


class Engram:
    """The entries of all ranks, n on each; entry i of rank r has number r * n + i."""

    def __init__(self, runtime: Runtime, streams: StreamCalls | None):
        self._runtime, self._streams = runtime, streams
        self._empty_strided = empty_strided(runtime.device)
        self._bytes = 0

    def write(self, storage: torch.Tensor, sf: torch.Tensor | None) -> None:
        call, runtime = "engram_write", self._runtime
        native_assert(
            storage.dim() == 2
            and storage.is_contiguous()
            and storage.dtype in (torch.bfloat16, torch.float8_e4m3fn),
            f"{call}: storage is {describe(storage)}; "
            "allowed: contiguous bfloat16 or float8_e4m3fn [n, H]",
        )
        entries, hidden = storage.shape
        total = runtime.num_ranks * entries
        native_assert(
            (sf is not None) == (storage.dtype == torch.float8_e4m3fn),
            f"{call}: sf is required with float8 entries and not allowed with others",
        )
        native_assert(
            sf is None
            or (
                sf.dim() == 2
                and sf.shape[0] == total
                and sf.element_size() == 4
                and sf.is_contiguous()
            ),
            f"{call}: sf is {describe(sf)}; "
            f"allowed: contiguous elements of four bytes [{total}, *]",
        )
        size = storage.numel() * storage.element_size()
        # On the host, the exchange also orders this write after the fetches of all ranks.
        for rank, block in enumerate(runtime.team.exchange(_COUNT.pack(entries, size))):
            other = _COUNT.unpack(block)
            native_assert(
                other == (entries, size),
                f"{call}: rank {rank} has {other[0]} entries in {other[1]} bytes, this one "
                f"{entries} in {size}",
            )
        streams = self._streams
        if streams is not None:
            streams.barrier(runtime.current_stream(), True)  # likewise
        if self._bytes != size:
            if self._bytes:
                settle(runtime)
                self._data.free()
            self._data = runtime.world.zeros((size,), "uint8")
            self._bytes = size
        to_torch(self._data.local).copy_(storage.detach().view(-1).view(torch.uint8))
        self._entries, self._hidden, self._dtype, self._sf = entries, hidden, storage.dtype, sf
        if streams is not None:
            streams.barrier(runtime.current_stream(), True)
        else:
            runtime.synchronize_stream()
            shoal.barrier(runtime.team)

    def fetch(self, indices: torch.Tensor, columns_first: bool) -> Callable[[], Fetched]:
        call, runtime = "engram_fetch", self._runtime
        if self._bytes == 0:
            native_fail(f"{call}: engram_write has not been called")
        if indices.dim() != 2 or indices.dtype != torch.int32:
            native_fail(f"{call}: indices are {describe(indices)}; allowed: int32 [T, n]")
        if self._streams is not None:
            return self._fetch_on_stream(self._streams, indices, columns_first)
        wanted, total = indices.flatten().tolist(), self._entries * runtime.num_ranks
        native_assert(
            not wanted or (min(wanted) >= 0 and max(wanted) < total),
            f"{call}: an index is out of 0 to {total - 1}",
        )
        entry = self._hidden * self._dtype.itemsize
        data = torch.empty(len(wanted) * entry, dtype=torch.uint8, device=runtime.device)
        for first, count, number in _runs(wanted, self._entries):
            owner, local = divmod(number, self._entries)
            remote = self._data.on(owner)[local * entry : (local + count) * entry]
            runtime.world.get_nbi(data[first * entry : (first + count) * entry], remote)
        scales = None if self._sf is None else self._sf[indices.long()].flatten(1)
        if scales is not None and columns_first:
            scales = column_major(scales)

        def wait() -> Fetched:
            runtime.world.quiet()
            return data.view(self._dtype).view(
                indices.shape[0], indices.shape[1] * self._hidden
            ), scales

        return wait

    def _fetch_on_stream(
        self, streams: StreamCalls, indices: torch.Tensor, columns_first: bool
    ) -> Callable[[], Fetched]:
        """The kernel checks the indices: a later call raises for one that is out of range."""
        runtime, sf, device = self._runtime, self._sf, self._runtime.device
        streams.check()
        indices = indices.to(device).contiguous()
        rows, per_row = indices.shape
        words = 0 if sf is None else sf.shape[1]
        data = self._empty((rows, per_row * self._hidden), self._dtype)
        scales, storage, row_stride, step = None, None, per_row * words, 1
        if sf is not None and columns_first:
            row_stride, step = 1, align(rows, 4)
            storage = self._empty((per_row * words, step), sf.dtype)
            if step != rows:
                storage.zero_()  # below the last row
            scales = storage.t()[:rows]
        elif sf is not None:
            scales = storage = self._empty((rows, per_row * words), sf.dtype)
        streams.fetch_entries(
            runtime.current_stream(),
            self._data,
            self._hidden * self._dtype.itemsize,
            self._entries,
            indices.data_ptr(),
            rows * per_row,
            max(per_row, 1),
            data.data_ptr(),
            0 if sf is None else sf.data_ptr(),
            words,
            0 if storage is None else storage.data_ptr(),
            row_stride,
            step,
        )
        event = runtime.comm_event()
        for tensor in (indices, data) if sf is None else (indices, data, sf, storage):
            runtime.used_on_comm_stream(tensor)

        def wait() -> Fetched:
            event.current_stream_wait()
            return data, scales

        return wait

    def _empty(self, extents: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        return self._empty_strided(extents, (extents[1], 1), dtype)


def _runs(numbers: list[int], per_owner: int) -> list[tuple[int, int, int]]:
    """Merges consecutive entries of one owner: (position in ``numbers``, count, first number)."""
    runs: list[tuple[int, int, int]] = []
    for position, number in enumerate(numbers):
        if runs:
            first, count, start = runs[-1]
            if number == start + count and number % per_owner != 0:
                runs[-1] = (first, count + 1, start)
                continue
        runs.append((position, 1, number))
    return runs
