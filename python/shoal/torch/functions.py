# SPDX-License-Identifier: Apache-2.0
"""dispatch and combine as differentiable functions of tensors; the gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

import torch
from torch import Tensor

from .. import ep
from ..errors import InvalidArgumentError
from . import eager, expert_major as by_expert, formats, ops
from .eager import Received
from .expert_major import ExpertMajorReceived
from .formats import QuantizedReceived


def outside_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Breaks the graph at a call in compiled code. torch.compiler.disable would import Dynamo when
    this module is imported."""
    return torch._dynamo.disable(function) if torch.compiler.is_dynamo_compiling() else function


def _number(group: Any) -> int:
    # Dynamo would run the registration after the graph; it turns id() into a guarded constant.
    return id(group) if torch.compiler.is_compiling() else ops.register(group)


@overload
def dispatch(
    group: Any,
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor | None = None,
    *,
    expert_major: Literal[True],
) -> ExpertMajorReceived: ...


@overload
def dispatch(
    group: Any,
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor | None = None,
    *,
    expert_major: Literal[False] = False,
    worst_case_rows: int = 0,
    copy_out: bool = False,
) -> Received: ...


@overload
def dispatch(
    group: Any,
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor | None = None,
    *,
    worst_case_rows: int = 0,
    copy_out: bool = False,
    expert_major: bool = False,
    quantize: str,
    grad_quantize: str = "none",
) -> QuantizedReceived: ...


def dispatch(
    group: Any,
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor | None = None,
    *,
    expert_major: bool = False,
    worst_case_rows: int = 0,
    copy_out: bool = False,
    quantize: str | None = None,
    grad_quantize: str = "none",
) -> Received | ExpertMajorReceived | QuantizedReceived:
    """Sends each token to the ranks of its experts. Collective.

    group: a `shoal.ep.Group`. x: [tokens, hidden] of the group's dtype. topk_idx: int64 or int32
    [tokens, top_k], -1: no expert. topk_weights: [tokens, top_k] of a floating-point dtype, which
    travel as float32; None, on all ranks: no weights.

    Differentiable in x and topk_weights, any number of times. Backward combines the gradients. It
    is collective too, so every rank runs it, including ranks that received no rows. It needs the
    returned topk_idx unchanged; change a clone of it.

    expert_major: the result has a row for each (token, expert here), grouped by expert, in torch's
    memory or, on hosts, in that of the group as `live_results` allows. torch.compile breaks its
    graph at these calls; worst_case_rows is 0 without quantize. With quantize, combine and backward
    copy rows to the group's memory, which has room for ranks * max_tokens of them.
    worst_case_rows: the number of rows of the result, at most ranks * max_tokens. Rows without a
    token are 0 and have topk_idx -1. Sizes are then known before the call, which torch.compile
    prefers and CUDA graphs need. A CUDA graph captures forward only, and the result must live as
    long as the graph unless copy_out is set. With 0 the number of rows is that received, and
    compiled code sees a data-dependent size.
    copy_out: received rows and gradients lie in ordinary memory in place of the group's memory,
    which has room for `live_results` results. For rows that live until backward, for example.
    quantize: fp8, fp8_power_of_two, fp8_ue8m0 or mxfp8 (`Group.dispatch`): rows of a bfloat16 x
    travel in this format. The result is a `QuantizedReceived`: their codes and scales, and the rows
    that these stand for. "none" gives one with unencoded rows. The gradient of x is that of rows
    sent as they are.
    grad_quantize: with quantize, fp8 or mxfp8: the gradients of the rows travel in this format,
    each within the bound of `CombineOptions::quantize`; "none": in bfloat16. Differentiable once.
    torch.compile breaks its graph at these calls.

    Raises shoal.Error as `Group.route` and `Group.dispatch` do.
    """
    if topk_weights is not None and topk_weights.dtype is not torch.float32:
        topk_weights = _float32(topk_weights)
    if quantize is not None:
        form = formats.Form(worst_case_rows, expert_major)
        settings = (quantize, grad_quantize, form, copy_out)
        return outside_graphs(formats.dispatch)(group, x, topk_idx, topk_weights, settings)
    if grad_quantize != "none":
        raise InvalidArgumentError(
            f"shoal.torch.dispatch: grad_quantize is {grad_quantize!r} without quantize; allowed: "
            'none, or quantize="none" to send x as it is'
        )
    if expert_major:
        if worst_case_rows:
            raise InvalidArgumentError(
                f"shoal.torch.dispatch: worst_case_rows is {worst_case_rows}; allowed with "
                "expert_major: 0"
            )
        return outside_graphs(by_expert.dispatch)(group, x, topk_idx, topk_weights)
    if topk_weights is None:
        # The operators always send weights. These are dropped when they arrive.
        unread = torch.ones(topk_idx.shape, dtype=torch.float32, device=x.device)
        return dispatch(
            group, x, topk_idx, unread, worst_case_rows=worst_case_rows, copy_out=copy_out
        )._replace(topk_weights=None)
    if not torch.compiler.is_dynamo_compiling():
        sent = eager.try_dispatch(group, x, topk_idx, topk_weights, worst_case_rows, copy_out)
        if sent is not None:
            return sent
    if eager.fits(x, topk_idx, topk_weights):
        rows = eager.dispatch(x, topk_idx, topk_weights, group, worst_case_rows, copy_out)
    else:
        rows = torch.ops.shoal.dispatch(
            x, topk_idx, topk_weights, _number(group), worst_case_rows, copy_out
        )
    return Received(*rows, x.shape[0])


