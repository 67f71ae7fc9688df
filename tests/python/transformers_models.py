# SPDX-License-Identifier: Apache-2.0
"""Small models of transformers, in one process and on ranks, on the default device, and what tests
compare."""

import functools
import os
import sys

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist

if dist.is_initialized():  # in a rank; accelerate would load DeepSpeed, whose needs are missing
    sys.modules["deepspeed"] = None
pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("accelerate")

import tokenizers
import transformers
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

import shoal.integrations.transformers  # registers "shoal"

EXPERTS, STEPS = 8, 3
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


# Models before DistributedConfig, by their names in AutoConfig.
OLDER = {
    "qwen2_moe": {"num_experts": EXPERTS, "moe_intermediate_size": 16},
    "ernie4_5_moe": {"moe_num_experts": EXPERTS, "moe_k": 2, "moe_intermediate_size": 16},
    "granitemoe": {"num_local_experts": EXPERTS},
    "hunyuan_v1_moe": {"num_experts": EXPERTS, "moe_topk": 2, "head_dim": 8},
}


def config_of(family):
    if family in OLDER:
        return transformers.AutoConfig.for_model(family, **COMMON, **OLDER[family])
    if family.startswith("mixtral"):  # "mixtral-6" has six experts
        experts = int(family.partition("-")[2] or EXPERTS)
        return transformers.MixtralConfig(**COMMON, num_local_experts=experts)
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


def spread(family, tp=1, ep=None, path=None, dtype=torch.float32, **options):
    ranks = dist.get_world_size()
    config = DistributedConfig(
        tp_size=tp, fsdp_size=ranks // tp, ep_size=ep or ranks, ep_implementation="shoal"
    )
    return AutoModelForCausalLM.from_pretrained(
        path or path_of(family), distributed_config=config, dtype=dtype, **options
    ).train()


def alone(family, dtype=torch.float32, **options):
    model = AutoModelForCausalLM.from_pretrained(path_of(family), dtype=dtype, **options)
    return model.to(torch.get_default_device()).train()


def token_ids(seed, *shape):
    generator = torch.Generator("cpu").manual_seed(seed)
    ids = torch.randint(3, 97, shape, generator=generator, device="cpu")
    return ids.to(torch.get_default_device())


def tokenizer():
    """Each token is a word, t0 to t96."""
    words = {f"t{i}": i for i in range(COMMON["vocab_size"])}
    model = tokenizers.models.WordLevel(words, unk_token="t3")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model), pad_token="t0", bos_token="t1", eos_token="t2"
    )


def batch(rank, step):
    """Token ids of different shapes by rank. All tokens of rank 2 are padding in step 1."""
    ids = token_ids(10 * step + rank, 1 + rank % 2, 5 + 3 * rank)
    mask = torch.ones_like(ids)
    if rank == 2 and step == 1:
        ids, mask = torch.zeros_like(ids), torch.zeros_like(mask)
        mask[:, -1] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def whole(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def compare_parameters(model, expected, what, most=2e-5):
    expected = dict(expected.named_parameters())
    for name, parameter in model.named_parameters():
        value, other = whole(getattr(parameter, what)), getattr(expected[name], what)
        difference = (value - other).norm() / other.norm().clamp(min=1e-6)
        assert difference < most, f"{what} of {name} differs by {difference:.1e}"


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


@functools.lru_cache
def trained_alone(family, ranks):
    """One process with the batches of as many ranks: the losses by step and rank, and the model."""
    model = alone(family)
    return train(model, [[batch(r, step) for r in range(ranks)] for step in range(STEPS)]), model


def compare_training(family, tp=1, change=lambda model: model, most=1e-5, **options):
    """Losses, gradients and weights of some steps, of which most is the largest difference."""
    ranks, rank = dist.get_world_size() // tp, dist.get_rank() // tp
    model = change(spread(family, tp, **options))
    losses = train(model, [[batch(rank, step)] for step in range(STEPS)])
    others, expected = trained_alone(family, ranks)
    torch.testing.assert_close(losses, others[rank::ranks], rtol=most, atol=most)
    compare_parameters(model, expected, "grad", 2 * most)
    compare_parameters(model, expected, "data", 2 * most)
    return model


# Seeds of the prompts of each rank: no step after them has a near-tie in bfloat16.
PROMPT_SEEDS = 104, 134, 111, 184


def compare_generation(sequences, dtype=torch.float32, family="mixtral", make=spread):
    """Greedy texts of as many sequences as the list says for each rank, some of which end early."""
    rank = dist.get_rank()
    model, expected = (one(family, dtype=dtype).eval() for one in (make, alone))
    ids = token_ids(PROMPT_SEEDS[rank], sequences[rank], 4 + rank)
    options = {
        "max_new_tokens": 4 + 2 * rank,
        "do_sample": False,
        "attention_mask": torch.ones_like(ids),
    }
    assert torch.equal(model.generate(ids, **options), expected.generate(ids, **options))


@pytest.fixture(scope="module", autouse=True)
def folder_of_models(tmp_path_factory):
    os.environ["SHOAL_TEST_MODELS"] = str(tmp_path_factory.mktemp("models"))
    yield
    del os.environ["SHOAL_TEST_MODELS"]
