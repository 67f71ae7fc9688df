# SPDX-License-Identifier: Apache-2.0
"""The top-k weights and source ranks of the rows of a low-latency dispatch.

They travel as the rows of a second dispatch with the same routing, whose rows therefore have the
same places. Such a row has int32 words: the experts of its token plus one, the bits of their
float32 weights, the source rank, and padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...utils.event import EventHandle, EventOverlap
from .low_latency_group import LowLatencyGroup

_WORDS = 64  # of 128 channels; rows have multiples of them


def hidden_of(top_k: int) -> int:
    """bfloat16 channels of a row with the weights of one token."""
    return 2 * _WORDS * -(-(2 * top_k + 1) // _WORDS)


def dispatch_weights(
    result: tuple[Any, torch.Tensor, tuple, EventOverlap, Callable[[], object] | None],
    group: LowLatencyGroup,
    rank: int,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    stream: int | None,
) -> tuple[Any, ...]:
    """``result`` of a dispatch with two arrays before the handle: float32 weights and int32 source
    ranks, both [E / R, R * N], valid when the rows are. Collective.

    group: of rows of ``hidden_of`` channels, with the sizes of the dispatch otherwise.
    """
    rows, counts, handle, overlap, hook = result
    tokens, top_k = topk_idx.shape
    words = torch.zeros(
        (tokens, group.shape.hidden // 2), dtype=torch.int32, device=topk_idx.device
    )
    # Rows mark empty words by -1, which is the index of no expert.
    words[:, :top_k] = topk_idx + 1
    words[:, top_k : 2 * top_k] = topk_weights.detach().contiguous().view(torch.int32)
    words[:, 2 * top_k] = rank
    if overlap.event is not None:
        overlap.current_stream_wait()
    options = {"defer_receive": hook is not None, "stream": stream}
    arrays, _, receive = group.dispatch(words.view(torch.bfloat16), topk_idx, "none", options)
    shape = group.result_shape[:2]
    weights = torch.empty(shape, dtype=torch.float32, device=words.device)
    ranks = torch.empty(shape, dtype=torch.int32, device=words.device)
    first = rank * shape[0]
    experts = torch.arange(first + 1, first + shape[0] + 1, device=words.device)[:, None, None]

    def finish() -> None:
        receive()
        received = arrays.x.view(torch.int32)
        values = received[..., top_k : 2 * top_k].view(torch.float32)
        torch.sum(torch.where(received[..., :top_k] == experts, values, 0), -1, out=weights)
        ranks.copy_(received[..., 2 * top_k])

    if hook is None:
        finish()
        if overlap.event is not None:  # the result includes the weights
            overlap = EventOverlap(EventHandle())
        return rows, counts, weights, ranks, handle, overlap, None

    def receive_all() -> None:
        hook()
        finish()

    return rows, counts, weights, ranks, handle, overlap, receive_all
