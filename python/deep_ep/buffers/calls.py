# SPDX-License-Identifier: Apache-2.0
"""Arguments that the C++ objects behind the buffers take from Python."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from shoal._allocation import capture_query

from ..config import topk_idx_t
from ..utils.event import EventOverlap, profiled, profiling
from .checks import describe, require_tensor
from .groups import as_rows
from .runtime import Operation, Runtime


# An operation, and a profiler range on the CPU; both entered. On GPUs the kernels have the names
# that profilers look for, except for the epilogues of calls.
_Begun = tuple[Operation, AbstractContextManager[object] | None]


def _begin(
    runtime: Runtime,
    call: str,
    previous_event: Any,
    event_before_epilogue: Any,
    asynchronous: bool,
    allocate_on_comm_stream: bool,
) -> _Begun:
    """Begins a call with events, or one that a profiler sees."""
    operation = runtime.operation(call, previous_event, asynchronous, allocate_on_comm_stream)
    if event_before_epilogue is not None:
        operation.also_wait(event_before_epilogue)
    named = None
    if profiling() and runtime.device.type == "cpu":
        named = profiled(call if call.endswith("_kernel") else f"{call}_impl")
    operation.__enter__()
    if named is not None:
        named.__enter__()
    return operation, named


def _end(
    epilogues: dict[str, str],
    call: str,
    begun: _Begun,
    results: tuple[Any, ...] | None,
    inputs: tuple[Any, ...],
) -> tuple[Any, ...] | None:
    """The results with another event in place of their last; None: the call has failed."""
    operation, named = begun
    if named is not None:
        named.__exit__(None, None, None)
    if results is None:
        operation.__exit__(RuntimeError, None, None)
        return None
    if profiling() and call in epilogues:
        with profiled(epilogues[call]):  # in the kernel, unlike in DeepEP
            pass
    operation.__exit__(None, None, None)
    *results, _ = results
    last = results[-1]  # of a dispatch, its handle
    kept = () if last is None or isinstance(last, torch.Tensor) else last.tensors
    return *results, operation.overlap(inputs, (*results, *kept))


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
        "describe": describe,
        "as_rows": as_rows,
        "no_event": EventOverlap,
        "begin": partial(_begin, runtime),
        "end": partial(_end, epilogues),
        # Without epilogues, kernels have all names on GPUs.
        "profiler": torch.autograd.profiler if epilogues or not on_gpu else None,
    }
