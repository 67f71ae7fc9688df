# SPDX-License-Identifier: Apache-2.0
"""What the objects in C++ behind the buffers take from Python."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from shoal._allocation import capture_query

from ..config import topk_idx_t
from ..utils.event import EventOverlap, profiled
from .checks import require_tensor
from .groups import as_rows
from .runtime import Runtime


def _run(
    runtime: Runtime,
    epilogues: dict[str, str],
    call: str,
    work: Callable[[], tuple[Any, ...]],
    inputs: tuple[Any, ...],
    previous_event: Any,
    event_before_epilogue: Any,
    asynchronous: bool,
    allocate_on_comm_stream: bool,
) -> tuple[Any, ...]:
    """The results of ``work`` with another event in place of its last: of a call with events, or
    one that a profiler sees. On GPUs the kernels have the names that profilers look for, except for
    the ``epilogues`` of calls."""
    # Outside of the block, because the arguments may be wrong.
    operation = runtime.operation(call, previous_event, asynchronous, allocate_on_comm_stream)
    operation.also_wait(event_before_epilogue)
    named = profiled(f"{call}_impl") if runtime.device.type == "cpu" else nullcontext()
    with operation:
        with named:
            *result, _ = work()
        if call in epilogues:
            with profiled(epilogues[call]):  # in the kernel, unlike in DeepEP
                pass
    kept = getattr(result[-1], "tensors", ())  # of a handle
    return *result, operation.overlap(inputs, (*result, *kept))


def setup(runtime: Runtime, epilogues: dict[str, str]) -> dict[str, Any]:
    """The arguments that ``CallTensors`` takes. epilogues: profiler ranges by call."""
    on_gpu = runtime.device.type == "cuda"
    return {
        "groups": runtime.groups,
        "tensor_type": torch.Tensor,
        "device": runtime.device,
        "bool": torch.bool,
        "int32": torch.int32,
        "int64": torch.int64,
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float8": torch.float8_e4m3fn,
        "index": topk_idx_t,
        "current_stream": runtime.current_stream,
        "capturing": capture_query() if on_gpu else None,
        "require_tensor": require_tensor,
        "as_rows": as_rows,
        "no_event": EventOverlap,
        "run": partial(_run, runtime, epilogues),
        # Without epilogues, kernels have all names on GPUs.
        "profiler": torch.autograd.profiler if epilogues or not on_gpu else None,
    }
