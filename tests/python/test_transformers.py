# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with their experts on 4 ranks over Shoal against one process: by
DistributedConfig, and by parallelize. All in the same processes, whose start takes long."""

import contextlib
import copy
import importlib.util
import os
import pathlib
import subprocess
import sys
import time

import pytest
from parallelize_checks import *
from transformers_models import (
    STEPS,
    alone,
    batch,
    compare_generation,
    compare_parameters,
    compare_training,
    config_of,
    folder_of_models,
    spread,
    token_ids,
    tokenizer,
    train,
    whole,
)

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers
from torch_ranks import add_tests, run_checks

import shoal
from shoal.integrations.experts import SortedExperts
from shoal.integrations.ranks import ranks_of
from shoal.integrations.transformers import decode, parallelize


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


def check_grouped_experts(world):
    """GPT-OSS by products that are not its own."""
    compare_training("gpt-oss", experts_implementation="grouped_mm")


def check_checkpointing(world):
    def reentrant(model):
        model.gradient_checkpointing_enable({"use_reentrant": True})
        return model

    compare_training("mixtral", change=reentrant, experts_implementation="eager")


def check_tensor_parallel(world):
    compare_training("mixtral", tp=2)


def check_other_number_of_ranks(world):
    model = compare_training("qwen3", experts_implementation="batched_mm")
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


def check_decode(world):
    """Prompts have more than max_tokens on some ranks, and take normal mode on all."""
    with pytest.MonkeyPatch.context() as patch:
        calls = []

        def low_latency(group, x, *given):
            calls.append(x.shape[0])
            return layer(group, x, *given)

        layer = shoal.torch.low_latency
        patch.setattr(shoal.torch, "low_latency", low_latency)
        with decode(max_tokens=6):
            compare_generation((3, 1, 2, 1), dtype=torch.bfloat16)
            sequences, layers, steps = (3, 1, 2, 1)[dist.get_rank()], 2, 4 + 3 * 2 - 1
            assert calls == [sequences] * layers * steps, "until all ranks have finished"
            calls.clear()
            with torch.no_grad():
                spread("mixtral")(token_ids(0, 1, 1))
            spread("mixtral", dtype=torch.bfloat16)(token_ids(0, 1, 1)).logits.sum().backward()
        assert calls == [], "float32, and calls with gradients"


def check_ranks_in_other_modes(world):
    model, rank = parallelize(alone("mixtral", dtype=torch.bfloat16)), dist.get_rank()
    for least in (0, 2):
        limit = least + rank % 2
        with torch.no_grad(), decode(limit) if limit else contextlib.nullcontext():
            with pytest.raises(shoal.MismatchError, match=r"decode\(max_tokens=\d\)"):
                model(token_ids(0, 1, 1))
    with torch.no_grad(), decode(max_tokens=3):  # the world goes on
        model(token_ids(0, 1, 1))
        x, idx = torch.ones(rank, 32).bfloat16(), torch.arange(2).expand(rank, 2)
        layer = model.model.layers[0].mlp.experts
        assert layer(x, idx, torch.ones(rank, 2)).shape == (rank, 32)
    with pytest.raises(ValueError, match="max_tokens is 0; at least 1 is allowed"):
        with decode(max_tokens=0):
            pass


def check_example(world):
    """examples/train_hf_moe.py, whose batches do not depend on the number of ranks."""
    sys.path.insert(0, f"{pathlib.Path(__file__).resolve().parents[2]}/examples")
    import train_hf_moe as example

    path, rank = f"{os.environ['SHOAL_TEST_MODELS']}/example", dist.get_rank()
    if rank == 0:
        example.save_initial(path)
    dist.barrier()
    losses = example.train(path, 4, rank, dist.get_world_size())
    assert losses[-1] < losses[0], "it learns"
    if rank == 0:
        torch.testing.assert_close(losses, example.train(path, 4), rtol=0, atol=example.TOLERANCE)


if importlib.util.find_spec("trl"):

    def check_trl(world):
        """Losses, norms and weights of SFTTrainer, which clips and adds a loss of the router."""
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        ranks, rank = dist.get_world_size(), dist.get_rank()
        os.environ.update(
            RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT="1"
        )
        steps = token_ids(7, STEPS, ranks, 1, 12)
        config = SFTConfig(
            f"{os.environ['SHOAL_TEST_MODELS']}/trl",
            max_steps=STEPS,
            per_device_train_batch_size=1,
            train_sampling_strategy="sequential",
            optim="sgd",
            learning_rate=0.1,
            lr_scheduler_type="constant",
            max_grad_norm=0.1,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataset_kwargs={"skip_prepare_dataset": True},
            use_cpu=True,
            bf16=False,
        )
        trainer = SFTTrainer(
            spread("mixtral"),
            config,
            train_dataset=Dataset.from_dict({"input_ids": steps.view(-1, 12).tolist()}),
            processing_class=tokenizer(),
        )
        trainer.train()
        expected = alone("mixtral")
        expected.config.output_router_logits = True
        optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
        for given, log in zip(steps, trainer.state.log_history):
            optimizer.zero_grad()
            loss = sum(expected(input_ids=ids, labels=ids).loss for ids in given) / ranks
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.1)
            optimizer.step()
            torch.testing.assert_close(log["loss"], loss.item(), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(log["grad_norm"], norm.item(), rtol=1e-4, atol=0)
        compare_parameters(trainer.model, expected, "data")


def check_rank_without_sequences(world):
    """transformers raises there; the other ranks end with that error, not at their deadline."""
    rank, model = dist.get_rank(), spread("mixtral")
    refused = pytest.raises(RuntimeError, match="cannot reshape tensor of 0 elements")
    others = pytest.raises(shoal.PeerFailedError, match="PE 1: RuntimeError: cannot reshape tensor")
    start = time.monotonic()
    with refused if rank == 1 else others:
        # The rank ends as a program that does not catch the exception.
        with ranks_of(dist.group.WORLD, torch.device("cpu")).world:
            model(token_ids(0, int(rank != 1), 4))
    assert time.monotonic() - start < 10


PROGRAM = """
import datetime, sys
import torch, torch.distributed as dist
from shoal.integrations.transformers import parallelize

