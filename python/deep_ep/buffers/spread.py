# SPDX-License-Identifier: Apache-2.0
"""Which rank holds which experts: as many on each, or one more on the first ones."""

from __future__ import annotations

import torch


def first_experts(num_experts: int, num_ranks: int) -> list[int]:
    """[num_ranks + 1]: rank r holds the experts from element r up to element r + 1."""
    each, more = divmod(num_experts, num_ranks)
    return [rank * each + min(rank, more) for rank in range(num_ranks + 1)]


def ranks_of(experts: torch.Tensor, num_experts: int, num_ranks: int) -> torch.Tensor:
    """The rank of each expert; num_ranks for numbers from num_experts on. int64, same shape.

    Computes on the device alone, where a table of the host would stall the stream.
    """
    each, more = divmod(num_experts, num_ranks)
    experts, even = experts.long(), more * (each + 1)  # the experts of ranks with one more
    ranks = torch.where(
        experts < even, experts // (each + 1), more + (experts - even) // max(each, 1)
    )
    return torch.where(experts < num_experts, ranks, num_ranks)
