# SPDX-License-Identifier: Apache-2.0
"""Connects ``HybridEPBuffer`` with ``HybridCalls``, which has its one path in C++: a routing by
top-k slot with the same sizes on all ranks, and a dispatch of the elastic buffer."""

from __future__ import annotations

from typing import Any

import torch

from shoal._core.ep import HybridCalls

from ...utils.semantic import native_fail
from ..calls import setup
from ..checks import describe
from ..elastic import ElasticBuffer
from . import routing
from .handle import HybridConfig


def _probs_of(
    hidden: torch.Tensor,
    probs: Any,
    topk_weights: Any,
    routing_map: Any,
    topk_idx: Any,
    experts: int,
) -> torch.Tensor | None:
    """float32 [T, E] of ``probs`` or, without a routing map, of ``topk_weights``."""
    if probs is None and topk_weights is not None and routing_map is None:
        probs = routing.indices_to_map(topk_idx, topk_weights, hidden.shape[0], experts)[1]
    if probs is None:
        return None
    if tuple(probs.shape) != (hidden.shape[0], experts):
        native_fail(f"probs are {describe(probs)}; allowed: float32 [{hidden.shape[0]}, {experts}]")
    return probs.detach().float()


def _most_of_map(routing_map: torch.Tensor) -> int:
    return int(routing_map.sum(1).amax()) if routing_map.numel() > 0 else 0


def _padded(topk_idx: torch.Tensor, top_k: int) -> torch.Tensor:
    return torch.nn.functional.pad(topk_idx, (0, top_k - topk_idx.shape[1]), value=-1)


def hybrid_calls(
    elastic: ElasticBuffer, config: HybridConfig, dispatch_sms: int, combine_sms: int
) -> HybridCalls:
    """The calls of a hybrid buffer. config: calls with more tokens make room, which it shows."""
    runtime = elastic.runtime
    on_gpu = runtime.device.type == "cuda"
    return HybridCalls(
        runtime.num_ranks,
        runtime.rank,
        dispatch_sms,
        combine_sms,
        **setup(runtime, {}),
        elastic=elastic._calls,
        sizes=config,
        exchange=runtime.team.exchange,
        most=torch.zeros(1, dtype=torch.int32).to(runtime.device) if on_gpu else None,
        probs_of=_probs_of,
        slots_of_map=routing.slots_of_map,
        most_of_map=_most_of_map,
        by_slot=routing.by_slot,
        padded=_padded,
    )