def _float32(topk_weights: Tensor) -> Tensor:
    if not topk_weights.dtype.is_floating_point:
        raise InvalidArgumentError(
            f"shoal.torch.dispatch: topk_weights has dtype {topk_weights.dtype}; allowed: "
            "floating-point dtypes, or None"
        )
    return topk_weights.float()


def combine(
    group: Any,
    y: Tensor,
    received: Received | ExpertMajorReceived | QuantizedReceived,
    *,
    quantize: str = "none",
) -> Tensor:
    """Sums the expert output of each token of this rank. Collective.

    y: [rows, hidden], the expert output for `received.x` in its order, multiplied by the weights.
    Rows in the group's memory (`received.x` written in place) need no copy. Returns [tokens,
    hidden] of the dtype of y. Differentiable in y; backward sends the gradient of each token to the
    ranks of its experts, and is collective too.

    quantize: fp8 or mxfp8: rows of a bfloat16 y travel in this format (`Group.combine`), equal on
    all ranks. Gradients travel in bfloat16. Differentiable once; torch.compile breaks its graph at
    these calls, and at those for a `QuantizedReceived`.
    """
    if isinstance(received, QuantizedReceived) or quantize != "none":
        if isinstance(received, ExpertMajorReceived):
            raise InvalidArgumentError(
                f"shoal.torch.combine: quantize is {quantize!r} for an expert-major dispatch "
                'without quantize; allowed: none, or quantize="none" in the dispatch'
            )
        return outside_graphs(formats.combine)(group, y, received, quantize)
    if isinstance(received, ExpertMajorReceived):
        return outside_graphs(by_expert.combine)(group, y, received)
    if not torch.compiler.is_dynamo_compiling():
        sums = eager.try_combine(group, y, received)
        if sums is not None:
            return sums
    if eager.fits(y, received.handle):
        return eager.combine_rows(y, received.handle, group)
    return torch.ops.shoal.combine(y, None, received.handle, _number(group), received.tokens)[0]


@torch.no_grad()
def low_latency(
    group: Any,
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor | None,
    experts: Callable[[Tensor, Tensor], Tensor],
    *,
    unsummed: bool = False,
) -> Tensor:
    """A layer of experts in low-latency mode, for decoding. Collective, without gradients.

        y = shoal.torch.low_latency(group, x, topk_idx, topk_weights, experts)

    group: with `low_latency_max_tokens`. x: bfloat16 [tokens, hidden]. topk_idx: [tokens, top_k],
    -1: no expert. topk_weights: [tokens, top_k] of a floating-point dtype, by which combine
    multiplies. experts: a function of rows [E, ranks * low_latency_max_tokens, hidden] and counts,
    int32 [E], the valid rows of each of E = group.max_local_experts experts, of which a rank may
    have fewer, with no rows for the last ones; it returns the experts' output in the same shape,
    and may write it into the rows. Returns [tokens, hidden].

    unsummed: returns the experts' output in top-k order, [tokens, top_k, hidden], without weights,
    for a kernel that sums it; zeros where a slot has no expert. topk_weights may be None.

    All ranks choose the mode alike: by a number that they have agreed on, not by their own tokens.
    Otherwise ranks wait for each other: they get a MismatchError at once, and the group ends.

    Raises InvalidArgumentError for rows of another dtype: low-latency rows are bfloat16, and a
    model in float32 would lose precision. Otherwise as `Group.low_latency_dispatch` does.
    """
    if x.dtype is not torch.bfloat16:
        raise InvalidArgumentError(
            f"shoal.torch.low_latency: x has dtype {x.dtype}; allowed: torch.bfloat16, as rows "
            "travel; shoal.torch.dispatch keeps float32"
        )
    if topk_weights is None and not unsummed:
        raise InvalidArgumentError(
            "shoal.torch.low_latency: topk_weights is None; allowed with unsummed=True"
        )
    x, topk_idx = eager._plain(x), eager._plain(topk_idx)
    weights = None if topk_weights is None else eager._plain(topk_weights.float())
    received = group.low_latency_dispatch(x, topk_idx, quantize="none").receive()
    y = experts(received.x, received.counts)
    shape = (*topk_idx.shape, x.shape[1]) if unsummed else x.shape
    out = x.new_empty(shape) if x.is_cuda else None
    return group.low_latency_combine(
        y, topk_idx, weights, received.handle, unsummed=unsummed, out=out
    ).receive()


@torch.no_grad()
def gate(
    logits: Tensor,
    bias: Tensor | None = None,
    *,
    top_k: int,
    groups: int = 1,
    groups_kept: int = 1,
    score: str = "sigmoid",
    normalize: bool = True,
    routed_scaling: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Selects experts from router logits as DeepSeek-V3 does, with the same bits on host and GPU.

    logits: float32 [tokens, experts], contiguous, on the host or on a GPU, where one kernel of the
    current stream does the work. bias: float32 [experts], affects the selection but not the
    weights. Of `groups` groups of experts, only the best `groups_kept` are considered. Returns
    (topk_idx int64, topk_weights float32), [tokens, top_k] each. No gradient: a layer that trains
    its router computes the weights of topk_idx itself.

    Raises shoal.Error as `shoal.ep.gate` does.
    """
    shape = (logits.shape[0], top_k)
    out = (
        torch.empty(shape, dtype=torch.int64, device=logits.device),
        torch.empty(shape, dtype=torch.float32, device=logits.device),
    )
    stream = torch.cuda.current_stream(logits.device) if logits.is_cuda else None
    ep.gate(
        logits.detach(),
        bias if bias is None else bias.detach(),
        top_k=top_k,
        groups=groups,
        groups_kept=groups_kept,
        score=score,
        normalize=normalize,
        routed_scaling=routed_scaling,
        out=out,
        stream=stream,
    )
    return out
