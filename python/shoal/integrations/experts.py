# SPDX-License-Identifier: Apache-2.0
"""The experts of transformers on rows that are sorted by expert, as an exchange delivers them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations import moe


class SortedExperts:
    """Calls the forward of a module of experts with rows in the order of experts.

    Transformers' grouped_mm sorts its rows, and so copies them there and back in forward and in
    backward. Here its two products run on the rows as they are. Other implementations and modules
    of their own get the rows with ids of experts, as transformers calls them.
    """

    def __init__(self, forward: Callable[..., Tensor]) -> None:
        self.forward = forward
        self.module: Any = getattr(forward, "__self__", None)
        function = getattr(forward, "__func__", None)
        self.interface: Any = None
        if isinstance(self.module, nn.Module) and function is not None:
            # Only the forward that transformers' decorator makes chooses an implementation.
            self.interface = inspect.getclosurevars(function).nonlocals.get("experts_interface")

    def __call__(self, rows: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
        """The output of each row times its weight.

        rows: [n, hidden]. counts: int64 [local experts], whose sum is n. weights: [n].
        """
        here = torch.arange(counts.shape[0], device=rows.device)
        if self._grouped():
            return self._products(rows, here, counts, weights)
        ids = here.repeat_interleave(counts, output_size=rows.shape[0])
        return self.forward(rows, ids.unsqueeze(1), weights.unsqueeze(1))

    def _grouped(self) -> bool:
        return (
            self.interface is not None
            and self.module.config._experts_implementation == "grouped_mm"
            and self.interface["grouped_mm"] is moe.grouped_mm_experts_forward
        )

    def _products(self, rows: Tensor, here: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
        experts = self.module
        ends = counts.cumsum(0, dtype=torch.int32)
        ids = (
            here.repeat_interleave(counts, output_size=rows.shape[0]) if experts.has_bias else None
        )

        def product(x: Tensor, name: str) -> Tensor:
            bias = None if ids is None else getattr(experts, f"{name}_bias")[ids]
            return moe._grouped_linear(
                x, getattr(experts, name), ends, bias=bias, is_transposed=experts.is_transposed
            )

        if experts.has_gate:
            inner = experts._apply_gate(product(rows, "gate_up_proj"))
        else:
            inner = experts.act_fn(product(rows, "up_proj"))
        out = product(inner, "down_proj")
        if experts.has_post_expert_norm:
            out = experts.post_expert_norm(out)
        return (out * weights.unsqueeze(1)).to(rows.dtype)
