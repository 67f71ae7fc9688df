# SPDX-License-Identifier: Apache-2.0
"""Token counts from top-k indices without a group, by a kernel or on the CPU in plain torch: for
the first layout of a number of experts. Later ones come with the routing of a group."""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch

from shoal._core.ep import count_tokens as count_on_gpu

from ...utils.semantic import native_assert
from ..checks import require_experts
from ..runtime import Runtime
from ..spread import first_experts, ranks_of

_EXCHANGE_BYTES = 512  # the most that Team.exchange takes

# Limits of the kernel.
_MOST_RANKS, _MOST_EXPERTS = 128, 8192


class Layout(NamedTuple):
    """Token counts of one rank: int32 [R], int32 [nodes] or None, int32 [E], bool [T, R]."""

    tokens_per_rank: torch.Tensor
    tokens_per_node: torch.Tensor | None
    tokens_per_expert: torch.Tensor
    is_token_in_rank: torch.Tensor


def check_experts(topk_idx: torch.Tensor, num_experts: int) -> None:
    require_experts("get_dispatch_layout", num_experts)
    # On a GPU this would stall the stream.
    if topk_idx.device.type == "cpu" and topk_idx.numel() > 0:
        low, high = (int(value) for value in torch.aminmax(topk_idx))
        native_assert(
            low >= -1 and high < num_experts,
            f"get_dispatch_layout: topk_idx has values {low} to {high}; "
            f"allowed: -1 to {num_experts - 1}",
        )


def count_nodes(in_rank: torch.Tensor, num_nodes: int) -> torch.Tensor | None:
    """Tokens for each node; None inside one node. A token counts once per node."""
    if num_nodes == 1:
        return None
    tokens, num_ranks = in_rank.shape
    in_node = in_rank.view(tokens, num_nodes, num_ranks // num_nodes).any(-1)
    return in_node.sum(0, dtype=torch.int32)


def count_tokens(
    topk_idx: torch.Tensor, num_experts: int, num_ranks: int, num_nodes: int, stream: int
) -> Layout:
    """The layout of [T, K] expert indices; -1 is no expert. stream: 0 on the CPU.

    A token counts once per rank and once per node.
    """
    if stream and num_ranks <= _MOST_RANKS and num_experts <= _MOST_EXPERTS:
        return _count_by_kernel(topk_idx.contiguous(), num_experts, num_ranks, num_nodes, stream)
    tokens = topk_idx.shape[0]
    experts = topk_idx.long()
    # One extra column counts the top-k slots without an expert.
    experts = torch.where(experts < 0, num_experts, experts)
    per_expert = torch.zeros(num_experts + 1, dtype=torch.int32, device=topk_idx.device)
    per_expert.scatter_add_(
        0, experts.flatten(), torch.ones_like(experts, dtype=torch.int32).flatten()
    )
    in_rank = torch.zeros((tokens, num_ranks + 1), dtype=torch.bool, device=topk_idx.device)
    in_rank.scatter_(1, ranks_of(experts, num_experts, num_ranks), True)
    in_rank = in_rank[:, :num_ranks].contiguous()
    per_node = count_nodes(in_rank, num_nodes)
    return Layout(in_rank.sum(0, dtype=torch.int32), per_node, per_expert[:num_experts], in_rank)


def _count_by_kernel(
    topk_idx: torch.Tensor, num_experts: int, num_ranks: int, num_nodes: int, stream: int
) -> Layout:
    (tokens, top_k), device = topk_idx.shape, topk_idx.device
    per_rank = torch.empty(num_ranks, dtype=torch.int32, device=device)
    per_expert = torch.empty(num_experts, dtype=torch.int32, device=device)
    in_rank = torch.empty((tokens, num_ranks), dtype=torch.bool, device=device)
    count_on_gpu(
        topk_idx.data_ptr(),
        topk_idx.dtype == torch.int64,
        tokens,
        top_k,
        num_experts,
        num_ranks,
        per_rank.data_ptr(),
        per_expert.data_ptr(),
        in_rank.data_ptr(),
        stream,
    )
    return Layout(per_rank, count_nodes(in_rank, num_nodes), per_expert, in_rank)


def ranks_as_experts(is_token_in_rank: torch.Tensor) -> torch.Tensor:
    """Top-k indices int64 [T, R] with one expert per rank, for callers that know ranks only."""
    ranks = torch.arange(is_token_in_rank.shape[1], device=is_token_in_rank.device)
    return torch.where(is_token_in_rank, ranks, -1)


def expert_totals(runtime: Runtime, per_expert: torch.Tensor, alignment: int) -> list[int]:
    """Tokens of all ranks for each local expert, rounded up to ``alignment``. Collective."""
    counts = per_expert.tolist()
    totals = [0] * len(counts)
    step = _EXCHANGE_BYTES // 4
    for first in range(0, len(counts), step):
        part = counts[first : first + step]
        form = struct.Struct(f"<{len(part)}i")
        for block in runtime.team.exchange(form.pack(*part)):
            for i, count in enumerate(form.unpack(block)):
                totals[first + i] += count
    first = first_experts(len(counts), runtime.num_ranks)
    here = totals[first[runtime.rank] : first[runtime.rank + 1]]
    return [-(-count // alignment) * alignment for count in here]
