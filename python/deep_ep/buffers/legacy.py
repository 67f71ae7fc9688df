# SPDX-License-Identifier: Apache-2.0
"""``Buffer``: dispatch and combine in normal and low-latency mode (the V1 interface)."""

from __future__ import annotations

import os
import struct
from typing import Any

import torch

from .. import config as sizes
from ..config import Config, topk_idx_t
from ..utils.envs import check_nvlink_connections, check_torch_deterministic
from ..utils.event import EventHandle, EventOverlap
from ..utils.semantic import native_assert, native_fail
from .checks import describe, expect, require_tensor
from .groups import GroupShape, NormalGroup, Received
from .handles import NormalHandle
from .layout import count_tokens, ranks_as_experts
from .low_latency import LowLatencyPool
from .low_latency_calls import LowLatencyCalls
from .runtime import Operation, Runtime, empty_strided

_EXCHANGE_BYTES = 512


class Buffer(LowLatencyCalls):
    """Dispatch and combine of expert-parallel tokens among the ranks of a group.

    Tensors lie on the GPU, or on the CPU where there is none (or SHOAL_HEAP=host): the same calls, the same numbers.
    All calls that communicate are collective. ``num_nvl_bytes`` and ``num_rdma_bytes`` are what the size hints say;
    memory is taken as calls need it.

    Attributes: rank, group, group_size, num_nvl_bytes, num_rdma_bytes, low_latency_mode, explicitly_destroy,
    enable_shrink, runtime.
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
    ) -> None:
        """group: a torch.distributed group of any backend, or None and ``comm``, an mpi4py communicator.

        low_latency_mode: low-latency calls are allowed. explicitly_destroy: ``destroy`` will be called.
        enable_shrink: low-latency calls go on without ranks that do not answer. num_qps_per_rank,
        allow_nvlink_for_low_latency_mode, allow_mnnvl: accepted; Shoal picks its transport itself.
        Raises ValueError without group and comm, RuntimeError for sizes that are not multiples of 128.
        """
        if group is None and comm is None:
            raise ValueError("deep_ep.Buffer: either group= (torch.distributed) or comm= (mpi4py) is needed")
        for name, value in (("num_nvl_bytes", num_nvl_bytes), ("num_rdma_bytes", num_rdma_bytes)):
            native_assert(value >= 0 and value % 128 == 0, f"{name} is {value}; allowed: multiples of 128")
        expect(num_qps_per_rank > 0, f"num_qps_per_rank is {num_qps_per_rank}; at least 1 is allowed")
        if group is not None and torch.cuda.is_available():
            check_nvlink_connections(group)
        self.group = group
        self.num_nvl_bytes = num_nvl_bytes
        self.num_rdma_bytes = num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.explicitly_destroy = explicitly_destroy
        self.enable_shrink = enable_shrink
        self.nvshmem_qp_depth = int(os.environ.get("NVSHMEM_QP_DEPTH", "1024"))
        self.runtime: Runtime | None = None
        self.runtime = Runtime(group, comm, num_nvl_bytes + num_rdma_bytes)
        self.rank, self.group_size = self.runtime.rank, self.runtime.num_ranks
        self._low_latency = LowLatencyPool(self.runtime.team, self.runtime.device, enable_shrink)
        self._checked, self._hooked = set(), {}
        self._empty = empty_strided(self.runtime.device)
        self._local: dict[bool, torch.Tensor] = {}

    def __del__(self) -> None:
        if getattr(self, "runtime", None) is not None and self.explicitly_destroy:
            print(
                "WARNING: deep_ep.Buffer was made with explicitly_destroy=True and went without destroy()", flush=True
            )

    def destroy(self) -> None:
        """Ends the buffer. Collective. A second call does nothing; AssertionError without explicitly_destroy."""
        expect(self.explicitly_destroy, "destroy: this buffer was made without explicitly_destroy=True")
        if self.runtime is not None:
            self.runtime.close()
            self.runtime = None
            self._hooked.clear()

    # Statics.

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether FP8 and low-latency calls exist: always."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """SMs of normal calls without ``config``; AssertionError for odd numbers. No meaning on the CPU."""
        expect(new_num_sms % 2 == 0, f"set_num_sms: got {new_num_sms}; the number of SMs has to be even")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """An event behind all work of the current stream, for ``previous_event``."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """``num_rdma_bytes`` for low-latency calls of these sizes."""
        return sizes.get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """The recommended tuning; AssertionError for rank counts without one."""
        return sizes.get_dispatch_config(num_ranks, Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """The recommended tuning; AssertionError for rank counts without one."""
        return sizes.get_combine_config(num_ranks, Buffer.num_sms)

    # Memory and streams.

    def get_comm_stream(self) -> torch.cuda.Stream:
        """The stream that operations run on; on the CPU a ``torch.Stream`` that orders nothing."""
        runtime = self._open("get_comm_stream")
        return torch.Stream(device="cpu") if runtime.comm_stream is None else runtime.comm_stream

    def get_local_buffer_tensor(
        self, dtype: torch.dtype, size: torch.Size | None = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> torch.Tensor:
        """``num_nvl_bytes`` (or ``num_rdma_bytes``) of memory from ``offset`` (bytes) on, flat or of shape ``size``.

        The same memory every time, made at the first call. Shoal's own traffic does not pass through it.
        """
        runtime = self._open("get_local_buffer_tensor")
        total = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
        native_assert(
            0 <= offset <= total and offset % dtype.itemsize == 0,
            f"get_local_buffer_tensor: offset is {offset}; allowed: multiples of {dtype.itemsize} up to {total}",
        )
        if use_rdma_buffer not in self._local:
            self._local[use_rdma_buffer] = torch.zeros(total, dtype=torch.uint8, device=runtime.device)
        end = total - (total - offset) % dtype.itemsize
        flat = self._local[use_rdma_buffer][offset:end].view(dtype)
        if size is None:
            return flat
        numel = torch.Size(size).numel()
        expect(flat.numel() >= numel, f"get_local_buffer_tensor: {list(size)} of {dtype} in {flat.numel()} elements")
        return flat[:numel].view(size)

    # Normal mode.

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, EventOverlap]:
        """Counts where tokens go; local. topk_idx: ``topk_idx_t`` [T, K], -1: none.

        Returns int32 [R] tokens per rank, int32 [R / 8] per node of eight (None inside one), int32 [E] per expert,
        bool [T, R] whether a token goes to a rank, and the event.
        """
        call = "get_dispatch_layout"
        runtime = self._open(call)
        require_tensor(call, "topk_idx", topk_idx, (topk_idx_t,), (None, None), runtime.device)
        with runtime.operation(call, previous_event, async_finish, allocate_on_comm_stream) as operation:
            layout = count_tokens(topk_idx, num_experts, self.group_size, runtime.get_num_rdma_ranks())
        return *layout, operation.overlap((topk_idx,), layout)

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
    ) -> tuple[Any, torch.Tensor | None, torch.Tensor | None, list[int] | None, tuple, EventOverlap]:
        """Sends each token once to each rank that holds one of its experts. Collective.

        x: bfloat16 [T, H], or (float8_e4m3fn [T, H], float32 or int32 scales [T, n] of any strides). The layout is
        that of get_dispatch_layout, or that of ``handle`` (cached: no topk, no counts are exchanged). topk_weights:
        float32 [T, K]. num_worst_tokens: exactly so many rows are returned, and no size reaches the host.

        Returns (recv_x as x, recv_topk_idx, recv_topk_weights, tokens per local expert rounded up to
        expert_alignment, handle, event); rows are ordered by source rank, then token; indices are local, -1 elsewhere.
        Cached: (recv_x, None, None, None, None, event).
        """
        call = "dispatch"
        runtime = self._open(call)
        check_torch_deterministic()
        rows, scales = x if isinstance(x, tuple) else (x, None)
        self._check_rows(call, rows, scales)
        with runtime.operation(call, previous_event, async_finish, allocate_on_comm_stream) as operation:
            if handle is not None:
                expect(topk_idx is None and topk_weights is None, f"{call}: a cached dispatch takes no topk_idx")
                self._check_handle(call, handle)
                received = handle.group.dispatch(
                    rows,
                    handle.shoal,
                    scales=scales,
                    worst_case_rows=handle.worst_rows,
                    captured=runtime.capturing(),
                    **self._launch(operation, config),
                )
                result = (None, None, None, None)
            else:
                expect(
                    all(t is not None for t in (num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert)),
                    f"{call}: without handle num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert are needed",
                )
                expect((topk_idx is None) == (topk_weights is None), f"{call}: topk_idx and topk_weights come together")
                expect(num_worst_tokens == 0 or topk_idx is not None, f"{call}: num_worst_tokens needs topk_idx")
                received, *result = self._dispatch_new(
                    call,
                    rows,
                    scales,
                    (num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert),
                    topk_idx,
                    topk_weights,
                    expert_alignment,
                    num_worst_tokens,
                    self._launch(operation, config),
                )
        recv_x = received.x if scales is None else (received.x, received.scales)
        inputs = (rows, scales, topk_idx, topk_weights, is_token_in_rank)
        overlap = operation.overlap(inputs, (*received, *(result[3] or ())))
        return recv_x, *result, overlap

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
        """Sums the answers to the rows of a dispatch at their sources: no weights, float32, rounded once. Collective.

        x: bfloat16 [rows received, H]. topk_weights: float32 [rows, K], summed back likewise. bias: one or two
        bfloat16 [T, H], added first. Returns (bfloat16 [T, H], float32 [T, K] or None, event).
        """
        call = "combine"
        runtime = self._open(call)
        check_torch_deterministic()
        self._check_handle(call, handle)
        shape = handle.group.shape
        require_tensor(call, "x", x, (torch.bfloat16,), (handle.rows, shape.hidden), runtime.device)
        if topk_weights is not None:
            require_tensor(
                call, "topk_weights", topk_weights, (torch.float32,), (handle.rows, shape.top_k), runtime.device
            )
        biases = bias if isinstance(bias, tuple) else () if bias is None else (bias,)
        native_assert(len(biases) <= 2, f"{call}: bias has {len(biases)} tensors; at most 2 are allowed")
        for one in biases:
            if one is not None:
                require_tensor(call, "bias", one, (x.dtype,), (handle.num_tokens, shape.hidden), runtime.device)
        with runtime.operation(call, previous_event, async_finish, allocate_on_comm_stream) as operation:
            sums, weights = handle.group.combine(
                x,
                handle.shoal,
                handle.num_tokens,
                weights=None if topk_weights is None else topk_weights.detach(),
                bias=tuple(one.detach() for one in biases if one is not None),
                **self._launch(operation, config),
            )
        return sums, weights, operation.overlap((x, topk_weights, *biases), (sums, weights))

    def internode_dispatch(
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
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, torch.Tensor | None, torch.Tensor | None, list[int] | None, tuple, EventOverlap]:
        """As dispatch; ``config`` is required."""
        expect(config is not None, "internode_dispatch: config is needed")
        return self.dispatch(
            x,
            handle,
            num_tokens_per_rank,
            num_tokens_per_rdma_rank,
            is_token_in_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            0,
            config,
            previous_event,
            async_finish,
            allocate_on_comm_stream,
        )

    def internode_combine(
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
        """As combine; ``config`` is required."""
        expect(config is not None, "internode_combine: config is needed")
        return self.combine(
            x, handle, topk_weights, bias, config, previous_event, async_finish, allocate_on_comm_stream
        )

    # Private.

    def _open(self, call: str) -> Runtime:
        if self.runtime is None:
            native_fail(f"{call}: this buffer has been destroyed")
        return self.runtime

    def _launch(self, operation: Operation, config: Config | None) -> dict[str, int]:
        native_assert(
            config is None or isinstance(config, Config), f"config is a {type(config).__name__}; allowed: Config"
        )
        if not operation.launch:
            return {}
        return {**operation.launch, "sms": Buffer.num_sms if config is None else config._num_sms}

    def _check_rows(self, call: str, x: Any, scales: Any) -> None:
        device = self.runtime.device
        kinds = (torch.bfloat16,) if scales is None else (torch.float8_e4m3fn,)
        require_tensor(call, "x", x, kinds, (None, None), device)
        native_assert(
            x.shape[1] * x.element_size() % 16 == 0,
            f"{call}: rows of x have {x.shape[1] * x.element_size()} bytes; allowed: multiples of 16",
        )
        native_assert(
            scales is None
            or (scales.dim() == 2 and scales.shape[0] == x.shape[0] and scales.dtype in (torch.float32, torch.int32)),
            f"{call}: scales are {describe(scales)}; allowed: float32 or int32 [{x.shape[0]}, *]",
        )

    def _check_handle(self, call: str, handle: Any) -> None:
        native_assert(
            isinstance(handle, NormalHandle),
            f"{call}: handle is a {type(handle).__name__}; allowed: what dispatch returned, unchanged",
        )

    def _dispatch_new(
        self,
        call: str,
        rows: torch.Tensor,
        scales: torch.Tensor | None,
        layout: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        topk_idx: torch.Tensor | None,
        topk_weights: torch.Tensor | None,
        expert_alignment: int,
        worst_rows: int,
        launch: dict[str, int],
    ) -> tuple[Received, torch.Tensor | None, torch.Tensor | None, list[int], NormalHandle]:
        runtime, ranks, tokens = self.runtime, self.group_size, rows.shape[0]
        per_rank, in_rank, per_expert = layout
        require_tensor(call, "num_tokens_per_rank", per_rank, (torch.int32,), (ranks,), runtime.device)
        require_tensor(call, "is_token_in_rank", in_rank, (torch.bool,), (tokens, ranks), runtime.device)
        require_tensor(call, "num_tokens_per_expert", per_expert, (torch.int32,), (None,), runtime.device)
        native_assert(expert_alignment >= 1, f"{call}: expert_alignment is {expert_alignment}; at least 1 is allowed")
        native_assert(worst_rows >= 0, f"{call}: num_worst_tokens is {worst_rows}; at least 0 is allowed")
        by_rank = topk_idx is None  # the caller knows ranks only
        if by_rank:
            topk_idx = ranks_as_experts(in_rank)
        else:
            require_tensor(call, "topk_idx", topk_idx, (topk_idx_t,), (tokens, None), runtime.device)
            require_tensor(call, "topk_weights", topk_weights, (torch.float32,), tuple(topk_idx.shape), runtime.device)
        experts = ranks if by_rank else per_expert.numel()
        shape = GroupShape(rows.shape[1], topk_idx.shape[1], experts)
        group = self._normal_group(call, shape, tokens, 0 if scales is None else scales.shape[1], worst_rows)
        routing = group.group.route(topk_idx, **{key: value for key, value in launch.items() if key == "stream"})
        if routing.tokens_per_rank:
            native_assert(
                list(routing.tokens_per_rank) == per_rank.tolist(),
                f"{call}: num_tokens_per_rank is {per_rank.tolist()}, by topk_idx {list(routing.tokens_per_rank)}",
            )
        received = group.dispatch(
            rows,
            routing,
            weights=None if by_rank else topk_weights.detach(),
            scales=scales,
            expert_alignment=expert_alignment,
            worst_case_rows=worst_rows,
            captured=runtime.capturing(),
            **launch,
        )
        handle = NormalHandle.make(group, received, in_rank, self.rank, runtime.get_num_rdma_ranks(), worst_rows)
        if by_rank:
            return received, None, None, self._expert_totals(per_expert, expert_alignment), handle
        per_local_expert = [] if worst_rows > 0 else received.tokens_per_expert
        return received, received.topk_idx.to(topk_idx_t), received.topk_weights, per_local_expert, handle

    def _normal_group(self, call: str, shape: GroupShape, tokens: int, scales: int, worst_rows: int) -> NormalGroup:
        pool = self.runtime.groups
        room = max(tokens, -(-worst_rows // self.group_size))
        if not self.runtime.capturing():
            return pool.get(shape, *pool.agree(shape, room, scales))
        group = pool.existing(shape)
        native_assert(
            group is not None and group.max_tokens >= room and group.max_scales >= scales,
            f"{call}: a CUDA graph cannot capture the first call of {shape} with {room} tokens; run it once before",
        )
        return group

    def _expert_totals(self, per_expert: torch.Tensor, alignment: int) -> list[int]:
        """Tokens of all ranks for each expert here, rounded up. Collective."""
        counts, local = per_expert.tolist(), per_expert.numel() // self.group_size
        totals = [0] * len(counts)
        step = _EXCHANGE_BYTES // 4
        for first in range(0, len(counts), step):
            part = counts[first : first + step]
            form = struct.Struct(f"<{len(part)}i")
            for block in self.runtime.team.exchange(form.pack(*part)):
                for i, count in enumerate(form.unpack(block)):
                    totals[first + i] += count
        return [-(-n // alignment) * alignment for n in totals[self.rank * local : (self.rank + 1) * local]]
