# SPDX-License-Identifier: Apache-2.0
"""The ``shoal.ep`` groups behind normal-mode calls.

A buffer learns hidden size, top-k and the number of experts from its calls, so groups are created
when a call needs them.
"""

from __future__ import annotations

import struct
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

import shoal
import shoal.ep
from shoal._allocation import capture_query, empty_strided
from shoal._core.ep import CallReceived, NormalCalls

from ..utils.envs import is_set
from ..utils.event import profiled


class GroupShape(NamedTuple):
    """The options that are fixed for the life of a group."""

    hidden: int
    top_k: int
    experts: int


# The result of a dispatch. Only ``x`` may lie in the symmetric heap; its memory returns to the heap
# when the tensor is released.
Received = CallReceived


def to_torch(array: Any) -> torch.Tensor | None:
    """A shoal.Array as a tensor over the same memory."""
    return None if array is None else torch.from_dlpack(array)


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its gradient, which DLPack cannot export."""
    return tensor.detach() if tensor.requires_grad else tensor


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """The tensor to pass to shoal: float8 as bytes, because older DLPack has no float8."""
    x = detached(x)
    return x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x


class DispatchTerms(NamedTuple):
    """What a dispatch sends besides its rows, and how. ``stream``: cudaStream_t, 0 on the CPU."""

    weights: torch.Tensor | None = None
    scales: torch.Tensor | None = None
    alignment: int = 1
    worst_rows: int = 0
    all_weights: bool = False
    captured: bool = False  # by a CUDA graph
    stream: int = 0
    sms: int = 0


class NormalGroup:
    """A ``shoal.ep.Group`` in normal mode that counts the results which callers hold.

    A result stays in the heap while there is room for one more after it; later results are copied
    to torch's memory. A caller can therefore hold any number of results. Results of captured
    dispatches are always copied, because the room in the heap is that of one of them for all
    graphs. On GPUs all other tensors lie in torch's memory, whose allocator tracks streams and
    graphs. With EP_COPY_RECEIVED set, no result stays in the heap.
    """

    # Results that may stay in the heap. On the host they take address space, on GPUs memory.
    LIVE_RESULTS = {"cpu": 7, "cuda": 1}

    def __init__(
        self, team: Any, shape: GroupShape, max_tokens: int, max_scales: int, device: torch.device
    ):
        self.shape = shape
        self.max_tokens = max_tokens
        self.max_scales = max_scales
        self._stay = 0 if is_set("EP_COPY_RECEIVED") else self.LIVE_RESULTS[device.type]
        self._on_gpu = device.type == "cuda"
        self._empty = empty_strided(device)
        self.group = shoal.ep.Group(
            team,
            **shape._asdict(),
            max_tokens=max_tokens,
            max_scales=max_scales,
            live_results=self._stay + 1,
        )
        self.calls = NormalCalls(
            self.group,
            torch.Tensor,
            self._empty,
            (torch.bool, torch.int32, torch.int64, torch.float32),
            capture_query() if self._on_gpu else None,
        )
        self.calls.set_most_held(self._stay)

    def empty(self, extents: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised contiguous tensor of one or two dimensions."""
        return self._empty(extents, (1,) if len(extents) == 1 else (extents[1], 1), dtype)

    def route(self, topk_idx: torch.Tensor, stream: int) -> Any:
        """A routing."""
        return self.calls.route(topk_idx, stream)

    def dispatch(self, x: torch.Tensor, layout: Any, terms: DispatchTerms) -> Received:
        """Sends rows along a routing, or a handle of an earlier dispatch, which gives x and scales
        only."""
        stays = not terms.captured and self.calls.held < self._stay
        # On GPUs the kernels have the names that profilers look for.
        with nullcontext() if self._on_gpu else profiled("dispatch_impl"):
            received = self.calls.dispatch(
                as_rows(x),
                layout,
                terms.weights,
                terms.scales,
                terms.alignment,
                terms.worst_rows,
                terms.all_weights,
                stays,
                False,
                terms.stream,
                terms.sms,
            )
        if received.x.dtype != x.dtype:
            received.x = received.x.view(x.dtype)
        return received

    def combine(
        self,
        y: torch.Tensor,
        handle: Any,
        weights: torch.Tensor | None,
        biases: tuple[torch.Tensor, ...],
        stream: int,
        sms: int,
        topk_idx: torch.Tensor | None = None,
        topk_rows: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The sums of the expert output, and of weights where given. topk_idx, topk_rows: as in
        shoal."""
        if weights is not None:
            weights = detached(weights)
        with nullcontext() if self._on_gpu else profiled("combine_impl"):
            return self.calls.combine(
                detached(y), handle, weights, topk_idx, topk_rows, biases, stream, sms
            )


class GroupPool:
    """The normal-mode groups of one team, by shape.

    Ranks call with different numbers of tokens. Before a dispatch they agree on the largest number
    (``agree``) and replace a group that is too small by one with room for the next power of two.
    A replaced group stays for the handles that it issued; together, replaced groups take less
    memory than the current one.
    """

    _RECORD = struct.Struct("<5q")

    def __init__(self, team: Any, device: torch.device):
        self._team = team
        self._device = device
        self._groups: dict[GroupShape, NormalGroup] = {}
        self._replaced: list[NormalGroup] = []

    def agree(self, shape: GroupShape, tokens: int, scales: int) -> tuple[int, int]:
        """The largest ``tokens`` and ``scales`` of all ranks. Collective.

        Raises RuntimeError on all ranks when they differ in ``shape``.
        """
        blocks = self._team.exchange(self._RECORD.pack(*shape, tokens, scales))
        records = [self._RECORD.unpack(block) for block in blocks]
        for rank, record in enumerate(records):
            if record[:3] != records[0][:3]:
                names = [
                    f"hidden {r[0]}, top-k {r[1]}, {r[2]} experts" for r in (records[0], record)
                ]
                raise RuntimeError(
                    f"deep_ep: ranks differ in what they pass: rank 0 {names[0]}; "
                    f"rank {rank} {names[1]}"
                )
        return max(record[3] for record in records), max(record[4] for record in records)

    def get(self, shape: GroupShape, tokens: int, scales: int) -> NormalGroup:
        """A group with room for ``tokens`` and ``scales``, which are the same on all ranks.

        Collective when it creates the group.
        """
        shape = GroupShape(*shape)
        group = self._groups.get(shape)
        if group is not None and group.max_tokens >= tokens and group.max_scales >= scales:
            return group
        if group is not None:
            group.calls.retire()
            self._replaced.append(group)
            tokens, scales = max(tokens, group.max_tokens), max(scales, group.max_scales)
        nominal = -(-shape.hidden // 128)
        group = NormalGroup(
            self._team, shape, power_of_two(tokens), max(scales, nominal), self._device
        )
        self._groups[shape] = group
        return group

    def add(self, group: NormalGroup) -> None:
        """Makes a group the current one of its shape, for which there is none."""
        self._groups[group.shape] = group

    def clear(self) -> None:
        """Forgets all groups, without closing them."""
        self._groups.clear()
        self._replaced.clear()

    def existing(self, shape: GroupShape) -> NormalGroup | None:
        """The current group of ``shape``, or None; local."""
        return self._groups.get(shape)

    def __iter__(self):
        return iter([*self._groups.values(), *self._replaced])


def power_of_two(tokens: int) -> int:
    """``tokens`` rounded up to a power of two, at least 16."""
    return 1 << (max(tokens, 16) - 1).bit_length()
