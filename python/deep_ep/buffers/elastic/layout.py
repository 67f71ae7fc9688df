# SPDX-License-Identifier: Apache-2.0
"""The tensors of an ``EPHandle`` and of expert-major rows, computed without synchronizing the host.

Shapes: R ranks, E experts, T tokens sent, K top-k slots, rows received.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ...utils.math import align
from ..groups import NormalGroup


class ShoalLayout(NamedTuple):
    """The state of a dispatch that its combine and cached dispatches need."""

    group: NormalGroup
    routing: Any
    handle: Any
    worst_rows: int  # rank-major rows; 0: sizes were exchanged
    topk_idx: torch.Tensor  # int64 [rows, K]: local experts, -1 elsewhere
    # int32 [rows, K]: expert-major row of each top-k slot, or -1; None in rank-major form
    topk_rows: torch.Tensor | None
    source_token: torch.Tensor  # int32 [rows]
    source_ends: torch.Tensor  # int32 [R]: rows from ranks 0 to i
    expert_counts: torch.Tensor  # int32 [E / R]: rows of each local expert
    expert_ends: torch.Tensor  # int32 [E / R]: sums of the aligned counts up to each expert
    # the handle of the same layout in Shoal's expert-major form, once a combine needs it
    expert_major_handle: list[Any]


def most_expert_major_rows(
    ranks: int, max_tokens: int, top_k: int, local_experts: int, alignment: int
) -> int:
    """The most expert-major rows that any routing can give."""
    rows = ranks * max_tokens * min(top_k, local_experts) + (alignment - 1) * local_experts
    return align(rows, alignment)


def expert_major_rows(local_idx: torch.Tensor, first_row: torch.Tensor) -> torch.Tensor:
    """int64 [rows, K]: expert-major row of each top-k slot; -1: expert elsewhere.

    first_row: [E / R], the start of each expert's block. Rows keep their order inside a block.
    """
    chosen = local_idx >= 0
    column = local_idx.clamp(min=0)
    marks = torch.zeros(
        (local_idx.shape[0], first_row.shape[0]), dtype=torch.int32, device=local_idx.device
    )
    marks.scatter_add_(1, column, chosen.int())
    row_in_block = (marks.cumsum(0) - 1).gather(1, column)
    return torch.where(chosen, first_row.long()[column] + row_in_block, -1)


def flat_slot_of_row(slot_rows: torch.Tensor, total_rows: int) -> torch.Tensor:
    """int64 [total rows]: index into slot_rows.flatten() for each expert-major row; -1: padding."""
    targets = torch.where(slot_rows < 0, total_rows, slot_rows).flatten()
    source = torch.full((total_rows + 1,), -1, dtype=torch.int64, device=slot_rows.device)
    return source.scatter_(0, targets, torch.arange(targets.numel(), device=targets.device))[
        :total_rows
    ]


def last_topk_slot(local_idx: torch.Tensor) -> torch.Tensor:
    """int32 [rows]: the last top-k slot with a local expert; -1: none."""
    slots = torch.arange(1, local_idx.shape[1] + 1, dtype=torch.int32, device=local_idx.device)
    return ((local_idx >= 0) * slots).amax(1).int() - 1


def source_metadata(known: ShoalLayout, max_tokens: int) -> torch.Tensor:
    """EPHandle.recv_src_metadata."""
    local_idx, slot_rows = known.topk_idx, known.topk_rows
    top_k = local_idx.shape[1]
    number = torch.arange(local_idx.shape[0], dtype=torch.int32, device=local_idx.device)
    source = torch.bucketize(number, known.source_ends, right=True).int()
    last = last_topk_slot(local_idx)
    ids = torch.where(last < 0, -1, source * max_tokens + known.source_token)
    column = torch.where(last < 0, -1, source * top_k + last)
    rows = torch.full_like(local_idx, -1) if slot_rows is None else slot_rows
    return torch.cat((ids[:, None].int(), column[:, None].int(), rows.int()), dim=1)


def destination_slots(
    topk_idx: torch.Tensor, num_experts: int, ranks: int, rank: int, max_tokens: int
) -> torch.Tensor:
    """EPHandle.dst_buffer_slot_idx."""
    tokens, top_k = topk_idx.shape
    owner = torch.where(topk_idx < 0, ranks, topk_idx // (num_experts // ranks)).long()
    slots = torch.arange(top_k, device=topk_idx.device).expand(tokens, top_k)
    last = torch.full((tokens, ranks + 1), -1, dtype=torch.int64, device=topk_idx.device)
    last.scatter_reduce_(1, owner, slots, "amax")
    row = ((last >= 0).cumsum(0) - 1).gather(1, owner)
    is_last = (last.gather(1, owner) == slots) & (owner < ranks)
    return torch.where(is_last, rank * max_tokens + row, -1).int()


def gather_rows(x: torch.Tensor, index: torch.Tensor, zero_padding: bool) -> torch.Tensor:
    """x[index] for rows of any dtype; index -1 gives zeros, or any values without zero_padding."""
    # A row is a multiple of 16 bytes, and float8 has no index_select.
    words = x.view(torch.int64)
    if words.shape[0] == 0:
        return torch.zeros(
            (index.shape[0], words.shape[1]), dtype=torch.int64, device=x.device
        ).view(x.dtype)
    out = words.index_select(0, index.clamp(min=0))
    if zero_padding:
        out.masked_fill_((index < 0)[:, None], 0)
    return out.view(x.dtype)


def empty_column_major(rows: int, scales: torch.Tensor) -> torch.Tensor:
    """An uninitialised tensor [rows, *] like ``scales`` in the form of ``column_major``."""
    packs, step = scales.shape[1], align(rows, 4)
    out = torch.empty((packs, step), dtype=scales.dtype, device=scales.device)
    return out.t()[:rows]


def column_major(scales: torch.Tensor) -> torch.Tensor:
    """The same values in column-major order, with columns at multiples of four elements."""
    rows, packs = scales.shape
    out = torch.zeros((packs, align(rows, 4)), dtype=scales.dtype, device=scales.device)
    out[:, :rows] = scales.t()
    return out.t()[:rows]


def sum_topk_slots(y: torch.Tensor, slot_rows: torch.Tensor) -> torch.Tensor:
    """Expert-major rows summed per received token: float32, top-k slots ascending, rounded to the
    dtype of y."""
    total = torch.zeros((slot_rows.shape[0], y.shape[1]), dtype=torch.float32, device=y.device)
    if y.shape[0] == 0:
        return total.to(y.dtype)
    for rows in slot_rows.unbind(1):
        part = y.index_select(0, rows.clamp(min=0)).float()
        total += part.masked_fill_((rows < 0)[:, None], 0)
    return total.to(y.dtype)


def weights_by_topk_slot(weights: torch.Tensor, slot_rows: torch.Tensor) -> torch.Tensor:
    """float32 [rows, K] from one weight per expert-major row; 0 where a slot has no row."""
    if weights.numel() == 0:
        return torch.zeros(slot_rows.shape, dtype=weights.dtype, device=weights.device)
    return weights[slot_rows.clamp(min=0)].masked_fill(slot_rows < 0, 0)
