# SPDX-License-Identifier: Apache-2.0
"""Shoal for JAX: dispatch and combine under jax.jit and jax.grad, on the host.

    received = shoal.jax.dispatch(group, x, topk_idx, topk_weights)
    x = shoal.jax.combine(group, experts(received), received)

Sizes are fixed: a dispatch has room for the most rows that it may receive. Calls are collective, so
all ranks run them in the same order. XLA orders calls only by their data: a call follows the calls
whose results it takes, and its gradient follows the call. `after` orders calls that do not depend
on each other, and block_until_ready orders jitted functions. Every PE is a process, because PEs in
threads of one process would wait for each other inside XLA.

Calls use XLA's foreign function interface on the CPU. They read XLA's arrays in place and copy
received rows once, from the group's memory to XLA's. There is no GPU version.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import ffi

__all__ = ["Received", "combine", "dispatch", "keep_layouts"]


class Received(NamedTuple):
    """The result of a dispatch on this rank, a pytree. Rows are ordered by source rank, then
    token."""

    x: jax.Array  #: [rows, hidden], dtype of what was sent; rows without a token are 0
    topk_idx: jax.Array  #: int32 [rows, top_k]: local experts from 0; -1: elsewhere, or no token
    topk_weights: jax.Array  #: float32 [rows, top_k]; 0 where topk_idx is -1
    source_token: jax.Array  #: int32 [rows]: index of the token at its source
    count: jax.Array  #: int32 []: number of rows with tokens, which are the first rows
    handle: jax.Array  #: int32 []: number of the layout; for combine
    sent: jax.Array  #: int8 [tokens, 0]: empty; its shape holds the number of tokens sent


_groups: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_locks: weakref.WeakKeyDictionary[Any, threading.Lock] = weakref.WeakKeyDictionary()
_layouts: dict[int, Any] = {}  # by number, in order
_numbers = itertools.count(1)
_kept = 256


def keep_layouts(count: int) -> None:
    """Sets the number of layouts that are kept, initially 256.

    A layout must be kept until its combine or gradient. An XLA array cannot own a layout, so the
    oldest is dropped when there are more. A layout takes about 20 bytes per expert of each token.
    """
    global _kept
    if count < 1:
        raise ValueError(f"shoal.jax.keep_layouts: count is {count}; at least 1 is allowed")
    _kept = count


def dispatch(
    group: Any,
    x: jax.Array,
    topk_idx: jax.Array,
    topk_weights: jax.Array,
    *,
    rows: int | None = None,
    after: Any = None,
) -> Received:
    """Sends each token to the ranks of its experts. Collective.

    group: a `shoal.ep.Group` on the host. x: [tokens, hidden] of the group's dtype, at least one
    token. A rank without tokens sends one with topk_idx -1, because XLA does not order empty
    arrays. topk_idx: int32 [tokens, top_k], -1: no expert. topk_weights: float32 [tokens, top_k].
    rows: rows of the result, at most and by default ranks * max_tokens; enough for every rank.
    after: an array that is computed first.

    Differentiable in x and topk_weights; the gradient is a combine, which is collective too. Errors
    of Shoal are raised as XLA's, with Shoal's message, where the program waits for the result.
    """
    most = group.team.size * group.options["max_tokens"]
    rows = most if rows is None else rows
    if not 1 <= rows <= most:
        raise ValueError(
            f"shoal.jax.dispatch: rows is {rows}; allowed: 1 to ranks * max_tokens, {most}"
        )
    if x.shape[0] == 0:
        raise ValueError("shoal.jax.dispatch: x has no tokens; send one with topk_idx -1")
    after = jnp.zeros((), jnp.int32) if after is None else jnp.ravel(after)[:1]
    received = _dispatch(_number(group), rows, x, topk_idx.astype(jnp.int32), topk_weights, after)
    return Received(*received, jnp.zeros((x.shape[0], 0), jnp.int8))


def combine(group: Any, y: jax.Array, received: Received) -> jax.Array:
    """Sums the expert output of each token of this rank. Collective.

    y: [rows, hidden], the expert output for `received.x`, multiplied by the weights. Returns
    [tokens, hidden] of the dtype of y. Differentiable in y; the gradient of each token is sent to
    the ranks of its experts, collective too.
    """
    return _combine(_number(group), received.sent.shape[0], y, received.handle)


def _number(group: Any) -> int:
    _groups[id(group)] = group
    return id(group)


@contextlib.contextmanager
def _group(number: int) -> Iterator[Any]:
    """The group, locked: XLA may run independent calls at the same time."""
    group = _groups.get(number)
    if group is None:
        raise RuntimeError("shoal.jax: the group of this compiled function no longer exists")
    with _locks.setdefault(group, threading.Lock()):
        yield group


def _layout(handle: np.ndarray) -> Any:
    try:
        return _layouts[int(handle)]
    except KeyError:
        raise RuntimeError(
            f"shoal.jax: the layout of dispatch {int(handle)} was dropped; {_kept} are kept "
            "(shoal.jax.keep_layouts)"
        ) from None


def _fill(target: np.ndarray, values: np.ndarray, rows: int) -> None:
    target[:rows] = values[:rows]
    target[rows:] = 0


def _run_dispatch(arguments: list[np.ndarray], results: list[np.ndarray], *, group: int) -> None:
    x, topk_idx, weights, _ = arguments
    out, idx, out_weights, source, count, handle = results
    with _group(group) as ep_group:
        routing = ep_group.route(topk_idx)
        received = ep_group.dispatch(x, routing, weights=weights, worst_case_rows=len(out))
        _fill(out, received.x, received.rows)
        _fill(out_weights, received.topk_weights, received.rows)
        _fill(source, received.source_token, received.rows)
        idx[...] = received.topk_idx
        count[...] = received.rows
        handle[...] = number = next(_numbers)
        _layouts[number] = received.handle
        while len(_layouts) > _kept:
            del _layouts[next(iter(_layouts))]


def _run_redispatch(arguments: list[np.ndarray], results: list[np.ndarray], *, group: int) -> None:
    x, handle, _ = arguments
    with _group(group) as ep_group:
        received = ep_group.dispatch(x, _layout(handle), worst_case_rows=len(results[0]))
        _fill(results[0], received.x, received.rows)


def _run_combine(arguments: list[np.ndarray], results: list[np.ndarray], *, group: int) -> None:
    y, weights, handle = arguments
    with _group(group) as ep_group:
        combined = ep_group.combine(y, _layout(handle), weights=weights if weights.size else None)
    _fill(results[0], combined.x, len(results[0]))
    if weights.size:
        _fill(results[1], combined.topk_weights, len(results[1]))
    results[2][...] = 0


for _name in ("dispatch", "redispatch", "combine"):
    ffi.register(f"shoal_{_name}", globals()[f"_run_{_name}"])


def _call(name: str, group: int, results: Any, *arguments: jax.Array) -> Any:
    call = jax.ffi.ffi_call(f"shoal_{name}", results, has_side_effect=True)
    return call(*arguments, group=np.int64(group))


def _like(array: jax.Array, *shape: int, dtype: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype or array.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _dispatch(group, rows, x, topk_idx, topk_weights, after):
    top_k = topk_idx.shape[1]
    results = (
        _like(x, rows, x.shape[1]),
        _like(topk_idx, rows, top_k),
        _like(topk_weights, rows, top_k),
        *(_like(topk_idx, *shape) for shape in ((rows,), (), ())),
    )
    return _call("dispatch", group, results, x, topk_idx, topk_weights, after)


def _dispatch_forward(group, rows, x, topk_idx, topk_weights, after):
    received = _dispatch(group, rows, x, topk_idx, topk_weights, after)
    return received, (received[1], received[5], jnp.zeros((x.shape[0], 0), jnp.int8))


def _dispatch_backward(group, rows, saved, gradients):
    topk_idx, handle, sent = saved
    x, _, weights, *_ = gradients
    tokens, top_k = sent.shape[0], topk_idx.shape[1]
    weights = jnp.where(topk_idx < 0, 0, weights)  # constant 0 where the expert is elsewhere
    results = (_like(x, tokens, x.shape[1]), _like(weights, tokens, top_k), _like(handle))
    x, weights, _ = _call("combine", group, results, x, weights, handle)
    return x, None, weights, None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _combine(group, tokens, y, handle):
    return _combine_forward(group, tokens, y, handle)[0]


def _combine_forward(group, tokens, y, handle):
    none = jnp.zeros((0, 0), jnp.float32)
    results = (_like(y, tokens, y.shape[1]), _like(none, 0, 0), _like(handle))
    x, _, done = _call("combine", group, results, y, none, handle)
    return x, (handle, done, jnp.zeros((y.shape[0], 0), jnp.int8))


def _combine_backward(group, tokens, saved, gradient):
    # The gradient may be a constant; `done` orders this call after the combine.
    handle, done, rows = saved
    results = [_like(gradient, rows.shape[0], gradient.shape[1])]
    return _call("redispatch", group, results, gradient, handle, done)[0], None


_dispatch.defvjp(_dispatch_forward, _dispatch_backward)
_combine.defvjp(_combine_forward, _combine_backward)
