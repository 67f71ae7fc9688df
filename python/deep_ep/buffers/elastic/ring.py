# SPDX-License-Identifier: Apache-2.0
"""``pp_send`` and ``pp_recv``: tensors between neighbours of a ring, through slots in the heap.

Each link has slots at its receiver. A sender takes them in turn and waits until the receiver has
freed the next one. Both sides count, so signals carry increasing numbers and are never reset. On
GPUs that reach each other, the current stream waits, copies and signals, and the host continues.
"""

from __future__ import annotations

import torch

from ...utils.math import align
from ...utils.semantic import native_assert, native_fail
from ..checks import describe
from ..groups import to_torch
from ..runtime import Runtime
from .streams import StreamCalls, refuse_capture, settle


class Ring:
    """The two links of a rank: 0 to the next rank, 1 to the previous rank."""

    def __init__(self, runtime: Runtime, streams: StreamCalls | None):
        self._runtime, self._streams = runtime, streams
        self._slots = 0

    def configure(self, max_bytes: int, slots: int) -> None:
        """Allocates the slots and frees those of an earlier configuration. Collective."""
        native_assert(
            max_bytes > 0,
            f"pp_set_config: num_max_tensor_bytes is {max_bytes}; at least 1 is allowed",
        )
        native_assert(
            slots > 0, f"pp_set_config: num_max_inflight_tensors is {slots}; at least 1 is allowed"
        )
        world = self._runtime.world
        if self._slots:
            settle(self._runtime)
            for array in (self._data, self._arrived, self._freed):
                array.free()
        self._max_bytes, self._stride, self._slots = max_bytes, align(max_bytes, 32), slots
        self._data = world.zeros((2 * slots * self._stride,), "uint8")
        self._arrived, self._freed = world.zeros((2,), "int64"), world.zeros((2,), "int64")
        self._local = to_torch(self._data.local)
        self._sent, self._received = [0, 0], [0, 0]

    def send(self, tensor: torch.Tensor, to: int) -> None:
        link = self._link("pp_send", tensor, to, towards_next=True)
        world, number = self._runtime.world, self._sent[link]
        if self._streams is not None:
            refuse_capture(self._runtime, "pp_send")
            self._streams.put_when(
                self._runtime.current_stream(),
                self._freed if number >= self._slots else None,
                link,
                max(number + 1 - self._slots, 0),
                to,
                self._data,
                self._start(link, number),
                tensor.data_ptr(),
                tensor.numel() * tensor.element_size(),
                self._arrived,
                link,
                number + 1,
            )
            self._sent[link] += 1
            self._streams.check()
            return
        if number >= self._slots:
            world.wait_until(self._freed, ">=", number + 1 - self._slots, index=link)
        self._runtime.synchronize_stream()
        source = tensor.detach().reshape(-1).view(torch.uint8)
        start = self._start(link, number)
        target = self._data.on(to)[start : start + source.numel()]
        world.put_signal(target, source, self._arrived.on(to)[link], number + 1)
        self._sent[link] += 1

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        link = self._link("pp_recv", tensor, source, towards_next=False)
        world, number = self._runtime.world, self._received[link]
        if self._streams is not None:
            refuse_capture(self._runtime, "pp_recv")
            self._streams.take_when(
                self._runtime.current_stream(),
                self._arrived,
                link,
                number + 1,
                tensor.data_ptr(),
                self._data,
                self._start(link, number),
                tensor.numel() * tensor.element_size(),
                source,
                self._freed,
                link,
                number + 1,
            )
            self._received[link] += 1
            self._streams.check()
            return
        world.wait_until(self._arrived, ">=", number + 1, index=link)
        target = tensor.detach().view(-1).view(torch.uint8)
        start = self._start(link, number)
        target.copy_(self._local[start : start + target.numel()])
        self._runtime.synchronize_stream()
        world.signal(self._freed.on(source)[link], number + 1)
        self._received[link] += 1

    def _start(self, link: int, number: int) -> int:
        return (link * self._slots + number % self._slots) * self._stride

    def _link(self, call: str, tensor: torch.Tensor, peer: int, *, towards_next: bool) -> int:
        """Checks the arguments; returns the link of the transfer, in the direction of its sender.

        With two ranks both neighbours are the next one.
        """
        if self._slots == 0:
            native_fail(f"{call}: pp_set_config has not been called")
        rank, ranks = self._runtime.rank, self._runtime.num_ranks
        step = 1 if towards_next else -1
        neighbours = [(rank + step) % ranks, (rank - step) % ranks]
        if peer not in neighbours:
            native_fail(f"{call}: rank {peer}; allowed: the neighbours {neighbours} of {rank}")
        size = tensor.numel() * tensor.element_size()
        if not tensor.is_contiguous() or not 0 < size <= self._max_bytes:
            native_fail(
                f"{call}: {describe(tensor)}, {size} bytes; "
                f"allowed: contiguous tensors of up to {self._max_bytes}"
            )
        return neighbours.index(peer)
