# SPDX-License-Identifier: Apache-2.0
"""Received rows grouped by expert, each group padded to a multiple."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..elastic import layout


class Permutation(NamedTuple):
    """The places of N received rows among P expert-major rows.

    A token with several local experts has several places. A place at P or beyond does not exist:
    the copy is dropped.
    """

    slot_rows: torch.Tensor  # int64 [N, K]: place of each top-k slot; -1: none
    rows: int  # P
    tokens_per_expert: torch.Tensor  # int64 [E / R], with padding
    overflow: torch.Tensor  # bool [1]: whether copies were dropped


def permutation(
    local_idx: torch.Tensor, counts: torch.Tensor, pad_multiple: int, rows: int
) -> Permutation:
    """The permutation for local experts [N, K] (-1: elsewhere) with ``counts`` rows each."""
    ends = (-(-counts.long() // pad_multiple) * pad_multiple).cumsum(0)
    starts = torch.cat((ends.new_zeros(1), ends[:-1]))
    slot_rows = layout.expert_major_rows(local_idx, starts)
    overflow = ends[-1:] > rows
    kept = ends.clamp(max=rows)
    tokens_per_expert = torch.diff(kept, prepend=kept.new_zeros(1))
    return Permutation(
        torch.where(slot_rows < rows, slot_rows, -1), rows, tokens_per_expert, overflow
    )


class Permuted(NamedTuple):
    """The results of a dispatch in expert-major order."""

    x: torch.Tensor
    scales: torch.Tensor | None
    weights: torch.Tensor | None


def permute(
    order: Permutation, x: torch.Tensor, scales: torch.Tensor | None, weights: torch.Tensor | None
) -> Permuted:
    """Expert-major rows [P, H], scales [P, n] and weights [P] of rank-major rows [N, H], scales
    [N, n] and weights [N, K]; zeros in padding."""
    top_k = order.slot_rows.shape[1]
    flat = layout.flat_slot_of_row(order.slot_rows, order.rows)
    row = torch.where(flat < 0, -1, flat // top_k)
    x = layout.gather_rows(x, row, zero_padding=True)
    return Permuted(x, _select(scales, row), None if weights is None else _weights(weights, flat))


def _select(values: torch.Tensor | None, row: torch.Tensor) -> torch.Tensor | None:
    if values is None:
        return None
    if len(values) == 0:
        return values.new_zeros((len(row), values.shape[1]))
    return values[row.clamp(min=0)].masked_fill_((row < 0)[:, None], 0)


def _weights(weights: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    values = weights.flatten()
    if len(values) == 0:
        return values.new_zeros(len(flat))
    return values[flat.clamp(min=0)].masked_fill_(flat < 0, 0)


def unpermute(order: Permutation, y: torch.Tensor) -> torch.Tensor:
    """Sums expert-major rows by received row: float32, rounded once."""
    return layout.sum_topk_slots(y, order.slot_rows)


def unpermute_weights(order: Permutation, weights: torch.Tensor) -> torch.Tensor:
    """float32 [N, K] of one weight per expert-major row."""
    return layout.weights_by_topk_slot(weights.flatten(), order.slot_rows)
