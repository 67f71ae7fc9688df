# SPDX-License-Identifier: Apache-2.0
"""dispatch and combine of ordinary tensors, outside compiled code, with little host time.

The results and gradients are those of the operators (ops.py), which cost ten times as much: torch
passes each of them through several layers of Python.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .. import _allocation
from .._core.ep import NormalCalls
from . import ops

# (x, topk_idx, topk_weights, source_token, handle)
Sent = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]

_PLAIN = (Tensor, torch.nn.Parameter)
_DTYPES = (torch.bool, torch.int32, torch.int64, torch.float32)
_calls: weakref.WeakKeyDictionary[Any, NormalCalls] = weakref.WeakKeyDictionary()


def fits(*tensors: Tensor) -> bool:
    """Whether calls with these tensors need no operator: no compiler, tracer or profiler sees
    them."""
    if torch.compiler.is_compiling():
        return False
    for tensor in tensors:  # a third of the time of a generator expression
        if type(tensor) not in _PLAIN:
            return False
    return (
        torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and not torch.autograd.profiler._is_profiler_enabled
    )


def _calls_of(group: Any, device: torch.device) -> NormalCalls:
    calls = _calls.get(group)
    if calls is None:
        query = _allocation.capture_query() if device.type == "cuda" else None
        calls = NormalCalls(group, Tensor, _allocation.empty_strided(device), _DTYPES, query)
        _calls[group] = calls
    return calls


def _stream(tensor: Tensor) -> int:
    """The current stream for shoal; 0 on the CPU."""
    if not tensor.is_cuda:
        return 0
    # The function of torch's compiled code: torch.cuda.current_stream() takes 10 us.
    return torch._C._cuda_getCurrentRawStream(tensor.device.index) or 1  # 1: the default stream


def _plain(tensor: Tensor) -> Tensor:
    """A contiguous tensor."""
    return tensor if tensor.is_contiguous() and tensor.numel() > 0 else ops.contiguous(tensor)


class _Indices:
    """The topk_idx that a dispatch returned, for a gradient; called, the top-k slots without a
    local expert."""

    __slots__ = ("_topk_idx", "_version")

    def __init__(self, topk_idx: Tensor):
        self._topk_idx, self._version = topk_idx, topk_idx._version

    def unchanged(self) -> Tensor:
        if self._topk_idx._version != self._version:
            raise RuntimeError(
                "shoal.torch: the topk_idx that a dispatch returned was modified in place; "
                "the gradient of the dispatch needs it as it was"
            )
        return self._topk_idx

    def __call__(self) -> Tensor:
        return self.unchanged() < 0


def _send(
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor,
    group: Any,
    worst_case_rows: int,
    copy_out: bool,
    with_gradient: bool,
) -> Sent:
    calls = _calls.get(group) or _calls_of(group, x.device)
    # By one call where the arguments are as most are; None, without effect, where one is not.
    sent = calls.try_exchange(x, topk_idx, topk_weights, worst_case_rows, copy_out)
    if sent is None:
        sent = _send_any(x, topk_idx, topk_weights, calls, worst_case_rows, copy_out)
    received_x, idx, weights, source, layout = sent
    elsewhere = _Indices(idx) if with_gradient else None
    handle = ops.handle_of(ops.Layout(layout, worst_case_rows, copy_out, elsewhere))
    return received_x, idx, weights, source, handle


def _send_any(
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor,
    calls: NormalCalls,
    worst_case_rows: int,
    copy_out: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Any]:
    stream = _stream(x)
    routing = calls.route(_plain(topk_idx), stream)
    weights = _plain(topk_weights)
    clear = worst_case_rows > 0
    received = calls.dispatch(
        _plain(x), routing, weights, None, 1, worst_case_rows, False, not copy_out, clear, stream, 0
    )
    source = received.source_token
    return received.x, received.topk_idx, received.topk_weights, source, received.handle


def _send_again(
    x: Tensor, weights: Tensor | None, handle: Tensor, group: Any
) -> tuple[Tensor, Tensor | None]:
    layout = ops.layout_of(handle)
    received = _calls_of(group, x.device).dispatch(
        _plain(x),
        layout.handle,
        None if weights is None else _plain(weights),
        None,
        1,
        layout.worst_case_rows,
        False,
        not layout.copy_out,
        layout.worst_case_rows > 0,
        _stream(x),
        0,
    )
    return received.x, received.topk_weights


def _sum(
    y: Tensor, weights: Tensor | None, handle: Tensor, group: Any
) -> tuple[Tensor, Tensor | None]:
    layout, indices = ops.layout_of(handle), None
    if weights is not None:
        weights = _plain(weights)
        if isinstance(layout.elsewhere, _Indices):  # the kernel leaves these top-k slots out
            indices = layout.elsewhere.unchanged()
        else:
            weights = weights.masked_fill(ops.elsewhere_of(layout), 0)
    return _calls_of(group, y.device).combine(
        _plain(y), layout.handle, weights, indices, None, (), _stream(y), 0
    )


def _sum_rows(y: Tensor, handle: Tensor, group: Any) -> Tensor:
    calls = _calls.get(group) or _calls_of(group, y.device)
    sums = calls.try_sum(y, ops._layouts, handle)
    return (_sum(y, None, handle, group) if sums is None else sums)[0]


class _Dispatch(Function):
    """The gradient of a dispatch that has been sent; the other results need none."""

    @staticmethod
    def forward(ctx, x, topk_weights, group, sent):
        received_x, _, received_weights, _, handle = sent
        ctx.group = group
        ctx.save_for_backward(handle)
        return received_x, received_weights

    @staticmethod
    def backward(ctx, grad_x, grad_weights):
        (handle,) = ctx.saved_tensors
        grad_x, grad_weights = combine(grad_x, grad_weights, handle, ctx.group)
        return grad_x, grad_weights, None, None


class _Exchange(Function):
    """A redispatch or a combine. The gradient of each is the other."""

    @staticmethod
    def forward(ctx, rows, weights, handle, group, send, send_gradient):
        ctx.group, ctx.weighted, ctx.send_gradient = group, weights is not None, send_gradient
        ctx.save_for_backward(handle)
        return send(rows, weights, handle, group)

    @staticmethod
    def backward(ctx, grad_rows, grad_weights):
        (handle,) = ctx.saved_tensors
        grad_weights = grad_weights if ctx.weighted else None
        grads = ctx.send_gradient(grad_rows, grad_weights, handle, ctx.group)
        return *grads, None, None, None, None


class _Sum(Function):
    """A combine without weights, as most are."""

    @staticmethod
    def forward(ctx, rows, handle, group):
        ctx.group = group
        ctx.save_for_backward(handle)
        return _sum_rows(rows, handle, group)

    @staticmethod
    def backward(ctx, grad_rows):
        (handle,) = ctx.saved_tensors
        return redispatch(grad_rows, None, handle, ctx.group)[0], None, None


# Function.apply, without its look at functorch, which `fits` excludes: 2 us less.
_apply_dispatch = super(Function, _Dispatch).apply
_apply_exchange = super(Function, _Exchange).apply
_apply_sum = super(Function, _Sum).apply


def _needs_gradient(first: Tensor, second: Tensor | None) -> bool:
    return torch.is_grad_enabled() and (
        first.requires_grad or (second is not None and second.requires_grad)
    )


def dispatch(
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor,
    group: Any,
    worst_case_rows: int,
    copy_out: bool,
) -> Sent:
    """As torch.ops.shoal.dispatch, for a group in place of its number."""
    needs = _needs_gradient(x, topk_weights)
    sent = _send(x, topk_idx, topk_weights, group, worst_case_rows, copy_out, needs)
    if not needs:
        return sent
    _, idx, _, source, handle = sent
    received_x, received_weights = _apply_dispatch(x, topk_weights, group, sent)
    return received_x, idx, received_weights, source, handle


def redispatch(
    x: Tensor, weights: Tensor | None, handle: Tensor, group: Any
) -> tuple[Tensor, Tensor | None]:
    """As torch.ops.shoal.redispatch, with None without weights."""
    if _needs_gradient(x, weights):
        return _apply_exchange(x, weights, handle, group, _send_again, combine)
    return _send_again(x, weights, handle, group)


def combine(
    y: Tensor, weights: Tensor | None, handle: Tensor, group: Any
) -> tuple[Tensor, Tensor | None]:
    """As torch.ops.shoal.combine, with None without weights."""
    if _needs_gradient(y, weights):
        return _apply_exchange(y, weights, handle, group, _sum, redispatch)
    return _sum(y, weights, handle, group)


def combine_rows(y: Tensor, handle: Tensor, group: Any) -> Tensor:
    """combine without weights."""
    if y.requires_grad and torch.is_grad_enabled():
        return _apply_sum(y, handle, group)
    return _sum_rows(y, handle, group)
