# SPDX-License-Identifier: Apache-2.0
"""Functions of torch that allocate results and ask for captures with little host time."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import torch

Allocate = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


@functools.cache
def empty_strided(device: torch.device) -> Allocate:
    """A function (shape, strides, dtype) that allocates a tensor on the CPU or the current GPU.

    It is the function of torch's compiled code, a third of the time of torch.empty, which spends
    most of its time on parsing arguments. Versions of torch without it get torch.empty_strided.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from torch._C._dynamo import guards

        return guards._empty_strided_cuda if device.type == "cuda" else guards._empty_strided_cpu
    return lambda shape, strides, dtype: torch.empty_strided(
        shape, strides, dtype=dtype, device=device
    )


@functools.cache
def capture_query() -> Callable[[], bool]:
    """A function that returns whether a CUDA graph captures the current stream."""
    return getattr(
        torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
    )
