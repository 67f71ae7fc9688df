# SPDX-License-Identifier: Apache-2.0
"""dispatch and combine whose rows travel in fp8 or mxfp8, with gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ..errors import InvalidArgumentError
from . import eager, ops

#: Formats of dispatched rows, and of the rows of a combine.
SENT = ("none", "fp8", "fp8_power_of_two", "fp8_ue8m0", "mxfp8")
RETURNED = ("none", "fp8", "mxfp8")


class Form(NamedTuple):
    """The arrangement of a dispatch's rows, which its combine and their gradients share."""

    worst_case_rows: int = 0
    expert_major: bool = False


class QuantizedReceived(NamedTuple):
    """The result of a dispatch in a format on this rank. Rows are ordered as in `Received`, with
    expert_major as in `ExpertMajorReceived`; k is then 1, otherwise the group's top_k.

    Gradients reach the sender through `x`. A product of `codes` and `scales` is a function of `x`
    too: an autograd function that takes all three and returns the gradient of `x`."""

    x: Tensor  #: bfloat16 [rows, hidden]: code times scale, rounded
    codes: Tensor | None  #: float8_e4m3fn [rows, hidden], as rows travelled; None for "none"
    scales: Tensor | None  #: [rows, groups]: float32, or uint8 for UE8M0; None for "none"
    topk_idx: Tensor  #: int64 [rows, k]: local experts from 0; -1: expert elsewhere
    topk_weights: Tensor | None  #: float32 [rows, k]; 0 where topk_idx is -1; or None
    source_token: Tensor  #: int32 [rows]: index of the token at its source
    tokens_per_expert: list[int]  #: rows of each local expert; empty with worst_case_rows on GPUs
    handle: Any  #: the layout, for combine
    tokens: int  #: tokens that this rank sent
    form: Form  #: of the dispatch


def check(call: str, name: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise InvalidArgumentError(
            f"shoal.torch.{call}: {name} is {given!r}; allowed: {', '.join(allowed)}"
        )


def decoded(codes: Tensor, scales: Tensor) -> Tensor:
    """Code times scale, in bfloat16."""
    factors = scales
    if scales.dtype is torch.uint8:  # UE8M0
        factors = torch.exp2(scales.double() - 127).masked_fill(scales == 255, torch.nan).float()
    hidden = codes.shape[1]
    group = 128 if scales.shape[1] == (hidden + 127) // 128 else 32
    spread = factors.repeat_interleave(group, dim=1)[:, :hidden]
    return (codes.float() * spread).bfloat16()


def without_token(topk_idx: Tensor) -> Tensor:
    """[rows, 1]: the rows that hold anything, which must not reach a product."""
    return (topk_idx < 0).all(dim=1, keepdim=True)


class _Rows(Function):
    """Sends rows in a format; the gradient is that of rows sent as they are."""

    @staticmethod
    def forward(ctx, x, topk_weights, topk_idx, group, settings):
        quantize, ctx.grad_quantize, form, copy_out = settings
        got = group.dispatch(
            eager._plain(x.detach()),
            group.route(eager._plain(topk_idx)),
            weights=None if topk_weights is None else eager._plain(topk_weights.detach()),
            quantize=quantize,
            copy_out=copy_out,
            **form._asdict(),
        )
        rows = got.x if quantize == "none" else decoded(got.x, got.scales)
        if form.worst_case_rows:
            rows = rows.masked_fill(without_token(got.topk_idx), 0)
        others = (got.topk_idx, got.source_token)
        if quantize != "none":
            others += (got.x, got.scales)
        ctx.group, ctx.handle = group, got.handle
        ctx.weighted = topk_weights is not None
        ctx.save_for_backward(got.topk_idx)
        ctx.mark_non_differentiable(*others)
        return rows, got.topk_weights, got.handle, got.tokens_per_expert, *others

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_rows, grad_weights, *_):
        (topk_idx,) = ctx.saved_tensors
        weights = None
        if ctx.weighted:  # the slopes of top-k slots whose expert is elsewhere stay here
            weights = grad_weights.masked_fill(topk_idx < 0, 0)
        with eager.backward_of("dispatch"):
            sums = ctx.group.combine(
                eager._plain(grad_rows), ctx.handle, weights=weights, quantize=ctx.grad_quantize
            )
        return sums.x, sums.topk_weights if ctx.weighted else None, None, None, None


class _Sums(Function):
    """Sums rows that travel in a format; the gradient is that of rows sent as they are."""

    @staticmethod
    def forward(ctx, y, group, handle, form, unused, quantize):
        ctx.group, ctx.handle, ctx.form, ctx.unused = group, handle, form, unused
        return group.combine(eager._plain(y.detach()), handle, quantize=quantize).x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_sums):
        with eager.backward_of("combine"):
            got = ctx.group.dispatch(
                eager._plain(grad_sums), ctx.handle, copy_out=True, **ctx.form._asdict()
            )
        rows = got.x if ctx.unused is None else got.x.masked_fill(ctx.unused, 0)
        return rows, None, None, None, None, None


def dispatch(
    group: Any,
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor | None,
    settings: tuple[str, str, Form, bool],
) -> QuantizedReceived:
    """See shoal.torch.dispatch. settings: quantize, grad_quantize, form, copy_out."""
    quantize, grad_quantize, form, _ = settings
    check("dispatch", "quantize", quantize, SENT)
    check("dispatch", "grad_quantize", grad_quantize, RETURNED)
    if x.dtype is not torch.bfloat16:
        raise InvalidArgumentError(
            f"shoal.torch.dispatch: x has dtype {x.dtype}; allowed with quantize or "
            "grad_quantize: torch.bfloat16"
        )
    rows, weights, handle, by_expert, idx, source, *encoded = _Rows.apply(
        x, topk_weights, topk_idx, group, settings
    )
    codes, scales = encoded or (None, None)
    return QuantizedReceived(
        rows, codes, scales, idx, weights, source, by_expert, handle, x.shape[0], form
    )


def combine(group: Any, y: Tensor, received: Any, quantize: str) -> Tensor:
    """See shoal.torch.combine."""
    check("combine", "quantize", quantize, RETURNED)
    if isinstance(received, QuantizedReceived):
        handle, form = received.handle, received.form
    else:
        layout = ops.layout_of(received.handle)
        handle, form = layout.handle, Form(layout.worst_case_rows)
    unused = without_token(received.topk_idx) if form.worst_case_rows else None
    return _Sums.apply(y, group, handle, form, unused, quantize)
