# SPDX-License-Identifier: Apache-2.0
"""A small mixture-of-experts layer over dispatch and combine, as a starting point."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from . import functions, ops

_SCORES = {"softmax": lambda logits: logits.softmax(dim=-1), "sigmoid": torch.sigmoid}


@torch.library.custom_op("shoal::grouped_linear", mutates_args=())
def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiplies each block of rows by the matrix of its expert.

    x: [rows, n], sorted by expert. weight: [experts, n, m]. ends: int64 [experts], the end of each
    expert's block; a block starts at the end of the previous one. Returns [rows, m]; rows after the
    last block are 0. Differentiable in x and weight, any number of times. Waits for `ends` on the
    host and runs one product per expert.
    """
    result = x.new_empty((x.shape[0], weight.shape[2]))
    first = 0
    for matrix, end in zip(weight, ends.tolist()):
        torch.mm(x[first:end], matrix, out=result[first:end])
        first = end
    result[first:] = 0
    return result


@grouped_linear.register_fake
def _(x, weight, ends):
    return x.new_empty((x.shape[0], weight.shape[2]))


@torch.library.custom_op("shoal::grouped_outer", mutates_args=())
def grouped_outer(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    """The sum of the outer products of each expert's rows.

    x: [rows, n], y: [rows, m], ends as for grouped_linear. Returns [experts, n, m].
    """
    result = x.new_empty((ends.shape[0], x.shape[1], y.shape[1]))
    first = 0
    for matrix, end in zip(result, ends.tolist()):
        torch.mm(x[first:end].t(), y[first:end], out=matrix)
        first = end
    return result


@grouped_outer.register_fake
def _(x, y, ends):
    return x.new_empty((ends.shape[0], x.shape[1], y.shape[1]))


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _linear_backward(ctx, grad):
    x, weight, ends = ctx.saved_tensors
    return grouped_linear(grad, weight.transpose(1, 2), ends), grouped_outer(x, grad, ends), None


def _outer_backward(ctx, grad):
    x, y, ends = ctx.saved_tensors
    return grouped_linear(y, grad.transpose(1, 2), ends), grouped_linear(x, grad, ends), None


grouped_linear.register_autograd(_linear_backward, setup_context=_save)
grouped_outer.register_autograd(_outer_backward, setup_context=_save)


def refuse_replicated(experts: nn.Module) -> None:
    """Raises ValueError in the forward of a DistributedDataParallel that takes the parameters of
    these experts for replicas: it gives all ranks those of the first one, and averages their
    gradients."""
    wrapper = DistributedDataParallel._active_ddp_module
    if wrapper is None:
        return
    own = {id(parameter) for parameter in experts.parameters(recurse=False)}
    if any(id(parameter) in own for parameter in getattr(wrapper, "_module_parameters", ())):
        raise ValueError(
            "DistributedDataParallel has taken the experts of this rank for replicas; name their "
            "parameters with DistributedDataParallel._set_params_and_buffers_to_ignore_for_model "
            "for the module that it wraps"
        )


class MoE(nn.Module):
    """A mixture of SwiGLU experts: [..., hidden] -> [..., hidden].

    Each token goes to the `top_k` experts of the highest score, which is `softmax` or `sigmoid` of
    a linear router in float32. Expert outputs are summed with the scores as weights, normalised to
    a sum of 1 unless `normalize` is False.

        layer = shoal.torch.MoE(hidden, intermediate, experts, top_k, group=group)
        y = layer(x)

    group: a shoal.ep.Group with the same hidden, experts and top_k. This module then holds the
    parameters of the local experts, `w_in` [local experts, hidden, 2 * intermediate] and `w_out`
    [local experts, intermediate, hidden], and forward and backward are collective. The router's
    parameters must be equal on all ranks; the caller synchronizes them as any data-parallel
    parameter. Gradients of experts include the tokens of all ranks, so DistributedDataParallel has
    to ignore them. Without a group all experts are local.

    worst_case_rows: as for `dispatch`; torch.compile then makes one graph of the layer.

    copy.deepcopy shares the group. A pickled layer has none: set `group` after loading it.

    Raises ValueError where the group's options differ.
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        experts: int,
        top_k: int,
        *,
        group: Any = None,
        score: str = "softmax",
        normalize: bool = True,
        worst_case_rows: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if score not in _SCORES:
            raise ValueError(f"MoE: score is {score!r}; allowed: {', '.join(_SCORES)}")
        if not 1 <= top_k <= experts:
            raise ValueError(f"MoE: top_k is {top_k}; allowed: 1 to experts, {experts}")
        if group is not None:
            for name, value in (("hidden", hidden), ("experts", experts), ("top_k", top_k)):
                if group.options[name] != value:
                    raise ValueError(
                        f"MoE: {name} is {value}, "
                        f"but the group was created with {group.options[name]}"
                    )
            ops.register(group)
        self.group, self.top_k, self.score, self.normalize = group, top_k, score, normalize
        self.worst_case_rows, self.experts = worst_case_rows, experts
        here = experts if group is None else group.local_experts
        self.router = nn.Linear(hidden, experts, bias=False, device=device, dtype=dtype)
        self.w_in = nn.Parameter(
            torch.empty(here, hidden, 2 * intermediate, device=device, dtype=dtype)
        )
        self.w_out = nn.Parameter(
            torch.empty(here, intermediate, hidden, device=device, dtype=dtype)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.router.reset_parameters()
        for weight in (self.w_in, self.w_out):
            nn.init.uniform_(weight, -(weight.shape[1] ** -0.5), weight.shape[1] ** -0.5)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "group": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> MoE:
        copied = memo[id(self)] = self.__class__.__new__(self.__class__)
        copied.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        copied.group = self.group
        return copied

    def forward(self, x: Tensor) -> Tensor:
        if self.group is None and self.w_in.shape[0] != self.experts:
            raise ValueError(
                f"MoE: this layer was pickled with {self.w_in.shape[0]} of {self.experts} experts "
                "and without its group; set its attribute group"
            )
        tokens = x.reshape(-1, x.shape[-1])
        topk_idx, topk_weights = self.route(tokens)
        if self.group is None:
            return self.expert_output(tokens, topk_idx, topk_weights).view_as(x)
        if not torch.compiler.is_compiling():
            refuse_replicated(self)
        received = functions.dispatch(
            self.group,
            tokens,
            topk_idx,
            topk_weights,
            worst_case_rows=self.worst_case_rows,
            # A compiled graph may keep the rows until backward.
            copy_out=torch.compiler.is_compiling(),
        )
        y = self.expert_output(received.x, received.topk_idx, received.topk_weights)
        return functions.combine(self.group, y, received).view_as(x)

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token and their weights: int64 and float32 [tokens, top_k]."""
        scores = _SCORES[self.score](self.router(tokens).float())
        weights, idx = scores.topk(self.top_k, dim=-1)
        return idx, weights / weights.sum(dim=-1, keepdim=True) if self.normalize else weights

    def expert_output(self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> Tensor:
        """The weighted sum of the local experts' outputs for each row: [rows, hidden].

        topk_idx -1 selects no local expert.
        """
        here = self.w_in.shape[0]
        expert = torch.where(topk_idx < 0, here, topk_idx).flatten()
        expert, flat_slot = torch.sort(expert, stable=True)
        ends = torch.searchsorted(expert, torch.arange(here, device=x.device), right=True)
        if self.group is not None and self.worst_case_rows == 0:
            flat_slot = flat_slot[: int(ends[-1]) if here > 0 else 0]
        row = torch.div(flat_slot, self.top_k, rounding_mode="floor")
        gate, up = grouped_linear(x[row], self.w_in, ends).chunk(2, dim=-1)
        y = grouped_linear(F.silu(gate) * up, self.w_out, ends)
        y = (y * topk_weights.flatten()[flat_slot].unsqueeze(1)).to(x.dtype)
        return torch.zeros_like(x).index_add(0, row, y)
