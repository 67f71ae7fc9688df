# SPDX-License-Identifier: Apache-2.0
"""The handle of a dispatch of ``HybridEPBuffer``, and the sizes that callers read."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..elastic import EPHandle
from .routing import rows_of_experts


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
    the number of tokens, the config and the overflow flag. Maps of DeepEP's queues are None. The
    entries are made when the tuple is first looked into: most programs only pass it on.

    Attributes: ``elastic`` (the EPHandle), ``experts``, ``permuted`` (of dispatch_with_permute),
    ``rows`` (of the result), ``tokens_per_expert``.
    """

    elastic: EPHandle
    experts: int
    permuted: bool
    rows: int
    tokens_per_expert: torch.Tensor | None

    def __new__(
        cls, *_args: Any, permuted: bool = False, fused: bool = False, **_more: Any
    ) -> HybridHandle:
        return super().__new__(cls, (None,) * (7 if not permuted else 11 if fused else 9))

    def __init__(
        self,
        elastic: EPHandle,
        config: HybridConfig,
        experts: int,
        permuted: bool = False,
        limit: int | None = None,
        fused: bool = False,
    ) -> None:
        """limit: the rows of a result whose size does not reach the host."""
        self.elastic, self.experts, self.permuted = elastic, experts, permuted
        self._config, self._fused = config, fused
        self.tokens_per_expert = self._overflow = None
        self.rows = elastic.num_expanded_tokens if permuted else elastic.num_recv_tokens
        if limit is not None:
            ends = elastic.shoal.expert_ends
            self.tokens_per_expert, self._overflow = rows_of_experts(ends, limit)
        elif permuted:
            # Blocking calls return the counts on the host.
            counts = elastic.num_recv_tokens_per_expert_list
            self.tokens_per_expert = torch.tensor(counts, dtype=torch.int64, device="cpu")

    @property
    def local_idx(self) -> torch.Tensor:
        """int64 [N, K]: local experts of the rank-major rows, or -1."""
        return self.elastic.shoal.topk_idx

    @functools.cached_property
    def _entries(self) -> tuple[Any, ...]:
        local_experts, local_idx = self._config.num_of_experts_per_rank, self.local_idx
        local_map = torch.zeros(
            (local_idx.shape[0], local_experts + 1), dtype=torch.bool, device=local_idx.device
        )
        column = torch.where(local_idx < 0, local_experts, local_idx)
        local_map.scatter_(1, column, True)
        received = (local_idx >= 0).any(1).sum(dtype=torch.int32)[None]
        entries: tuple[Any, ...] = (None, None, None, received, local_map[:, :local_experts])
        after = (self.elastic.topk_idx.shape[0], self._config)
        if not self.permuted:
            return entries + after
        slot_rows, overflow = self.elastic.shoal.topk_rows.long(), self._overflow
        if overflow is None:
            overflow = torch.zeros(1, dtype=torch.bool, device=local_idx.device)
        if self._fused:
            entries += (None, slot_rows, self.tokens_per_expert)
        else:
            entries += (slot_rows,)
        return (*entries, *after, overflow)

    def __getitem__(self, index: Any) -> Any:
        return self._entries[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    # The entries hold tensors, which are not compared.
    __eq__ = object.__eq__
    __hash__ = object.__hash__
