# SPDX-License-Identifier: Apache-2.0
"""The custom operators `torch.ops.shoal`: dispatch and combine for autograd and torch.compile.

A graph holds tensors and integers only. A group is therefore passed as the integer that `register`
returns, and the layout of a dispatch as a "handle" tensor: an int64 scalar whose memory owns the
layout. The layout lives exactly as long as a graph holds the tensor.

`redispatch` and `combine` are linear, and each is the adjoint of the other; `dispatch` has the
gradient of `redispatch`. All of them are collective: every rank runs the same operators in the same
order, backward included.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._core.ep import TorchLayout, drop_torch_layout, keep_torch_layout, torch_handle, torch_layout

_groups: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def register(group: Any) -> int:
    """The integer that the operators take for `group`, a shoal.ep.Group.

    It does not keep the group alive. `dispatch`, `combine` and `MoE` call this function. A program
    that compiles code before any of them calls it first.
    """
    _groups[id(group)] = group
    return id(group)


def _group(number: int) -> Any:
    try:
        return _groups[number]
    except KeyError:
        raise RuntimeError(
            "shoal.torch: this group is not registered, or no longer exists; before compiling code "
            "that uses a group, call shoal.torch.register(group) or create a shoal.torch.MoE with "
            "it"
        ) from None


def layout_of(handle: Tensor) -> TorchLayout:
    number = int(handle)
    layout = torch_layout(number)
    if layout is None:
        raise RuntimeError(
            f"shoal.torch: handle {number} belongs to no dispatch whose handle tensor is alive; "
            "pass the tensor that dispatch returned, not a copy of its value"
        )
    return layout


def unchanged_topk_idx(layout: TorchLayout) -> Tensor:
    """The topk_idx that a dispatch returned, which its gradient and sums of weights need.

    A change under torch.inference_mode, where tensors have no versions, is not seen.
    """
    topk_idx: Tensor = layout.topk_idx
    if layout.topk_idx_version >= 0 and topk_idx._version != layout.topk_idx_version:
        raise RuntimeError(
            "shoal.torch: the topk_idx that a dispatch returned was modified in place; "
            "the gradient of the dispatch, or a combine with weights, needs it as it was"
        )
    return topk_idx


def elsewhere_of(layout: TorchLayout) -> Tensor:
    """bool [rows, top_k]: top-k slots without a local expert."""
    if layout.elsewhere is not None:
        return layout.elsewhere
    return unchanged_topk_idx(layout) < 0


def handle_of(layout: TorchLayout) -> Tensor:
    """A handle tensor that owns the layout."""
    handle = torch_handle(Tensor, layout)
    if handle is None:  # torch before 2.10
        memory = np.array([-next(_numbers)])
        number = int(memory[0])
        weakref.finalize(memory, drop_torch_layout, number).atexit = False
        handle = torch.from_numpy(memory).view(())
        keep_torch_layout(number, layout)
    return handle


def _copy(tensor: Tensor) -> Tensor:
    """A copy in torch's memory, whose allocator tracks the streams and graphs that use it."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _result(tensor: Tensor, copy_out: bool) -> Tensor:
    """The tensor of a result; on the host copy_out has its effect in Shoal."""
    return _copy(tensor) if copy_out and tensor.is_cuda else tensor


def contiguous(tensor: Tensor) -> Tensor:
    """A contiguous tensor without gradient, as DLPack exports it."""
    if tensor.numel() == 0:  # contiguous() keeps the strides of empty tensors
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor.detach().contiguous()


def _stream(tensor: Tensor) -> int | None:
    # The function of torch's compiled code; torch.cuda.current_stream() is much slower.
    return torch._C._cuda_getCurrentRawStream(tensor.device.index) if tensor.is_cuda else None


def clear_unused(x: Tensor, received: Any, worst_case_rows: int) -> Tensor:
    """Sets rows without a token to 0: they may hold NaN, which a multiplication by 0 keeps."""
    if not worst_case_rows:
        return x
    if received.rows >= 0:
        x[received.rows :] = 0
        return x
    unused = torch.arange(x.shape[0], device=x.device) >= received.row_count
    return x.masked_fill_(unused.unsqueeze(1), 0)


