# SPDX-License-Identifier: Apache-2.0
"""NVFP4 results of a low-latency dispatch.

Rows travel as bfloat16 and are quantized here, at the receiver. Quantization depends on a row and
the global scale alone, so the values equal those of a quantization before the send.

Format: 4-bit values (e2m1), two in a byte, the lower channel in the lower half. 16 channels share
an e4m3 scale. value = e2m1 * scale / global scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shoal._core.ep import quantize_nvfp4

from ...utils.semantic import native_assert
from ..checks import describe
from ..runtime import Runtime

GROUP = 16  # channels that share a scale

# Scales lie in tiles of 128 rows x 4 groups: [row % 32][row / 32][group], as the tensor cores of
# Blackwell read them.
_TILE_ROWS, _TILE_GROUPS, _LANES = 128, 4, 32


def global_scale_of(call: str, scale: Any, device: torch.device) -> torch.Tensor | None:
    """Element 0 of ``scale``, which counts for all rows as in DeepEP: callers pass one element per
    local expert. None for None. Raises RuntimeError unless it is float32 on ``device``."""
    if scale is None:
        return None
    native_assert(
        isinstance(scale, torch.Tensor)
        and scale.dtype == torch.float32
        and scale.numel() > 0
        and scale.device == device,
        f"{call}: x_global_scale is {describe(scale)}; "
        f"allowed: float32 on {device.type} with at least one element",
    )
    return scale[(0,) * scale.dim()]


def allocate(experts: int, rows: int, hidden: int, device: torch.device) -> tuple:
    """(values uint8 [rows, hidden / 2, experts], scales float8_e4m3fn [32, 4, row tiles, 4, group
    tiles, experts]), contiguous by expert."""
    row_tiles, group_tiles = -(-rows // _TILE_ROWS), -(-hidden // (GROUP * _TILE_GROUPS))
    values = torch.empty((experts, rows, hidden // 2), dtype=torch.uint8, device=device)
    tiles = torch.zeros(
        (experts, row_tiles, group_tiles, _LANES, _TILE_ROWS // _LANES, _TILE_GROUPS),
        dtype=torch.uint8,
        device=device,
    ).view(torch.float8_e4m3fn)
    return values.permute(1, 2, 0), tiles.permute(3, 4, 1, 5, 2, 0)


def quantize(
    x: torch.Tensor,
    counts: torch.Tensor,
    global_scale: torch.Tensor | None,
    out: tuple,
    stream: int | None,
) -> None:
    """Writes the first ``counts`` rows of each expert of bfloat16 [experts, rows, hidden] to
    ``out``, the result of ``allocate``, on ``stream`` or the CPU."""
    addresses = [
        0 if one is None else one.data_ptr() for one in (x, counts, global_scale, out[0], out[1])
    ]
    quantize_nvfp4(*addresses, *x.shape, stream or 0)


def quantized(
    runtime: Runtime, rows: torch.Tensor, counts: torch.Tensor, global_scale: torch.Tensor | None
) -> tuple[tuple, Callable[[], None]]:
    """The result for rows that are not received yet, and a function that fills it afterwards."""
    out = allocate(*rows.shape, runtime.device)
    return out, lambda: quantize(rows, counts, global_scale, out, runtime.current_stream())
