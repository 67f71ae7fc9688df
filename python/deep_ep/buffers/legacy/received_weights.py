# SPDX-License-Identifier: Apache-2.0
"""The top-k weights and source ranks of the rows of a low-latency dispatch.

They travel as the rows of a second dispatch with the same routing, whose rows therefore have the
same places. Such a row has int32 words: the experts of its token plus one, the bits of their
float32 weights, the source rank, and padding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_WORDS = 64  # of 128 channels; rows have multiples of them


def pack(rank: int, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
    """The rows to send, as bfloat16."""
    tokens, top_k = topk_idx.shape
    width = _WORDS * -(-(2 * top_k + 1) // _WORDS)
    words = torch.zeros((tokens, width), dtype=torch.int32, device=topk_idx.device)
    # Rows mark empty words by -1, which is the index of no expert.
    words[:, :top_k] = topk_idx + 1
    words[:, top_k : 2 * top_k] = topk_weights.detach().contiguous().view(torch.int32)
    words[:, 2 * top_k] = rank
    return words.view(torch.bfloat16)


def unpack(
    rank: int, rows: torch.Tensor, top_k: int
) -> tuple[torch.Tensor, torch.Tensor, Callable[[], None]]:
    """float32 weights and int32 source ranks, both [E / R, R * N], of rows that are not received
    yet, and a function that fills them afterwards."""
    shape, device = rows.shape[:2], rows.device
    weights = torch.empty(shape, dtype=torch.float32, device=device)
    ranks = torch.empty(shape, dtype=torch.int32, device=device)
    first = rank * shape[0]
    experts = torch.arange(first + 1, first + shape[0] + 1, device=device)[:, None, None]

    def fill() -> None:
        words = rows.view(torch.int32)
        values = words[..., top_k : 2 * top_k].view(torch.float32)
        torch.sum(torch.where(words[..., :top_k] == experts, values, 0), -1, out=weights)
        ranks.copy_(words[..., 2 * top_k])

    return weights, ranks, fill
