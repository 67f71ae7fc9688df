# SPDX-License-Identifier: Apache-2.0
"""``Dispatcher``: the part of ``ElasticBuffer`` behind its dispatch.

A dispatch has three steps: check the arguments and derive the ``Terms``, send the rows with their
metadata, and build the tensors of DeepEP from the received metadata.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ...config import topk_idx_t
from ...utils.semantic import native_assert, value_or
from ..checks import describe, expect, require_rows, require_tensor
from ..groups import GroupShape, NormalGroup, Received
from ..runtime import Operation, Runtime
from . import layout
from .handle import EPHandle

_CALL = "dispatch"
_MAX_TOP_K = 32

# (recv_x, scales, recv_topk_idx, recv_topk_weights)
Outputs = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


class Terms(NamedTuple):
    """The layout arguments of a dispatch after defaults: those of the call or of its handle."""

    topk_idx: torch.Tensor
    do_expand: bool
    num_experts: int
    alignment: int
    max_tokens: int
    worst_rows: int  # rank-major rows to return; 0: sizes are exchanged


class Sent(NamedTuple):
    """A new dispatch, before its handle is built."""

    received: Received
    group: NormalGroup
    routing: Any


class Dispatcher:
    """Dispatches of one elastic buffer."""

    def __init__(self, runtime: Runtime, allow_multiple_reduction: bool):
        self._runtime = runtime
        self._allow_multiple_reduction = allow_multiple_reduction

    def check_rows(self, x: Any, scales: Any) -> None:
        require_rows(_CALL, x, scales is not None, self._runtime.device)
        native_assert(
            scales is None
            or (scales.dim() == 2 and scales.shape[0] == x.shape[0] and scales.element_size() == 4),
            f"{_CALL}: scales are {describe(scales)}; "
            f"allowed: elements of four bytes [{x.shape[0]}, *]",
        )

    def new_terms(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor | None,
        num_experts: int | None,
        max_tokens: int,
        expert_alignment: int | None,
        do_cpu_sync: bool | None,
        do_expand: bool,
    ) -> Terms:
        """The terms of a dispatch without a handle, checked."""
        expect(
            topk_idx is not None and num_experts is not None,
            f"{_CALL}: topk_idx and num_experts are needed",
        )
        ranks, alignment = self._runtime.num_ranks, value_or(expert_alignment, 1)
        extents = (x.shape[0], None)
        require_tensor(_CALL, "topk_idx", topk_idx, (topk_idx_t,), extents, self._runtime.device)
        native_assert(
            1 <= topk_idx.shape[1] <= _MAX_TOP_K,
            f"{_CALL}: top-k is {topk_idx.shape[1]}; allowed: 1 to {_MAX_TOP_K}",
        )
        native_assert(
            num_experts > 0 and num_experts % ranks == 0,
            f"{_CALL}: num_experts is {num_experts}; "
            f"allowed: positive multiples of the {ranks} ranks",
        )
        native_assert(
            x.shape[0] <= max_tokens,
            f"{_CALL}: {x.shape[0]} tokens; at most num_max_tokens_per_rank = {max_tokens}",
        )
        native_assert(
            alignment >= 1, f"{_CALL}: expert_alignment is {alignment}; at least 1 is allowed"
        )
        worst_rows = 0 if value_or(do_cpu_sync, True) else max(1, ranks * max_tokens)
        return Terms(topk_idx, do_expand, num_experts, alignment, max_tokens, worst_rows)

    def cached_terms(
        self,
        handle: EPHandle,
        x: torch.Tensor,
        topk_idx: Any,
        num_experts: Any,
        max_tokens: Any,
        alignment: Any,
        do_expand: bool,
    ) -> Terms:
        """The terms of the dispatch of ``handle``; the other arguments must agree with them."""
        check_handle(_CALL, handle)
        expect(
            topk_idx is None or topk_idx is handle.topk_idx,
            f"{_CALL}: a cached dispatch takes no topk_idx",
        )
        for name, given, known in (
            ("num_experts", num_experts, handle.num_experts),
            ("num_max_tokens_per_rank", max_tokens, handle.num_max_tokens_per_rank),
            ("expert_alignment", alignment, handle.expert_alignment),
            ("do_expand", do_expand, handle.do_expand),
        ):
            expect(
                given is None or given == known,
                f"{_CALL}: {name} is {given}, that of the handle {known}",
            )
        native_assert(
            x.shape[0] == handle.topk_idx.shape[0],
            f"{_CALL}: {x.shape[0]} tokens; the dispatch of the handle had "
            f"{handle.topk_idx.shape[0]}",
        )
        return Terms(
            handle.topk_idx,
            handle.do_expand,
            handle.num_experts,
            handle.expert_alignment,
            handle.num_max_tokens_per_rank,
            handle.shoal.worst_rows,
        )

    def check_metadata(
        self, terms: Terms, topk_weights: torch.Tensor | None, stats: torch.Tensor | None
    ) -> None:
        device = self._runtime.device
        if topk_weights is not None:
            extents = tuple(terms.topk_idx.shape)
            require_tensor(_CALL, "topk_weights", topk_weights, (torch.float32,), extents, device)
        if stats is not None:
            name = "cumulative_local_expert_recv_stats"
            extents = (terms.num_experts // self._runtime.num_ranks,)
            require_tensor(_CALL, name, stats, (torch.int32,), extents, device)

    def metadata(
        self, terms: Terms, rows: int, scales: torch.Tensor | None, weights: torch.Tensor | None
    ) -> torch.Tensor:
        """int32 [rows, words] that travel with the rows: scales, weights of all top-k slots, and
        source rank * M + token."""
        first = self._runtime.rank * terms.max_tokens
        ids = torch.arange(first, first + rows, dtype=torch.int32, device=self._runtime.device)
        parts = [part.detach().view(torch.int32) for part in (scales, weights) if part is not None]
        return torch.cat((*parts, ids[:, None]), dim=1)

    def send_new(
        self,
        terms: Terms,
        rows: torch.Tensor,
        metadata: torch.Tensor,
        operation: Operation,
        launch: dict[str, int],
    ) -> Sent:
        shape = GroupShape(rows.shape[1], terms.topk_idx.shape[1], terms.num_experts)
        group = self._group(shape, terms, metadata.shape[1])
        routing = group.group.route(terms.topk_idx, **operation.launch)
        received = group.dispatch(
            rows,
            routing,
            scales=metadata,
            expert_alignment=terms.alignment,
            worst_case_rows=terms.worst_rows,
            captured=self._runtime.capturing(),
            **launch,
        )
        return Sent(received, group, routing)

    def send_cached(
        self, handle: EPHandle, rows: torch.Tensor, metadata: torch.Tensor, launch: dict[str, int]
    ) -> Received:
        known: layout.ShoalLayout = handle.shoal
        return known.group.dispatch(
            rows,
            known.handle,
            scales=metadata,
            worst_case_rows=known.worst_rows,
            captured=self._runtime.capturing(),
            **launch,
        )

    def make_handle(self, terms: Terms, sent: Sent, copy_topk_idx: bool, num_sms: int) -> EPHandle:
        """The handle of a new dispatch."""
        runtime, received, alignment = self._runtime, sent.received, terms.alignment
        topk_idx = terms.topk_idx.clone() if copy_topk_idx else terms.topk_idx
        local_experts, top_k = terms.num_experts // runtime.num_ranks, topk_idx.shape[1]
        local_idx = received.topk_idx
        source_ids = received.scales[:, -1]
        counts = layout.expert_counts(local_idx, local_experts)
        aligned = (counts + (alignment - 1)) // alignment * alignment
        ends = aligned.cumsum(0, dtype=torch.int32)
        starts = ends - aligned
        slot_rows = layout.expert_major_rows(local_idx, starts) if terms.do_expand else None
        if terms.worst_rows:
            expert_major_rows = layout.most_expert_major_rows(
                runtime.num_ranks, terms.max_tokens, top_k, local_experts, alignment
            )
        else:
            expert_major_rows = sum(received.tokens_per_expert)
        valid = (local_idx >= 0).any(1)
        handle = EPHandle(
            terms.do_expand,
            terms.num_experts,
            alignment,
            terms.max_tokens,
            num_sms,
            topk_idx,
            received.x.shape[0],
            expert_major_rows,
            [] if terms.worst_rows else received.tokens_per_expert,
            layout.rank_prefix(source_ids, valid, terms.max_tokens, runtime.num_ranks),
            starts + counts if terms.do_expand else ends,
            counts,
            layout.source_metadata(source_ids, local_idx, slot_rows, terms.max_tokens),
            layout.destination_slots(
                topk_idx, terms.num_experts, runtime.num_ranks, runtime.rank, terms.max_tokens
            ),
            None,
            None,
        )
        handle.shoal = layout.ShoalLayout(
            sent.group, sent.routing, received.handle, terms.worst_rows, local_idx, slot_rows, []
        )
        return handle

    def _group(self, shape: GroupShape, terms: Terms, words: int) -> NormalGroup:
        """A group with room for the call; all ranks pass the same sizes."""
        runtime, max_tokens = self._runtime, terms.max_tokens
        local_experts = shape.experts // runtime.num_ranks
        if terms.do_expand and not self._allow_multiple_reduction:
            # Combine stages one row per top-k slot.
            padding = -(-local_experts * terms.alignment // runtime.num_ranks)
            max_tokens = max_tokens * min(shape.top_k, local_experts) + padding
        words = max(words, -(-shape.hidden // 128) + shape.top_k + 1)
        group = runtime.groups.existing(shape)
        native_assert(
            not runtime.capturing()
            or (group is not None and group.max_tokens >= max_tokens and group.max_scales >= words),
            f"{_CALL}: a CUDA graph cannot capture the first call of {shape} with {max_tokens} "
            "tokens; run one before",
        )
        return runtime.groups.get(shape, max_tokens, words)


def check_handle(call: str, handle: Any) -> None:
    native_assert(
        isinstance(handle, EPHandle) and handle.shoal is not None,
        f"{call}: handle is a {type(handle).__name__}; allowed: the handle that dispatch returned",
    )


def make_outputs(
    received: Received,
    handle: EPHandle,
    scales: torch.Tensor | None,
    weighted: bool,
    zero_padding: bool,
    column_major_scales: bool,
) -> Outputs:
    """The tensors that a dispatch returns, from the received rows and metadata.

    ``scales`` are those that were sent; their number and dtype are those of the result.
    """
    packs = 0 if scales is None else scales.shape[1]
    top_k = handle.topk_idx.shape[1]
    recv_x = received.x
    recv_scales = None if scales is None else received.scales[:, :packs].contiguous()
    recv_weights = None
    if weighted:
        words = received.scales[:, packs : packs + top_k]
        recv_weights = words.contiguous().view(torch.float32)
    recv_topk_idx: torch.Tensor | None = None
    if handle.do_expand:
        recv_x, recv_scales, recv_weights = _expert_major(
            handle, recv_x, recv_scales, recv_weights, zero_padding
        )
    else:
        recv_topk_idx = handle.shoal.topk_idx.to(topk_idx_t)
    if recv_scales is not None:
        ordered = layout.column_major(recv_scales) if column_major_scales else recv_scales
        recv_scales = ordered.view(scales.dtype)
    return recv_x, recv_scales, recv_topk_idx, recv_weights


def _expert_major(
    handle: EPHandle,
    x: torch.Tensor,
    scales: torch.Tensor | None,
    weights: torch.Tensor | None,
    zero_padding: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Rank-major rows, scales and weights in expert-major order."""
    flat_slot = layout.flat_slot_of_row(handle.shoal.slot_rows, handle.num_expanded_tokens)
    row = torch.where(flat_slot < 0, -1, flat_slot // handle.topk_idx.shape[1])
    x = layout.gather_rows(x, row, zero_padding)
    if scales is not None:
        if len(scales) > 0:
            scales = scales[row.clamp(min=0)]
        else:
            scales = scales.new_zeros((len(row), scales.shape[1]))
        if zero_padding:
            scales.masked_fill_((row < 0)[:, None], 0)
    if weights is not None:
        flat = weights.flatten()
        if len(flat) > 0:
            weights = flat[flat_slot.clamp(min=0)].masked_fill_(flat_slot < 0, 0)
        else:
            weights = flat.new_zeros(len(flat_slot))
    return x, scales, weights
