# SPDX-License-Identifier: Apache-2.0
"""``warmup`` and ``warmup_low_latency`` of ``Buffer``."""

from __future__ import annotations

from typing import Any

import torch

from ...config import get_low_latency_rdma_size_hint, topk_idx_t
from ...utils.semantic import native_fail
from ..groups import GroupShape
from ..warmup import (
    ROUNDS,
    Sizes,
    expert_output_of,
    forms_of,
    prepare,
    prepare_unknown_sizes,
    touch,
)
from .early_shapes import EarlyShapes

_LOW_LATENCY_FORMS: tuple[dict[str, bool], ...] = (
    {"use_fp8": False},
    {"use_fp8": True},
    {"use_fp8": True, "round_scale": True},
    {"use_fp8": True, "round_scale": True, "use_ue8m0": True},
)


class WarmBuffer:
    """``warmup`` and ``warmup_low_latency`` of ``Buffer``."""

    @staticmethod
    def _known_sizes(
        call: str, ranks: int, num_rdma_bytes: int, given: tuple[int, int, int, int]
    ) -> tuple[int, int, int, int]:
        """The sizes of a warm-up: those given or, where only top-k may be, those of a size hint."""
        if all(given):
            return given
        hinted = None if any(given[:3]) else EarlyShapes.of_hint(num_rdma_bytes, ranks, given[3])
        if hinted is None:
            native_fail(
                f"Buffer: {call} needs num_max_tokens_per_rank, hidden, num_experts and num_topk, "
                f"which are {given}; num_topk or EP_LOW_LATENCY_TOPK suffices where num_rdma_bytes "
                f"({num_rdma_bytes}) is a low-latency size hint of this process for {ranks} ranks"
            )
        return hinted

    def _prepare(self, preinitialize: bool) -> None:
        """Prepare the first call, as part of the constructor."""
        if preinitialize:
            self.warmup()
        elif self.num_nvl_bytes > 0:
            prepare_unknown_sizes(self, self.num_nvl_bytes)

    def _pair(
        self,
        rows: Any,
        topk_idx: torch.Tensor,
        weights: torch.Tensor,
        num_experts: int,
        worst_rows: int,
    ) -> None:
        counts = self.get_dispatch_layout(topk_idx, num_experts)
        per_rank, per_node, per_expert, in_rank, _ = counts
        received, _, received_weights, _, handle, _ = self.dispatch(
            rows,
            None,
            per_rank,
            per_node,
            in_rank,
            per_expert,
            topk_idx,
            weights,
            num_worst_tokens=worst_rows,
        )
        self.combine(expert_output_of(received), handle, topk_weights=received_weights)

    def _forget_groups(self) -> None:
        """The next calls look groups up again."""
        self._normal.forget_groups()

    def warmup(
        self,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_experts: int = 0,
        num_topk: int = 0,
        background: bool = False,
    ) -> None:
        """Prepares calls of these sizes, so that the first is as fast as later ones. Collective.

        Sizes that are 0 are those of the constructor. Creates what calls of up to
        num_max_tokens_per_rank tokens use and makes some, in bfloat16 and float8. With
        low_latency_mode also low-latency calls: of the size hint that num_rdma_bytes equals, else
        of these sizes if num_rdma_bytes suffices for them. background: in a thread; the next call
        of this buffer waits for it, and raises its error. Raises RuntimeError for sizes outside
        their limits, and where ranks differ.
        """
        runtime = self._open("warmup")
        given = (num_max_tokens_per_rank, hidden, num_experts, num_topk)
        given = tuple(one or known for one, known in zip(given, self._sizes))
        given = self._known_sizes("warmup", runtime.num_ranks, self.num_rdma_bytes, given)
        sizes = Sizes(runtime.num_ranks, *given)

        def work() -> None:
            most = sizes.agree(runtime)
            x, topk_idx, weights = sizes.inputs(runtime.device)
            topk_idx = topk_idx.to(topk_idx_t)
            experts = sizes.shape.experts
            for rows in forms_of(x) * ROUNDS[runtime.device.type]:
                for worst in (most * runtime.num_ranks, 0):
                    self._pair(rows, topk_idx, weights, experts, worst)
            touch(runtime, sizes.shape)
            low_latency = self._low_latency_sizes(most, sizes.shape)
            if low_latency is not None:
                self._groups.create("warmup", *low_latency)
                self._low_latency_pairs(*low_latency)

        prepare(runtime, work, background, (sizes.tokens, sizes.shape.hidden))

    def warmup_low_latency(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int, num_topk: int
    ) -> None:
        """Prepares low-latency calls of these sizes, so that the first is as fast as later ones.
        Collective.

        Creates what they use, and makes calls of each form on generated tokens. The first call of a
        shape would create it, and needs all ranks too: with enable_shrink, a rank may be absent
        only after this call.
        """
        call = "warmup_low_latency"
        self._open(call)
        self._groups.create(call, num_max_dispatch_tokens_per_rank, hidden, num_experts, num_topk)
        self._low_latency_pairs(num_max_dispatch_tokens_per_rank, hidden, num_experts, num_topk)
        self.runtime.synchronize_stream()

    def _low_latency_sizes(
        self, max_tokens: int, shape: GroupShape
    ) -> tuple[int, int, int, int] | None:
        """Tokens, hidden, experts and top-k of low-latency calls; None where there are none.
        Collective with low_latency_mode."""
        if not self.low_latency_mode:
            return None
        runtime, num_bytes = self.runtime, self.num_rdma_bytes
        hinted = EarlyShapes.agree(runtime, num_bytes, shape.top_k)
        if hinted is not None:
            return hinted
        of_these = (max_tokens, shape.hidden, runtime.num_ranks, shape.experts)
        if shape.hidden % 128 != 0 or get_low_latency_rdma_size_hint(*of_these) > num_bytes:
            return None
        return max_tokens, shape.hidden, shape.experts, shape.top_k

    def _low_latency_pairs(self, max_tokens: int, hidden: int, experts: int, top_k: int) -> None:
        """Pairs of each form, in both halves of the buffers. Collective; the shape exists."""
        runtime = self.runtime
        group = self._groups.get(hidden, top_k, experts, max_tokens)
        if runtime.device.type == "cpu":
            group.group.warmup()
        sizes = Sizes(runtime.num_ranks, max_tokens, hidden, experts, top_k)
        x, topk_idx, weights = sizes.inputs(runtime.device)
        topk_idx = topk_idx.to(topk_idx_t)
        # Later sums take the memory that this one leaves, so that torch's allocator asks the driver
        # for none while kernels of another rank may wait for this one.
        torch.empty_like(x)
        y = None  # any rows of the right shape
        for form in _LOW_LATENCY_FORMS:
            for hooks in (True, False):
                for _ in range(2):
                    rows, _, handle, _, hook = self.low_latency_dispatch(
                        x, topk_idx, max_tokens, experts, return_recv_hook=hooks, **form
                    )
                    y = rows if y is None else y  # bfloat16 comes first
                    if hooks:
                        hook()
                    *_, hook = self.low_latency_combine(
                        y, topk_idx, weights, handle, return_recv_hook=hooks
                    )
                    if hooks:
                        hook()
