# SPDX-License-Identifier: Apache-2.0
"""The low-latency calls of ``Buffer``."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import torch

from shoal._core.ep import HookedDispatch

from .. import config as sizes
from ..config import topk_idx_t
from ..utils.envs import check_torch_deterministic
from ..utils.event import EventOverlap
from ..utils.semantic import native_assert, native_fail
from .checks import describe, require_tensor
from .handles import LowLatencyHandle
from .low_latency import HookedPath, LowLatencyPool
from .runtime import Runtime


_deterministic = torch._C._get_deterministic_algorithms  # torch's own function asks the same, in twice the time


class LowLatencyCalls(abc.ABC):
    """Fixed shapes and no exchange of sizes; the receiving half of a call may be a hook that is called later."""

    group_size: int
    num_rdma_bytes: int
    low_latency_mode: bool
    enable_shrink: bool
    _low_latency: LowLatencyPool
    _checked: set[tuple[int, int, int]]  # sizes of earlier calls
    _hooked: dict[tuple[int, int, bool, bool, bool], HookedPath]  # the short way, by what calls differ in
    _empty: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]  # of a shape and strides

    @abc.abstractmethod
    def _open(self, call: str) -> Runtime:
        """The runtime, for a call of this name; raises where the buffer is destroyed."""

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Checks the sizes. There is nothing to clean: Shoal's modes share no memory, and signals carry epochs."""
        call = "clean_low_latency_buffer"
        self._open(call)
        self._check_low_latency(call, num_max_dispatch_tokens_per_rank, hidden, num_experts)

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
    ) -> tuple[Any, torch.Tensor, tuple, EventOverlap, Callable[[], None] | None]:
        """Sends tokens to fixed places; N is num_max_dispatch_tokens_per_rank, the same on all ranks. Collective.

        x: bfloat16 [T, H], T <= N, H a multiple of 128. topk_idx: ``topk_idx_t`` [T, K]. use_fp8: rows travel as
        float8 with a scale per 128 channels; round_scale: of powers of two; use_ue8m0: packed as bytes (with
        round_scale). cumulative_local_expert_recv_stats: int32 [E / R], rows received are added to it;
        dispatch_wait_recv_cost_stats: int64 [R], nanoseconds waited for each rank are added to it.

        Returns (recv_x, count, handle, event, hook). recv_x: bfloat16 [E / R, R * N, H], or (float8_e4m3fn of that
        shape, scales float32 [.., .., H / 128] or int32 [.., .., H / 512], column-major). Rows 0 to count[e] - 1 are
        valid. With return_recv_hook they are so after hook(), and until two more dispatches have been received.
        """
        if _deterministic():
            check_torch_deterministic()
        n = num_max_dispatch_tokens_per_rank
        form = (n, num_experts, use_fp8, round_scale, use_ue8m0)
        if not async_finish and (path := self._hooked.get(form)) is not None:
            # As below, for arguments like those of a call before; nothing has happened where it returns None.
            group = path.group
            half = group.sent & 1
            sent = path.calls.dispatch(
                x,
                topk_idx,
                half,
                cumulative_local_expert_recv_stats,
                dispatch_wait_recv_cost_stats,
                return_recv_hook,
            )
            if sent is not None:
                group.sent += 1
                rows, counts, entries = path.results[half]
                handle = LowLatencyHandle(entries)
                handle.group, handle.sent = group, sent
                if not return_recv_hook:
                    sent()
                return rows, counts, handle, EventOverlap(), sent if return_recv_hook else None
        call = "low_latency_dispatch"
        runtime = self._open(call)
        device = runtime.device
        require_tensor(call, "x", x, (torch.bfloat16,), (None, None), device)
        tokens, hidden = x.shape
        if (n, hidden, num_experts) not in self._checked:
            self._check_low_latency(call, n, hidden, num_experts)
        require_tensor(call, "topk_idx", topk_idx, (topk_idx_t,), (tokens, None), device)
        if tokens > n:
            native_fail(f"{call}: {tokens} tokens; at most num_max_dispatch_tokens_per_rank = {n}")
        if use_ue8m0 and not round_scale:
            native_fail(f"{call}: use_ue8m0=True needs round_scale=True")
        if async_finish and return_recv_hook:
            native_fail(f"{call}: async_finish and return_recv_hook exclude each other")
        options: dict[str, Any] = {"defer_receive": return_recv_hook}
        if cumulative_local_expert_recv_stats is not None or dispatch_wait_recv_cost_stats is not None:
            self._check_stats(call, cumulative_local_expert_recv_stats, num_experts, dispatch_wait_recv_cost_stats)
            options["expert_counts"] = cumulative_local_expert_recv_stats
            options["wait_ns"] = dispatch_wait_recv_cost_stats
        quantize = "none" if not use_fp8 else "fp8_ue8m0" if use_ue8m0 else "fp8_power_of_two" if round_scale else "fp8"
        group = self._low_latency.get(hidden, topk_idx.shape[1], num_experts, n)

        if not async_finish and topk_idx_t is torch.int64:  # the short way takes no others
            self._hooked[form] = HookedPath(group, quantize)
        if return_recv_hook:
            options["stream"] = runtime.current_stream()
            slot, handle, hook = group.dispatch(x, topk_idx, quantize, options)
            overlap = EventOverlap()
        else:
            with runtime.operation(call, None, async_finish) as operation:
                slot, handle, receive = group.dispatch(x, topk_idx, quantize, {**options, **operation.launch})
                receive()
            hook = None
            overlap = operation.overlap((x, topk_idx), ())
        return slot.rows, slot.counts, handle, overlap, hook

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
    ) -> tuple[torch.Tensor, EventOverlap, Callable[[], None] | None]:
        """Sums the answers, weighted, at the sources of the tokens. Collective.

        x: bfloat16 [E / R, R * N, H]; topk_idx as given to the dispatch, topk_weights: float32 [T, K]. use_logfmt: 10
        bits a channel on the way. zero_copy: the answers are in get_next_low_latency_combine_buffer(handle).
        Returns (bfloat16 [T, H], ``out`` where given; event; hook), valid after hook() with return_recv_hook.
        """
        if _deterministic():
            check_torch_deterministic()
        if not (async_finish or zero_copy) and type(handle) is LowLatencyHandle and self.runtime:
            # As below, for what it allows; nothing has happened where it returns None.
            group, sent = handle.group, handle.sent
            if type(sent) is HookedDispatch:
                sums = out
                if sums is None:
                    sums = self._empty((sent.tokens, group.shape.hidden), group.sums_strides, torch.bfloat16)
                hook = group.hooked_combine(
                    x, topk_idx, topk_weights, sent, sums, combine_wait_recv_cost_stats, use_logfmt, return_recv_hook
                )
                if hook is not None:
                    group.combine_buffer = None
                    if not return_recv_hook:
                        hook()
                    return sums, EventOverlap(), hook if return_recv_hook else None
        call = "low_latency_combine"
        runtime = self._open(call)
        device = runtime.device
        group = self._low_latency.of_handle(call, handle)
        if handle.shoal is None:
            native_fail(f"{call}: the hook of this handle's dispatch has not been called")
        require_tensor(call, "topk_idx", topk_idx, (topk_idx_t,), (None, group.shape.top_k), device)
        lanes = topk_idx.shape
        require_tensor(call, "topk_weights", topk_weights, (torch.float32,), lanes, device)
        if zero_copy and use_logfmt:
            native_fail(f"{call}: zero_copy and use_logfmt exclude each other")
        if async_finish and return_recv_hook:
            native_fail(f"{call}: async_finish and return_recv_hook exclude each other")
        options = {"log_fmt": use_logfmt, "zero_copy": zero_copy, "defer_receive": return_recv_hook}
        if combine_wait_recv_cost_stats is not None:
            self._check_stats(call, None, 0, combine_wait_recv_cost_stats)
            options["wait_ns"] = combine_wait_recv_cost_stats
        if zero_copy:
            if group.combine_buffer is None:
                native_fail(f"{call}: zero_copy=True without a get_next_low_latency_combine_buffer before it")
            if tuple(x.shape) != group.result_shape:
                native_fail(f"{call}: x is {describe(x)}; allowed: {list(group.result_shape)}")
            answers = group.combine_buffer
        else:
            require_tensor(call, "x", x, (torch.bfloat16,), group.result_shape, device)
            answers = x
        sums = (lanes[0], group.shape.hidden)
        if out is None:
            out = torch.empty(sums, dtype=torch.bfloat16, device=device)
        else:
            require_tensor(call, "out", out, (torch.bfloat16,), sums, device)

        if return_recv_hook:
            options["stream"] = runtime.current_stream()
            return out, EventOverlap(), group.combine(answers, topk_idx, topk_weights, handle, out, options)
        with runtime.operation(call, None, async_finish) as operation:
            group.combine(answers, topk_idx, topk_weights, handle, out, {**options, **operation.launch})()
        return out, operation.overlap((answers, topk_idx, topk_weights, out), ()), None

    def get_next_low_latency_combine_buffer(self, handle: tuple) -> torch.Tensor:
        """Where the experts may write the x of the next low_latency_combine(zero_copy=True).

        bfloat16 [E / R, R * N, H] with strided rows. Waits until the other ranks have read what was there before.
        """
        self._open("get_next_low_latency_combine_buffer")
        return self._low_latency.of_handle("get_next_low_latency_combine_buffer", handle).next_combine_buffer()

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Leaves a rank out of low-latency calls, or takes it back in. Local; all other ranks do the same."""
        self._check_shrink()
        native_assert(
            0 <= rank_to_mask < self.group_size,
            f"low_latency_update_mask_buffer: rank {rank_to_mask}; allowed: 0 to {self.group_size - 1}",
        )
        self._low_latency.set_mask(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes 1 for ranks left out and 0 for the others to ``mask_status``, int32 [R]."""
        runtime = self._check_shrink()
        require_tensor(
            "low_latency_query_mask_buffer",
            "mask_status",
            mask_status,
            (torch.int32,),
            (self.group_size,),
            runtime.device,
        )
        masked = self._low_latency.masked()
        mask_status.copy_(torch.tensor([rank in masked for rank in range(self.group_size)], dtype=torch.int32))

    def low_latency_clean_mask_buffer(self) -> None:
        """Takes all ranks back in."""
        self._check_shrink()
        self._low_latency.clear_masks()

    # Private.

    def _check_low_latency(self, call: str, max_tokens: int, hidden: int, num_experts: int) -> None:
        native_assert(self.low_latency_mode, f"{call}: this buffer was made without low_latency_mode=True")
        native_assert(
            max_tokens > 0, f"{call}: num_max_dispatch_tokens_per_rank is {max_tokens}; at least 1 is allowed"
        )
        native_assert(hidden > 0 and hidden % 128 == 0, f"{call}: hidden is {hidden}; allowed: multiples of 128")
        native_assert(
            num_experts > 0 and num_experts % self.group_size == 0,
            f"{call}: num_experts is {num_experts}; allowed: positive multiples of the {self.group_size} ranks",
        )
        needed = sizes.get_low_latency_rdma_size_hint(max_tokens, hidden, self.group_size, num_experts)
        native_assert(
            self.num_rdma_bytes >= needed,
            f"{call}: num_rdma_bytes is {self.num_rdma_bytes}; these sizes need {needed} (see the size hint)",
        )
        self._checked.add((max_tokens, hidden, num_experts))

    def _check_stats(self, call: str, counts: Any, num_experts: int, waits: Any) -> None:
        device = self.runtime.device
        if counts is not None:
            shape = (num_experts // self.group_size,)
            require_tensor(call, "cumulative_local_expert_recv_stats", counts, (torch.int32,), shape, device)
        if waits is not None:
            require_tensor(call, "wait_recv_cost_stats", waits, (torch.int64,), (self.group_size,), device)

    def _check_shrink(self) -> Runtime:
        native_assert(self.enable_shrink, "Shrink mode must be enabled: make the buffer with enable_shrink=True")
        return self._open("mask buffer")
