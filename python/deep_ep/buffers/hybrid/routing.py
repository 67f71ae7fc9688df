# SPDX-License-Identifier: Apache-2.0
"""Routing maps (a boolean for each token and expert) as top-k indices, and back.

Shapes: T tokens, E experts, K top-k slots.
"""

from __future__ import annotations

import torch

from ...config import topk_idx_t


def indices_to_map(
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor | None,
    num_of_tokens: int,
    num_of_experts: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(routing map bool [T, E], float32 [T, E] of the weights or None) of [T, K] indices; -1: no
    expert."""
    shape = (num_of_tokens, num_of_experts)
    one = torch.ones((), dtype=torch.bool, device=topk_idx.device)
    chosen = by_expert(one.expand(topk_idx.shape), topk_idx, shape)
    weights = None if topk_weights is None else by_expert(topk_weights.float(), topk_idx, shape)
    return chosen, weights


def map_to_indices(routing_map: torch.Tensor, top_k: int) -> torch.Tensor:
    """``topk_idx_t`` [T, K]: the experts of each token, ascending, then -1.

    A token has at most ``top_k`` experts.
    """
    tokens, experts = routing_map.shape
    slot = routing_map.cumsum(1) - 1
    slot = torch.where(routing_map, slot, top_k).clamp_(max=top_k)  # column K takes the rest
    index = torch.arange(experts, dtype=topk_idx_t, device=routing_map.device)
    result = torch.full((tokens, top_k + 1), -1, dtype=topk_idx_t, device=routing_map.device)
    return result.scatter_(1, slot, index.expand(tokens, experts))[:, :top_k].contiguous()


def by_slot(values: torch.Tensor, topk_idx: torch.Tensor) -> torch.Tensor:
    """[T, K] of [T, E]: the value of each slot's expert; 0 where a slot has none."""
    chosen = topk_idx >= 0
    return values.gather(1, topk_idx.clamp(min=0).long()).masked_fill(~chosen, 0)


def by_expert(
    values: torch.Tensor, topk_idx: torch.Tensor, shape: tuple[int, int], first: int = 0
) -> torch.Tensor:
    """[T, n] of [T, K]: the value of expert e in column ``first`` + e, zeros elsewhere."""
    tokens, columns = shape
    result = torch.zeros((tokens, columns + 1), dtype=values.dtype, device=values.device)
    column = torch.where(topk_idx >= 0, topk_idx + first, columns)  # one more column for no expert
    return result.scatter_(1, column.long(), values)[:, :columns].contiguous()
