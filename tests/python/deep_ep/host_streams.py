# SPDX-License-Identifier: Apache-2.0
"""The interface of shoal._core.StreamCalls with calls that run at once on the host, so that the
stream forms of ElasticBuffer's calls are tested without a GPU."""

import ctypes
from unittest import mock

import torch

import shoal
from deep_ep.buffers.elastic import buffer


class HostStreams:
    """Counts its calls by name in ``calls``."""

    def __init__(self, runtime):
        self._world, self._team = runtime.world, runtime.team
        self.calls = {}

    def _count(self, name):
        self.calls[name] = self.calls.get(name, 0) + 1

    def check(self):
        self._count("check")

    def barrier(self, stream, behind_other):
        self._count("barrier")
        shoal.barrier(self._team)

    def _signal(self, flags, flag, pe, value):
        self._world.signal(flags.on(pe)[flag], value)

    def put_when(
        self, stream, ready, index, at_least, pe, target, offset, source, size, flags, flag, value
    ):
        self._count("put_when")
        if ready is not None:
            self._world.wait_until(ready, ">=", at_least, index=index)
        self._world.put(target.on(pe)[offset : offset + size], at(source, size))
        self._world.fence()
        self._signal(flags, flag, pe, value)

    def take_when(
        self, stream, ready, index, at_least, target, source, offset, size, pe, flags, flag, value
    ):
        self._count("take_when")
        self._world.wait_until(ready, ">=", at_least, index=index)
        at(target, size).copy_(torch.from_dlpack(source.local)[offset : offset + size])
        self._signal(flags, flag, pe, value)

    def put_to_all(self, stream, places, blocks, flags, first, value):
        self._count("put_to_all")
        for pe in range(self._world.n_pes):
            for source, offset, size, others_only in blocks:
                there = torch.from_dlpack(places.local).data_ptr() + offset == source
                if pe != self._world.my_pe or not (there or others_only):
                    self._world.put(places.on(pe)[offset : offset + size], at(source, size))
            self._world.fence()
            self._signal(flags, first + self._world.my_pe, pe, value)

    def wait_for_all(self, stream, flags, first, value):
        self._count("wait_for_all")
        for pe in range(self._world.n_pes):
            self._world.wait_until(flags, ">=", value, index=first + pe)

    def fetch_entries(
        self,
        stream,
        part,
        entry_bytes,
        entries_per_pe,
        indices,
        count,
        per_row,
        target,
        words_table,
        words,
        words_target,
        row_stride,
        step,
    ):
        self._count("fetch_entries")
        if count == 0:
            return
        chosen = at(indices, 4 * count).view(torch.int32).tolist()
        for i, index in enumerate(chosen):
            pe, number = divmod(index, entries_per_pe)
            self._world.get(
                at(target + i * entry_bytes, entry_bytes),
                part.on(pe)[number * entry_bytes : (number + 1) * entry_bytes],
            )
            row, column = divmod(i, per_row)
            for w in range(words):
                to = row * row_stride + (column * words + w) * step
                ctypes.memmove(words_target + 4 * to, words_table + 4 * (index * words + w), 4)


def at(address, size):
    """The bytes at an address, as a tensor."""
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


def on_streams():
    """A context in which new buffers have HostStreams."""
    return mock.patch.object(buffer, "stream_calls", HostStreams)
