# SPDX-License-Identifier: Apache-2.0
"""shoal.integrations.transformers.parallelize on 4 ranks against one process, in the ranks of
test_transformers.py."""

import copy
import os

import pytest
from transformers_models import OLDER, STEPS, alone, batch, compare_generation, config_of

import torch
import torch.distributed as dist
from torch_ranks import of_all_ranks
from transformers import AutoModelForCausalLM

import shoal
from shoal.integrations.transformers import (
    clip_grad_norm_,
    decode,
    gathered_state_dict,
    parallelize,
)


RANKS = 4


def parallel(family):
    return parallelize(alone(family))


def check_data_parallel(world):
    compare_data_parallel("mixtral", [2, 2, 2, 2])


def check_data_parallel_with_uneven_experts(world):
    """Also a rank without experts."""
    compare_data_parallel("mixtral-6", [2, 2, 1, 1])
    compare_data_parallel("mixtral-3", [1, 1, 1, 0])


def compare_data_parallel(family, counts):
    """DistributedDataParallel, with the gradients clipped by the norm of one process."""
    rank, model, expected = dist.get_rank(), parallel(family), alone(family)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    names = dict(model.named_parameters())
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.5) for one in (model, expected)]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        wrapped(**batch(rank, step)).loss.backward()
        for r in range(RANKS):
            (expected(**batch(r, step)).loss / RANKS).backward()
        norm = clip_grad_norm_(wrapped, 0.1)
        other = torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.1)
        assert other > 0.1
        torch.testing.assert_close(norm, other, rtol=1e-5, atol=0)
        for optimizer in optimizers:
            optimizer.step()
    whole_state = gathered_state_dict(wrapped)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(whole_state[name], value, rtol=1e-4, atol=1e-5)
    assert names["model.layers.0.mlp.experts.down_proj"].shape[0] == counts[rank]
    sums = of_all_ranks(model.lm_head.weight.sum())
    assert all(one == sums[0] for one in sums), "replicas differ"


def check_older_models(world):
    for family in OLDER:
        rank, model = dist.get_rank(), parallel(family)
        expected = mean_gradients(alone(family), [batch(r, 0) for r in range(RANKS)])
        loss, other = (one(**batch(rank, 0)).loss for one in (model, expected))
        loss.backward()
        torch.testing.assert_close(loss, other, rtol=1e-5, atol=1e-5, msg=family)
        for (name, one), (_, other) in zip(model.named_parameters(), expected.named_parameters()):
            if one.shape != other.shape:  # experts
                part = other.grad.chunk(RANKS)[rank]
                torch.testing.assert_close(
                    one.grad, part, rtol=1e-4, atol=1e-5, msg=f"{family}: {name}"
                )


def check_decode_with_uneven_experts(world):
    with decode(max_tokens=6):
        for family in ("mixtral-6", "mixtral-3"):
            compare_generation(
                (3, 1, 2, 1),
                torch.bfloat16,
                family,
                lambda name, dtype: parallelize(alone(name, dtype=dtype)),
            )


def check_parallel_generation(world):
    rank = dist.get_rank()
    model, expected = parallel("gpt-oss").eval(), alone("gpt-oss").eval()
    ids = batch(rank, 0)["input_ids"]
    options = {
        "max_new_tokens": 3 + 2 * rank,
        "do_sample": False,
        "attention_mask": torch.ones_like(ids),
    }
    assert torch.equal(model.generate(ids, **options), expected.generate(ids, **options))


def mean_gradients(model, given):
    """Gradients of the mean of the ranks' losses in one process."""
    for one in given:
        (model(**one).loss / len(given)).backward()
    return model


def check_parameters_that_change_later(world):
    """Experts that were frozen, and parameters that a state dict replaces."""
    rank, given = dist.get_rank(), [batch(r, 0) for r in range(RANKS)]
    expected = mean_gradients(alone("mixtral"), given)
    frozen = alone("mixtral").requires_grad_(False)
    models = [parallelize(frozen).requires_grad_(True), parallel("mixtral")]
    models[1].load_state_dict(models[1].state_dict(), assign=True)
    for model in models:
        model(**given[rank]).loss.backward()
        gradient = model.model.layers[0].mlp.experts.down_proj.grad
        part = expected.model.layers[0].mlp.experts.down_proj.grad.chunk(RANKS)[rank]
        torch.testing.assert_close(gradient, part, rtol=1e-4, atol=1e-7)


