# SPDX-License-Identifier: Apache-2.0
"""Operations on CUDA streams for the barrier, ring, gather and engram calls."""

from __future__ import annotations

import torch

import shoal
from shoal._core import StreamCalls

from ...utils.semantic import native_fail
from ..runtime import Runtime


def stream_calls(runtime: Runtime) -> StreamCalls | None:
    """Operations on streams where the GPU of every rank reaches the heaps of all ranks; else None,
    and calls run on the host. Collective."""
    if runtime.comm_stream is None:
        return None
    reaches = runtime.team.exchange(bytes([StreamCalls.reaches(runtime.team)]))
    if not all(block == b"\1" for block in reaches):
        return None
    return StreamCalls(runtime.team, runtime.comm_stream.cuda_stream)


def settle(runtime: Runtime) -> None:
    """Waits on the host for the operations of all ranks, before their memory is freed.
    Collective."""
    if runtime.device.type == "cuda":
        torch.cuda.synchronize(runtime.device)
    shoal.barrier(runtime.team)


def refuse_capture(runtime: Runtime, call: str) -> None:
    """Raises RuntimeError in a CUDA graph: its replays would repeat the number of the call."""
    if runtime.capturing():
        native_fail(
            f"{call}: a CUDA graph cannot capture it, because every call has a number of its own"
        )
