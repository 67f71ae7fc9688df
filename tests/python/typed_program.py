# SPDX-License-Identifier: Apache-2.0
"""A program that mypy checks against the stubs (test_stubs.py); it is not run."""

from __future__ import annotations

import numpy as np
import torch
from typing_extensions import assert_type

import shoal
import shoal.ep


def body(world: shoal.World) -> float:
    group = shoal.ep.Group(world.team, hidden=64, top_k=2, experts=8, max_tokens=16)
    x, topk_idx = torch.ones(5, 64), torch.zeros(5, 2, dtype=torch.int64)
    assert_type(group.route(topk_idx).topk_idx, torch.Tensor)
    received = group.dispatch(x, group.route(topk_idx), weights=torch.ones(5, 2))
    assert_type(received, shoal.ep.Dispatched[torch.Tensor])
    assert_type(received.topk_weights, torch.Tensor | None)
    assert_type(group.combine(received.x * 2, received.handle).x, torch.Tensor)
    assert_type(group.combine_async(x, received.handle).result().x, torch.Tensor)
    pending = group.low_latency_dispatch(x, topk_idx, weights=torch.ones(5, 2))
    assert_type(pending.receive().counts, torch.Tensor)
    assert_type(group.next_combine_buffer(like=x), torch.Tensor)
    assert_type(group.next_combine_buffer(), shoal.Array)

    rows = np.ones((5, 64), np.float32)
    assert_type(world.zeros(5, torch.bfloat16).local, torch.Tensor)
    assert_type(world.zeros((2, 3), "float32").local, shoal.Array)
    assert_type(world.zeros((2, 3), like=x), shoal.SymmetricArray[torch.Tensor])
    world.put(world.zeros(64, np.float32).on(0), rows[0])
    group.dispatch("text", received.handle)  # type: ignore[type-var]
    return 1.0


assert_type(shoal.run_threads(2, body, {"symmetric_size": "64M"}), list[float])
