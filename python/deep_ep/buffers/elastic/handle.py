# SPDX-License-Identifier: Apache-2.0
"""``EPHandle``: the handle of an elastic dispatch, for its combine and for cached dispatches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from shoal._core.ep import ElasticLayout

from ..checks import expect
from . import layout


def _value(given: Any) -> torch.Tensor:
    """A tensor, or what computes it."""
    return given() if callable(given) else given


class EPHandle:
    """The layout of one ``ElasticBuffer.dispatch``. Tensors are int32 unless stated otherwise.

    R ranks, E experts, T tokens sent, K top-k slots, M the most tokens per rank. Rank-major rows
    are ordered by source rank and token; expert-major rows (do_expand) are grouped by expert.

    do_expand, num_experts, expert_alignment, num_max_tokens_per_rank (M), num_sms
        As passed to the dispatch.
    topk_idx [T, K]
        As sent.
    num_recv_tokens, num_expanded_tokens
        Rank-major and expert-major rows; without CPU sync the most rows possible.
    num_recv_tokens_per_expert_list
        Aligned; [] without CPU sync.
    psum_num_recv_tokens_per_scaleup_rank [R]
        Rows from ranks 0 to i.
    psum_num_recv_tokens_per_expert [E / R]
        Rank-major: sum of the aligned counts of experts 0 to i. Expert-major: the end of the rows
        of expert i, without padding.
    num_unaligned_recv_tokens_per_expert [E / R]
        Rows of each local expert.
    recv_src_metadata [num_recv_tokens, K + 2]
        Column 0: source rank * M + token. Column 1: source rank * K + the token's last top-k slot
        with a local expert. Other columns: the expert-major row of each top-k slot; -1 for experts
        elsewhere, and in rank-major form. Unused rows are -1.
    dst_buffer_slot_idx [T, K]
        This rank * M + the token's row index among those sent to the rank of the top-k slot, for
        the last slot with an expert on that rank; -1 for the others.
    token_metadata_at_forward, channel_linked_list
        None; DeepEP's two-level forms use them.

    recv_src_metadata and dst_buffer_slot_idx are computed on the current stream when they are
    accessed first.
    """

    def __init__(
        self,
        do_expand: bool,
        num_experts: int,
        expert_alignment: int,
        num_max_tokens_per_rank: int,
        num_sms: int,
        topk_idx: torch.Tensor,
        num_recv_tokens: int,
        num_expanded_tokens: int,
        num_recv_tokens_per_expert_list: list[int],
        psum_num_recv_tokens_per_scaleup_rank: torch.Tensor,
        psum_num_recv_tokens_per_expert: torch.Tensor,
        num_unaligned_recv_tokens_per_expert: torch.Tensor,
        recv_src_metadata: torch.Tensor | Callable[[], torch.Tensor],
        dst_buffer_slot_idx: torch.Tensor | Callable[[], torch.Tensor],
        token_metadata_at_forward: torch.Tensor | None,
        channel_linked_list: torch.Tensor | None,
    ) -> None:
        expect(topk_idx is not None, "EPHandle: topk_idx is needed")
        self.do_expand = do_expand
        self.num_experts = num_experts
        self.expert_alignment = expert_alignment
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.num_sms = num_sms
        self.topk_idx = topk_idx
        self.num_recv_tokens = num_recv_tokens
        self.num_expanded_tokens = num_expanded_tokens
        self.num_recv_tokens_per_expert_list = num_recv_tokens_per_expert_list
        self.psum_num_recv_tokens_per_scaleup_rank = psum_num_recv_tokens_per_scaleup_rank
        self.psum_num_recv_tokens_per_expert = psum_num_recv_tokens_per_expert
        self.num_unaligned_recv_tokens_per_expert = num_unaligned_recv_tokens_per_expert
        self._metadata, self._slots = recv_src_metadata, dst_buffer_slot_idx
        self.token_metadata_at_forward = token_metadata_at_forward
        self.channel_linked_list = channel_linked_list
        self.cached_recv_src_metadata_before_sort: torch.Tensor | None = None
        self.shoal: Any = None  # ElasticLayout, of the handles that dispatch returns

    @functools.cached_property
    def recv_src_metadata(self) -> torch.Tensor:
        return _value(self._metadata)

    @functools.cached_property
    def dst_buffer_slot_idx(self) -> torch.Tensor:
        return _value(self._slots)

    def deterministic_sort(
        self,
        do_cpu_sync: bool,
        is_cached_dispatch: bool,
        recv_x: torch.Tensor,
        recv_sf: torch.Tensor | None,
        recv_topk_idx: torch.Tensor | None,
        recv_topk_weights: torch.Tensor | None,
        channel_linked_list: torch.Tensor | None,
    ) -> None:
        """Has no effect: rows are always ordered by source rank and token."""


class LateHandle(EPHandle):
    """The EPHandle of a dispatch. Its attributes are made when one of them is read first: most
    programs only pass it to the combine."""

    def __init__(self, ranks: int, rank: int, shoal: ElasticLayout) -> None:
        # Not that of EPHandle: its attributes come later.
        self._ranks, self._rank, self.shoal = ranks, rank, shoal

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """The tensors that exist already."""
        known = self.shoal
        made = (known.topk_idx, known.topk_rows, known.block_ends, known.side)
        return known.sent_topk_idx, *made

    def __getattr__(self, name: str) -> Any:
        known = self.__dict__.get("shoal")
        if known is None or "topk_idx" in self.__dict__:
            raise AttributeError(f"'EPHandle' object has no attribute '{name}'")
        max_tokens = known.max_tokens
        super().__init__(
            known.do_expand,
            known.num_experts,
            known.expert_alignment,
            max_tokens,
            known.num_sms,
            known.sent_topk_idx,
            known.rows,
            known.expanded_rows,
            known.tokens_per_expert,
            known.source_ends,
            known.block_ends if known.do_expand else known.expert_ends,
            known.expert_counts,
            lambda: layout.source_metadata(known, max_tokens),
            lambda: layout.destination_slots(
                known.sent_topk_idx, known.num_experts, self._ranks, self._rank, max_tokens
            ),
            None,
            None,
        )
        self.shoal = known
        return getattr(self, name)
