# SPDX-License-Identifier: Apache-2.0
"""The handle of a dispatch of ``HybridEPBuffer``, and the sizes that callers read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..elastic import EPHandle
from .permute import Permutation


@dataclass(eq=False)  # hashable, as handles are
class HybridConfig:
    """The sizes of a buffer or a call, under the names of DeepEP."""

    hidden_dim: int
    max_num_of_tokens_per_rank: int
    num_of_experts_per_rank: int
    num_of_ranks_per_node: int
    num_of_nodes: int
    use_fp8: bool = False
    pad_multiple: int = 1


@dataclass(eq=False)  # hashable, as handles are
class Configurer:
    """Holds ``buffer_config``, which programs compare with what they need."""

    buffer_config: HybridConfig


class HybridHandle(tuple):
    """A tuple of DeepEP's arity: 7 entries of ``dispatch``, 9 or, for fused calls, 11 of
    ``dispatch_with_permute``.

    Entries that programs use have values: the number of received rows, the map of local experts,
    the number of tokens, the config and the overflow flag. Maps of DeepEP's queues are None.

    Attributes: ``elastic`` (the EPHandle), ``local_idx`` (int64 [N, K], local experts or -1),
    ``order`` (the Permutation; None without permute), ``experts``.
    """

    elastic: EPHandle
    local_idx: torch.Tensor
    order: Permutation | None
    experts: int

    @classmethod
    def make(
        cls,
        elastic: EPHandle,
        local_idx: torch.Tensor,
        order: Permutation | None,
        config: HybridConfig,
        experts: int,
        fused: bool,
    ) -> HybridHandle:
        local_experts = config.num_of_experts_per_rank
        local_map = torch.zeros(
            (local_idx.shape[0], local_experts + 1), dtype=torch.bool, device=local_idx.device
        )
        column = torch.where(local_idx < 0, local_experts, local_idx)
        local_map.scatter_(1, column, True)
        received = (local_idx >= 0).any(1).sum(dtype=torch.int32)[None]
        tokens = elastic.topk_idx.shape[0]
        entries: tuple[Any, ...] = (None, None, None, received, local_map[:, :local_experts])
        if order is None:
            entries += (tokens, config)
        elif fused:
            entries += (None, order.slot_rows, order.tokens_per_expert)
            entries += (tokens, config, order.overflow)
        else:
            entries += (order.slot_rows, tokens, config, order.overflow)
        handle = cls(entries)
        handle.elastic, handle.local_idx = elastic, local_idx
        handle.order, handle.experts = order, experts
        return handle
