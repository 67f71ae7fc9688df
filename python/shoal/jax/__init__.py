# SPDX-License-Identifier: Apache-2.0
"""Shoal for JAX: dispatch and combine under jax.jit and jax.grad, on the host.

    received = shoal.jax.dispatch(group, x, topk_idx, topk_weights)
    x = shoal.jax.combine(group, experts(received), received)

Sizes are fixed: a dispatch has room for the most rows that it may receive. Calls are collective, so all members run
them in the same order. XLA knows only the order of data: a call comes after those whose results it takes, its gradient
after the call. Where two calls do not depend on each other, `after` makes one wait, and between two jitted functions
block_until_ready does. A PE is a process: PEs in threads of one process would wait for each other inside XLA.

Calls go through XLA's foreign function interface, on the CPU. XLA's arrays are used where they lie; what arrives is
copied once, from the group's memory to XLA's. There is no GPU form yet.
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
    """What a dispatch brought to this member. Rows are ordered by source member, then token; a pytree."""

    x: jax.Array  #: [rows, hidden], dtype of what was sent; rows without a token are 0
    topk_idx: jax.Array  #: int32 [rows, top_k]: experts of this member, numbered from 0; -1: elsewhere, or no token
    topk_weights: jax.Array  #: float32 [rows, top_k]; 0 where topk_idx is -1
    source_token: jax.Array  #: int32 [rows]: index of the token at its source
    count: jax.Array  #: int32 []: rows that hold tokens; they come first
    handle: jax.Array  #: int32 []: number of the layout; for combine
    sent: jax.Array  #: int8 [tokens, 0]: empty, its shape says how many tokens this member sent


_groups: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_locks: weakref.WeakKeyDictionary[Any, threading.Lock] = weakref.WeakKeyDictionary()
_layouts: dict[int, Any] = {}  # by number, in order
_numbers = itertools.count(1)
_kept = 256


def keep_layouts(count: int) -> None:
    """How many layouts of dispatches are kept (256 at first): as many as may wait for their combine or their gradient.

    An XLA array cannot own a layout, so the oldest goes when there are more. A layout holds the routing, about 20
    bytes for each expert of each token.
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
    """Sends each token to the members that hold its experts, by `group`, a `shoal.ep.Group` on the host. Collective.

    x: [tokens, hidden] of the group's dtype, at least one token (a member without any sends one with topk_idx -1:
    arrays without elements have no order); topk_idx: int32 [tokens, top_k], -1: no expert; topk_weights: float32
    [tokens, top_k]. Differentiable in x and topk_weights; the gradient is a combine, collective as well.
    rows: rows of the result, default and most: members * max_tokens. It must be enough for every member.
    after: an array that is computed first.

    Errors of Shoal come out as XLA's, with Shoal's message, where the result is waited for.
    """
    most = group.team.size * group.options["max_tokens"]
    rows = most if rows is None else rows
    if not 1 <= rows <= most:
        raise ValueError(f"shoal.jax.dispatch: rows is {rows}; allowed: 1 to members * max_tokens, {most}")
    if x.shape[0] == 0:
        raise ValueError("shoal.jax.dispatch: x has no tokens; send one with topk_idx -1")
    after = jnp.zeros((), jnp.int32) if after is None else jnp.ravel(after)[:1]
    received = _dispatch(_number(group), rows, x, topk_idx.astype(jnp.int32), topk_weights, after)
    return Received(*received, jnp.zeros((x.shape[0], 0), jnp.int8))


def combine(group: Any, y: jax.Array, received: Received) -> jax.Array:
    """The sum of the answers to each token of this member: [tokens, hidden], dtype of y. Collective.

    y: [rows, hidden]: the answers to `received.x`, weights already multiplied in. Differentiable in y; the gradient of
    each token is sent to the members that answered it, collective as well.
    """
    return _combine(_number(group), received.sent.shape[0], y, received.handle)


def _number(group: Any) -> int:
    _groups[id(group)] = group
    return id(group)


@contextlib.contextmanager
def _group(number: int) -> Iterator[Any]:
    """The group, for this thread alone: XLA may run calls that do not depend on each other at the same time."""
    group = _groups.get(number)
    if group is None:
        raise RuntimeError("shoal.jax: the group of this compiled function is gone")
    with _locks.setdefault(group, threading.Lock()):
        yield group


def _layout(handle: np.ndarray) -> Any:
    try:
        return _layouts[int(handle)]
    except KeyError:
        raise RuntimeError(
            f"shoal.jax: the layout of dispatch {int(handle)} is gone; {_kept} are kept (shoal.jax.keep_layouts)"
        ) from None


def _fill(target: np.ndarray, array: Any, rows: int) -> None:
    values = array.numpy()
    if values.dtype != target.dtype and values.dtype.kind == "u":  # bfloat16 comes as uint16
        values = values.view(target.dtype)
    target[:rows] = values[:rows]
    target[rows:] = 0


def _run_dispatch(arguments: list[np.ndarray], results: list[np.ndarray], *, group: int) -> None:
    x, topk_idx, weights, _ = arguments
    out, idx, lanes, source, count, handle = results
    with _group(group) as members:
        received = members.dispatch(x, members.route(topk_idx), weights=weights, worst_case_rows=len(out))
        _fill(out, received.x, received.rows)
        _fill(lanes, received.topk_weights, received.rows)
        _fill(source, received.source_token, received.rows)
        idx[...] = received.topk_idx.numpy()
        count[...] = received.rows
        handle[...] = number = next(_numbers)
        _layouts[number] = received.handle
        while len(_layouts) > _kept:
            del _layouts[next(iter(_layouts))]


def _run_redispatch(arguments: list[np.ndarray], results: list[np.ndarray], *, group: int) -> None:
    x, handle, _ = arguments
    with _group(group) as members:
        received = members.dispatch(x, _layout(handle), worst_case_rows=len(results[0]))
        _fill(results[0], received.x, received.rows)


def _run_combine(arguments: list[np.ndarray], results: list[np.ndarray], *, group: int) -> None:
    y, weights, handle = arguments
    with _group(group) as members:
        combined = members.combine(y, _layout(handle), weights=weights if weights.size else None)
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
    lanes = topk_idx.shape[1]
    results = (
        _like(x, rows, x.shape[1]),
        _like(topk_idx, rows, lanes),
        _like(topk_weights, rows, lanes),
        *(_like(topk_idx, *shape) for shape in ((rows,), (), ())),
    )
    return _call("dispatch", group, results, x, topk_idx, topk_weights, after)


def _dispatch_forward(group, rows, x, topk_idx, topk_weights, after):
    received = _dispatch(group, rows, x, topk_idx, topk_weights, after)
    return received, (received[1], received[5], jnp.zeros((x.shape[0], 0), jnp.int8))


def _dispatch_backward(group, rows, saved, gradients):
    topk_idx, handle, sent = saved
    x, _, weights, *_ = gradients
    tokens, lanes = sent.shape[0], topk_idx.shape[1]
    weights = jnp.where(topk_idx < 0, 0, weights)  # a lane whose expert is elsewhere is a constant 0
    results = (_like(x, tokens, x.shape[1]), _like(weights, tokens, lanes), _like(handle))
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
    handle, done, rows = saved  # the gradient may be a constant: `done` orders this call behind the combine
    results = [_like(gradient, rows.shape[0], gradient.shape[1])]
    return _call("redispatch", group, results, gradient, handle, done)[0], None


_dispatch.defvjp(_dispatch_forward, _dispatch_backward)
_combine.defvjp(_combine_forward, _combine_backward)
