# SPDX-License-Identifier: Apache-2.0
"""The tensors of an ``EPHandle`` and of expert-major rows, computed without synchronizing the host.

Shapes: R ranks, E experts, T tokens sent, K top-k slots, rows received.
"""

from __future__ import annotations

import torch

from shoal._core.ep import ElasticLayout

from ...utils.math import align
from ..spread import ranks_of


def last_topk_slot(local_idx: torch.Tensor) -> torch.Tensor:
    """int32 [rows]: the last top-k slot with a local expert; -1: none."""
    slots = torch.arange(1, local_idx.shape[1] + 1, dtype=torch.int32, device=local_idx.device)
    return ((local_idx >= 0) * slots).amax(1).int() - 1


def source_metadata(known: ElasticLayout, max_tokens: int) -> torch.Tensor:
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
    owner = torch.where(topk_idx < 0, ranks, ranks_of(topk_idx, num_experts, ranks))
    slots = torch.arange(top_k, device=topk_idx.device).expand(tokens, top_k)
    last = torch.full((tokens, ranks + 1), -1, dtype=torch.int64, device=topk_idx.device)
    last.scatter_reduce_(1, owner, slots, "amax")
    row = ((last >= 0).cumsum(0) - 1).gather(1, owner)
    is_last = (last.gather(1, owner) == slots) & (owner < ranks)
    return torch.where(is_last, rank * max_tokens + row, -1).int()


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
