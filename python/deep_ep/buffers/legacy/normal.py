# SPDX-License-Identifier: Apache-2.0
"""``NormalMode``: the part of ``Buffer`` behind dispatch and combine in normal mode."""

from __future__ import annotations

import struct
from typing import Any

import torch

from ...config import topk_idx_t
from ...utils.semantic import native_assert
from ..checks import describe, expect, require_alignment, require_rows, require_tensor
from ..groups import DispatchTerms, GroupShape, NormalGroup, Received, detached
from ..runtime import Runtime
from .handles import NormalHandle
from .layout import Layout, check_experts, count_tokens, ranks_as_experts, route_layout

_EXCHANGE_BYTES = 512  # the most that Team.exchange takes

# (num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert)
CallerLayout = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
# (received, recv_topk_idx, recv_topk_weights, tokens per local expert, handle)
NewDispatch = tuple[Received, torch.Tensor | None, torch.Tensor | None, list[int], NormalHandle]


def _routing(
    group: NormalGroup,
    topk_idx: torch.Tensor,
    per_rank: torch.Tensor,
    in_rank: torch.Tensor,
    stream: int,
) -> Any:
    """The routing of the layout call that returned ``in_rank``, or a new one. Its counts must be
    the caller's."""
    routing = group.calls.remembered(in_rank, topk_idx)
    if routing is None:
        routing = group.route(topk_idx, stream)
    if counted := routing.tokens_per_rank:
        native_assert(
            counted == per_rank.tolist(),
            f"dispatch: num_tokens_per_rank is {per_rank.tolist()}, by topk_idx {counted}",
        )
    return routing


