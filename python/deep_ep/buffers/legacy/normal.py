# SPDX-License-Identifier: Apache-2.0
"""Connects the normal mode of ``Buffer`` with ``LegacyCalls``, which has its one path in C++."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from shoal._allocation import capture_query
from shoal._core.ep import LegacyCalls

from ...config import topk_idx_t
from ...utils.event import EventOverlap, profiled
from ..checks import require_tensor
from ..groups import as_rows
from ..runtime import Runtime
from .handles import NormalHandle
from .layout import check_experts, count_nodes, count_tokens, expert_totals, ranks_as_experts


def _run(
    runtime: Runtime,
    call: str,
    work: Callable[[], tuple[Any, ...]],
    inputs: tuple[Any, ...],
    *events: Any,
) -> tuple[Any, ...]:
    """The results of ``work`` with another event in place of its last: of a call with events, or
    one that a profiler on the CPU sees. On GPUs the kernels have the names that profilers look for.

    events: previous_event, async_finish, allocate_on_comm_stream.
    """
    named = profiled(f"{call}_impl") if runtime.device.type == "cpu" else nullcontext()
    with runtime.operation(call, *events) as operation, named:
        *result, _ = work()
    beside = result[-1].layout.beside if isinstance(result[-1], NormalHandle) else None
    return *result, operation.overlap(inputs, (*result, beside))


def normal_calls(runtime: Runtime) -> LegacyCalls:
    """The normal-mode calls of a buffer."""
    nodes = runtime.get_num_rdma_ranks()

    def count_layout(topk_idx: Any, num_experts: int) -> tuple[torch.Tensor | None, ...]:
        call = "get_dispatch_layout"
        require_tensor(call, "topk_idx", topk_idx, (topk_idx_t,), (None, None), runtime.device)
        check_experts(topk_idx, num_experts, runtime.num_ranks)
        stream = runtime.current_stream() or 0
        return tuple(count_tokens(topk_idx, num_experts, runtime.num_ranks, nodes, stream))

    return LegacyCalls(
        runtime.num_ranks,
        nodes,
        groups=runtime.groups,
        tensor_type=torch.Tensor,
        device=runtime.device,
        bool=torch.bool,
        int32=torch.int32,
        int64=torch.int64,
        float32=torch.float32,
        bfloat16=torch.bfloat16,
        float8=torch.float8_e4m3fn,
        index=topk_idx_t,
        current_stream=runtime.current_stream,
        capturing=capture_query() if runtime.device.type == "cuda" else None,
        require_tensor=require_tensor,
        as_rows=as_rows,
        count_layout=count_layout,
        count_nodes=partial(count_nodes, num_nodes=nodes),
        ranks_as_experts=ranks_as_experts,
        expert_totals=partial(expert_totals, runtime),
        handle_type=NormalHandle,
        make_handle=partial(NormalHandle.make, runtime.rank, nodes),
        no_event=EventOverlap,
        run=partial(_run, runtime),
        profiler=torch.autograd.profiler if runtime.device.type == "cpu" else None,
    )