def check_two_widths(world):
    """A model, a narrower one, and the first again."""
    config = config_of("mixtral")
    config.hidden_size = 16
    torch.manual_seed(0)
    narrow = AutoModelForCausalLM.from_config(config)
    pairs = [(parallel("mixtral"), alone("mixtral")), (parallelize(copy.deepcopy(narrow)), narrow)]
    one = batch(dist.get_rank(), 0)
    for model, expected in (*pairs, pairs[0]):
        torch.testing.assert_close(model(**one).loss, expected(**one).loss, rtol=1e-5, atol=1e-5)


def check_wrappers_that_would_average_experts(world):
    one = batch(dist.get_rank(), 0)
    ddp = torch.nn.parallel.DistributedDataParallel

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = parallel("mixtral")

        def forward(self, **given):
            return self.model(**given)

    with pytest.raises(ValueError, match="has taken the experts of this rank for replicas"):
        ddp(Wrapped())(**one)
    pairs = [dist.new_group([first, first + 1]) for first in (0, 2)]
    half = parallelize(alone("mixtral"), pairs[dist.get_rank() // 2])
    with pytest.raises(ValueError, match="over ranks .*, DistributedDataParallel averages over"):
        ddp(half)(**one)
    ddp(half, process_group=pairs[dist.get_rank() // 2])(**one).loss.backward()
    with pytest.raises(ValueError, match="use DistributedConfig"):
        torch.distributed.fsdp.fully_shard(parallel("mixtral"))(**one)


def check_copies_and_files(world):
    model = parallel("qwen3")
    names = [name for name, _ in model.named_parameters() if "experts" in name]
    assert list(model._shoal_experts.names) == names, "an order that all ranks share"
    with pytest.raises(TypeError, match="a spread model has no copies"):
        copy.deepcopy(model)
    path = f"{os.environ['SHOAL_TEST_MODELS']}/parallel"
    with pytest.raises(ValueError, match="state_dict=gathered_state_dict"):
        model.save_pretrained(path)
    state = gathered_state_dict(model)
    if dist.get_rank() == 0:
        model.save_pretrained(path, state_dict=state)
    dist.barrier()
    loaded = AutoModelForCausalLM.from_pretrained(path).state_dict()
    assert all(
        torch.equal(value, loaded[name]) for name, value in alone("qwen3").state_dict().items()
    )


def check_what_parallelize_refuses(world):
    other = torch.nn.Module()
    other.num_experts, other.weight = 4, torch.nn.Parameter(torch.zeros(4, 2, 2))
    other.forward = lambda rows: rows
    with pytest.raises(ValueError, match="takes \\['rows'\\]; allowed: hidden_states"):
        parallelize(torch.nn.Sequential(other))
    with pytest.raises(ValueError, match="Linear has no experts"):
        parallelize(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="spread over ranks already"):
        parallelize(parallel("mixtral"))
    with pytest.raises(ValueError, match="parallelize has not spread"):
        clip_grad_norm_(alone("mixtral"), 1.0)
    with pytest.raises(ValueError, match="a batch of 0 sequences"):
        parallel("mixtral")(torch.zeros((0, 4), dtype=torch.int64))


def check_ranks_that_run_different_layers(world):
    model = parallel("mixtral")
    layers = [module for module in model.modules() if hasattr(module, "gate_up_proj")]
    x, idx = torch.randn(3, 32), torch.tensor([[0, 1]] * 3)
    with pytest.raises(shoal.MismatchError, match="layer .* with hidden 32, top-k 2, 8 experts"):
        layers[dist.get_rank() % 2](x, idx, torch.ones(3, 2))
    assert layers[0](x, idx, torch.ones(3, 2)).shape == x.shape  # the world goes on


def check_larger_batches_later(world):
    """The group grows while layers wait for backward."""
    model, expected = parallel("mixtral"), alone("mixtral")
    rank = dist.get_rank()
    ids = [torch.full((1, 4), 5), torch.full((3 + 4 * rank, 60), 6)]
    losses = [sum(one(i, labels=i).loss for i in ids) for one in (model, expected)]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
    losses[0].backward()
