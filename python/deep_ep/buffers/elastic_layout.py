# SPDX-License-Identifier: Apache-2.0
"""The tensors that describe an elastic dispatch, computed from what Shoal delivers. No host synchronisation here."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..utils.math import align
from .groups import NormalGroup


class ShoalLayout(NamedTuple):
    """What combine and cached dispatches need of the first one."""

    group: NormalGroup
    routing: Any
    handle: Any
    worst_rows: int  # of the flat form; 0: sizes were exchanged
    topk_idx: torch.Tensor  # int64 [rows, K]: local experts, -1 elsewhere
    lane_rows: torch.Tensor | None  # int64 [rows, K]: expert_major row of each lane, or -1; None in the flat form
    expert_major_handle: list[Any]  # of Shoal's own expert_major form, once a combine has needed it


def most_expert_major_rows(ranks: int, max_tokens: int, top_k: int, local_experts: int, alignment: int) -> int:
    """Rows of the expert_major form when nothing is known about the routing."""
    rows = ranks * max_tokens * min(top_k, local_experts) + (alignment - 1) * local_experts
    return align(rows, alignment)


def expert_counts(local_idx: torch.Tensor, local_experts: int) -> torch.Tensor:
    """int32 [E / R]: rows for each local expert."""
    flat = torch.where(local_idx < 0, local_experts, local_idx).flatten()
    counts = torch.zeros(local_experts + 1, dtype=torch.int32, device=local_idx.device)
    return counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))[:local_experts]


def rank_prefix(source_ids: torch.Tensor, valid: torch.Tensor, max_tokens: int, ranks: int) -> torch.Tensor:
    """int32 [R]: rows from ranks 0 to i."""
    source = torch.where(valid, source_ids // max_tokens, ranks).long()
    counts = torch.zeros(ranks + 1, dtype=torch.int32, device=source.device)
    return counts.scatter_add_(0, source, torch.ones_like(source, dtype=torch.int32))[:ranks].cumsum(
        0, dtype=torch.int32
    )


def expert_major_rows(local_idx: torch.Tensor, first_row: torch.Tensor) -> torch.Tensor:
    """int64 [rows, K]: where the copy for each lane lies when rows are grouped by expert; -1: not here.

    first_row: [E / R], the start of each expert's block. Within a block rows keep their order.
    """
    chosen = local_idx >= 0
    column = local_idx.clamp(min=0)
    marks = torch.zeros((local_idx.shape[0], first_row.shape[0]), dtype=torch.int32, device=local_idx.device)
    marks.scatter_add_(1, column, chosen.int())
    ordinal = (marks.cumsum(0) - 1).gather(1, column)
    return torch.where(chosen, first_row.long()[column] + ordinal, -1)


def positions(lane_rows: torch.Tensor, total_rows: int) -> torch.Tensor:
    """int64 [total rows]: index into lane_rows.flatten() of what lies in each expert_major row; -1: padding."""
    targets = torch.where(lane_rows < 0, total_rows, lane_rows).flatten()
    source = torch.full((total_rows + 1,), -1, dtype=torch.int64, device=lane_rows.device)
    return source.scatter_(0, targets, torch.arange(targets.numel(), device=targets.device))[:total_rows]


def last_lane(local_idx: torch.Tensor) -> torch.Tensor:
    """int32 [rows]: the last lane with an expert here; -1: none."""
    lanes = torch.arange(1, local_idx.shape[1] + 1, dtype=torch.int32, device=local_idx.device)
    return ((local_idx >= 0) * lanes).amax(1).int() - 1


def source_metadata(
    source_ids: torch.Tensor, local_idx: torch.Tensor, lane_rows: torch.Tensor | None, max_tokens: int
) -> torch.Tensor:
    """EPHandle.recv_src_metadata."""
    top_k = local_idx.shape[1]
    master = last_lane(local_idx)
    ids = torch.where(master < 0, -1, source_ids)
    column = torch.where(master < 0, -1, source_ids // max_tokens * top_k + master)
    lanes = torch.full_like(local_idx, -1) if lane_rows is None else lane_rows
    return torch.cat((ids[:, None], column[:, None], lanes.int()), dim=1)


def destination_slots(topk_idx: torch.Tensor, num_experts: int, ranks: int, rank: int, max_tokens: int) -> torch.Tensor:
    """EPHandle.dst_buffer_slot_idx."""
    tokens, top_k = topk_idx.shape
    owner = torch.where(topk_idx < 0, ranks, topk_idx // (num_experts // ranks)).long()
    lanes = torch.arange(top_k, device=topk_idx.device).expand(tokens, top_k)
    last = torch.full((tokens, ranks + 1), -1, dtype=torch.int64, device=topk_idx.device)
    last.scatter_reduce_(1, owner, lanes, "amax")
    slot = ((last >= 0).cumsum(0) - 1).gather(1, owner)
    master = (last.gather(1, owner) == lanes) & (owner < ranks)
    return torch.where(master, rank * max_tokens + slot, -1).int()


def gather_rows(x: torch.Tensor, index: torch.Tensor, zero_padding: bool) -> torch.Tensor:
    """x[index] of rows of any type; where index is -1 zeros, or without zero_padding anything."""
    words = x.view(torch.int64)  # a row is a multiple of 16 bytes; float8 has no index_select of its own
    if words.shape[0] == 0:
        return torch.zeros((index.shape[0], words.shape[1]), dtype=torch.int64, device=x.device).view(x.dtype)
    out = words.index_select(0, index.clamp(min=0))
    if zero_padding:
        out.masked_fill_((index < 0)[:, None], 0)
    return out.view(x.dtype)


def column_major(scales: torch.Tensor) -> torch.Tensor:
    """The same values with the row index running fastest and columns at multiples of four elements."""
    rows, packs = scales.shape
    out = torch.zeros((packs, align(rows, 4)), dtype=scales.dtype, device=scales.device)
    out[:, :rows] = scales.t()
    return out.t()[:rows]


def sum_lanes(y: torch.Tensor, lane_rows: torch.Tensor) -> torch.Tensor:
    """Rows of the expert_major form summed per received token: float32, lanes ascending, rounded to the type of y."""
    total = torch.zeros((lane_rows.shape[0], y.shape[1]), dtype=torch.float32, device=y.device)
    if y.shape[0] == 0:
        return total.to(y.dtype)
    for rows in lane_rows.unbind(1):
        part = y.index_select(0, rows.clamp(min=0)).float()
        total += part.masked_fill_((rows < 0)[:, None], 0)
    return total.to(y.dtype)


def weights_by_lane(weights: torch.Tensor, lane_rows: torch.Tensor) -> torch.Tensor:
    """float32 [rows, K] of one weight per expert_major row; 0 where a lane has no row."""
    if weights.numel() == 0:
        return torch.zeros(lane_rows.shape, dtype=weights.dtype, device=weights.device)
    return weights[lane_rows.clamp(min=0)].masked_fill(lane_rows < 0, 0)
