# SPDX-License-Identifier: Apache-2.0
"""Expert-major dispatch and combine: rows grouped by expert, as grouped products take them.

A row travels once to each rank that has one of its experts, and is copied there for each of them,
to torch's memory. Ranks of one host store it once per expert, where the result lies.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from .._core.ep import CallRouting, ExpertMajorLayout
from . import eager


class ExpertMajorReceived(NamedTuple):
    """The result of an expert-major dispatch on this rank: a row for each (token, expert here),
    by expert, then source rank, then token."""

    x: Tensor  #: [rows, hidden], dtype of what was sent
    topk_weights: Tensor | None  #: float32 [rows]; None without weights
    tokens_per_expert: list[int]  #: rows of each local expert
    layout: ExpertMajorLayout  #: for combine
    tokens: int  #: tokens that this rank sent


def _tensor(weights: Tensor | None) -> Tensor | None:
    return None if weights is None else eager._plain(weights)


def _empty(like: Tensor) -> Tensor:
    # An autograd function returns tensors; without weights this one stands for None.
    return like.new_empty(0, dtype=torch.float32)


class _Copies(Function):
    """From rows and weights of tokens to those of (token, expert) pairs. Its adjoint is _Sums."""

    @staticmethod
    def forward(ctx, x, weights, group, layout):
        ctx.weighted = weights is not None
        rows, row_weights, ctx.layout = eager._calls_of(group, x.device).dispatch_expert_major(
            eager._plain(x), layout, _tensor(weights), eager._stream(x)
        )
        ctx.group = group
        return rows, row_weights if ctx.weighted else _empty(x), ctx.layout

    @staticmethod
    def backward(ctx, grad_rows, grad_weights, _):
        with eager.backward_of("dispatch"):
            return *_sums(grad_rows, grad_weights if ctx.weighted else None, ctx), None, None


class _Sums(Function):
    """From rows and weights of (token, expert) pairs to sums by token. Its adjoint is _Copies."""

    @staticmethod
    def forward(ctx, y, weights, group, layout):
        ctx.weighted, ctx.group, ctx.layout = weights is not None, group, layout
        sums, sums_of_weights = eager._calls_of(group, y.device).combine_expert_major(
            eager._plain(y), layout, _tensor(weights), eager._stream(y)
        )
        return sums, sums_of_weights if ctx.weighted else _empty(y)

    @staticmethod
    def backward(ctx, grad_sums, grad_weights):
        weights = grad_weights if ctx.weighted else None
        with eager.backward_of("combine"):
            rows, row_weights, _ = _Copies.apply(grad_sums, weights, ctx.group, ctx.layout)
        return rows, row_weights if ctx.weighted else None, None, None


def _sums(y: Tensor, weights: Tensor | None, of: Any) -> tuple[Tensor, Tensor | None]:
    sums, sums_of_weights = _Sums.apply(y, weights, of.group, of.layout)
    return sums, None if weights is None else sums_of_weights


def dispatch(
    group: Any, x: Tensor, topk_idx: Tensor, topk_weights: Tensor | None
) -> ExpertMajorReceived:
    """See shoal.torch.dispatch."""
    calls = eager._calls_of(group, x.device)
    routing: CallRouting = calls.route(eager._plain(topk_idx), eager._stream(topk_idx))
    rows, weights, layout = _Copies.apply(x, topk_weights, group, routing)
    return ExpertMajorReceived(
        rows,
        None if topk_weights is None else weights,
        layout.tokens_per_expert,
        layout,
        x.shape[0],
    )


def combine(group: Any, y: Tensor, received: ExpertMajorReceived) -> Tensor:
    """See shoal.torch.combine."""
    return _Sums.apply(y, None, group, received.layout)[0]
