# SPDX-License-Identifier: Apache-2.0
"""``EPHandle``: what an elastic dispatch leaves for its combine and for cached dispatches."""

from __future__ import annotations

from typing import Any

import torch

from .checks import expect


class EPHandle:
    """The layout of one ``ElasticBuffer.dispatch``. All tensors int32 unless said otherwise.

    do_expand, num_experts, expert_alignment, num_max_tokens_per_rank (M), num_sms: as dispatched.
    topk_idx [T, K]: as sent. num_recv_tokens, num_expanded_tokens: rows of the flat and of the expert_major form; the most
    there can be without CPU sync. num_recv_tokens_per_expert_list: aligned; [] without CPU sync.
    psum_num_recv_tokens_per_scaleup_rank [R]: rows from ranks 0 to i. psum_num_recv_tokens_per_expert [E / R]: flat:
    sum of aligned counts of experts 0 to i; expert_major: where the rows of expert i end, padding excluded.
    num_unaligned_recv_tokens_per_expert [E / R]. recv_src_metadata [num_recv_tokens, K + 2]: source rank * M + token;
    source rank * K + last lane of the token here; the expert_major row of each lane, or -1 (flat: -1); rows beyond the
    received ones are -1. dst_buffer_slot_idx [T, K]: this rank * M + number of the token among those to the lane's
    rank, for the last lane that asks for the rank; -1 elsewhere. token_metadata_at_forward, channel_linked_list: None
    (of two-level forms).
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
        recv_src_metadata: torch.Tensor,
        dst_buffer_slot_idx: torch.Tensor,
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
        self.recv_src_metadata = recv_src_metadata
        self.dst_buffer_slot_idx = dst_buffer_slot_idx
        self.token_metadata_at_forward = token_metadata_at_forward
        self.channel_linked_list = channel_linked_list
        self.cached_recv_src_metadata_before_sort: torch.Tensor | None = None
        self.shoal: Any = None  # elastic_layout.ShoalLayout, set by dispatch

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
        """Leaves everything as it is: rows always come in order of source rank and token."""
