# SPDX-License-Identifier: Apache-2.0
"""Routing maps (a boolean for each token and expert) as top-k indices, and back.

Shapes: T tokens, E experts, K top-k slots. On GPUs one kernel does what takes torch up to ten.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from shoal._core.ep import block_rows, map_of_topk, topk_of_map

from ...config import topk_idx_t


class Slots(NamedTuple):
    """A routing by top-k slot: ``topk_idx_t`` [T, K], -1: no expert; float32 [T, K], 0 there, or
    None."""

    topk_idx: torch.Tensor
    weights: torch.Tensor | None


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


def slots_of_map(
    routing_map: torch.Tensor,
    probs: torch.Tensor | None,
    top_k: int,
    most: torch.Tensor | None = None,
) -> Slots:
    """The first ``top_k`` experts of each token, ascending, with their probabilities.

    most, on GPUs: int32 [1], raised to the largest number of experts of a token.
    """
    if routing_map.device.type == "cpu":
        topk_idx = _map_to_indices(routing_map, top_k)
        return Slots(topk_idx, None if probs is None else by_slot(probs, topk_idx))
    (tokens, experts), device = routing_map.shape, routing_map.device
    routing_map = routing_map.contiguous()
    topk_idx = torch.empty((tokens, top_k), dtype=torch.int64, device=device)
    weights = None
    if probs is not None:
        probs = probs.contiguous()
        weights = torch.empty((tokens, top_k), dtype=torch.float32, device=device)
    topk_of_map(
        routing_map.data_ptr(),
        _address(probs),
        tokens,
        experts,
        top_k,
        topk_idx.data_ptr(),
        _address(weights),
        _address(most),
        _stream(device),
    )
    return Slots(topk_idx if topk_idx_t == torch.int64 else topk_idx.to(topk_idx_t), weights)


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _stream(device: torch.device) -> int:
    return torch._C._cuda_getCurrentRawStream(device.index)


def _map_to_indices(routing_map: torch.Tensor, top_k: int) -> torch.Tensor:
    tokens, experts = routing_map.shape
    slot = routing_map.cumsum(1) - 1
    slot = torch.where(routing_map, slot, top_k).clamp_(max=top_k)  # column K takes the rest
    index = torch.arange(experts, dtype=topk_idx_t, device=routing_map.device)
    result = torch.full((tokens, top_k + 1), -1, dtype=topk_idx_t, device=routing_map.device)
    return result.scatter_(1, slot, index.expand(tokens, experts))[:, :top_k].contiguous()


def by_slot(values: torch.Tensor, topk_idx: torch.Tensor) -> torch.Tensor:
    """[T, K] of [T, E]: the value of each slot's expert; 0 where a slot has none."""
    return values.gather(1, topk_idx.clamp(min=0).long()).masked_fill_(topk_idx < 0, 0)


def by_expert(
    values: torch.Tensor, topk_idx: torch.Tensor, shape: tuple[int, int], first: int = 0
) -> torch.Tensor:
    """[T, n] of [T, K]: the value of expert e in column ``first`` + e, zeros elsewhere."""
    if values.device.type == "cuda" and values.dtype == torch.float32:
        return _by_expert_on_gpu(values, topk_idx, shape, first)
    tokens, columns = shape
    result = torch.zeros((tokens, columns + 1), dtype=values.dtype, device=values.device)
    column = torch.where(topk_idx >= 0, topk_idx + first, columns)  # one more column for no expert
    return result.scatter_(1, column.long(), values)[:, :columns].contiguous()


def _by_expert_on_gpu(
    values: torch.Tensor, topk_idx: torch.Tensor, shape: tuple[int, int], first: int
) -> torch.Tensor:
    result = torch.empty(shape, dtype=torch.float32, device=values.device)
    values, topk_idx = values.contiguous(), topk_idx.long().contiguous()
    map_of_topk(
        topk_idx.data_ptr(),
        values.data_ptr(),
        shape[0],
        topk_idx.shape[1],
        shape[1],
        first,
        result.data_ptr(),
        _stream(values.device),
    )
    return result


def rows_of_experts(expert_ends: torch.Tensor, room: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(int64 [E]: rows of each expert among the first ``room`` rows, bool [1]: whether there are
    more). expert_ends: int32 [E], where the rows of each expert end."""
    device = expert_ends.device
    if device.type == "cpu":
        kept = expert_ends.long().clamp(max=room)
        return torch.diff(kept, prepend=kept.new_zeros(1)), (expert_ends > room).any()[None]
    rows = torch.empty(expert_ends.shape, dtype=torch.int64, device=device)
    overflow = torch.empty(1, dtype=torch.bool, device=device)
    ends, stream = expert_ends.contiguous(), _stream(device)
    block_rows(ends.data_ptr(), len(ends), room, rows.data_ptr(), overflow.data_ptr(), stream)
    return rows, overflow
