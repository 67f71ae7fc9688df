# SPDX-License-Identifier: Apache-2.0
"""The global scale of NVFP4 rows.

Format: 4-bit values (e2m1), two in a byte, the lower channel in the lower half. 16 channels share
an e4m3 scale. value = e2m1 * scale / global scale. Scales lie in tiles of 128 rows x 4 groups: [row
% 32][row / 32][group], as the tensor cores of Blackwell read them.
"""

from __future__ import annotations

from typing import Any

import torch

from ...utils.semantic import native_assert
from ..checks import describe


def global_scale_of(call: str, scale: Any, device: torch.device) -> torch.Tensor | None:
    """Element 0 of ``scale``, as [1], which counts for all rows as in DeepEP: callers pass one
    element per local expert. None for None. Raises RuntimeError unless it is float32 on
    ``device``."""
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
    return scale[(0,) * scale.dim()].view(1)
