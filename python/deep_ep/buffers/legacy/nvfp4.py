# SPDX-License-Identifier: Apache-2.0
"""NVFP4 results of a low-latency dispatch.

Rows travel as bfloat16 and are quantized here, at the receiver. Quantization depends on a row and
the global scale alone, so the values equal those of a quantization before the send.

Format: 4-bit values (e2m1), two in a byte, the lower channel in the lower half. 16 channels share
an e4m3 scale. value = e2m1 * scale / global scale.
"""

from __future__ import annotations

from typing import Any

import torch

from shoal._core.ep import quantize_nvfp4

from ...utils.semantic import native_assert
from ..checks import describe

GROUP = 16  # channels that share a scale
E2M1_MAX = 6.0
_E4M3_MAX = 448.0

# Scales lie in tiles of 128 rows x 4 groups: [row % 32][row / 32][group], as the tensor cores of
# Blackwell read them.
_TILE_ROWS, _TILE_GROUPS, _LANES = 128, 4, 32

# Midpoints between the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. A midpoint rounds to the even code.
_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_UP_AT_MIDPOINT = (False, True, False, True, False, True, False)


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
    """Writes bfloat16 [experts, rows, hidden] to ``out``, the result of ``allocate``: on ``stream``
    the first ``counts`` rows of each expert, on the CPU all."""
    if stream is None:
        _quantize_on_host(x, global_scale, out)
        return
    experts, rows, hidden = x.shape
    quantize_nvfp4(
        x.data_ptr(),
        counts.data_ptr(),
        0 if global_scale is None else global_scale.data_ptr(),
        out[0].data_ptr(),
        out[1].data_ptr(),
        experts,
        rows,
        hidden,
        stream,
    )


def _quantize_on_host(x: torch.Tensor, global_scale: torch.Tensor | None, out: tuple) -> None:
    values, scales = out[0].permute(2, 0, 1), out[1].permute(5, 2, 4, 0, 1, 3)
    experts, rows, hidden = x.shape
    groups = x.view(experts, rows, hidden // GROUP, GROUP).float()
    scale = groups.abs().amax(-1) / E2M1_MAX
    if global_scale is not None:
        scale = scale * global_scale
    scale = scale.clamp(max=_E4M3_MAX).to(torch.float8_e4m3fn)
    factor = scale.float()
    if global_scale is not None:
        factor = factor / global_scale
    factor = torch.where(factor > 0, 1 / factor, 0.0)
    codes = _e2m1(groups * factor.unsqueeze(-1)).view(experts, rows, hidden // 2, 2)
    values.copy_(codes[..., 0] | (codes[..., 1] << 4))
    _, row_tiles, group_tiles, *_ = scales.shape
    padded = torch.nn.functional.pad(
        scale.view(torch.uint8),
        (0, group_tiles * _TILE_GROUPS - scale.shape[2], 0, row_tiles * _TILE_ROWS - rows),
    )
    tiles = padded.view(experts, row_tiles, _TILE_ROWS // _LANES, _LANES, group_tiles, _TILE_GROUPS)
    scales.view(torch.uint8).copy_(tiles.permute(0, 1, 4, 3, 2, 5))


def _e2m1(x: torch.Tensor) -> torch.Tensor:
    """4-bit codes, uint8, rounded to nearest, ties to even, saturated."""
    magnitude = x.abs()
    code = torch.zeros_like(x, dtype=torch.uint8)
    for midpoint, up in zip(_MIDPOINTS, _UP_AT_MIDPOINT):
        code += magnitude >= midpoint if up else magnitude > midpoint
    return code | (torch.signbit(x).to(torch.uint8) << 3)


def dequantize(
    values: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor | None = None
) -> torch.Tensor:
    """bfloat16 [experts, rows, hidden] of the two tensors of ``allocate``."""
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=values.device, dtype=torch.float32)
    table = torch.cat((table, -table))
    packed = values.permute(2, 0, 1).contiguous()
    experts, rows, half = packed.shape
    codes = torch.stack((packed & 15, packed >> 4), -1).view(experts, rows, 2 * half)
    tiles = scales.view(torch.uint8).permute(5, 2, 1, 0, 4, 3)
    factor = tiles.reshape(experts, tiles.shape[1] * _TILE_ROWS, -1).view(torch.float8_e4m3fn)
    factor = factor[:, :rows, : 2 * half // GROUP].float()
    if global_scale is not None:
        factor = factor / global_scale
    return (table[codes.int()] * factor.repeat_interleave(GROUP, -1)).bfloat16()
