# SPDX-License-Identifier: Apache-2.0
"""The handles of ``Buffer``: tuples of DeepEP's shape that also carry Shoal's own handle."""

from __future__ import annotations

from typing import Any

import torch

from shoal._core.ep import CallLayout, NormalCalls

_NODE = 8
_INSIDE_NODE, _BETWEEN_NODES = (None,) * 6, (None,) * 10  # in place of the tensors


class NormalHandle(tuple):
    """The handle of ``Buffer.dispatch``, for its combine and for cached dispatches.

    A tuple of the arity and shapes of DeepEP: 6 tensors inside a node, 10 between nodes of eight
    ranks. Shoal has no channels, so C = 1: each prefix over channels is the total, and each channel
    starts at 0. Entries that describe the queues of DeepEP are -1. The tensors are computed on the
    current stream when one of them is accessed first.

    Attributes: ``calls`` (the calls of its group), ``layout`` (Shoal's layout).
    """

    calls: NormalCalls
    layout: CallLayout
    _inputs: tuple[torch.Tensor, int, int]  # is_token_in_rank, rank, number of nodes
    _entries: tuple[torch.Tensor, ...] | None = None

    @classmethod
    def make(
        cls,
        rank: int,
        num_nodes: int,
        calls: NormalCalls,
        layout: CallLayout,
        is_token_in_rank: torch.Tensor,
    ) -> NormalHandle:
        """The handle of a dispatch."""
        handle = cls(_BETWEEN_NODES if num_nodes > 1 else _INSIDE_NODE)
        handle.calls, handle.layout = calls, layout
        handle._inputs = (is_token_in_rank, rank, num_nodes)
        return handle

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """The tensors that exist already."""
        return (self.layout.side,)

    def _all(self) -> tuple[torch.Tensor, ...]:
        if self._entries is None:
            in_rank, rank, num_nodes = self._inputs
            prefix = self.layout.source_ends
            if num_nodes > 1:
                self._entries = _between_nodes(self.layout.rows, prefix, in_rank, rank, num_nodes)
            else:
                self._entries = _inside_node(self.layout.source_token, prefix, in_rank, rank)
        return self._entries

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __iter__(self) -> Any:
        return iter(self._all())


def _sent_rows(is_token_in: torch.Tensor) -> torch.Tensor:
    """int32 [T, n]: index of a token's row among the rows sent to a target; -1: not sent."""
    numbers = is_token_in.cumsum(0, dtype=torch.int32) - 1
    return numbers.masked_fill_(~is_token_in, -1)


def _inside_node(
    source_token: torch.Tensor, prefix: torch.Tensor, is_token_in_rank: torch.Tensor, rank: int
) -> tuple[torch.Tensor, ...]:
    ranks, device = is_token_in_rank.shape[1], is_token_in_rank.device
    # The columns of other ranks are unknown here.
    rank_prefix = torch.full((ranks, ranks), -1, dtype=torch.int32, device=device)
    rank_prefix[:, rank] = prefix
    sent = is_token_in_rank.sum(0, dtype=torch.int32)[:, None]
    return (
        rank_prefix,
        sent,
        torch.zeros_like(sent),
        source_token,
        is_token_in_rank,
        _sent_rows(is_token_in_rank),
    )


def _between_nodes(
    rows: int, prefix: torch.Tensor, is_token_in_rank: torch.Tensor, rank: int, num_nodes: int
) -> tuple[torch.Tensor, ...]:
    tokens, ranks = is_token_in_rank.shape
    device = is_token_in_rank.device
    is_token_in_node = is_token_in_rank.view(tokens, num_nodes, _NODE).any(-1)
    sent_to_rank = is_token_in_rank.sum(0, dtype=torch.int32)[:, None]
    sent_to_node = is_token_in_node.sum(0, dtype=torch.int32)[:, None]
    source_rank = torch.bucketize(
        torch.arange(rows, dtype=torch.int32, device=device), prefix, right=True
    ).clamp_(max=ranks - 1)
    source_meta = torch.stack(
        (source_rank // _NODE, torch.ones_like(source_rank) << (rank % _NODE)), dim=1
    )
    return (
        is_token_in_rank,
        sent_to_node,
        sent_to_rank,
        torch.zeros_like(sent_to_node),
        prefix[_NODE - 1 :: _NODE].contiguous(),
        torch.zeros_like(sent_to_rank),
        prefix,
        source_meta.to(torch.int32).contiguous().view(torch.uint8),
        _sent_rows(is_token_in_node),
        torch.full((rows, _NODE), -1, dtype=torch.int32, device=device),
    )


class LowLatencyHandle(tuple):
    """``(src_info, layout_range, max tokens per rank, hidden, experts)`` of a low-latency dispatch.

    Attributes: ``sent`` (SentDispatch).
    """

    sent: Any = None
    tensors = ()  # none that torch's allocator has to know about
