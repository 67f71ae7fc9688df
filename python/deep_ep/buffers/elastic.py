# SPDX-License-Identifier: Apache-2.0
"""``ElasticBuffer``: dispatch and combine in flat and expert_major form, and the ring, gather and engram calls (V2)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import shoal

from ..config import topk_idx_t
from ..utils.envs import (
    check_fast_rdma_atomic_support,
    check_torch_deterministic,
    get_physical_domain_size,
)
from ..utils.event import EventHandle, EventOverlap, profiled
from ..utils.semantic import native_assert, native_fail, value_or
from . import elastic_layout as layout
from .checks import describe, expect, require_tensor
from .elastic_sizes import PAGE
from .elastic_transfers import ElasticTransfers
from .engram import Engram
from .ep_handle import EPHandle
from .gather import GatherSessions
from .groups import GroupShape, NormalGroup
from .ring import Ring
from .runtime import Operation, Runtime

_MAX_TOP_K = 32

Rows = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class ElasticBuffer(ElasticTransfers):
    """Dispatch and combine of expert-parallel tokens, with sizes that are given by each call.

    Tensors lie on the GPU, or on the CPU where there is none (or SHOAL_HEAP=host). All calls that communicate are
    collective. Received rows are ordered by source rank, then token, always: ``deterministic`` changes nothing.

    Attributes: group, rank_idx, num_ranks, num_bytes, num_max_tokens_per_rank, deterministic, allow_hybrid_mode,
    allow_multiple_reduction, prefer_overlap_with_compute, num_allocated_qps, explicitly_destroy, runtime,
    num_scaleout_ranks, num_scaleup_ranks, scaleout_rank_idx, scaleup_rank_idx, num_rdma_ranks, num_nvlink_ranks.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ) -> None:
        """num_bytes, num_cpu_bytes (within num_bytes): multiples of 2 MiB; None: from the sizes that follow it.

        allow_multiple_reduction: answers of one rank are summed and rounded before they are sent.
        num_cpu_timeout_secs: how long any wait for another rank lasts. sl_idx, num_gpu_timeout_secs, and how many
        queue pairs are allocated: accepted; Shoal has no use for them. Raises RuntimeError for sizes out of bounds.
        """
        native_assert(
            num_cpu_bytes % PAGE == 0 and (num_bytes is None or num_bytes % PAGE == 0),
            f"num_bytes is {num_bytes}, num_cpu_bytes {num_cpu_bytes}; allowed: multiples of {PAGE} (2 MiB)",
        )
        expect(num_cpu_bytes == 0 or num_bytes is not None, "num_cpu_bytes needs num_bytes, which includes it")
        self.num_rdma_ranks, self.num_nvlink_ranks = get_physical_domain_size(group)
        self.num_ranks, self.rank_idx = dist.get_world_size(group), dist.get_rank(group)
        physical = (self.num_rdma_ranks, self.num_nvlink_ranks)
        self.num_scaleout_ranks, self.num_scaleup_ranks = physical if allow_hybrid_mode else (1, self.num_ranks)
        self.scaleout_rank_idx, self.scaleup_rank_idx = divmod(self.rank_idx, self.num_scaleup_ranks)
        if num_bytes is None:
            expect(
                num_max_tokens_per_rank > 0 and hidden > 0,
                "either num_bytes or num_max_tokens_per_rank and hidden are needed",
            )
            num_bytes = self._buffer_size(
                physical,
                num_max_tokens_per_rank,
                hidden,
                num_topk,
                use_fp8_dispatch,
                allow_hybrid_mode,
                allow_multiple_reduction,
            )
        self.group = group
        self.num_bytes, self.num_cpu_bytes = num_bytes, num_cpu_bytes
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.deterministic = deterministic
        self.allow_hybrid_mode = allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.explicitly_destroy = explicitly_destroy
        self.nccl_comm_handle = None
        self.num_allocated_qps = num_allocated_qps or (
            17 if not allow_hybrid_mode else 65 if check_fast_rdma_atomic_support() else 129
        )
        self.runtime: Runtime | None = None
        self.runtime = Runtime(group, None, num_bytes, timeout=num_cpu_timeout_secs, share_stream=True)
        self._ring = Ring(self.runtime)
        self._gather = GatherSessions(self.runtime)
        self._engram = Engram(self.runtime)

    def __del__(self) -> None:
        if getattr(self, "runtime", None) is not None and self.explicitly_destroy:
            print(
                "WARNING: deep_ep.ElasticBuffer was made with explicitly_destroy=True and went without destroy()",
                flush=True,
            )

    def destroy(self) -> None:
        """Ends the buffer. Collective. A second call does nothing; AssertionError without explicitly_destroy."""
        expect(self.explicitly_destroy, "destroy: this buffer was made without explicitly_destroy=True")
        if self.runtime is not None:
            self.runtime.close()
            self.runtime = None

    # Streams.

    @staticmethod
    def capture() -> EventHandle:
        """An event behind all work of the current stream."""
        return EventHandle()

    def get_comm_stream(self) -> torch.cuda.Stream:
        """The stream that all elastic buffers of a GPU work on; on the CPU a ``torch.Stream`` that orders nothing."""
        stream = self._open("get_comm_stream").comm_stream
        return torch.Stream(device="cpu") if stream is None else stream

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Waits for all ranks, and for what is queued on the stream here. Collective."""
        runtime = self._open("barrier")
        with profiled("barrier_impl"):
            if runtime.comm_stream is not None:
                if use_comm_stream:
                    runtime.comm_stream.wait_stream(torch.cuda.current_stream())
                    runtime.comm_stream.synchronize()
                else:
                    torch.cuda.current_stream().synchronize()
            shoal.barrier(runtime.team)

    # Dispatch and combine.

    def dispatch(
        self,
        x: Rows,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Rows, torch.Tensor | None, torch.Tensor | None, EPHandle, EventOverlap]:
        """Sends each token once to each rank that holds one of its experts. Collective.

        x: bfloat16 [T, H], or (float8_e4m3fn [T, H], scales of four bytes [T, P]). topk_idx: ``topk_idx_t`` [T, K], -1:
        none; topk_weights: float32 [T, K]. num_max_tokens_per_rank (M): at least T, the same on all ranks; default as
        constructed. cumulative_local_expert_recv_stats: int32 [E / R], rows received are added to it. handle: the
        layout of an earlier dispatch; topk_idx and num_experts come from it. do_cpu_sync=False: no size reaches the
        host, and outputs have the most rows there can be. do_expand: a row for each (token, expert), grouped by
        expert, blocks at multiples of expert_alignment; do_zero_padding fills what lies between with zeros.
        use_tma_aligned_col_major_sf: scales with the row index running fastest.

        Returns (recv_x as x, recv_topk_idx [rows, K] of local experts or -1, None when expert_major; recv_topk_weights
        [rows, K] of all choices, [rows] when expert_major; handle; event).
        """
        call = "dispatch"
        runtime = self._open(call)
        check_torch_deterministic()
        rows, scales = x if isinstance(x, tuple) else (x, None)
        self._check_call(call, num_qps, previous_event, allocate_on_comm_stream)
        self._check_rows(call, rows, scales)
        expect(not do_zero_padding or do_expand, f"{call}: do_zero_padding needs do_expand")
        cached = handle is not None
        if cached:
            self._check_cached(
                call, handle, rows, topk_idx, num_experts, num_max_tokens_per_rank, expert_alignment, do_expand
            )
            expect(cumulative_local_expert_recv_stats is None, f"{call}: a cached dispatch takes no statistics")
            topk_idx, num_experts, alignment = handle.topk_idx, handle.num_experts, handle.expert_alignment
            max_tokens = handle.num_max_tokens_per_rank
        else:
            expect(topk_idx is not None and num_experts is not None, f"{call}: topk_idx and num_experts are needed")
            max_tokens = value_or(num_max_tokens_per_rank, self.num_max_tokens_per_rank)
            alignment = value_or(expert_alignment, 1)
            self._check_routing(call, rows, topk_idx, num_experts, max_tokens, alignment)
        if topk_weights is not None:
            require_tensor(call, "topk_weights", topk_weights, (torch.float32,), tuple(topk_idx.shape), runtime.device)
        local_experts, top_k = num_experts // self.num_ranks, topk_idx.shape[1]
        if cumulative_local_expert_recv_stats is not None:
            require_tensor(
                call,
                "cumulative_local_expert_recv_stats",
                cumulative_local_expert_recv_stats,
                (torch.int32,),
                (local_experts,),
                runtime.device,
            )

        with self._operation(
            call, previous_event, previous_event_before_epilogue, async_with_compute_stream
        ) as operation:
            payload = self._payload(scales, topk_weights, rows.shape[0], max_tokens)
            launch = self._launch(operation, num_sms)
            if cached:
                known = handle.shoal
                received = known.group.dispatch(
                    rows,
                    known.handle,
                    scales=payload,
                    worst_case_rows=known.worst_rows,
                    captured=runtime.capturing(),
                    **launch,
                )
            else:
                worst = 0 if value_or(do_cpu_sync, True) else max(1, self.num_ranks * max_tokens)
                group = self._group(
                    call,
                    GroupShape(rows.shape[1], top_k, num_experts),
                    max_tokens,
                    payload.shape[1],
                    alignment,
                    do_expand,
                )
                routing = group.group.route(topk_idx, **operation.launch)
                received = group.dispatch(
                    rows,
                    routing,
                    scales=payload,
                    expert_alignment=alignment,
                    worst_case_rows=worst,
                    captured=runtime.capturing(),
                    **launch,
                )
            with profiled("dispatch_copy_epilogue_impl"):
                if not cached:
                    handle = self._make_handle(
                        received,
                        group,
                        routing,
                        topk_idx.clone() if do_handle_copy else topk_idx,
                        worst,
                        (do_expand, num_experts, alignment, max_tokens, num_sms),
                    )
                    if cumulative_local_expert_recv_stats is not None:
                        cumulative_local_expert_recv_stats += handle.num_unaligned_recv_tokens_per_expert
                outputs = self._outputs(
                    received, handle, scales, topk_weights, do_zero_padding, use_tma_aligned_col_major_sf
                )
        recv_x, recv_scales, recv_topk_idx, recv_weights = outputs
        overlap = operation.overlap(
            (rows, scales, topk_idx, topk_weights), (*outputs, received.x, *vars(handle).values())
        )
        return recv_x if scales is None else (recv_x, recv_scales), recv_topk_idx, recv_weights, handle, overlap

    def combine(
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Sums the answers to the rows of a dispatch at their sources, without weights. Collective.

        x: bfloat16 [rows, H] in the form of the dispatch. topk_weights: float32 [rows, K], [rows] when expert_major; each
        comes back to its lane. bias: one or two bfloat16 [T, H]. Order of the sums: expert_major rows of a rank in
        ascending lane order (rounded, with allow_multiple_reduction), then the ranks in the order of their last lanes;
        float32, biases first, rounded once. Returns (bfloat16 [T, H], float32 [T, K] or None, event).
        """
        call = "combine"
        runtime = self._open(call)
        check_torch_deterministic()
        self._check_call(call, num_qps, previous_event, allocate_on_comm_stream)
        self._check_handle(call, handle)
        known: layout.ShoalLayout = handle.shoal
        hidden, top_k = known.group.shape.hidden, known.group.shape.top_k
        rows = handle.num_expanded_tokens if handle.do_expand else handle.num_recv_tokens
        require_tensor(call, "x", x, (torch.bfloat16,), (rows, hidden), runtime.device)
        biases = self._unpack_bias(bias)
        for one in biases:
            require_tensor(call, "bias", one, (torch.bfloat16,), (handle.topk_idx.shape[0], hidden), runtime.device)
        lanes_apart = handle.do_expand and not self.allow_multiple_reduction
        if topk_weights is not None:
            native_assert(
                not lanes_apart, f"{call}: expert_major without allow_multiple_reduction there are no topk_weights"
            )
            shape = (rows,) if handle.do_expand else (rows, top_k)
            require_tensor(call, "topk_weights", topk_weights, (torch.float32,), shape, runtime.device)
        with self._operation(
            call, previous_event, previous_event_before_epilogue, async_with_compute_stream
        ) as operation:
            answers, weights, target = x.detach(), topk_weights, known.handle
            if lanes_apart:
                target = self._expert_major_handle(handle, operation)
            with profiled("combine_reduce_epilogue_impl"):  # which is a prologue here
                if handle.do_expand and not lanes_apart:
                    answers = layout.sum_lanes(answers, known.lane_rows)
                    weights = None if weights is None else layout.weights_by_lane(weights.detach(), known.lane_rows)
                elif weights is not None:
                    weights = weights.detach().masked_fill(known.topk_idx < 0, 0)
            sums, summed_weights = known.group.combine(
                answers,
                target,
                handle.topk_idx.shape[0],
                weights=weights,
                bias=tuple(one.detach() for one in biases),
                **self._launch(operation, num_sms or handle.num_sms),
            )
        return (
            sums,
            summed_weights,
            operation.overlap((x, topk_weights, *biases, answers, weights), (sums, summed_weights)),
        )

    # Private.

    @staticmethod
    def _unpack_handle(handle: EPHandle | None) -> tuple[Any, ...]:
        names = (
            "topk_idx",
            "num_recv_tokens",
            "num_expanded_tokens",
            "num_recv_tokens_per_expert_list",
            "psum_num_recv_tokens_per_scaleup_rank",
            "psum_num_recv_tokens_per_expert",
            "recv_src_metadata",
            "dst_buffer_slot_idx",
            "token_metadata_at_forward",
            "channel_linked_list",
        )
        return tuple(None if handle is None else getattr(handle, name) for name in names)

    @staticmethod
    def _unpack_bias(bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None) -> tuple[torch.Tensor, ...]:
        biases = bias if isinstance(bias, tuple) else (bias,)
        native_assert(len(biases) <= 2, f"combine: bias has {len(biases)} tensors; at most 2 are allowed")
        return tuple(one for one in biases if one is not None)

    def _open(self, call: str) -> Runtime:
        if self.runtime is None:
            native_fail(f"{call}: this buffer has been destroyed")
        return self.runtime

    def _operation(self, call: str, previous: Any, before_epilogue: Any, asynchronous: bool) -> Operation:
        operation = self.runtime.operation(call, previous, asynchronous)
        operation.also_wait(before_epilogue)
        return operation

    def _launch(self, operation: Operation, num_sms: int) -> dict[str, int]:
        return {**operation.launch, "sms": num_sms} if operation.launch else {}

    def _check_call(self, call: str, num_qps: int, previous_event: Any, allocate_on_comm_stream: bool) -> None:
        expect(
            num_qps <= self.num_allocated_qps, f"{call}: num_qps is {num_qps}; {self.num_allocated_qps} are allocated"
        )
        expect(
            previous_event is None or allocate_on_comm_stream,
            f"{call}: previous_event needs allocate_on_comm_stream=True",
        )

    def _check_rows(self, call: str, x: Any, scales: Any) -> None:
        kinds = (torch.bfloat16,) if scales is None else (torch.float8_e4m3fn,)
        require_tensor(call, "x", x, kinds, (None, None), self.runtime.device)
        native_assert(
            x.shape[1] * x.element_size() % 16 == 0,
            f"{call}: rows of x have {x.shape[1] * x.element_size()} bytes; allowed: multiples of 16",
        )
        native_assert(
            scales is None or (scales.dim() == 2 and scales.shape[0] == x.shape[0] and scales.element_size() == 4),
            f"{call}: scales are {describe(scales)}; allowed: elements of four bytes [{x.shape[0]}, *]",
        )

    def _check_routing(
        self, call: str, x: torch.Tensor, topk_idx: torch.Tensor, num_experts: int, max_tokens: int, alignment: int
    ) -> None:
        require_tensor(call, "topk_idx", topk_idx, (topk_idx_t,), (x.shape[0], None), self.runtime.device)
        native_assert(
            1 <= topk_idx.shape[1] <= _MAX_TOP_K, f"{call}: top-k is {topk_idx.shape[1]}; allowed: 1 to {_MAX_TOP_K}"
        )
        native_assert(
            num_experts > 0 and num_experts % self.num_ranks == 0,
            f"{call}: num_experts is {num_experts}; allowed: positive multiples of the {self.num_ranks} ranks",
        )
        native_assert(
            x.shape[0] <= max_tokens, f"{call}: {x.shape[0]} tokens; at most num_max_tokens_per_rank = {max_tokens}"
        )
        native_assert(alignment >= 1, f"{call}: expert_alignment is {alignment}; at least 1 is allowed")

    def _check_handle(self, call: str, handle: Any) -> None:
        native_assert(
            isinstance(handle, EPHandle) and handle.shoal is not None,
            f"{call}: handle is a {type(handle).__name__}; allowed: what dispatch returned",
        )

    def _check_cached(
        self,
        call: str,
        handle: EPHandle,
        x: torch.Tensor,
        topk_idx: Any,
        num_experts: Any,
        max_tokens: Any,
        alignment: Any,
        do_expand: bool,
    ) -> None:
        self._check_handle(call, handle)
        expect(topk_idx is None or topk_idx is handle.topk_idx, f"{call}: a cached dispatch takes no topk_idx")
        for name, given, own in (
            ("num_experts", num_experts, handle.num_experts),
            ("num_max_tokens_per_rank", max_tokens, handle.num_max_tokens_per_rank),
            ("expert_alignment", alignment, handle.expert_alignment),
            ("do_expand", do_expand, handle.do_expand),
        ):
            expect(given is None or given == own, f"{call}: {name} is {given}, that of the handle {own}")
        native_assert(
            x.shape[0] == handle.topk_idx.shape[0],
            f"{call}: {x.shape[0]} tokens; the dispatch of the handle had {handle.topk_idx.shape[0]}",
        )

    def _payload(self, scales: Any, weights: Any, tokens: int, max_tokens: int) -> torch.Tensor:
        """What travels beside a row, as words: its scales, all its weights, and source rank * M + token."""
        first = self.rank_idx * max_tokens
        ids = torch.arange(first, first + tokens, dtype=torch.int32, device=self.runtime.device)[:, None]
        parts = [part.detach().view(torch.int32) for part in (scales, weights) if part is not None]
        return torch.cat((*parts, ids), dim=1)

    def _group(
        self, call: str, shape: GroupShape, max_tokens: int, words: int, alignment: int, do_expand: bool
    ) -> NormalGroup:
        local_experts = shape.experts // self.num_ranks
        if do_expand and not self.allow_multiple_reduction:  # combine stages a row for each lane
            max_tokens = max_tokens * min(shape.top_k, local_experts) + -(-local_experts * alignment // self.num_ranks)
        words = max(words, -(-shape.hidden // 128) + shape.top_k + 1)
        group = self.runtime.groups.existing(shape)
        native_assert(
            not self.runtime.capturing()
            or (group is not None and group.max_tokens >= max_tokens and group.max_scales >= words),
            f"{call}: a CUDA graph cannot capture the first call of {shape} with {max_tokens} tokens; run one before",
        )
        return self.runtime.groups.get(shape, max_tokens, words)

    def _make_handle(
        self, received: Any, group: NormalGroup, routing: Any, topk_idx: torch.Tensor, worst_rows: int, as_given: tuple
    ) -> EPHandle:
        do_expand, num_experts, alignment, max_tokens, num_sms = as_given
        local_experts, top_k = num_experts // self.num_ranks, topk_idx.shape[1]
        local_idx = received.topk_idx
        source_ids = received.scales[:, -1]
        counts = layout.expert_counts(local_idx, local_experts)
        aligned = (counts + (alignment - 1)) // alignment * alignment
        ends = aligned.cumsum(0, dtype=torch.int32)
        starts = ends - aligned
        lane_rows = layout.expert_major_rows(local_idx, starts) if do_expand else None
        if worst_rows:
            expert_major = layout.most_expert_major_rows(self.num_ranks, max_tokens, top_k, local_experts, alignment)
        else:
            expert_major = sum(received.tokens_per_expert)
        handle = EPHandle(
            *as_given,
            topk_idx,
            received.x.shape[0],
            expert_major,
            [] if worst_rows else received.tokens_per_expert,
            layout.rank_prefix(source_ids, (local_idx >= 0).any(1), max_tokens, self.num_ranks),
            starts + counts if do_expand else ends,
            counts,
            layout.source_metadata(source_ids, local_idx, lane_rows, max_tokens),
            layout.destination_slots(topk_idx, num_experts, self.num_ranks, self.rank_idx, max_tokens),
            None,
            None,
        )
        handle.shoal = layout.ShoalLayout(group, routing, received.handle, worst_rows, local_idx, lane_rows, [])
        return handle

    def _outputs(
        self, received: Any, handle: EPHandle, scales: Any, weights: Any, zero_padding: bool, columns_first: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        packs = 0 if scales is None else scales.shape[1]
        top_k = handle.topk_idx.shape[1]
        recv_x = received.x
        recv_scales = None if scales is None else received.scales[:, :packs].contiguous()
        recv_weights = (
            None if weights is None else received.scales[:, packs : packs + top_k].contiguous().view(torch.float32)
        )
        recv_topk_idx: torch.Tensor | None = None
        if handle.do_expand:
            at = layout.positions(handle.shoal.lane_rows, handle.num_expanded_tokens)
            index = torch.where(at < 0, -1, at // top_k)
            recv_x = layout.gather_rows(recv_x, index, zero_padding)
            if recv_scales is not None:
                recv_scales = (
                    recv_scales[index.clamp(min=0)] if len(recv_scales) else recv_scales.new_zeros((len(at), packs))
                )
                if zero_padding:
                    recv_scales.masked_fill_((index < 0)[:, None], 0)
            if recv_weights is not None:
                flat = recv_weights.flatten()
                recv_weights = flat[at.clamp(min=0)].masked_fill_(at < 0, 0) if len(flat) else flat.new_zeros(len(at))
        else:
            recv_topk_idx = handle.shoal.topk_idx.to(topk_idx_t)
        if recv_scales is not None:
            recv_scales = (layout.column_major(recv_scales) if columns_first else recv_scales).view(scales.dtype)
        return recv_x, recv_scales, recv_topk_idx, recv_weights

    def _expert_major_handle(self, handle: EPHandle, operation: Operation) -> Any:
        """The handle of Shoal's own expert_major form of the same layout, made once by a dispatch of rows of 16 bytes."""
        known: layout.ShoalLayout = handle.shoal
        if known.expert_major_handle:
            return known.expert_major_handle[0]
        captured = self.runtime.capturing()
        empty = torch.zeros((handle.topk_idx.shape[0], 16), dtype=torch.int8, device=handle.topk_idx.device)
        made = known.group.dispatch(
            empty,
            known.routing,
            captured=captured,
            expert_alignment=handle.expert_alignment,
            expert_major=True,
            worst_case_rows=handle.num_expanded_tokens if known.worst_rows else 0,
            **operation.launch,
        )
        if not captured:  # what a graph makes is there when it is replayed
            known.expert_major_handle.append(made.handle)
        return made.handle
