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
from shoal._core.ep import CallRouting, NormalCalls

from ..utils.envs import is_set
from ..utils.event import profiled
from .allocation import empty_strided


class GroupShape(NamedTuple):
    """The options that are fixed for the life of a group."""

    hidden: int
    top_k: int
    experts: int


class Received(NamedTuple):
    """The tensors of one dispatch. Only ``x`` may lie in the symmetric heap; its memory returns to
    the heap when the tensor is released.

    source_ends: int32 [R], rows from ranks 0 to i. expert_counts, expert_ends: int32 [E / R],
    tokens of each local expert, and sums of the aligned counts. A cached dispatch has x and scales
    only.
    """

    x: torch.Tensor
    scales: torch.Tensor | None
    topk_idx: torch.Tensor | None
    topk_weights: torch.Tensor | None
    source_token: torch.Tensor | None
    source_ends: torch.Tensor | None
    expert_counts: torch.Tensor | None
    expert_ends: torch.Tensor | None
    tokens_per_expert: list[int]  # aligned; [] where no size reaches the host
    handle: Any

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        return self[:8]


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
    to torch's memory. A caller can therefore hold any number of results. On GPUs all other tensors
    lie in torch's memory, whose allocator tracks streams and graphs. With EP_COPY_RECEIVED set, no
    result stays in the heap.
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
        self._captured: list[Any] = []
        self._on_gpu = device.type == "cuda"
        self._empty = empty_strided(device)
        self.group = shoal.ep.Group(
            team,
            **shape._asdict(),
            max_tokens=max_tokens,
            max_scales=max_scales,
            live_results=self._stay + 1,
        )
        self._ranks, self._local_experts = team.size, shape.experts // team.size
        self._calls = NormalCalls(self.group, torch.Tensor)

    def keep_captured(self, created: Any) -> None:
        """Keeps what a captured dispatch of ``group`` writes to."""
        self._captured.append(created)

    def empty(self, extents: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised contiguous tensor of one or two dimensions."""
        return self._empty(extents, (1,) if len(extents) == 1 else (extents[1], 1), dtype)

    def route(
        self,
        topk_idx: torch.Tensor,
        stream: int,
        in_rank: torch.Tensor | None = None,
        per_rank: torch.Tensor | None = None,
        per_expert: torch.Tensor | None = None,
    ) -> Any:
        """A routing; fills the tensors that are given."""
        return self._calls.route(topk_idx, in_rank, per_rank, per_expert, stream)

    def dispatch(self, x: torch.Tensor, layout: Any, terms: DispatchTerms) -> Received:
        """Sends rows along a routing, or a handle of an earlier dispatch."""
        is_new = isinstance(layout, CallRouting)
        stays = not (terms.captured or self._captured) and self._calls.held < self._stay
        # On GPUs the kernels have the names that profilers look for.
        with nullcontext() if self._on_gpu else profiled("dispatch_impl"):
            result = self._calls.dispatch(
                as_rows(x),
                layout,
                terms.weights,
                terms.scales,
                terms.alignment,
                terms.worst_rows,
                terms.all_weights,
                terms.stream,
                terms.sms,
            )
        if terms.captured:
            # Every replay writes to their places in the heap.
            self._captured += (layout, result.handle)
        rows = result.take_x()
        if not isinstance(rows, torch.Tensor):
            rows = torch.from_dlpack(rows)
        if rows.dtype != x.dtype:
            rows = rows.view(x.dtype)
        return self._unpack(result, rows if stays else rows.clone(), terms, is_new)

    def _unpack(self, result: Any, x: torch.Tensor, terms: DispatchTerms, is_new: bool) -> Received:
        rows, top_k, empty = x.shape[0], self.shape.top_k, self._empty
        scales = weights = idx = source = source_ends = counts = expert_ends = None
        if terms.scales is not None:
            count = terms.scales.shape[1]
            scales = empty((rows, count), (count, 1), terms.scales.dtype)
        if terms.weights is not None:
            weights = empty((rows, top_k), (top_k, 1), torch.float32)
        if not is_new:
            if scales is not None or weights is not None:
                self._calls.unpack(result, scales, None, weights, None, None, None, None)
            return Received(x, scales, None, weights, None, None, None, None, [], result.handle)
        idx = empty((rows, top_k), (top_k, 1), torch.int64)
        source = empty((rows,), (1,), torch.int32)
        if self._on_gpu:
            source_ends = empty((self._ranks,), (1,), torch.int32)
            counts = empty((self._local_experts,), (1,), torch.int32)
            expert_ends = empty((self._local_experts,), (1,), torch.int32)
        self._calls.unpack(result, scales, idx, weights, source, counts, expert_ends, source_ends)
        if not self._on_gpu:
            source_ends, counts, expert_ends = self._count(result, idx, terms.alignment)
        tokens_per_expert = [] if terms.worst_rows else result.tokens_per_expert
        return Received(
            x,
            scales,
            idx,
            weights,
            source,
            source_ends,
            counts,
            expert_ends,
            tokens_per_expert,
            result.handle,
        )

    def _count(
        self, result: Any, idx: torch.Tensor, alignment: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """source_ends, expert_counts and expert_ends on the CPU."""
        source_ends = torch.tensor(result.rows_per_source, dtype=torch.int32)
        counts = torch.bincount(idx[idx >= 0], minlength=self._local_experts).int()
        aligned = (counts + (alignment - 1)) // alignment * alignment
        return (
            source_ends.cumsum(0, dtype=torch.int32),
            counts,
            aligned.cumsum(0, dtype=torch.int32),
        )

    def combine(
        self,
        y: torch.Tensor,
        handle: Any,
        tokens: int,
        weights: torch.Tensor | None,
        biases: tuple[torch.Tensor, ...],
        stream: int,
        sms: int,
        topk_idx: torch.Tensor | None = None,
        topk_rows: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The sums of the expert output, and of weights where given; ``tokens`` is what the
        dispatch sent. topk_idx, topk_rows: as in shoal."""
        hidden, top_k = self.shape.hidden, self.shape.top_k
        out = self._empty((tokens, hidden), (hidden, 1), y.dtype)
        out_weights = None
        if weights is not None:
            out_weights = self._empty((tokens, top_k), (top_k, 1), torch.float32)
            weights = detached(weights)
        with nullcontext() if self._on_gpu else profiled("combine_impl"):
            self._calls.combine(
                detached(y),
                handle,
                weights,
                topk_idx,
                topk_rows,
                biases,
                out,
                out_weights,
                stream,
                sms,
            )
        return out, out_weights


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
        group = self._groups.get(shape)
        if group is not None and group.max_tokens >= tokens and group.max_scales >= scales:
            return group
        if group is not None:
            self._replaced.append(group)
            tokens, scales = max(tokens, group.max_tokens), max(scales, group.max_scales)
        nominal = -(-shape.hidden // 128)
        group = NormalGroup(
            self._team, shape, _power_of_two(tokens), max(scales, nominal), self._device
        )
        self._groups[shape] = group
        return group

    def existing(self, shape: GroupShape) -> NormalGroup | None:
        """The current group of ``shape``, or None; local."""
        return self._groups.get(shape)

    def for_routing(self, experts: int, top_k: int, tokens: int) -> NormalGroup | None:
        """The current group that was created last for these experts and top-k and has room for
        ``tokens``, whatever its hidden size; None where there is none. Local."""
        for shape, group in reversed(self._groups.items()):
            if shape.experts == experts and shape.top_k == top_k:
                return group if group.max_tokens >= tokens else None
        return None

    def __iter__(self):
        return iter([*self._groups.values(), *self._replaced])


def _power_of_two(tokens: int) -> int:
    """``tokens`` rounded up to a power of two, at least 16."""
    return 1 << (max(tokens, 16) - 1).bit_length()
