# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with their experts on 4 ranks over Shoal, against one process."""

import copy
import os
import sys

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

if dist.is_initialized():  # in a rank; accelerate would load DeepSpeed, whose needs are missing
    sys.modules["deepspeed"] = None
pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("accelerate")

import transformers
from torch_ranks import add_tests, of_all_ranks, run_checks
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

import shoal
from shoal.integrations.transformers import clip_grad_norm_, gathered_state_dict, parallelize

RANKS, EXPERTS, STEPS = 4, 8, 3
COMMON = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config_of(family):
    if family == "mixtral":
        return transformers.MixtralConfig(**COMMON, num_local_experts=EXPERTS)
    if family == "olmoe":
        return transformers.OlmoeConfig(**COMMON, num_experts=EXPERTS)
    if family == "gpt-oss":
        return transformers.GptOssConfig(
            **COMMON, num_local_experts=EXPERTS, head_dim=8, sliding_window=16
        )
    if family == "qwen3":
        return transformers.Qwen3MoeConfig(
            **COMMON, num_experts=EXPERTS, moe_intermediate_size=16, head_dim=8
        )
    return transformers.DeepseekV3Config(
        **{**COMMON, "num_key_value_heads": 4},
        moe_intermediate_size=16,
        n_routed_experts=EXPERTS,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
    )


def path_of(family):
    """A folder with the weights of a small model, which the first rank writes."""
    path = f"{os.environ['SHOAL_TEST_MODELS']}/{family}"
    if dist.get_rank() == 0 and not os.path.exists(path):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config_of(family)).save_pretrained(path)
    dist.barrier()
    return path


def spread(family, tp=1, ep=RANKS, path=None, **options):
    config = DistributedConfig(
        tp_size=tp, fsdp_size=RANKS // tp, ep_size=ep, ep_implementation="shoal"
    )
    return AutoModelForCausalLM.from_pretrained(
        path or path_of(family), distributed_config=config, dtype=torch.float32, **options
    ).train()


def alone(family, **options):
    return AutoModelForCausalLM.from_pretrained(
        path_of(family), dtype=torch.float32, **options
    ).train()


def batch(rank, step):
    """Token ids of different shapes by rank. All tokens of rank 2 are padding in step 1."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    ids = torch.randint(3, 97, (1 + rank % 2, 5 + 3 * rank), generator=generator)
    mask = torch.ones_like(ids)
    if rank == 2 and step == 1:
        ids, mask = torch.zeros_like(ids), torch.zeros_like(mask)
        mask[:, -1] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def whole(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def compare_parameters(model, expected, what):
    expected = dict(expected.named_parameters())
    for name, parameter in model.named_parameters():
        value, other = whole(getattr(parameter, what)), getattr(expected[name], what)
        difference = (value - other).norm() / other.norm().clamp(min=1e-6)
        assert difference < 2e-5, f"{what} of {name} differs by {difference:.1e}"


def train(model, batches):
    """Steps with the mean loss of `batches`, a list of lists by step. Returns the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for given in batches:
        optimizer.zero_grad()
        for one in given:
            loss = model(**one).loss
            (loss / len(given)).backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


def compare_training(family, tp=1, change=lambda model: model, **options):
    rank = dist.get_rank() // tp
    model, expected = change(spread(family, tp, **options)), alone(family)
    losses = train(model, [[batch(rank, step)] for step in range(STEPS)])
    others = train(
        expected, [[batch(r, step) for r in range(RANKS // tp)] for step in range(STEPS)]
    )
    torch.testing.assert_close(losses, others[rank :: RANKS // tp], rtol=1e-5, atol=1e-5)
    compare_parameters(model, expected, "grad")
    compare_parameters(model, expected, "data")
    return model


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
    """3, 1, 2 and 1 sequences, some of which end early."""
    rank = dist.get_rank()
    model, expected = spread("mixtral").eval(), alone("mixtral").eval()
    generator = torch.Generator().manual_seed(rank)
    ids = torch.randint(3, 97, ((3, 1, 2, 1)[rank], 4 + rank), generator=generator)
    options = {
        "max_new_tokens": 4 + 3 * rank,
        "do_sample": False,
        "attention_mask": torch.ones_like(ids),
    }
    assert torch.equal(model.generate(ids, **options), expected.generate(ids, **options))


def parallel(family):
    return parallelize(alone(family))


def check_data_parallel(world):
    """DistributedDataParallel, with the gradients clipped by the norm of one process."""
    rank, model, expected = dist.get_rank(), parallel("mixtral"), alone("mixtral")
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
    assert names["model.layers.0.mlp.experts.down_proj"].shape[0] == EXPERTS // RANKS
    sums = of_all_ranks(model.lm_head.weight.sum())
    assert all(one == sums[0] for one in sums), "replicas differ"


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


def check_what_parallelize_refuses(world):
    with pytest.raises(ValueError, match="Linear has no experts"):
        parallelize(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="spread over ranks already"):
        parallelize(parallel("mixtral"))
    config = config_of("mixtral")
    config.num_local_experts = 6
    with pytest.raises(ValueError, match="has 6 experts; allowed: multiples of the 4 ranks"):
        parallelize(AutoModelForCausalLM.from_config(config))
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


@pytest.fixture(scope="module", autouse=True)
def folder_of_models(tmp_path_factory):
    os.environ["SHOAL_TEST_MODELS"] = str(tmp_path_factory.mktemp("models"))
    yield
    del os.environ["SHOAL_TEST_MODELS"]


add_tests(globals(), lambda: run_checks(RANKS, __name__))
