# SPDX-License-Identifier: Apache-2.0
"""dispatch and combine as differentiable functions of tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import ops


class Received(NamedTuple):
    """What a dispatch brought to this member. Rows are ordered by source member, then token."""

    x: Tensor  #: [rows, hidden], dtype of what was sent
    topk_idx: Tensor  #: int64 [rows, top_k]: experts of this member, numbered from 0; -1: the expert is elsewhere
    topk_weights: Tensor  #: float32 [rows, top_k]; 0 where topk_idx is -1
    source_token: Tensor  #: int32 [rows]: index of the token at its source
    handle: Tensor  #: int64 scalar on the CPU that owns the layout; for combine
    tokens: int  #: how many tokens this member sent


def _number(group: Any) -> int:
    # Dynamo would postpone the registration until the graph has run; id() it turns into a guarded constant.
    return id(group) if torch.compiler.is_compiling() else ops.register(group)


def dispatch(
    group: Any,
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor,
    *,
    worst_case_rows: int = 0,
    copy_out: bool = False,
) -> Received:
    """Sends each token to the members that hold its experts, by `group`, a `shoal.ep.Group`. Collective.

    x: [tokens, hidden] of the group's dtype; topk_idx: int64 or int32 [tokens, top_k], -1: no expert; topk_weights:
    float32 [tokens, top_k]. Differentiable in x and topk_weights, any number of times; backward is a combine of the
    gradients, collective as well, so all members must run it, whether they have received rows or not.

    worst_case_rows: results have exactly so many rows, at most members * max_tokens; those without a token are 0 and
    have topk_idx -1. Then sizes are known before the call, as torch.compile likes it and CUDA graphs need it (which
    capture forward only, and need what this returns, without copy_out, to live as long as they do). With 0 the number
    of rows is what was received; compiled code sees a size that depends on data.
    copy_out: received rows, and the gradients that backward brings here, lie in ordinary memory in place of the
    group's, which has room for a few results only (`live_results`). For rows that are kept, until backward for example.

    Raises shoal.Error as `Group.route` and `Group.dispatch` do.
    """
    rows = torch.ops.shoal.dispatch(x, topk_idx, topk_weights, _number(group), worst_case_rows, copy_out)
    return Received(*rows, x.shape[0])


def combine(group: Any, y: Tensor, received: Received) -> Tensor:
    """The sum of the answers to each token of this member: [tokens, hidden], dtype of y. Collective.

    y: [rows, hidden]: the answers to `received.x`, in its order, weights already multiplied in. It is fetched without a
    copy where it lies in the group's memory (`received.x` written in place). Differentiable in y; backward sends the
    gradient of each token to the members that answered it, collective as well.
    """
    x, _ = torch.ops.shoal.combine(y, None, received.handle, _number(group), received.tokens)
    return x