@torch.library.custom_op("shoal::dispatch", mutates_args=())
def dispatch(
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor,
    group: int,
    worst_case_rows: int,
    copy_out: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns x [rows, hidden], topk_idx [rows, k], topk_weights [rows, k], source_token [rows] and
    the handle."""
    ep_group, stream = _group(group), _stream(x)
    routing = ep_group.route(contiguous(topk_idx), stream=stream)
    received = ep_group.dispatch(
        contiguous(x),
        routing,
        weights=contiguous(topk_weights),
        worst_case_rows=worst_case_rows,
        copy_out=copy_out and not x.is_cuda,
        transient=copy_out,  # _result copies
        stream=stream,
    )
    # Copies of the small tensors, because the originals would keep the rows in the group's memory.
    idx, source = _copy(received.topk_idx), _copy(received.source_token)
    weights = _copy(received.topk_weights)
    layout = TorchLayout(ep_group, received.handle, worst_case_rows, copy_out, idx < 0)
    x = clear_unused(_result(received.x, copy_out), received, worst_case_rows)
    return x, idx, weights, source, handle_of(layout)


@dispatch.register_fake
def _(x, topk_idx, topk_weights, group, worst_case_rows, copy_out):
    _group(group)
    rows = worst_case_rows if worst_case_rows > 0 else torch.library.get_ctx().new_dynamic_size()
    top_k = topk_idx.shape[1]
    return (
        x.new_empty((rows, x.shape[1])),
        x.new_empty((rows, top_k), dtype=torch.int64),
        x.new_empty((rows, top_k), dtype=torch.float32),
        x.new_empty((rows,), dtype=torch.int32),
        torch.empty((), dtype=torch.int64, device="cpu"),
    )


@torch.library.custom_op("shoal::redispatch", mutates_args=())
def redispatch(
    x: Tensor, weights: Tensor | None, handle: Tensor, group: int, rows: int
) -> tuple[Tensor, Tensor]:
    """Sends new rows along the layout of `handle`.

    Returns x [rows, hidden] and weights [rows, k], which are [0, 0] without weights.
    """
    layout = layout_of(handle)
    received = _group(group).dispatch(
        contiguous(x),
        layout.handle,
        weights=None if weights is None else contiguous(weights),
        worst_case_rows=layout.worst_case_rows,
        copy_out=layout.copy_out and not x.is_cuda,
        transient=layout.copy_out,
        stream=_stream(x),
    )
    if weights is None:
        received_weights = x.new_empty((0, 0), dtype=torch.float32)
    else:
        received_weights = _result(received.topk_weights, layout.copy_out)
    x = _result(received.x, layout.copy_out)
    return clear_unused(x, received, layout.worst_case_rows), received_weights


@redispatch.register_fake
def _(x, weights, handle, group, rows):
    shape = (0, 0) if weights is None else (rows, weights.shape[1])
    return x.new_empty((rows, x.shape[1])), x.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op("shoal::combine", mutates_args=())
def combine(
    y: Tensor, weights: Tensor | None, handle: Tensor, group: int, tokens: int
) -> tuple[Tensor, Tensor]:
    """Sums expert output, and weights [rows, k] where given.

    Returns x [tokens, hidden] and weights [tokens, k], which are [0, 0] without weights. A top-k
    slot whose expert is elsewhere adds nothing to the weights, whatever its value.
    """
    layout = layout_of(handle)
    if weights is not None:
        weights = contiguous(weights).masked_fill(elsewhere_of(layout), 0)
    out = y.new_empty((tokens, y.shape[1])) if y.is_cuda else None
    combined = _group(group).combine(
        contiguous(y), layout.handle, weights=weights, out=out, stream=_stream(y)
    )
    if weights is None:
        sums = y.new_empty((0, 0), dtype=torch.float32)
    else:
        sums = combined.topk_weights if out is None else _copy(combined.topk_weights)
    return combined.x, sums


@combine.register_fake
def _(y, weights, handle, group, tokens):
    shape = (0, 0) if weights is None else (tokens, weights.shape[1])
    return y.new_empty((tokens, y.shape[1])), y.new_empty(shape, dtype=torch.float32)


def _save_dispatch(ctx, inputs, output):
    x, _, _, ctx.group, _, _ = inputs
    ctx.tokens = x.shape[0]
    ctx.save_for_backward(output[4])


def _dispatch_backward(ctx, grad_x, _idx, grad_weights, _source, _handle):
    (handle,) = ctx.saved_tensors
    grad_x, grad_weights = torch.ops.shoal.combine(
        grad_x, grad_weights, handle, ctx.group, ctx.tokens
    )
    return grad_x, None, grad_weights, None, None, None


def _save(ctx, inputs, output):
    x, weights, handle, ctx.group, _ = inputs
    ctx.rows, ctx.weighted = x.shape[0], weights is not None
    ctx.save_for_backward(handle)


def _adjoint(name: str):
    def backward(ctx, grad_x, grad_weights):
        (handle,) = ctx.saved_tensors
        operator = getattr(torch.ops.shoal, name)
        grad_x, grad_weights = operator(
            grad_x, grad_weights if ctx.weighted else None, handle, ctx.group, ctx.rows
        )
        return grad_x, grad_weights if ctx.weighted else None, None, None, None

    return backward


dispatch.register_autograd(_dispatch_backward, setup_context=_save_dispatch)
redispatch.register_autograd(_adjoint("combine"), setup_context=_save)
combine.register_autograd(_adjoint("redispatch"), setup_context=_save)
