# SPDX-License-Identifier: Apache-2.0
"""``Buffer``: dispatch and combine in normal and low-latency mode (the V1 interface)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ... import config as sizes
from ...config import Config
from ...utils.envs import check_nvlink_connections, check_torch_deterministic
from ...utils.event import EventHandle, EventOverlap
from ...utils.semantic import native_assert, native_fail
from ..checks import expect
from ..ending import close, description, warn_unless_destroyed, with_own_methods
from ..runtime import Runtime
from .early_shapes import EarlyShapes
from .internode import InternodeCalls
from .local_memory import LocalMemory
from .low_latency import LowLatencyGroups, low_latency_calls
from .masks import MaskCalls
from .network import network_settings
from .normal import normal_calls
from .warmup import WarmBuffer


@with_own_methods
class Buffer(InternodeCalls, MaskCalls, WarmBuffer):
    """Dispatch and combine of expert-parallel tokens among the ranks of a group.

        buffer = Buffer(group, num_nvl_bytes, num_rdma_bytes)
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, experts)
        recv_x, recv_idx, recv_weights, counts, handle, _ = buffer.dispatch(
            x, None, per_rank, per_node, in_rank, per_expert, topk_idx, topk_weights
        )
        combined_x, _, _ = buffer.combine(expert_output, handle)

    Tensors lie on the GPU, or on the CPU where there is no GPU or SHOAL_HEAP=host; results are the
    same. All calls that communicate are collective. ``num_nvl_bytes`` and ``num_rdma_bytes`` are
    the values of the size hints; memory is taken when calls need it, except that a constructor on
    a GPU takes num_nvl_bytes, at most 112 MiB for each rank of the group.

    Attributes: rank, group, group_size, num_nvl_bytes, num_rdma_bytes, low_latency_mode,
    explicitly_destroy, enable_shrink, runtime.
    """

    num_sms: int = sizes.NUM_DEFAULT_SMS

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        use_fabric: bool = False,
        num_topk: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_experts: int = 0,
        preinitialize: bool = False,
        allow_nvlink_for_normal_mode: bool = True,
    ) -> None:
        """group: a torch.distributed group of any backend, or None with ``comm``, an mpi4py
        communicator. Collective.

        low_latency_mode: allows low-latency calls. explicitly_destroy: the program calls
        ``destroy``. enable_shrink: low-latency calls continue without ranks that time out.
        num_qps_per_rank: queue pairs of each peer that kernels drive, where SHOAL_GDA gives them
        any. allow_nvlink_for_low_latency_mode: False makes GPUs of one node send by the network in
        low-latency mode; normal calls of such a buffer go through host memory.
        allow_nvlink_for_normal_mode=False does the same with and without low_latency_mode. SHOAL_*
        variables come before all three. allow_mnnvl, use_fabric: accepted without effect; Shoal
        selects its memory handles (SHOAL_CUDA_HANDLE).
        num_topk: top-k of low-latency calls, whose memory is taken here with the sizes of the size
        hint that num_rdma_bytes equals; default: EP_LOW_LATENCY_TOPK, else 8. preinitialize:
        ``warmup`` here, with the three sizes before it and num_topk; without these, with the sizes
        of that hint.

        Raises ValueError without group and comm, RuntimeError for sizes that are not multiples of
        128, and with preinitialize where sizes are unknown.
        """
        if group is None and comm is None:
            raise ValueError(
                "deep_ep.Buffer: either group= (torch.distributed) or comm= (mpi4py) is needed"
            )
        for name, value in (("num_nvl_bytes", num_nvl_bytes), ("num_rdma_bytes", num_rdma_bytes)):
            native_assert(
                value >= 0 and value % 128 == 0, f"{name} is {value}; allowed: multiples of 128"
            )
        expect(
            num_qps_per_rank > 0, f"num_qps_per_rank is {num_qps_per_rank}; at least 1 is allowed"
        )
        ranks = comm.Get_size() if group is None else dist.get_world_size(group)
        self._sizes = (num_max_tokens_per_rank, hidden, num_experts, num_topk)
        if preinitialize:
            self._sizes = self._known_sizes(
                "preinitialize=True", ranks, num_rdma_bytes, self._sizes
            )
        if group is not None and torch.cuda.is_available():
            check_nvlink_connections(group)
        self.group = group
        self.num_nvl_bytes = num_nvl_bytes
        self.num_rdma_bytes = num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.enable_shrink = enable_shrink
        self.nvshmem_qp_depth = int(os.environ.get("NVSHMEM_QP_DEPTH", "1024"))
        self.runtime: Runtime | None = None
        self.runtime = Runtime(
            group,
            comm,
            num_nvl_bytes + num_rdma_bytes,
            nvshmem=low_latency_mode or num_rdma_bytes > 0,
            network=lambda on_gpu: network_settings(
                os.environ,
                num_qps_per_rank,
                allow_nvlink_for_low_latency_mode,
                allow_nvlink_for_normal_mode,
                low_latency_mode,
                num_rdma_bytes > 0,
                on_gpu,
            ),
        )
        self.rank, self.group_size = self.runtime.rank, self.runtime.num_ranks
        self._normal = normal_calls(self.runtime)
        self._groups = LowLatencyGroups(
            self.runtime, num_rdma_bytes, low_latency_mode, enable_shrink
        )
        self._low_latency = low_latency_calls(self.runtime, self._groups)
        self._local_memory = LocalMemory(num_nvl_bytes, num_rdma_bytes, self.runtime.device)
        if low_latency_mode:
            self._groups.create_early(num_topk)
        self._prepare(preinitialize)
        self.explicitly_destroy = explicitly_destroy

    def __repr__(self) -> str:
        return description(self, "num_nvl_bytes", "num_rdma_bytes", "low_latency_mode")

    def __del__(self) -> None:
        warn_unless_destroyed(self)

    def destroy(self) -> None:
        """Closes the buffer. Collective; later calls do nothing.

        With enable_shrink, where low-latency calls have created memory, the other ranks need not
        come: a warning is logged after the timeout. Raises AssertionError without
        explicitly_destroy.
        """
        if close(self):
            del self._normal, self._low_latency, self._groups

    @staticmethod
    def is_sm90_compiled() -> bool:
        """True if FP8 and low-latency calls exist, which is always the case."""
        return True

    @staticmethod
    def disable_ll_layered() -> bool:
        """True if low-latency calls work with enable_shrink, as without the layered algorithm of
        DeepEP's branch antgroup-opt; always True."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Sets the SMs of normal calls without ``config``; without effect on the CPU.

        Raises AssertionError for odd numbers.
        """
        expect(
            new_num_sms % 2 == 0,
            f"set_num_sms: got {new_num_sms}; the number of SMs has to be even",
        )
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """An event after all work on the current stream, for ``previous_event``."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """``num_rdma_bytes`` for low-latency calls of these sizes."""
        return EarlyShapes.note(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """The recommended tuning. Raises AssertionError for numbers of ranks without one."""
        return sizes.get_dispatch_config(num_ranks, Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """The recommended tuning. Raises AssertionError for numbers of ranks without one."""
        return sizes.get_combine_config(num_ranks, Buffer.num_sms)

    def get_comm_stream(self) -> torch.cuda.Stream:
        """The stream of the operations; on the CPU a ``torch.Stream`` without effect."""
        runtime = self._open("get_comm_stream")
        return torch.Stream(device="cpu") if runtime.comm_stream is None else runtime.comm_stream

    def get_local_buffer_tensor(
        self,
        dtype: torch.dtype,
        size: torch.Size | None = None,
        offset: int = 0,
        use_rdma_buffer: bool = False,
    ) -> torch.Tensor:
        """Memory of ``num_nvl_bytes`` or ``num_rdma_bytes``, without the first ``offset`` bytes.

        Returns one dimension, or the first elements in shape ``size``. The first call allocates the
        memory, later calls return the same. Shoal's own traffic does not use it.
        """
        self._open("get_local_buffer_tensor")
        return self._local_memory.tensor(dtype, size, offset, use_rdma_buffer)

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, EventOverlap]:
        """Counts the tokens for each target; local. topk_idx: ``topk_idx_t`` [T, K], -1: no expert.

        Returns tokens per rank (int32 [R]), per node of eight ranks (int32 [R / 8]; None inside one
        node), and per expert (int32 [E]), whether a token goes to a rank (bool [T, R]), and the
        event.
        """
        self._open("get_dispatch_layout")
        events = (previous_event, async_finish, allocate_on_comm_stream)
        return self._normal.get_dispatch_layout(topk_idx, num_experts, *events)

    def dispatch(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        handle: tuple | None = None,
        num_tokens_per_rank: torch.Tensor | None = None,
        num_tokens_per_rdma_rank: torch.Tensor | None = None,
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[
        Any, torch.Tensor | None, torch.Tensor | None, list[int] | None, tuple, EventOverlap
    ]:
        """Sends each token once to each rank that holds one of its experts. Collective.

        x: bfloat16 [T, H], or (float8_e4m3fn [T, H], float32 or int32 scales [T, n] of any
        strides). The layout is that of get_dispatch_layout, or that of ``handle``; with a handle
        (cached), no topk tensors are passed and no counts are exchanged. topk_weights: float32 [T,
        K]. num_worst_tokens: the number of rows to return; no size reaches the host then.

        Returns (recv_x in the form of x, recv_topk_idx, recv_topk_weights, tokens per local expert
        rounded up to expert_alignment, handle, event). Rows are ordered by source rank, then token;
        indices are local, -1 for experts elsewhere. Cached: (recv_x, None, None, None, None,
        event).
        """
        self._open("dispatch")
        check_torch_deterministic()
        return self._normal.dispatch(
            x,
            handle,
            num_tokens_per_rank,
            is_token_in_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            num_worst_tokens,
            self._sms(config),
            previous_event,
            async_finish,
            allocate_on_comm_stream,
        )

    def combine(
        self,
        x: torch.Tensor,
        handle: tuple,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Sums expert output at the sources of the tokens. Collective.

        Sums are unweighted, in float32, and rounded once. x: bfloat16 [rows received, H], one row
        of expert output per received row. topk_weights: float32 [rows, K], summed in the same way.
        bias: one or two bfloat16 [T, H], added first. Returns (bfloat16 [T, H], float32 [T, K] or
        None, event).
        """
        self._open("combine")
        check_torch_deterministic()
        events = (previous_event, async_finish, allocate_on_comm_stream)
        return self._normal.combine(x, handle, topk_weights, bias, self._sms(config), *events)

    def clean_low_latency_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> None:
        """Checks the sizes. Nothing needs cleaning: the modes share no memory, and signals carry
        epochs."""
        call = "clean_low_latency_buffer"
        self._open(call)
        self._groups.check_sizes(call, num_max_dispatch_tokens_per_rank, hidden, num_experts)

    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        dispatch_wait_recv_cost_stats: torch.Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        use_nvfp4: bool = False,
        x_global_scale: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        use_ue8m0_for_sf: bool = False,
    ) -> tuple[Any, ...]:
        """Sends tokens to fixed slots. Collective.

        N is num_max_dispatch_tokens_per_rank, the same on all ranks. x: bfloat16 [T, H], T <= N, H
        a multiple of 128. topk_idx: ``topk_idx_t`` [T, K]. use_fp8: rows travel as float8 with a
        scale per 128 channels. round_scale: scales are powers of two. use_ue8m0: scales are packed
        as bytes; needs round_scale. cumulative_local_expert_recv_stats: int32 [E / R]; the call
        adds the rows received. dispatch_wait_recv_cost_stats: int64 [R]; the call adds the
        nanoseconds waited for each rank. use_nvfp4, without use_fp8: rows travel in 4 bits a
        channel with an e4m3 scale per 16 channels, times element 0 of ``x_global_scale``, float32
        with one or more elements, the same on all ranks. topk_weights: float32 [T, K], to be
        received with the rows. use_ue8m0_for_sf: only False.

        Returns (recv_x, count, handle, event, hook); with topk_weights, the float32 weights and
        the int32 source ranks of the rows, both [E / R, R * N], come before the handle. recv_x:
        bfloat16 [E / R, R * N, H], or (float8_e4m3fn of that shape, scales float32 [.., .., H /
        128] or int32 [.., .., ceil(H / 512)], column-major), or for use_nvfp4 (uint8 [R * N, H / 2,
        E / R], float8_e4m3fn [32, 4, ceil(R * N / 128), 4, ceil(H / 64), E / R]), contiguous by
        expert (legacy/nvfp4.py). Rows 0 to count[e] - 1 of expert e are valid: after hook() with
        return_recv_hook, and until two more dispatches have been received.
        """
        call = "low_latency_dispatch"
        self._open(call)
        check_torch_deterministic()
        if use_ue8m0_for_sf:
            native_fail(
                f"{call}: use_ue8m0_for_sf=True; "
                "allowed: False, scales of NVFP4 results are float8_e4m3fn"
            )
        return self._low_latency.dispatch(
            x,
            topk_idx,
            num_max_dispatch_tokens_per_rank,
            num_experts,
            cumulative_local_expert_recv_stats,
            dispatch_wait_recv_cost_stats,
            use_fp8,
            round_scale,
            use_ue8m0,
            async_finish,
            return_recv_hook,
            use_nvfp4,
            x_global_scale,
            topk_weights,
        )

    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: tuple,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: torch.Tensor | None = None,
        combine_wait_recv_cost_stats: torch.Tensor | None = None,
        overlap: bool = False,
        packed_recv_count: torch.Tensor | None = None,
        comp_signal: torch.Tensor | None = None,
        block_m: int = 64,
        threshold: int = 0,
        num_sms: int = 0,
        src_signals: torch.Tensor | None = None,
        src_signal_expect_value: int = 0,
    ) -> tuple[torch.Tensor, EventOverlap, Callable[[], object] | None]:
        """Sums expert output, weighted, at the sources of the tokens. Collective.

        x: bfloat16 [E / R, R * N, H], the expert output. topk_idx: as passed to the dispatch.
        topk_weights: float32 [T, K]. use_logfmt: rows travel with 10 bits per channel: the sum of
        each rank, or each expert output with return_recv_hook. zero_copy: the expert output lies
        in get_next_low_latency_combine_buffer(handle). overlap: waits first until the signals of
        the GEMM that writes x have their value, those of blocks of block_m rows (comp_signal) or of
        experts (src_signals); python/bindings/ep/signals.hpp has both protocols. Other arguments of
        the overlap, and num_sms (0: automatic), count only then.

        Returns (bfloat16 [T, H], which is ``out`` where given; event; hook), valid after hook()
        with return_recv_hook.
        """
        self._open("low_latency_combine")
        check_torch_deterministic()
        return self._low_latency.combine(
            x,
            topk_idx,
            topk_weights,
            handle,
            use_logfmt,
            zero_copy,
            async_finish,
            return_recv_hook,
            out,
            combine_wait_recv_cost_stats,
            overlap,
            packed_recv_count,
            comp_signal,
            block_m,
            threshold,
            num_sms,
            src_signals,
            src_signal_expect_value,
        )

    def get_next_low_latency_combine_buffer(self, handle: tuple) -> torch.Tensor:
        """The memory for the x of the next low_latency_combine with zero_copy.

        bfloat16 [E / R, R * N, H] with strided rows. Waits until the other ranks have read the
        previous content.
        """
        self._open("get_next_low_latency_combine_buffer")
        return self._low_latency.next_combine_buffer(handle)

    def _open(self, call: str) -> Runtime:
        if self.runtime is None:
            native_fail(f"{call}: this buffer has been destroyed")
        if self.runtime.preparation is not None:
            self.runtime.await_preparation()
        return self.runtime

    @staticmethod
    def _sms(config: Config | None) -> int:
        native_assert(
            config is None or isinstance(config, Config),
            f"config is a {type(config).__name__}; allowed: Config",
        )
        return Buffer.num_sms if config is None else config._num_sms