class NormalMode:
    """Checks arguments and runs dispatches that have no handle yet.

    Attributes: ``known``, the groups for the fast path of layouts by number of experts; ``latest``,
    that of the latest layout. Between nodes there is no fast path.
    """

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
        self._has_fast_path = runtime.get_num_rdma_ranks() == 1 and topk_idx_t == torch.int64
        self.known: dict[int, NormalGroup] = {}
        self.latest: NormalGroup | None = None
        self._room: tuple[int, int] | None = None  # tokens and scales that this call agreed on

    def forget_groups(self) -> None:
        """Takes the general path for the next calls."""
        self.known.clear()
        self.latest = None

    def check_rows(self, call: str, x: Any, scales: Any) -> None:
        require_rows(call, x, scales is not None, self._runtime.device)
        native_assert(
            scales is None
            or (
                scales.dim() == 2
                and scales.shape[0] == x.shape[0]
                and scales.dtype in (torch.float32, torch.int32)
            ),
            f"{call}: scales are {describe(scales)}; allowed: float32 or int32 [{x.shape[0]}, *]",
        )

    @staticmethod
    def check_handle(call: str, handle: Any) -> None:
        native_assert(
            isinstance(handle, NormalHandle),
            f"{call}: handle is a {type(handle).__name__}; "
            "allowed: the handle that dispatch returned, unchanged",
        )

    def check_combine(
        self,
        x: torch.Tensor,
        handle: NormalHandle,
        topk_weights: torch.Tensor | None,
        biases: tuple,
    ) -> None:
        call, device, shape = "combine", self._runtime.device, handle.group.shape
        require_tensor(call, "x", x, (torch.bfloat16,), (handle.rows, shape.hidden), device)
        if topk_weights is not None:
            extents = (handle.rows, shape.top_k)
            require_tensor(call, "topk_weights", topk_weights, (torch.float32,), extents, device)
        native_assert(
            len(biases) <= 2, f"{call}: bias has {len(biases)} tensors; at most 2 are allowed"
        )
        for one in biases:
            if one is not None:
                require_tensor(
                    call, "bias", one, (x.dtype,), (handle.num_tokens, shape.hidden), device
                )

    def try_layout(self, topk_idx: torch.Tensor, num_experts: int) -> Layout | None:
        """The result of get_dispatch_layout, by one binding call on the current stream. None,
        without effect, where an argument is not what earlier calls had."""
        group = self.known.get(num_experts)
        found = None if group is None else group.calls.try_layout(topk_idx, num_experts)
        if found is None:
            return None
        self.latest = group
        per_rank, per_expert, in_rank = found
        return per_rank, None, per_expert, in_rank

    def layout(self, topk_idx: torch.Tensor, num_experts: int, stream: int) -> Layout:
        """The result of get_dispatch_layout."""
        runtime = self._runtime
        ranks, nodes = runtime.num_ranks, runtime.get_num_rdma_ranks()
        check_experts(topk_idx, num_experts, ranks)
        tokens, top_k = topk_idx.shape
        group = runtime.groups.for_routing(num_experts, top_k, tokens)
        if group is None or topk_idx.dtype != torch.int64:
            return count_tokens(topk_idx, num_experts, ranks, nodes, stream)
        if self._has_fast_path:
            self.latest = group
        return route_layout(group, topk_idx, nodes, stream)

    def try_dispatch(
        self,
        rows: torch.Tensor,
        scales: torch.Tensor | None,
        layout: tuple[torch.Tensor | None, ...],
        top_k: tuple[torch.Tensor | None, ...],
        alignment: int,
        worst_rows: int,
        sms: int,
    ) -> NewDispatch | None:
        """A dispatch along the layout of get_dispatch_layout, by one binding call on the current
        stream. None, without effect, where the general path is needed."""
        group, self._room = self.latest, None
        if group is None:
            return None
        per_rank, in_rank, per_expert = layout
        how = (alignment, worst_rows, sms, self._agree_on_room)
        received = group.calls.try_dispatch(
            rows, scales, per_rank, in_rank, per_expert, *top_k, *how
        )
        if received is None:
            return None
        handle = NormalHandle.make(group, received.layout, in_rank, self._runtime.rank, 1)
        counts = received.tokens_per_expert
        return received, received.topk_idx, received.topk_weights, counts, handle

    def _agree_on_room(self, tokens: int, scales: int) -> bool:
        """Whether the latest group has room for what all ranks send. Collective."""
        group = self.latest
        room = self._runtime.groups.agree(group.shape, tokens, scales)
        if room[0] <= group.max_tokens and room[1] <= group.max_scales:
            return True
        self._room = room  # the general path replaces the group
        return False

    def dispatch_cached(
        self,
        rows: torch.Tensor,
        scales: torch.Tensor | None,
        handle: NormalHandle,
        top_k: tuple[torch.Tensor | None, ...],
        stream: int,
        sms: int,
    ) -> Received:
        """Sends along the layout of ``handle``."""
        expect(top_k == (None, None), "dispatch: a cached dispatch takes no topk_idx")
        self.check_handle("dispatch", handle)
        terms = DispatchTerms(
            scales=scales,
            worst_rows=handle.worst_rows,
            captured=self._runtime.capturing(),
            stream=stream,
            sms=sms,
        )
        return handle.group.dispatch(rows, handle.shoal, terms)

    def dispatch_new(
        self,
        rows: torch.Tensor,
        scales: torch.Tensor | None,
        layout: CallerLayout,
        top_k: tuple[torch.Tensor | None, ...],
        alignment: int,
        worst_rows: int,
        stream: int,
        sms: int,
    ) -> NewDispatch:
        """Routes and sends. Without top-k indices, tokens go to the ranks of
        ``is_token_in_rank``."""
        runtime = self._runtime
        topk_idx, topk_weights = top_k
        expect(
            all(tensor is not None for tensor in layout),
            "dispatch: without handle num_tokens_per_rank, is_token_in_rank, "
            "num_tokens_per_expert are needed",
        )
        by_rank = topk_idx is None
        expect(
            by_rank == (topk_weights is None), "dispatch: topk_idx and topk_weights come together"
        )
        expect(worst_rows == 0 or not by_rank, "dispatch: num_worst_tokens needs topk_idx")
        terms = DispatchTerms(
            None if topk_weights is None else detached(topk_weights),
            scales,
            alignment,
            worst_rows,
            captured=runtime.capturing(),
            stream=stream,
            sms=sms,
        )
        per_rank, in_rank, per_expert = layout
        self._check_layout(rows.shape[0], layout, terms)
        if by_rank:
            topk_idx = ranks_as_experts(in_rank)
            experts = runtime.num_ranks
        else:
            self._check_topk(rows.shape[0], topk_idx, terms.weights)
            experts = per_expert.shape[0]
        shape = GroupShape(rows.shape[1], topk_idx.shape[1], experts)
        num_scales = 0 if terms.scales is None else terms.scales.shape[1]
        group = self._group(shape, rows.shape[0], num_scales, terms)
        routing = _routing(group, topk_idx, per_rank, in_rank, terms.stream)
        received = group.dispatch(rows, routing, terms)
        handle = NormalHandle.make(
            group, received.layout, in_rank, runtime.rank, runtime.get_num_rdma_ranks()
        )
        if by_rank:
            return received, None, None, self._expert_totals(per_expert, terms.alignment), handle
        if self._has_fast_path:
            self.known[experts] = group
        idx = received.topk_idx
        if idx.dtype != topk_idx_t:
            idx = idx.to(topk_idx_t)
        return received, idx, received.topk_weights, received.tokens_per_expert, handle

    def _check_layout(self, tokens: int, layout: CallerLayout, terms: DispatchTerms) -> None:
        call, device, ranks = "dispatch", self._runtime.device, self._runtime.num_ranks
        per_rank, in_rank, per_expert = layout
        require_tensor(call, "num_tokens_per_rank", per_rank, (torch.int32,), (ranks,), device)
        require_tensor(call, "is_token_in_rank", in_rank, (torch.bool,), (tokens, ranks), device)
        require_tensor(call, "num_tokens_per_expert", per_expert, (torch.int32,), (None,), device)
        require_alignment(call, "expert_alignment", terms.alignment)
        native_assert(
            terms.worst_rows >= 0,
            f"{call}: num_worst_tokens is {terms.worst_rows}; at least 0 is allowed",
        )

    def _check_topk(self, tokens: int, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> None:
        call, device = "dispatch", self._runtime.device
        require_tensor(call, "topk_idx", topk_idx, (topk_idx_t,), (tokens, None), device)
        extents = tuple(topk_idx.shape)
        require_tensor(call, "topk_weights", topk_weights, (torch.float32,), extents, device)

    def _group(
        self, shape: GroupShape, tokens: int, scales: int, terms: DispatchTerms
    ) -> NormalGroup:
        """A group with room for the call, on whose size all ranks agree.

        Collective where sizes are exchanged anyway, and in the first call of a shape. With
        num_worst_tokens, which is the same on all ranks, later calls decide on their own.
        """
        runtime, worst_rows = self._runtime, terms.worst_rows
        pool = runtime.groups
        share = -(-worst_rows // runtime.num_ranks)
        group = pool.existing(shape)
        fits = group is not None and group.max_tokens >= share and group.max_scales >= scales
        if fits and (worst_rows > 0 or runtime.capturing()):
            native_assert(
                tokens <= group.max_tokens,
                f"dispatch: {tokens} tokens; with num_worst_tokens {worst_rows} at most "
                f"{group.max_tokens} per rank",
            )
            return group
        room = max(tokens, share)
        native_assert(
            not runtime.capturing(),
            f"dispatch: a CUDA graph cannot capture the first call of {shape} with {room} tokens; "
            "run it once before",
        )
        agreed, self._room = self._room, None
        return pool.get(shape, *(agreed or pool.agree(shape, room, scales)))

    def _expert_totals(self, per_expert: torch.Tensor, alignment: int) -> list[int]:
        """Tokens of all ranks for each local expert, rounded up to ``alignment``. Collective."""
        runtime, counts = self._runtime, per_expert.tolist()
        totals = [0] * len(counts)
        step = _EXCHANGE_BYTES // 4
        for first in range(0, len(counts), step):
            part = counts[first : first + step]
            form = struct.Struct(f"<{len(part)}i")
            for block in runtime.team.exchange(form.pack(*part)):
                for i, count in enumerate(form.unpack(block)):
                    totals[first + i] += count
        local = len(counts) // runtime.num_ranks
        here = totals[runtime.rank * local : (runtime.rank + 1) * local]
        return [-(-count // alignment) * alignment for count in here]
