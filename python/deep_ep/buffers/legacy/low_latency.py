# SPDX-License-Identifier: Apache-2.0
"""``LowLatencyMode``: the part of ``Buffer`` behind its low-latency calls.

Calls whose arguments repeat take the fast path in ``Buffer`` itself (``HookedPath``). This file has
the general path, which checks arguments and explains errors, and the masks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ... import config as sizes
from ...config import topk_idx_t
from ...utils.event import EventHandle, EventOverlap, profiled, profiling
from ...utils.semantic import native_assert, native_fail
from ..checks import describe, require_experts, require_tensor
from ..runtime import Runtime
from . import nvfp4, received_weights
from .handles import LowLatencyHandle
from .low_latency_group import HookedPath, LowLatencyGroup, LowLatencyPool
from .overlap import Overlap

# Arguments that repeat: tokens per rank, experts, use_fp8, round_scale, use_ue8m0.
Form = tuple[int, int, bool, bool, bool]


class LowLatencyMode:
    """Calls with fixed shapes and without an exchange of sizes.

    Attributes: ``hooked_paths``, the fast paths of dispatches seen so far.
    """

    def __init__(self, runtime: Runtime, num_rdma_bytes: int, enabled: bool, enable_shrink: bool):
        self._runtime = runtime
        self._num_rdma_bytes, self._enabled, self._enable_shrink = (
            num_rdma_bytes,
            enabled,
            enable_shrink,
        )
        self._pool = LowLatencyPool(runtime.team, runtime.device, enable_shrink)
        self._on_host = runtime.device.type == "cpu"
        self._checked: set[tuple[int, int, int]] = set()  # sizes of earlier calls
        self.hooked_paths: dict[Form, HookedPath] = {}

    def dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        form: Form,
        counts: torch.Tensor | None,
        waits: torch.Tensor | None,
        async_finish: bool,
        return_recv_hook: bool,
    ) -> tuple[Any, torch.Tensor, tuple, EventOverlap, Callable[[], object] | None]:
        """``Buffer.low_latency_dispatch`` on the general path."""
        runtime = self._runtime
        n, num_experts, *_ = form
        self._check_dispatch(x, topk_idx, form, async_finish and return_recv_hook)
        options: dict[str, Any] = {"defer_receive": return_recv_hook}
        if counts is not None or waits is not None:
            self._check_stats("low_latency_dispatch", counts, num_experts, waits)
            options["expert_counts"] = counts
            options["wait_ns"] = waits
        quantize = _quantize(form)
        group = self._pool.get(x.shape[1], topk_idx.shape[1], num_experts, n)
        if not async_finish and topk_idx_t is torch.int64:  # the fast path takes no other indices
            self.hooked_paths[form] = HookedPath(group, quantize)
        if return_recv_hook:
            options["stream"] = runtime.current_stream()
            with self._range("dispatch_send_kernel"):
                arrays, handle, hook = group.dispatch(x, topk_idx, quantize, options)
            hook = self._traced("dispatch_receive_kernel", hook)
            return arrays.rows, arrays.counts, handle, EventOverlap(), hook
        with (
            runtime.operation("low_latency_dispatch", None, async_finish) as operation,
            self._range("dispatch_impl"),
        ):
            options.update(operation.launch)
            arrays, handle, receive = group.dispatch(x, topk_idx, quantize, options)
            receive()
        return arrays.rows, arrays.counts, handle, operation.overlap((x, topk_idx), ()), None

    def dispatch_nvfp4(
        self, x: torch.Tensor, topk_idx: torch.Tensor, form: Form, global_scale: Any, *more: Any
    ) -> tuple[Any, torch.Tensor, tuple, EventOverlap, Callable[[], object] | None]:
        """``Buffer.low_latency_dispatch`` with use_nvfp4. ``more``: the arguments of ``dispatch``
        after ``form``."""
        call, runtime = "low_latency_dispatch", self._runtime
        native_assert(not form[2], f"{call}: use_nvfp4=True needs use_fp8=False")
        global_scale = nvfp4.global_scale_of(call, global_scale, runtime.device)
        rows, counts, handle, overlap, hook = self.dispatch(x, topk_idx, form, *more)
        out = nvfp4.allocate(*rows.shape, runtime.device)
        if hook is None:
            if overlap.event is not None:
                overlap.current_stream_wait()
            nvfp4.quantize(rows, counts, global_scale, out, runtime.current_stream())
            if overlap.event is not None:  # the result includes the quantization
                overlap = EventOverlap(EventHandle())
            return out, counts, handle, overlap, None

        def receive() -> None:
            hook()
            nvfp4.quantize(rows, counts, global_scale, out, runtime.current_stream())

        return out, counts, handle, overlap, receive

    def check_weights(self, topk_weights: Any, topk_idx: torch.Tensor) -> None:
        """Raises RuntimeError unless there is a weight for each element of ``topk_idx``."""
        call, device = "low_latency_dispatch", self._runtime.device
        require_tensor(call, "topk_idx", topk_idx, (topk_idx_t,), (None, None), device)
        require_tensor(call, "topk_weights", topk_weights, (torch.float32,), topk_idx.shape, device)

    def dispatch_weights(
        self, sent: tuple, form: Form, topk_idx: torch.Tensor, topk_weights: torch.Tensor
    ) -> tuple[Any, ...]:
        """The result ``sent`` of a dispatch with the weights and source ranks of its rows."""
        runtime, top_k = self._runtime, topk_idx.shape[1]
        group = self._pool.get(received_weights.hidden_of(top_k), top_k, form[1], form[0])
        weights = (topk_idx, topk_weights, runtime.current_stream())
        return received_weights.dispatch_weights(sent, group, runtime.rank, *weights)

    def combine(
        self,
        data: tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple],
        flags: tuple[bool, bool, bool, bool],
        out: torch.Tensor | None,
        waits: torch.Tensor | None,
        overlap: Overlap | None = None,
        num_sms: int = 0,
    ) -> tuple[torch.Tensor, EventOverlap, Callable[[], object] | None]:
        """``Buffer.low_latency_combine`` on the general path.

        data: x, topk_idx, topk_weights, handle. flags: use_logfmt, zero_copy, async_finish,
        return_recv_hook.
        """
        x, topk_idx, topk_weights, handle = data
        use_logfmt, zero_copy, async_finish, return_recv_hook = flags
        call, runtime = "low_latency_combine", self._runtime
        device = runtime.device
        group = self.group_of(call, handle)
        if handle.shoal is None:
            native_fail(f"{call}: the hook of this handle's dispatch has not been called")
        require_tensor(call, "topk_idx", topk_idx, (topk_idx_t,), (None, group.shape.top_k), device)
        require_tensor(call, "topk_weights", topk_weights, (torch.float32,), topk_idx.shape, device)
        if zero_copy and use_logfmt:
            native_fail(f"{call}: zero_copy and use_logfmt exclude each other")
        if async_finish and return_recv_hook:
            native_fail(f"{call}: async_finish and return_recv_hook exclude each other")
        options = {"log_fmt": use_logfmt, "zero_copy": zero_copy, "defer_receive": return_recv_hook}
        if num_sms > 0:
            options["sms"] = num_sms
        if waits is not None:
            self._check_stats(call, None, 0, waits)
            options["wait_ns"] = waits
        y = self._expert_output(call, x, group, zero_copy)

        def wait_for_output() -> None:
            if overlap is not None:
                stream = runtime.current_stream()
                overlap.wait(call, group.result_shape[:2], device, stream, runtime.timeout)

        sums = (topk_idx.shape[0], group.shape.hidden)
        if out is None:
            out = torch.empty(sums, dtype=torch.bfloat16, device=device)
        else:
            require_tensor(call, "out", out, (torch.bfloat16,), sums, device)
        if return_recv_hook:
            options["stream"] = runtime.current_stream()
            with self._range("combine_send_kernel"):
                wait_for_output()
                hook = group.combine(y, topk_idx, topk_weights, handle, out, options)
            return out, EventOverlap(), self._traced("combine_receive_kernel", hook)
        with runtime.operation(call, None, async_finish) as operation, self._range("combine_impl"):
            options.update(operation.launch)
            wait_for_output()
            group.combine(y, topk_idx, topk_weights, handle, out, options)()
        return out, operation.overlap((y, topk_idx, topk_weights, out), ()), None

    def create(
        self,
        call: str,
        max_tokens: int,
        hidden: int,
        num_experts: int,
        top_k: int,
        provisional: bool = False,
    ) -> None:
        """Creates what calls of these sizes use. Collective where it does not exist yet.

        provisional: top-k is a default; the first call with another one replaces the group.
        """
        self.check_sizes(call, max_tokens, hidden, num_experts)
        native_assert(top_k > 0, f"{call}: num_topk is {top_k}; at least 1 is allowed")
        self._pool.get(hidden, top_k, num_experts, max_tokens, provisional)

    def group(self, max_tokens: int, hidden: int, num_experts: int, top_k: int) -> LowLatencyGroup:
        """The group of a shape that exists."""
        return self._pool.get(hidden, top_k, num_experts, max_tokens)

    def group_of(self, call: str, handle: Any) -> LowLatencyGroup:
        """The group that issued a handle."""
        if not isinstance(handle, LowLatencyHandle) or handle.group is None:
            native_fail(
                f"{call}: handle is a {type(handle).__name__}; "
                "allowed: the handle that low_latency_dispatch returned, unchanged"
            )
        return handle.group

    def check_sizes(self, call: str, max_tokens: int, hidden: int, num_experts: int) -> None:
        ranks = self._runtime.num_ranks
        native_assert(
            self._enabled, f"{call}: this buffer was created without low_latency_mode=True"
        )
        native_assert(
            max_tokens > 0,
            f"{call}: num_max_dispatch_tokens_per_rank is {max_tokens}; at least 1 is allowed",
        )
        native_assert(
            hidden > 0 and hidden % 128 == 0,
            f"{call}: hidden is {hidden}; allowed: multiples of 128",
        )
        require_experts(call, num_experts, ranks)
        needed = sizes.get_low_latency_rdma_size_hint(max_tokens, hidden, ranks, num_experts)
        native_assert(
            self._num_rdma_bytes >= needed,
            f"{call}: num_rdma_bytes is {self._num_rdma_bytes}; "
            f"these sizes need {needed} (see the size hint)",
        )
        self._checked.add((max_tokens, hidden, num_experts))

    def update_mask(self, rank: int, masked: bool) -> None:
        self._check_shrink()
        ranks = self._runtime.num_ranks
        native_assert(
            0 <= rank < ranks,
            f"low_latency_update_mask_buffer: rank {rank}; allowed: 0 to {ranks - 1}",
        )
        self._pool.set_mask(rank, masked)

    def query_mask(self, status: torch.Tensor) -> None:
        self._check_shrink()
        ranks, device = self._runtime.num_ranks, self._runtime.device
        call = "low_latency_query_mask_buffer"
        require_tensor(call, "mask_status", status, (torch.int32,), (ranks,), device)
        self._runtime.synchronize_stream()  # calls that are queued may mask ranks
        masked = self._pool.masked()
        status.copy_(torch.tensor([rank in masked for rank in range(ranks)], dtype=torch.int32))

    def clean_masks(self) -> None:
        self._check_shrink()
        self._pool.clear_masks()

    def _check_dispatch(self, x: Any, topk_idx: Any, form: Form, event_and_hook: bool) -> None:
        call, device = "low_latency_dispatch", self._runtime.device
        n, num_experts, _, round_scale, use_ue8m0 = form
        require_tensor(call, "x", x, (torch.bfloat16,), (None, None), device)
        tokens, hidden = x.shape
        if (n, hidden, num_experts) not in self._checked:
            self.check_sizes(call, n, hidden, num_experts)
        require_tensor(call, "topk_idx", topk_idx, (topk_idx_t,), (tokens, None), device)
        if tokens > n:
            native_fail(f"{call}: {tokens} tokens; at most num_max_dispatch_tokens_per_rank = {n}")
        if use_ue8m0 and not round_scale:
            native_fail(f"{call}: use_ue8m0=True needs round_scale=True")
        if event_and_hook:
            native_fail(f"{call}: async_finish and return_recv_hook exclude each other")

    def _check_stats(self, call: str, counts: Any, num_experts: int, waits: Any) -> None:
        device, ranks = self._runtime.device, self._runtime.num_ranks
        if counts is not None:
            name, shape = "cumulative_local_expert_recv_stats", (num_experts // ranks,)
            require_tensor(call, name, counts, (torch.int32,), shape, device)
        if waits is not None:
            require_tensor(call, "wait_recv_cost_stats", waits, (torch.int64,), (ranks,), device)

    def _expert_output(
        self, call: str, x: torch.Tensor, group: LowLatencyGroup, zero_copy: bool
    ) -> torch.Tensor:
        """The tensor to send: ``x``, or the combine buffer of the group with ``zero_copy``."""
        if not zero_copy:
            device = self._runtime.device
            require_tensor(call, "x", x, (torch.bfloat16,), group.result_shape, device)
            return x
        if group.combine_buffer is None:
            native_fail(
                f"{call}: zero_copy=True without a get_next_low_latency_combine_buffer before it"
            )
        if tuple(x.shape) != group.result_shape:
            native_fail(f"{call}: x is {describe(x)}; allowed: {list(group.result_shape)}")
        return group.combine_buffer

    def _check_shrink(self) -> None:
        native_assert(
            self._enable_shrink,
            "Shrink mode must be enabled: create the buffer with enable_shrink=True",
        )

    def _range(self, name: str) -> AbstractContextManager[object]:
        """A profiler range on the host. On GPUs, kernels have the names that profilers look for."""
        return profiled(name) if self._on_host else nullcontext()

    def _traced(self, name: str, hook: Callable[[], object]) -> Callable[[], object]:
        """``hook``, in a profiler range where a profiler runs now."""
        if not (self._on_host and profiling()):
            return hook

        def traced() -> None:
            with profiled(name):
                hook()

        return traced


def _quantize(form: Form) -> str:
    _, _, use_fp8, round_scale, use_ue8m0 = form
    if not use_fp8:
        return "none"
    if use_ue8m0:
        return "fp8_ue8m0"
    return "fp8_power_of_two" if round_scale else "fp8"
