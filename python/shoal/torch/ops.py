# SPDX-License-Identifier: Apache-2.0
"""The custom operators `torch.ops.shoal`: what autograd and torch.compile see of dispatch and combine.

A graph holds only tensors and integers. So a group travels as the integer that `register` gives it, and the layout of a
dispatch as a "handle" tensor: an int64 scalar whose memory owns the layout, which therefore lives exactly as long as
any graph still has the tensor.

`redispatch` and `combine` are linear and each the adjoint of the other; `dispatch` has the gradient of `redispatch`.
All of them are collective: every member of the group runs the same ones in the same order, backward included.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_groups: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class _Layout(NamedTuple):
    handle: Any  # shoal.ep.Handle
    worst_case_rows: int
    copy_out: bool
    rows: int | Tensor  # that hold tokens; on GPUs with worst_case_rows only the device knows: int32 [1]
    elsewhere: Tensor  # bool [rows, top_k]: lanes whose expert is not here


_layouts: dict[int, _Layout] = {}
_numbers = itertools.count(1)


def register(group: Any) -> int:
    """The integer by which the operators know `group`, a shoal.ep.Group. It does not keep the group alive.

    `dispatch`, `combine` and `MoE` call it. Code that is compiled before any of them has seen the group must do so.
    """
    _groups[id(group)] = group
    return id(group)


def _group(number: int) -> Any:
    try:
        return _groups[number]
    except KeyError:
        raise RuntimeError(
            "shoal.torch: this group is not known, or is gone; before compiling code that uses a group, "
            "call shoal.torch.register(group), or make a shoal.torch.MoE with it"
        ) from None


def _layout(handle: Tensor) -> _Layout:
    number = int(handle)
    try:
        return _layouts[number]
    except KeyError:
        raise RuntimeError(
            f"shoal.torch: handle {number} belongs to no dispatch whose handle tensor is still alive; "
            "pass on the tensor that dispatch returned, not a copy of its value"
        ) from None


def _keep(layout: _Layout) -> Tensor:
    number = next(_numbers)
    memory = np.array([number])
    _layouts[number] = layout
    weakref.finalize(memory, _layouts.pop, number, None).atexit = False
    return torch.from_numpy(memory).view(())


def _tensor(array: Any) -> Tensor:
    return torch.from_dlpack(array)


def _own(array: Any) -> Tensor:
    """A copy in torch's memory, whose allocator knows the streams and graphs that use it; Shoal's knows its own."""
    return _tensor(array).clone(memory_format=torch.contiguous_format)


def _result(array: Any, copy_out: bool) -> Tensor:
    """What a dispatch has brought; on the host it is already where it shall be."""
    return _own(array) if copy_out and array.device != "cpu" else _tensor(array)


def _given(tensor: Tensor) -> Tensor:
    if tensor.numel() == 0:  # contiguous() leaves its strides as they are
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor.detach().contiguous()  # DLPack does not export what needs a gradient


def _stream(tensor: Tensor) -> int | None:
    return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else None


def _clear_unused(x: Tensor, layout: _Layout) -> Tensor:
    """Rows that no token fills become 0: what lay there before may be NaN, which no multiplication by 0 removes."""
    if not layout.worst_case_rows:
        return x
    if isinstance(layout.rows, int):
        x[layout.rows :] = 0
        return x
    return x.masked_fill_((torch.arange(x.shape[0], device=x.device) >= layout.rows).unsqueeze(1), 0)


@torch.library.custom_op("shoal::dispatch", mutates_args=())
def dispatch(
    x: Tensor, topk_idx: Tensor, topk_weights: Tensor, group: int, worst_case_rows: int, copy_out: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """-> x [rows, hidden], topk_idx [rows, k], topk_weights [rows, k], source_token [rows], handle."""
    members, stream = _group(group), _stream(x)
    routing = members.route(_given(topk_idx), stream=stream)
    received = members.dispatch(
        _given(x),
        routing,
        weights=_given(topk_weights),
        worst_case_rows=worst_case_rows,
        copy_out=copy_out and not x.is_cuda,
        stream=stream,
    )
    rows: int | Tensor = received.rows
    if received.rows < 0:
        rows = _own(received.row_count)
    # What is small is copied, so that keeping it does not keep the rows, for which the group has little room.
    idx, lanes, source = (_own(array) for array in (received.topk_idx, received.topk_weights, received.source_token))
    layout = _Layout(received.handle, worst_case_rows, copy_out, rows, idx < 0)
    return _clear_unused(_result(received.x, copy_out), layout), idx, lanes, source, _keep(layout)


@dispatch.register_fake
def _(x, topk_idx, topk_weights, group, worst_case_rows, copy_out):
    _group(group)
    rows = worst_case_rows if worst_case_rows > 0 else torch.library.get_ctx().new_dynamic_size()
    lanes = topk_idx.shape[1]
    return (
        x.new_empty((rows, x.shape[1])),
        x.new_empty((rows, lanes), dtype=torch.int64),
        x.new_empty((rows, lanes), dtype=torch.float32),
        x.new_empty((rows,), dtype=torch.int32),
        torch.empty((), dtype=torch.int64, device="cpu"),
    )


@torch.library.custom_op("shoal::redispatch", mutates_args=())
def redispatch(x: Tensor, weights: Tensor | None, handle: Tensor, group: int, rows: int) -> tuple[Tensor, Tensor]:
    """New rows along the layout of `handle` -> x [rows, hidden], weights [rows, k], or [0, 0] without weights."""
    layout = _layout(handle)
    received = _group(group).dispatch(
        _given(x),
        layout.handle,
        weights=None if weights is None else _given(weights),
        worst_case_rows=layout.worst_case_rows,
        copy_out=layout.copy_out and not x.is_cuda,
        stream=_stream(x),
    )
    if weights is None:
        lanes = x.new_empty((0, 0), dtype=torch.float32)
    else:
        lanes = _result(received.topk_weights, layout.copy_out)
    return _clear_unused(_result(received.x, layout.copy_out), layout), lanes


@redispatch.register_fake
def _(x, weights, handle, group, rows):
    lanes = (0, 0) if weights is None else (rows, weights.shape[1])
    return x.new_empty((rows, x.shape[1])), x.new_empty(lanes, dtype=torch.float32)


@torch.library.custom_op("shoal::combine", mutates_args=())
def combine(y: Tensor, weights: Tensor | None, handle: Tensor, group: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Answers, and weights [rows, k] -> x [tokens, hidden], weights [tokens, k], or [0, 0] without weights.

    A lane whose expert lies elsewhere adds nothing to the weights, whatever it holds.
    """
    layout = _layout(handle)
    if weights is not None:
        weights = _given(weights).masked_fill(layout.elsewhere, 0)
    out = y.new_empty((tokens, y.shape[1])) if y.is_cuda else None
    combined = _group(group).combine(_given(y), layout.handle, weights=weights, out=out, stream=_stream(y))
    if weights is None:
        lanes = y.new_empty((0, 0), dtype=torch.float32)
    else:
        lanes = _tensor(combined.topk_weights) if out is None else _own(combined.topk_weights)
    return _tensor(combined.x) if out is None else out, lanes


