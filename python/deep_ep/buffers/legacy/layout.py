# SPDX-License-Identifier: Apache-2.0
"""``Buffer.get_dispatch_layout``: token counts from top-k indices, in plain torch on any device."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...utils.semantic import native_assert


class Layout(NamedTuple):
    """Token counts of one rank: int32 [R], int32 [nodes] or None, int32 [E], bool [T, R]."""

    tokens_per_rank: torch.Tensor
    tokens_per_node: torch.Tensor | None
    tokens_per_expert: torch.Tensor
    is_token_in_rank: torch.Tensor


def count_tokens(
    topk_idx: torch.Tensor, num_experts: int, num_ranks: int, num_nodes: int
) -> Layout:
    """The layout of [T, K] expert indices; -1 is no expert.

    A token counts once per rank and once per node.
    """
    native_assert(
        num_experts > 0 and num_experts % num_ranks == 0,
        f"get_dispatch_layout: num_experts is {num_experts}; "
        f"allowed: positive multiples of the {num_ranks} ranks",
    )
    tokens = topk_idx.shape[0]
    if (
        topk_idx.device.type == "cpu" and topk_idx.numel() > 0
    ):  # on a GPU this would stall the stream
        low, high = (int(value) for value in torch.aminmax(topk_idx))
        native_assert(
            low >= -1 and high < num_experts,
            f"get_dispatch_layout: topk_idx has values {low} to {high}; "
            f"allowed: -1 to {num_experts - 1}",
        )
    experts = topk_idx.long()
    # One extra column counts the top-k slots without an expert.
    experts = torch.where(experts < 0, num_experts, experts)
    per_expert = torch.zeros(num_experts + 1, dtype=torch.int32, device=topk_idx.device)
    per_expert.scatter_add_(
        0, experts.flatten(), torch.ones_like(experts, dtype=torch.int32).flatten()
    )
    in_rank = torch.zeros((tokens, num_ranks + 1), dtype=torch.bool, device=topk_idx.device)
    in_rank.scatter_(1, experts // (num_experts // num_ranks), True)
    in_rank = in_rank[:, :num_ranks].contiguous()
    per_node = None
    if num_nodes > 1:
        in_node = in_rank.view(tokens, num_nodes, num_ranks // num_nodes).any(-1)
        per_node = in_node.sum(0, dtype=torch.int32)
    return Layout(in_rank.sum(0, dtype=torch.int32), per_node, per_expert[:num_experts], in_rank)


def ranks_as_experts(is_token_in_rank: torch.Tensor) -> torch.Tensor:
    """Top-k indices int64 [T, R] with one expert per rank, for callers that know ranks only."""
    ranks = torch.arange(is_token_in_rank.shape[1], device=is_token_in_rank.device)
    return torch.where(is_token_in_rank, ranks, -1)