class Experts(torch.nn.Module):
    num_experts = 2

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 8, 8))

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return hidden_states @ self.weight[0]

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=300))
model = parallelize(torch.nn.Sequential(Experts()))
loss = model[0](torch.ones(4, 8), torch.ones(4, 1, dtype=torch.int64), torch.ones(4, 1)).sum()
if rank == 1:
    raise ValueError("bad loss")
loss.backward()
"""


def test_exception_ends_the_other_ranks(tmp_path):
    """In processes as torchrun starts them, long before the timeout of the process group."""
    command = [sys.executable, "-c", PROGRAM]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), tmp_path / "store"], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=100)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 1 for rank in ranks), errors
    assert "PE 1: ValueError: bad loss" in errors[0]
    assert "did PE 1 skip backward()?" in errors[0]


@pytest.mark.parametrize("family", ["mixtral", "gpt-oss"])
def test_products_on_sorted_rows_are_those_of_transformers(family):
    model = transformers.AutoModelForCausalLM.from_config(config_of(family))
    module = next(one for one in model.modules() if hasattr(one, "has_gate"))
    module.config._experts_implementation = "grouped_mm"
    torch.manual_seed(3)
    counts = torch.randint(0, 4, (module.num_experts,))
    hidden = torch.randn(int(counts.sum()), model.config.hidden_size, requires_grad=True)
    weights = torch.rand(len(hidden))
    ids = torch.arange(module.num_experts).repeat_interleave(counts).unsqueeze(1)
    experts = SortedExperts(module.forward)
    assert experts._grouped()
    results = []
    for out in (experts(hidden, counts, weights), module(hidden, ids, weights.unsqueeze(1))):
        hidden.grad = None
        out.square().sum().backward()
        results.append((out, hidden.grad))
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    module.config._experts_implementation = "eager"
    assert not experts._grouped()
    assert not SortedExperts(lambda rows, ids, weights: rows)._grouped()


add_tests(globals(), lambda: run_checks(4, __name__))
