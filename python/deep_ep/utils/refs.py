# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine in plain torch and torch.distributed: the reference, bit by bit."""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist

from .envs import get_global_seed
from .math import as_bytes


def _rank_and_size(group: dist.ProcessGroup | None) -> tuple[int, int]:
    return (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)


def _all_gather_rows(
    t: torch.Tensor, num_rows: int, group: dist.ProcessGroup | None
) -> torch.Tensor:
    """[ranks * num_rows, ...] of up to num_rows rows of each rank; missing rows are bytes of
    0xFF."""
    num_ranks = _rank_and_size(group)[1]
    # The gather is of bytes, because not every backend supports every dtype.
    padded = torch.nn.functional.pad(as_bytes(t), (0, 0, 0, num_rows - t.size(0)), value=255)
    gathered = [torch.empty_like(padded) for _ in range(num_ranks)]
    if num_ranks > 1:
        dist.all_gather(gathered, padded, group=group)
    else:
        gathered = [padded]
    return torch.cat(gathered).view(t.dtype)


def dispatch(
    x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor | None,
    num_max_tokens_per_rank: int,
    num_experts: int,
    group: dist.ProcessGroup | None = None,
) -> tuple[
    torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    torch.Tensor,
    torch.Tensor | None,
    torch.Tensor,
    torch.Tensor,
]:
    """The rows for this rank's experts, ordered by source rank, then token. Collective.

    x: [T, H] or (data [T, H], scales [T, P]), T at most num_max_tokens_per_rank; topk_idx [T, K],
    -1: no expert.

    Returns (rows in the form of x, local expert indices [N, K] or -1, weights [N, K] of all K
    slots, source rank * num_max_tokens_per_rank + token int32 [N], rows from each rank int32
    [ranks] on the host).
    """
    rank, num_ranks = _rank_and_size(group)
    m = num_max_tokens_per_rank
    assert topk_idx.size(0) <= m, (
        f"num_max_tokens_per_rank: got {m}, need at least the {topk_idx.size(0)} tokens of x"
    )
    assert num_experts % num_ranks == 0, (
        f"num_experts: got {num_experts}, need a multiple of {num_ranks} ranks"
    )
    experts_per_rank = num_experts // num_ranks

    local_idx = _all_gather_rows(topk_idx, m, group) - rank * experts_per_rank
    here = (local_idx >= 0) & (local_idx < experts_per_rank)
    rows = here.any(dim=1).nonzero().squeeze(1)

    def receive(t: torch.Tensor) -> torch.Tensor:
        return _all_gather_rows(t, m, group)[rows]

    recv_x = tuple(receive(t) for t in x) if isinstance(x, tuple) else receive(x)
    recv_topk_idx = local_idx.masked_fill(~here, -1)[rows]
    recv_topk_weights = None if topk_weights is None else receive(topk_weights)
    rows_per_rank = torch.bincount(rows // m, minlength=num_ranks).int().cpu()
    return recv_x, recv_topk_idx, recv_topk_weights, rows.int(), rows_per_rank


def generate_pre_combine_data(
    src_token_global_idx: torch.Tensor,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Generated expert output, BF16 [N, K, H], from source token and top-k slot; equal on every
    rank.

    src_token_global_idx [N]: source rank * num_max_tokens_per_rank + token. With
    seed = index * K + slot and s = ranks * num_max_tokens_per_rank * K, channel c is
    sin((seed * 131071 mod s + 1) / s * (c + 1) + sin(global seed)).
    """
    max_seed = _rank_and_size(group)[1] * num_max_tokens_per_rank * num_topk
    device = src_token_global_idx.device
    seed = src_token_global_idx.long().unsqueeze(1) * num_topk + torch.arange(
        num_topk, device=device
    )
    frequency = (seed * 131071 % max_seed + 1).float() / max_seed
    channel = torch.arange(1, hidden + 1, dtype=torch.float32, device=device)
    return (frequency.unsqueeze(-1) * channel).add_(math.sin(get_global_seed())).sin_().bfloat16()


def _biases(bias: torch.Tensor | Sequence[torch.Tensor] | None) -> Sequence[torch.Tensor]:
    if bias is None:
        return ()
    return (bias,) if isinstance(bias, torch.Tensor) else bias


def ordered_accumulate(
    data: torch.Tensor, initial_value: torch.Tensor | Sequence[torch.Tensor] | None = None
) -> torch.Tensor:
    """The sum [N, H] over the top-k slots of data [N, K, H], rounded once to its dtype.

    In float32: initial values ([N, H], one or several) first, then the slots in ascending order.
    """
    total = torch.zeros((data.size(0), data.size(2)), dtype=torch.float32, device=data.device)
    for part in (*_biases(initial_value), *data.unbind(dim=1)):
        total += part.float()
    return total.to(data.dtype)


def _reduce_groups(y: torch.Tensor, group_of_slot: torch.Tensor) -> torch.Tensor:
    """y [T, K, H] with the sum of each group of top-k slots in its last slot, zeros elsewhere.

    group_of_slot [T, K]: slots with the same number are a group; negative: no group.
    """
    same = group_of_slot.unsqueeze(1) == group_of_slot.unsqueeze(2)
    result = torch.zeros_like(y)
    for slot in range(y.size(1)):
        last = (group_of_slot[:, slot] >= 0) & ~same[:, slot, slot + 1 :].any(dim=1)
        in_group = same[:, slot, : slot + 1] & last.unsqueeze(1)
        part = y[:, : slot + 1].masked_fill(~in_group.unsqueeze(-1), 0)
        result[:, slot] = ordered_accumulate(part)
    return result


def combine(
    y: torch.Tensor,
    topk_idx: torch.Tensor,
    num_scaleout_ranks: int,
    num_scaleup_ranks: int,
    num_experts: int,
    bias: torch.Tensor | Sequence[torch.Tensor] | None = None,
    reduce_in_local: bool = True,
    reduce_in_scaleup: bool = False,
) -> torch.Tensor:
    """The combined rows [T, H] of this rank's tokens from their expert outputs y [T, K, H]. Local.

    Slots with expert -1 are ignored. Partial sums are formed within a rank (reduce_in_local), then
    within a scale-up domain (reduce_in_scaleup): in float32, ascending slots, rounded to the dtype
    of y, at the position of their last slot. The final sum is `ordered_accumulate` with the biases.
    """
    experts_per_rank = num_experts // (num_scaleout_ranks * num_scaleup_ranks)
    y = y.masked_fill((topk_idx < 0).unsqueeze(-1), 0)
    if reduce_in_local:
        y = _reduce_groups(y, topk_idx.div(experts_per_rank, rounding_mode="floor"))
    if reduce_in_scaleup:
        y = _reduce_groups(
            y, topk_idx.div(experts_per_rank * num_scaleup_ranks, rounding_mode="floor")
        )
    return ordered_accumulate(y, bias)
