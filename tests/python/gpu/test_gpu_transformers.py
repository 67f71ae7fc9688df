# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with their experts on two GPUs over Shoal, against one process."""

import pytest
from transformers_models import (
    STEPS,
    alone,
    batch,
    compare_generation,
    compare_training,
    folder_of_models,
    spread,
    train,
)

import torch
import torch.distributed as dist
from torch_ranks import add_tests, run_checks

import shoal.torch
from shoal.integrations.transformers import decode, parallelize

RANKS = 2
FAMILIES = ("mixtral", "qwen3", "olmoe", "gpt-oss", "deepseek")


def check_float32(world):
    for family in FAMILIES:
        compare_training(family, most=1e-4)


def check_bfloat16(world):
    """Losses alone: a router's near-tie can flip, and gradients of experts with it."""
    for family in FAMILIES:
        model = spread(family, dtype=torch.bfloat16)
        expected = alone(family, dtype=torch.bfloat16)
        losses = train(model, [[batch(dist.get_rank(), step)] for step in range(STEPS)])
        others = train(expected, [[batch(r, step) for r in range(RANKS)] for step in range(STEPS)])
        torch.testing.assert_close(losses, others[dist.get_rank() :: RANKS], rtol=0.01, atol=0)


def check_checkpointing(world):
    def reentrant(model):
        model.gradient_checkpointing_enable({"use_reentrant": True})
        return model

    compare_training("mixtral", change=reentrant, most=1e-4)


def check_generation(world):
    compare_generation((3, 1))


def check_decode(world):
    """One layer: texts of a whole model can differ where a router has a near-tie."""
    model = parallelize(alone("mixtral", dtype=torch.bfloat16))
    layer, tokens = model.model.layers[0].mlp.experts, 3 + dist.get_rank()
    x = torch.randn(tokens, 32, dtype=torch.bfloat16)
    scores, idx = torch.rand(tokens, 8).topk(2)
    for implementation in ("grouped_mm", "batched_mm"):
        model.set_experts_implementation(implementation)
        with torch.no_grad():
            expected = layer(x, idx, scores.bfloat16())
            with decode(max_tokens=4), pytest.MonkeyPatch.context() as patch:
                calls, low_latency = [], shoal.torch.low_latency
                patch.setattr(
                    shoal.torch, "low_latency", lambda *a: calls.append(1) or low_latency(*a)
                )
                out = [layer(x, idx, scores.bfloat16()) for _ in range(3)]
        assert len(calls) == 3
        for one in out:
            torch.testing.assert_close(one, expected, rtol=0.02, atol=1e-3)


def run_on_gpus():
    if torch.cuda.device_count() < RANKS:
        pytest.skip("needs two GPUs")
    return run_checks(RANKS, __name__, device="cuda", backend="cpu:gloo,cuda:nccl")


add_tests(globals(), run_on_gpus)
