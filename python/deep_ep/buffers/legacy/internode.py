# SPDX-License-Identifier: Apache-2.0
"""The calls of ``Buffer`` for groups of several nodes. Shoal needs no other calls for them."""

from __future__ import annotations

from typing import Any

import torch

from ...config import Config
from ...utils.event import EventOverlap
from ..checks import expect


class InternodeCalls:
    """``internode_dispatch`` and ``internode_combine`` of ``Buffer``."""

    def internode_dispatch(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        handle: tuple | None = None,
        num_tokens_per_rank: torch.Tensor | None = None,
        num_tokens_per_rdma_rank: torch.Tensor | None = None,
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        expert_alignment: int = 1,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[
        Any, torch.Tensor | None, torch.Tensor | None, list[int] | None, tuple, EventOverlap
    ]:
        """``dispatch`` with a required ``config``."""
        expect(config is not None, "internode_dispatch: config is needed")
        layout = (num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank)
        routing = (num_tokens_per_expert, topk_idx, topk_weights, expert_alignment)
        events = (previous_event, async_finish, allocate_on_comm_stream)
        return self.dispatch(x, handle, *layout, *routing, 0, config, *events)

    def internode_combine(
        self,
        x: torch.Tensor,
        handle: tuple,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """``combine`` with a required ``config``."""
        expect(config is not None, "internode_combine: config is needed")
        events = (previous_event, async_finish, allocate_on_comm_stream)
        return self.combine(x, handle, topk_weights, bias, config, *events)
