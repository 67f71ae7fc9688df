# SPDX-License-Identifier: Apache-2.0
"""dispatch and combine of ordinary tensors, outside compiled code, with little host time.

The results and gradients are those of the operators (ops.py), which cost ten times as much: torch
passes each of them through several layers of Python. `try_dispatch` and `try_combine` are one
binding call each, which most calls take; the other functions of this file accept all tensors.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from .. import _allocation
from ..errors import PeerFailedError, TimeoutError
from .._core.ep import NormalCalls, TorchCalls, TorchLayout
from . import ops

# (x, topk_idx, topk_weights, source_token, handle)
Sent = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Received(NamedTuple):
    """The result of a dispatch on this rank. Rows are ordered by source rank, then token."""

    x: Tensor  #: [rows, hidden], dtype of what was sent
    topk_idx: Tensor  #: int64 [rows, top_k]: local experts from 0; -1: expert elsewhere
    topk_weights: Tensor | None  #: float32 [rows, top_k]; 0 where topk_idx is -1; or None
    source_token: Tensor  #: int32 [rows]: index of the token at its source
    handle: Tensor  #: int64 scalar on the CPU that owns the layout; for combine
    tokens: int  #: tokens that this rank sent


_PLAIN = (Tensor, torch.nn.Parameter)
_DTYPES = (torch.bool, torch.int32, torch.int64, torch.float32)
_calls: weakref.WeakKeyDictionary[Any, NormalCalls] = weakref.WeakKeyDictionary()


def fits(*tensors: Tensor) -> bool:
    """True if calls with these tensors need no operator: no compiler, tracer or profiler sees
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
        _calls[group] = group._torch_calls = calls
    return calls


def _stream(tensor: Tensor) -> int:
    """The current stream for shoal; 0 on the CPU."""
    if not tensor.is_cuda:
        return 0
    # The function of torch's compiled code; torch.cuda.current_stream() is much slower.
    return torch._C._cuda_getCurrentRawStream(tensor.device.index) or 1  # 1: the default stream


class backward_of:
    """Says of a failure in it that a rank may have skipped backward."""

    def __init__(self, call: str) -> None:
        self.call = call

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, (TimeoutError, PeerFailedError)):
            raise error.also(
                f"in the backward of a {self.call}, which every rank runs; did {error.late_pe()} "
                "skip backward()?"
            ) from None


def _plain(tensor: Tensor) -> Tensor:
    """A contiguous tensor."""
    return tensor if tensor.is_contiguous() and tensor.numel() > 0 else ops.contiguous(tensor)


def _send(
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor,
    group: Any,
    worst_case_rows: int,
    copy_out: bool,
) -> Sent:
    calls, stream = _calls_of(group, x.device), _stream(x)
    routing = calls.route(_plain(topk_idx), stream)
    weights = _plain(topk_weights)
    clear = worst_case_rows > 0
    received = calls.dispatch(
        _plain(x), routing, weights, worst_case_rows, not copy_out, clear, stream
    )
    idx = received.topk_idx
    version = -1 if idx.is_inference() else idx._version
    handle = ops.handle_of(
        TorchLayout(group, received.handle, worst_case_rows, copy_out, None, idx, version)
    )
    return received.x, idx, received.topk_weights, received.source_token, handle


def _send_again(
    x: Tensor, weights: Tensor | None, handle: Tensor, group: Any
) -> tuple[Tensor, Tensor | None]:
    layout = ops.layout_of(handle)
    received = _calls_of(group, x.device).dispatch(
        _plain(x),
        layout.handle,
        None if weights is None else _plain(weights),
        layout.worst_case_rows,
        not layout.copy_out,
        layout.worst_case_rows > 0,
        _stream(x),
    )
    return received.x, received.topk_weights


def _sum(
    y: Tensor, weights: Tensor | None, handle: Tensor, group: Any
) -> tuple[Tensor, Tensor | None]:
    layout, indices = ops.layout_of(handle), None
    if weights is not None:
        weights = _plain(weights)
        if layout.topk_idx is not None:  # the kernel leaves these top-k slots out
            indices = ops.unchanged_topk_idx(layout)
        else:
            weights = weights.masked_fill(ops.elsewhere_of(layout), 0)
    return _calls_of(group, y.device).combine(
        _plain(y), layout.handle, weights, indices, _stream(y)
    )


# Function.apply asks each class for these by name, through all its bases, at every call.
_SINGLE_LEVEL = {
    "setup_context": Function.setup_context,
    "clear_saved_tensors_on_access": Function.clear_saved_tensors_on_access,
}


class _Dispatch(Function):
    """The gradient of a dispatch that has been sent; the other results need none."""

    locals().update(_SINGLE_LEVEL)

    @staticmethod
    def forward(ctx, x, topk_weights, sent):
        ctx.save_for_backward(sent[0])
        return sent[1:]

    @staticmethod
    def backward(ctx, grad_x, grad_weights):
        (handle,) = ctx.saved_tensors
        with backward_of("dispatch"):
            return *combine(grad_x, grad_weights, handle, ops.layout_of(handle).group), None


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
    """The gradient of a combine without weights, as most are, that has been made."""

    locals().update(_SINGLE_LEVEL)

    @staticmethod
    def forward(ctx, rows, summed):
        handle, sums = summed
        ctx.save_for_backward(handle)
        return sums

    @staticmethod
    def backward(ctx, grad_rows):
        (handle,) = ctx.saved_tensors
        with backward_of("combine"):
            return redispatch(grad_rows, None, handle, ops.layout_of(handle).group)[0], None


# Function.apply without its check of functorch, which `fits` excludes: faster.
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
    """Like torch.ops.shoal.dispatch, for a group in place of its number."""
    sent = _send(x, topk_idx, topk_weights, group, worst_case_rows, copy_out)
    if not _needs_gradient(x, topk_weights):
        return sent
    _, idx, _, source, handle = sent
    received_x, received_weights = _apply_dispatch(x, topk_weights, (handle, sent[0], sent[2]))
    return received_x, idx, received_weights, source, handle


def redispatch(
    x: Tensor, weights: Tensor | None, handle: Tensor, group: Any
) -> tuple[Tensor, Tensor | None]:
    """Like torch.ops.shoal.redispatch, with None without weights."""
    if _needs_gradient(x, weights):
        return _apply_exchange(x, weights, handle, group, _send_again, combine)
    return _send_again(x, weights, handle, group)


def combine(
    y: Tensor, weights: Tensor | None, handle: Tensor, group: Any
) -> tuple[Tensor, Tensor | None]:
    """Like torch.ops.shoal.combine, with None without weights."""
    if _needs_gradient(y, weights):
        return _apply_exchange(y, weights, handle, group, _sum, redispatch)
    return _sum(y, weights, handle, group)


def combine_rows(y: Tensor, handle: Tensor, group: Any) -> Tensor:
    """combine without weights."""
    sums = _sum(y, None, handle, group)[0]
    if y.requires_grad and torch.is_grad_enabled():
        return _apply_sum(y, (handle, sums))
    return sums


_torch_calls = TorchCalls(
    Received,
    ((torch.compiler, "_is_compiling_flag"), (torch.autograd.profiler, "_is_profiler_enabled")),
    (torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack),
    torch.is_grad_enabled,
    _apply_dispatch,
    _apply_sum,
)
# dispatch(group, x, topk_idx, topk_weights, worst_case_rows, copy_out) and combine(group, y,
# received) by one call; None, without effect, for arguments that are not as most are.
try_dispatch, try_combine = _torch_calls.try_dispatch, _torch_calls.try_combine
