# SPDX-License-Identifier: Apache-2.0
"""``Dispatcher``: the part of ``ElasticBuffer`` behind its dispatch.

A dispatch has three steps: check the arguments and derive the ``Terms``, send the rows with their
metadata, and build the tensors of DeepEP from the received metadata.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from shoal._core.ep import expand

from ...config import topk_idx_t
from ...utils.event import profiled
from ...utils.semantic import native_assert, value_or
from ..checks import (
    describe,
    expect,
    require_alignment,
    require_experts,
    require_rows,
    require_tensor,
)
from ..groups import DispatchTerms, GroupShape, NormalGroup, Received, as_rows, detached
from ..runtime import Runtime
from . import layout
from .handle import EPHandle, LateHandle

_CALL = "dispatch"
_MAX_TOP_K = 32

# (recv_x, scales, recv_topk_idx, recv_topk_weights)
Outputs = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
# num_experts, num_max_tokens_per_rank and expert_alignment as passed
Limits = tuple[int | None, int | None, int | None]
# What ElasticBuffer.dispatch returns, without the event
Results = tuple[Any, torch.Tensor | None, torch.Tensor | None, EPHandle]


class Terms(NamedTuple):
    """The layout arguments of a dispatch after defaults: those of the call or of its handle."""

    topk_idx: torch.Tensor
    do_expand: bool
    num_experts: int
    alignment: int
    max_tokens: int
    worst_rows: int  # rank-major rows to return; 0: sizes are exchanged


class OutputForm(NamedTuple):
    """How a dispatch builds the tensors that it returns."""

    copy_topk_idx: bool
    zero_padding: bool
    column_major_scales: bool
    expert_major_rows: int | None = None  # others are dropped; None: as many as there can be


class Sent(NamedTuple):
    """A new dispatch, before its handle is built."""

    received: Received
    group: NormalGroup
    routing: Any


class Dispatcher:
    """Dispatches of one elastic buffer."""

    def __init__(self, runtime: Runtime, allow_multiple_reduction: bool, max_tokens: int):
        """max_tokens: per rank, of calls that do not name it."""
        self._runtime = runtime
        self._allow_multiple_reduction = allow_multiple_reduction
        self._max_tokens = max_tokens
        self._latest: NormalGroup | None = None  # of rank-major dispatches

    def forget_groups(self) -> None:
        """Takes the general path for the next dispatch."""
        self._latest = None

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
        limits: Limits,
        do_cpu_sync: bool | None,
        do_expand: bool,
    ) -> Terms:
        """The terms of a dispatch without a handle, checked."""
        num_experts, max_tokens, expert_alignment = limits
        max_tokens = value_or(max_tokens, self._max_tokens)
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
        require_experts(_CALL, num_experts, ranks)
        native_assert(
            x.shape[0] <= max_tokens,
            f"{_CALL}: {x.shape[0]} tokens; at most num_max_tokens_per_rank = {max_tokens}",
        )
        require_alignment(_CALL, "expert_alignment", alignment)
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

    def send(
        self,
        rows: torch.Tensor,
        scales: torch.Tensor | None,
        topk_idx: torch.Tensor | None,
        weights: torch.Tensor | None,
        handle: EPHandle | None,
        stats: torch.Tensor | None,
        limits: Limits,
        do_cpu_sync: bool | None,
        do_expand: bool,
        form: OutputForm,
        stream: int,
        sms: int,
    ) -> Results:
        """Checks the arguments and sends, along the layout of ``handle`` where given. Adds the rows
        of a new dispatch to ``stats``."""
        self.check_rows(rows, scales)
        expect(not form.zero_padding or do_expand, f"{_CALL}: do_zero_padding needs do_expand")
        cached = handle is not None
        if handle is not None:
            terms = self.cached_terms(handle, rows, topk_idx, *limits, do_expand)
            expect(stats is None, f"{_CALL}: a cached dispatch takes no statistics")
            self.check_metadata(terms, weights, None)
            received = self.send_cached(handle, terms, rows, scales, weights, stream, sms)
        else:
            terms = self.new_terms(rows, topk_idx, limits, do_cpu_sync, do_expand)
            self.check_metadata(terms, weights, stats)
            sent = self.send_new(terms, rows, scales, weights, stream, sms)
            received = sent.received
        with profiled("dispatch_copy_epilogue_impl"):
            if handle is None and not do_expand and stats is None:
                outputs = _rank_major_outputs(received, received.topk_idx, form)
                handle = self._late_handle(terms, sent, form.copy_topk_idx, sms)
            else:
                if handle is None:
                    how = (form.copy_topk_idx, sms, form.expert_major_rows)
                    handle = self.make_handle(terms, sent, *how)
                if stats is not None:
                    stats += handle.num_unaligned_recv_tokens_per_expert
                outputs = _make_outputs(received, handle, cached, form, stream)
        x, x_scales, recv_idx, recv_weights = outputs
        return x if scales is None else (x, x_scales), recv_idx, recv_weights, handle

    def send_new(
        self,
        terms: Terms,
        rows: torch.Tensor,
        scales: torch.Tensor | None,
        weights: torch.Tensor | None,
        stream: int,
        sms: int,
    ) -> Sent:
        shape = GroupShape(rows.shape[1], terms.topk_idx.shape[1], terms.num_experts)
        group = self._group(shape, terms, 0 if scales is None else scales.shape[1])
        if topk_idx_t == torch.int64:
            self._latest = group
        topk_idx = terms.topk_idx
        routing = group.route(
            topk_idx if topk_idx.dtype == torch.int64 else topk_idx.long(), stream
        )
        what = self._what(terms, scales, weights, stream, sms)
        return Sent(group.dispatch(rows, routing, what), group, routing)

    def try_new(
        self,
        rows: torch.Tensor,
        scales: torch.Tensor | None,
        topk_idx: torch.Tensor | None,
        weights: torch.Tensor | None,
        limits: Limits,
        do_cpu_sync: bool | None,
        copy_topk_idx: bool,
        num_sms: int,
    ) -> Results | None:
        """A new rank-major dispatch by one binding call on the current stream. None, without
        effect, where an argument is not what earlier calls had."""
        group, (num_experts, max_tokens, alignment) = self._latest, limits
        max_tokens = self._max_tokens if max_tokens is None else max_tokens
        if group is None or num_experts != group.shape.experts or max_tokens > group.max_tokens:
            return None
        alignment = 1 if alignment is None else alignment
        most = max(1, self._runtime.num_ranks * max_tokens)
        worst_rows = 0 if do_cpu_sync is None or do_cpu_sync else most
        started = group.calls.try_send(
            rows, scales, topk_idx, weights, alignment, worst_rows, max_tokens, num_sms
        )
        if started is None:
            return None
        received, routing = started
        recv_x, recv_idx = received.x, received.topk_idx
        terms = Terms(topk_idx, False, num_experts, alignment, max_tokens, worst_rows)
        sent = Sent(received, group, routing)
        with profiled("dispatch_copy_epilogue_impl"):  # in the kernel, unlike in DeepEP
            handle = self._late_handle(terms, sent, copy_topk_idx, num_sms)
        recv_rows = recv_x if scales is None else (recv_x, received.scales)
        return recv_rows, recv_idx, received.topk_weights, handle

    def _late_handle(
        self, terms: Terms, sent: Sent, copy_topk_idx: bool, num_sms: int
    ) -> LateHandle:
        """The handle of a new rank-major dispatch, which keeps no rows."""
        received = sent.received
        # Of the rows the handle needs their number only, which is that of the indices.
        received.x = received.topk_idx
        if copy_topk_idx:
            terms = terms._replace(topk_idx=terms.topk_idx.clone())
        return LateHandle(
            lambda: self.make_handle(terms, sent, False, num_sms),
            sent.group,
            received.layout,
            terms.topk_idx,
            received.topk_idx,
            num_sms,
        )

    @staticmethod
    def try_cached(
        rows: torch.Tensor, scales: torch.Tensor | None, handle: EPHandle, num_sms: int
    ) -> Results | None:
        """A dispatch along the layout of ``handle`` alone, as try_new."""
        if type(handle) is not LateHandle:
            return None
        received = handle.group.calls.try_redispatch(rows, scales, handle.layout, num_sms)
        if received is None:
            return None
        with profiled("dispatch_copy_epilogue_impl"):
            recv_rows = received.x if scales is None else (received.x, received.scales)
        return recv_rows, handle.received_topk_idx, None, handle

    def send_cached(
        self,
        handle: EPHandle,
        terms: Terms,
        rows: torch.Tensor,
        scales: torch.Tensor | None,
        weights: torch.Tensor | None,
        stream: int,
        sms: int,
    ) -> Received:
        known: layout.ShoalLayout = handle.shoal
        what = self._what(terms, scales, weights, stream, sms)
        return known.group.dispatch(rows, known.handle, what)

    def _what(
        self,
        terms: Terms,
        scales: torch.Tensor | None,
        weights: torch.Tensor | None,
        stream: int,
        sms: int,
    ) -> DispatchTerms:
        return DispatchTerms(
            None if weights is None else detached(weights),
            scales,
            terms.alignment,
            terms.worst_rows,
            all_weights=weights is not None,
            captured=self._runtime.capturing(),
            stream=stream,
            sms=sms,
        )

    def make_handle(
        self,
        terms: Terms,
        sent: Sent,
        copy_topk_idx: bool,
        num_sms: int,
        expert_major_rows: int | None = None,
    ) -> EPHandle:
        """The handle of a new dispatch."""
        runtime, received, alignment = self._runtime, sent.received, terms.alignment
        topk_idx = terms.topk_idx.clone() if copy_topk_idx else terms.topk_idx
        local_experts, top_k = terms.num_experts // runtime.num_ranks, topk_idx.shape[1]
        topk_rows = None
        expert_ends, counts = received.expert_ends, received.expert_counts
        if terms.do_expand:  # _expand fills both
            topk_rows = sent.group.empty(tuple(received.topk_idx.shape), torch.int32)
            expert_ends = torch.empty_like(expert_ends)
        if expert_major_rows is not None:
            pass
        elif terms.worst_rows:
            expert_major_rows = layout.most_expert_major_rows(
                runtime.num_ranks, terms.max_tokens, top_k, local_experts, alignment
            )
        else:
            expert_major_rows = sum(received.tokens_per_expert)
        known = layout.ShoalLayout(
            sent.group,
            sent.routing,
            received.handle,
            terms.worst_rows,
            received.topk_idx,
            topk_rows,
            received.source_token,
            received.source_ends,
            counts,
            received.expert_ends,
            [],
        )
        handle = EPHandle(
            terms.do_expand,
            terms.num_experts,
            alignment,
            terms.max_tokens,
            num_sms,
            topk_idx,
            received.x.shape[0],
            expert_major_rows,
            received.tokens_per_expert,
            received.source_ends,
            expert_ends,
            counts,
            lambda: layout.source_metadata(known, terms.max_tokens),
            lambda: layout.destination_slots(
                topk_idx, terms.num_experts, runtime.num_ranks, runtime.rank, terms.max_tokens
            ),
            None,
            None,
        )
        handle.shoal = known
        return handle

    def _group(self, shape: GroupShape, terms: Terms, words: int) -> NormalGroup:
        """A group with room for the call; all ranks pass the same sizes."""
        runtime, max_tokens = self._runtime, terms.max_tokens
        local_experts = shape.experts // runtime.num_ranks
        if terms.do_expand and not self._allow_multiple_reduction:
            # Combine stages one row per top-k slot.
            padding = -(-local_experts * terms.alignment // runtime.num_ranks)
            max_tokens = max_tokens * min(shape.top_k, local_experts) + padding
        words = max(words, -(-shape.hidden // 128))
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


def _make_outputs(
    received: Received, handle: EPHandle, cached: bool, form: OutputForm, stream: int
) -> Outputs:
    """The tensors that a dispatch returns, from the received rows. Without ``cached`` it completes
    the handle of an expert-major dispatch."""
    if handle.do_expand:
        return _expand(received, handle, cached, form, stream)
    return _rank_major_outputs(received, handle.shoal.topk_idx, form)


def _rank_major_outputs(received: Received, topk_idx: torch.Tensor, form: OutputForm) -> Outputs:
    recv_scales = received.scales
    recv_topk_idx = topk_idx if topk_idx.dtype == topk_idx_t else topk_idx.to(topk_idx_t)
    if recv_scales is not None and form.column_major_scales:
        recv_scales = layout.column_major(recv_scales)
    return received.x, recv_scales, recv_topk_idx, received.topk_weights


def _expand(
    received: Received, handle: EPHandle, cached: bool, form: OutputForm, stream: int
) -> Outputs:
    """Rank-major rows, scales and weights in expert-major order."""
    known, rows = handle.shoal, handle.num_expanded_tokens
    x, scales, weights = received.x, received.scales, received.topk_weights
    out = known.group.empty((rows, x.shape[1]), x.dtype)
    out_weights = None if weights is None else known.group.empty((rows,), torch.float32)
    out_scales = None
    if scales is not None and form.column_major_scales:
        out_scales = layout.empty_column_major(rows, scales)
    elif scales is not None:
        out_scales = known.group.empty((rows, scales.shape[1]), scales.dtype)
    expand(
        known.group.group,
        as_rows(x),
        known.topk_idx,
        known.source_ends[-1:],
        known.expert_counts,
        known.expert_ends,
        weights,
        scales,
        known.topk_rows,
        cached,
        as_rows(out),
        out_weights,
        out_scales,
        None if cached else handle.psum_num_recv_tokens_per_expert,
        form.zero_padding,
        stream,
    )
    return out, out_scales, None, out_weights