@combine.register_fake
def _(y, weights, handle, group, tokens):
    lanes = (0, 0) if weights is None else (tokens, weights.shape[1])
    return y.new_empty((tokens, y.shape[1])), y.new_empty(lanes, dtype=torch.float32)


def _save_dispatch(ctx, inputs, output):
    x, _, _, ctx.group, _, _ = inputs
    ctx.tokens = x.shape[0]
    ctx.save_for_backward(output[4])


def _dispatch_backward(ctx, grad_x, _idx, grad_weights, _source, _handle):
    (handle,) = ctx.saved_tensors
    grad_x, grad_weights = torch.ops.shoal.combine(grad_x, grad_weights, handle, ctx.group, ctx.tokens)
    return grad_x, None, grad_weights, None, None, None


def _save(ctx, inputs, output):
    x, weights, handle, ctx.group, _ = inputs
    ctx.rows, ctx.weighted = x.shape[0], weights is not None
    ctx.save_for_backward(handle)


def _adjoint(name: str):
    def backward(ctx, grad_x, grad_weights):
        (handle,) = ctx.saved_tensors
        operator = getattr(torch.ops.shoal, name)
        grad_x, grad_weights = operator(grad_x, grad_weights if ctx.weighted else None, handle, ctx.group, ctx.rows)
        return grad_x, grad_weights if ctx.weighted else None, None, None, None

    return backward


dispatch.register_autograd(_dispatch_backward, setup_context=_save_dispatch)
redispatch.register_autograd(_adjoint("combine"), setup_context=_save)
combine.register_autograd(_adjoint("redispatch"), setup_context=_save)
