# SPDX-License-Identifier: Apache-2.0
"""Shoal for PyTorch: differentiable dispatch and combine, and operators for torch.compile.

    received = shoal.torch.dispatch(group, x, topk_idx, topk_weights)
    x = shoal.torch.combine(group, experts(received), received)

`gate` selects experts from router logits; `low_latency` is a layer for decoding. `group` is a
shoal.ep.Group. The operators are torch.ops.shoal.dispatch, .redispatch and .combine. `MoE` is a
layer made of them.
"""

from .expert_major import ExpertMajorReceived
from .formats import QuantizedReceived
from .functions import Received, combine, dispatch, gate, low_latency
from .moe import MoE, grouped_linear
from .ops import register

__all__ = [
    "ExpertMajorReceived",
    "MoE",
    "QuantizedReceived",
    "Received",
    "combine",
    "dispatch",
    "gate",
    "grouped_linear",
    "low_latency",
    "register",
]
