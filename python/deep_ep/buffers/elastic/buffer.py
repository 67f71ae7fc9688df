# SPDX-License-Identifier: Apache-2.0
"""``ElasticBuffer``, the V2 interface: dispatch, combine, ring, gather and engram calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

import shoal

from ... import config
from ...utils.envs import (
    check_fast_rdma_atomic_support,
    check_torch_deterministic,
    get_physical_domain_size,
)
from ...utils.event import EventHandle, EventOverlap, profiled
from ...utils.math import align
from ...utils.semantic import native_assert, native_fail, value_or, weak_lru
from ...utils.streams import current_stream
from ..checks import describe, expect
from ..ending import close, description, warn_unless_destroyed, with_own_methods
from ..runtime import Runtime
from ..warmup import Known, WarmElasticBuffer, prepare_unknown_sizes
from . import sizes
from .dispatch import elastic_calls
from .engram import Engram
from .gather import GatherSessions
from .handle import EPHandle
from .ring import Ring
from .streams import stream_calls

Rows = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


@with_own_methods
class ElasticBuffer(WarmElasticBuffer):
    """Dispatch and combine of expert-parallel tokens, with sizes that each call passes.

        buffer = ElasticBuffer(group, num_max_tokens_per_rank=4096, hidden=7168, num_topk=8)
        recv_x, recv_idx, recv_weights, handle, _ = buffer.dispatch(
            x, topk_idx, topk_weights, num_experts=256
        )
        combined_x, _, _ = buffer.combine(expert_output, handle)

    Tensors lie on the GPU, or on the CPU where there is no GPU or SHOAL_HEAP=host. All calls that
    communicate are collective. Received rows are always ordered by source rank, then token;
    ``deterministic`` has no effect.

    Attributes: group, rank_idx, num_ranks, num_bytes, num_max_tokens_per_rank, deterministic,
    allow_hybrid_mode, allow_multiple_reduction, prefer_overlap_with_compute, num_allocated_qps,
    explicitly_destroy, runtime, num_scaleout_ranks, num_scaleup_ranks, scaleout_rank_idx,
    scaleup_rank_idx, num_rdma_ranks, num_nvlink_ranks.
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
        num_experts: int = 0,
        preinitialize: bool = False,
    ) -> None:
        """num_bytes, num_cpu_bytes (a part of num_bytes): multiples of 2 MiB. num_bytes=None: from
        the sizes that follow it.

        allow_multiple_reduction: expert outputs of one rank are summed and rounded before they are
        sent. num_cpu_timeout_secs: limit of any wait for another rank. sl_idx, num_gpu_timeout_secs
        and num_allocated_qps are accepted without effect. preinitialize: ``warmup`` here, for
        num_experts. Raises RuntimeError for sizes outside their limits.
        """
        native_assert(
            num_cpu_bytes % sizes.PAGE == 0 and (num_bytes is None or num_bytes % sizes.PAGE == 0),
            f"num_bytes is {num_bytes}, num_cpu_bytes {num_cpu_bytes}; "
            f"allowed: multiples of {sizes.PAGE} (2 MiB)",
        )
        expect(
            num_cpu_bytes == 0 or num_bytes is not None,
            "num_cpu_bytes needs num_bytes, which includes it",
        )
        self._set_domains(group, allow_hybrid_mode)
        if num_bytes is None:
            num_bytes = sizes.required_size(
                self.get_physical_domain_size(),
                (num_max_tokens_per_rank, hidden, num_topk),
                use_fp8_dispatch,
                allow_hybrid_mode,
                allow_multiple_reduction,
            )
        self.group = group
        self.num_bytes, self.num_cpu_bytes = num_bytes, num_cpu_bytes
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.hidden, self.num_topk = hidden, num_topk
        self.deterministic = deterministic
        self.allow_hybrid_mode = allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.nccl_comm_handle = None
        self.num_allocated_qps = num_allocated_qps or (
            17 if not allow_hybrid_mode else 65 if check_fast_rdma_atomic_support() else 129
        )
        self.runtime: Runtime | None = None
        self.runtime = Runtime(
            group, None, num_bytes, timeout=num_cpu_timeout_secs, share_stream=True
        )
        self._calls = elastic_calls(self.runtime, allow_multiple_reduction, num_max_tokens_per_rank)
        self._streams = stream_calls(self.runtime)
        self._ring = Ring(self.runtime, self._streams)
        self._gather = GatherSessions(self.runtime, self._streams)
        self._engram = Engram(self.runtime, self._streams)
        if preinitialize:
            self.warmup(num_experts)
        else:
            prepare_unknown_sizes(self, num_bytes, Known(num_max_tokens_per_rank, hidden, num_topk))
        self.explicitly_destroy = explicitly_destroy

    def _set_domains(self, group: dist.ProcessGroup, allow_hybrid_mode: bool) -> None:
        """Sets the ranks and the two-level shape of the group. Collective."""
        physical = get_physical_domain_size(group)
        self.num_rdma_ranks, self.num_nvlink_ranks = physical
        self.num_ranks, self.rank_idx = dist.get_world_size(group), dist.get_rank(group)
        logical = physical if allow_hybrid_mode else (1, self.num_ranks)
        self.num_scaleout_ranks, self.num_scaleup_ranks = logical
        self.scaleout_rank_idx, self.scaleup_rank_idx = divmod(
            self.rank_idx, self.num_scaleup_ranks
        )

    def __repr__(self) -> str:
        return description(self, "num_bytes", "num_max_tokens_per_rank", "hidden")

    def __del__(self) -> None:
        warn_unless_destroyed(self)

    def destroy(self) -> None:
        """Closes the buffer. Collective; later calls do nothing.

        Raises AssertionError without explicitly_destroy.
        """
        if close(self):
            del self._calls

    @staticmethod
    def capture() -> EventHandle:
        """An event after all work on the current stream."""
        return EventHandle()

    def get_comm_stream(self) -> torch.cuda.Stream:
        """The stream of all elastic buffers of a GPU; without effect on the CPU."""
        stream = self._open("get_comm_stream").comm_stream
        return torch.Stream(device="cpu") if stream is None else stream

    def barrier(
        self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True
    ) -> None:
        """Holds the current stream until the streams of all ranks are here. Collective.

        What they queued before is visible afterwards. use_comm_stream: the work on the comm stream
        counts too. with_cpu_sync: the host waits as well, and an expired timeout is raised; without
        it a later call of this buffer raises it. Can be captured in a CUDA graph. Waits on the host
        on CPUs, and between GPUs that do not reach each other's memory.
        """
        runtime, streams = self._open("barrier"), self._streams
        if streams is not None:
            streams.barrier(runtime.current_stream(), use_comm_stream)
            if with_cpu_sync:
                runtime.synchronize_stream()
            streams.check()  # only now, so that the other ranks get past the barrier
            return
        with profiled("barrier_impl"):
            if runtime.comm_stream is not None:
                if use_comm_stream:
                    runtime.comm_stream.wait_stream(current_stream())
                    runtime.comm_stream.synchronize()
                else:
                    current_stream().synchronize()
            shoal.barrier(runtime.team)

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

        x: bfloat16 [T, H], or (float8_e4m3fn [T, H], scales of four bytes [T, P]). topk_idx:
        ``topk_idx_t`` [T, K], -1: no expert. topk_weights: float32 [T, K]. num_max_tokens_per_rank
        (M): at least T, the same on all ranks; default as constructed.
        cumulative_local_expert_recv_stats: int32 [E / R]; the call adds the rows received. handle:
        the layout of an earlier dispatch, in place of topk_idx and num_experts. do_cpu_sync=False:
        no size reaches the host, and outputs have the most rows possible. do_expand: one row per
        (token, expert), grouped by expert, blocks at multiples of expert_alignment.
        do_zero_padding: zeros between blocks. use_tma_aligned_col_major_sf: column-major scales.

        Returns (recv_x in the form of x; recv_topk_idx [rows, K] of local experts or -1, None with
        do_expand; recv_topk_weights [rows, K] of all top-k slots, [rows] with do_expand; handle;
        event).
        """
        self._open("dispatch")
        check_torch_deterministic()
        self._check_call("dispatch", num_qps, previous_event, allocate_on_comm_stream)
        return self._calls.dispatch(
            x,
            topk_idx,
            topk_weights,
            cumulative_local_expert_recv_stats,
            num_experts,
            num_max_tokens_per_rank,
            expert_alignment,
            num_sms,
            previous_event,
            previous_event_before_epilogue,
            async_with_compute_stream,
            handle,
            do_handle_copy,
            do_cpu_sync,
            do_expand,
            do_zero_padding,
            use_tma_aligned_col_major_sf,
        )

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
        """Sums expert output at the sources of the tokens, without weights. Collective.

        x: bfloat16 [rows, H] in the form of the dispatch. topk_weights: float32 [rows, K], [rows]
        with do_expand; each returns to its top-k slot. bias: one or two bfloat16 [T, H].

        Order of the sums, in float32 and rounded once: first the biases, then the ranks in the
        order of their last top-k slots. Expert-major rows of a rank are summed before, in ascending
        top-k slots; allow_multiple_reduction rounds that sum.

        Returns (bfloat16 [T, H], float32 [T, K] or None, event).
        """
        self._open("combine")
        check_torch_deterministic()
        self._check_call("combine", num_qps, previous_event, allocate_on_comm_stream)
        return self._calls.combine(
            x,
            handle,
            topk_weights,
            bias,
            num_sms,
            previous_event,
            previous_event_before_epilogue,
            async_with_compute_stream,
        )

    def pp_set_config(self, num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> None:
        """Allocates slots for pp_send and pp_recv, for each direction of the ring. Collective."""
        self._open("pp_set_config")
        needed = self.get_pp_buffer_size_hint(num_max_tensor_bytes, num_max_inflight_tensors)
        native_assert(
            needed <= self.num_bytes,
            f"pp_set_config: num_bytes is {self.num_bytes}; these sizes need {needed}",
        )
        self._ring.configure(num_max_tensor_bytes, num_max_inflight_tensors)

    def pp_send(self, t: torch.Tensor, dst_rank_idx: int, num_sms: int = 0) -> None:
        """Sends a contiguous tensor to a neighbour of the ring; waits while all slots are taken."""
        self._open("pp_send")
        with profiled("pp_send_impl"):
            self._ring.send(t, dst_rank_idx)

    def pp_recv(self, t: torch.Tensor, src_rank_idx: int, num_sms: int = 0) -> None:
        """Receives the next tensor from a neighbour of the ring into ``t``, which has its size."""
        self._open("pp_recv")
        with profiled("pp_recv_impl"):
            self._ring.receive(t, src_rank_idx)

    def agrs_set_config(
        self, num_max_session_bytes: int, num_max_all_gathers_per_session: int
    ) -> None:
        """Allocates the buffer of gather sessions. Collective."""
        self._open("agrs_set_config")
        native_assert(
            num_max_session_bytes <= self.num_bytes,
            f"agrs_set_config: num_bytes is {self.num_bytes}; "
            f"a session needs {num_max_session_bytes}",
        )
        self._gather.configure(num_max_session_bytes, num_max_all_gathers_per_session)

    def create_agrs_session(self) -> None:
        """Starts a gather session, which overwrites the results of the last one. Collective."""
        self._open("create_agrs_session")
        self._gather.begin()

    def destroy_agrs_session(self) -> None:
        """Ends the session. The program calls all handles of its gathers before."""
        self._open("destroy_agrs_session")
        self._gather.end()

    @contextmanager
    def agrs_new_session(self, enabled: bool = True) -> Iterator[None]:
        """A session for the length of a ``with`` block; no effect when not ``enabled``."""
        if enabled:
            self.create_agrs_session()
        try:
            yield
        finally:
            if enabled:
                self.destroy_agrs_session()

    def agrs_get_inplace_tensor(
        self, shapes: Any, dtype: torch.dtype
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The memory of this rank's part of the next all_gather, which then needs no copy."""
        self._open("agrs_get_inplace_tensor")
        return self._gather.inplace(shapes, dtype)

    def all_gather(self, t: torch.Tensor | Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Gathers one tensor or several from all ranks within a session. Collective.

        Returns (gathered [R, *shape] of each tensor, handle). The data is valid after handle(),
        until the next session.
        """
        self._open("all_gather")
        return self._gather.all_gather(t)

    def engram_write(self, storage: torch.Tensor, sf: torch.Tensor | None = None) -> None:
        """Writes this rank's entries to the table. Collective.

        storage: bfloat16 or float8_e4m3fn [n, H], contiguous, at most num_cpu_bytes; entry i of
        rank r has number r * n + i. sf: with float8 only, the scales of all entries: elements of
        four bytes [R * n, packs], the same on all ranks.
        """
        self._open("engram_write")
        native_assert(
            storage.numel() * storage.element_size() <= self.num_cpu_bytes,
            f"engram_write: storage is {describe(storage)}; num_cpu_bytes is {self.num_cpu_bytes}",
        )
        self._engram.write(storage, sf)

    def engram_fetch(
        self, indices: torch.Tensor, num_qps: int = 0, use_tma_aligned_col_major_sf: bool = False
    ) -> Callable[[], tuple[torch.Tensor, torch.Tensor | None]]:
        """Fetches entries of any rank; local. indices: int32 [T, n].

        The returned function waits and returns (data [T, n * H], scales [T, n * packs] or None).
        """
        self._open("engram_fetch")
        if num_qps > self.num_allocated_qps:
            expect(False, f"engram_fetch: num_qps is {num_qps} of {self.num_allocated_qps}")
        with profiled("engram_fetch_impl"):
            wait = self._engram.fetch(indices, use_tma_aligned_col_major_sf)

        def profiled_wait() -> tuple[torch.Tensor, torch.Tensor | None]:
            with profiled("engram_fetch_wait_impl"):
                return wait()

        return profiled_wait

    @staticmethod
    def get_buffer_size_hint(
        group: dist.ProcessGroup,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """``num_bytes`` for dispatch and combine. Collective. num_topk 0 stands for 32."""
        return sizes.buffer_size(
            get_physical_domain_size(group),
            num_max_tokens_per_rank,
            hidden,
            num_topk,
            use_fp8_dispatch,
            allow_hybrid_mode,
            allow_multiple_reduction,
        )

    @staticmethod
    def get_engram_storage_size_hint(
        num_entries: int,
        hidden: int,
        num_max_tokens_per_rank: int,
        dtype: torch.dtype = torch.bfloat16,
    ) -> tuple[int, int]:
        """(bytes of fetched entries, bytes of the storage) for engram calls."""
        return sizes.engram_storage_size(num_entries, hidden, num_max_tokens_per_rank, dtype)

    @staticmethod
    def get_pp_buffer_size_hint(num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> int:
        """``num_bytes`` for pp_send and pp_recv."""
        return sizes.ring_buffer_size(num_max_tensor_bytes, num_max_inflight_tensors)

    @staticmethod
    def get_agrs_num_max_session_bytes(
        group: dist.ProcessGroup, shapes: Sequence[Sequence[int]], dtype: torch.dtype
    ) -> int:
        """Bytes of a session that gathers tensors of these shapes."""
        return sizes.gather_session_bytes(dist.get_world_size(group), shapes, dtype)

    @staticmethod
    def get_agrs_buffer_size_hint(group: dist.ProcessGroup, num_max_session_bytes: int) -> int:
        """``num_bytes`` for gather sessions."""
        return align(num_max_session_bytes, sizes.PAGE)

    def get_physical_domain_size(self) -> tuple[int, int]:
        """(nodes, ranks per node)."""
        return self.num_rdma_ranks, self.num_nvlink_ranks

    def get_logical_domain_size(self) -> tuple[int, int]:
        """(scale-out ranks, scale-up ranks)."""
        return self.num_scaleout_ranks, self.num_scaleup_ranks

    @weak_lru(maxsize=None)
    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 200,
        sm_write_gbs: float = 50,
    ) -> int:
        """SMs that keep the slower link busy. Link speeds of 0 are looked up."""
        return sizes.theoretical_num_sms(
            num_experts,
            num_topk,
            num_scaleout_topk,
            rdma_gbs,
            nvlink_gbs,
            sm_read_gbs,
            sm_write_gbs,
            num_scaleout_ranks=self.num_scaleout_ranks,
            num_scaleup_ranks=self.num_scaleup_ranks,
            num_nvlink_ranks=self.num_nvlink_ranks,
            prefer_overlap_with_compute=self.prefer_overlap_with_compute,
        )

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """Queue pairs for ``num_sms``."""
        return config.get_theoretical_num_qps(
            num_sms,
            num_scaleout_ranks=self.num_scaleout_ranks,
            num_allocated_qps=self.num_allocated_qps,
        )

    def _open(self, call: str) -> Runtime:
        if self.runtime is None:
            native_fail(f"{call}: this buffer has been destroyed")
        if self.runtime.preparation is not None:
            self.runtime.await_preparation()
        return self.runtime

    def _check_call(
        self, call: str, num_qps: int, previous_event: Any, allocate_on_comm_stream: bool
    ) -> None:
        if num_qps > self.num_allocated_qps:
            expect(False, f"{call}: num_qps is {num_qps}; {self.num_allocated_qps} are allocated")
        if previous_event is not None and not allocate_on_comm_stream:
            expect(False, f"{call}: previous_event needs allocate_on_comm_stream=True")
