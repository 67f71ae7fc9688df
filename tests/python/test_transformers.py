# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with their experts on 4 ranks over Shoal, by DistributedConfig, against
one process."""

import copy
import os

from transformers_models import (
    alone,
    batch,
    compare_generation,
    compare_parameters,
    compare_training,
    folder_of_models,
    spread,
    train,
    whole,
)

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch_ranks import add_tests, run_checks


def check_mixtral(world):
    compare_training("mixtral")


def check_qwen3(world):
    compare_training("qwen3")


def check_olmoe(world):
    compare_training("olmoe")


def check_gpt_oss(world):
    compare_training("gpt-oss")


def check_deepseek(world):
    compare_training("deepseek")


def check_expert_implementations(world):
    for family, name in (("mixtral", "eager"), ("qwen3", "batched_mm"), ("gpt-oss", "grouped_mm")):
        compare_training(family, experts_implementation=name)


def check_checkpointing(world):
    def reentrant(model):
        model.gradient_checkpointing_enable({"use_reentrant": True})
        return model

    compare_training("mixtral", change=reentrant)


def check_tensor_parallel(world):
    compare_training("mixtral", tp=2)


def check_other_number_of_ranks(world):
    model = compare_training("qwen3")
    path = f"{os.environ['SHOAL_TEST_MODELS']}/trained"
    model.save_pretrained(path)
    dist.barrier()
    reloaded, expected = spread("qwen3", ep=2, path=path), copy.deepcopy(alone("qwen3"))
    expected.load_state_dict({name: whole(p) for name, p in model.state_dict().items()})
    compare_parameters(reloaded, expected, "data")
    one = batch(dist.get_rank(), 0)
    torch.testing.assert_close(reloaded(**one).loss, expected(**one).loss, rtol=1e-5, atol=1e-5)


def check_distributed_checkpoint(world):
    model, path = spread("mixtral"), f"{os.environ['SHOAL_TEST_MODELS']}/checkpoint"
    train(model, [[batch(dist.get_rank(), 0)]])
    dcp.save({"model": model.state_dict()}, checkpoint_id=path)
    other = spread("mixtral")
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=path)
    other.load_state_dict(state["model"])
    for parameter, loaded in zip(model.parameters(), other.parameters()):
        assert torch.equal(whole(parameter), whole(loaded))


def check_generation(world):
    compare_generation((3, 1, 2, 1))


add_tests(globals(), lambda: run_checks(4, __name__))
