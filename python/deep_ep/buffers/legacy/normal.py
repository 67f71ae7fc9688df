# SPDX-License-Identifier: Apache-2.0
"""Connects the normal mode of ``Buffer`` with ``LegacyCalls``, which has its one path in C++."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from shoal._core.ep import LegacyCalls

from ...config import topk_idx_t
from ..calls import setup
from ..checks import require_tensor
from ..runtime import Runtime
from .handles import NormalHandle
from .layout import check_experts, count_nodes, count_tokens, expert_totals, ranks_as_experts


def normal_calls(runtime: Runtime) -> LegacyCalls:
    """The normal-mode calls of a buffer."""
    nodes = runtime.get_num_rdma_ranks()

    def count_layout(topk_idx: Any, num_experts: int) -> tuple[torch.Tensor | None, ...]:
        call = "get_dispatch_layout"
        require_tensor(call, "topk_idx", topk_idx, (topk_idx_t,), (None, None), runtime.device)
        check_experts(topk_idx, num_experts)
        stream = runtime.current_stream() or 0
        return tuple(count_tokens(topk_idx, num_experts, runtime.num_ranks, nodes, stream))

    return LegacyCalls(
        runtime.num_ranks,
        nodes,
        **setup(runtime, {}),
        count_layout=count_layout,
        count_nodes=partial(count_nodes, num_nodes=nodes),
        ranks_as_experts=ranks_as_experts,
        expert_totals=partial(expert_totals, runtime),
        handle_type=NormalHandle,
        make_handle=partial(NormalHandle.make, runtime.rank, nodes),
    )
