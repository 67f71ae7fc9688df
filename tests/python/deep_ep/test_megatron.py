# SPDX-License-Identifier: Apache-2.0
"""The classes of megatron-core (PyPI) over deep_ep on four CPU ranks, forward and backward: its
fused all-to-all functions, and its flex dispatcher with the DeepEP and the HybridEP manager.

Nothing of Megatron is replaced. TORCHDYNAMO_DISABLE=1 turns torch.compile off. Versions after
0.16 import triton; where it is not installed, an empty module stands in for it.
"""

import importlib.metadata
import importlib.util
import sys

from forked_ranks import add_tests_or_run, require

require("torch", "megatron", installed_by="./run setup --checks")

from types import SimpleNamespace  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from bare_packages import Unused  # noqa: E402
from dense_experts import EXPERTS, HIDDEN, TOP_K, Case, close, run_experts  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402


def setup():
    """Imports Megatron, which takes seconds."""
    early = importlib.metadata.version("megatron-core").startswith("0.16.")
    if not early and importlib.util.find_spec("triton") is None:
        import torch._inductor.utils  # noqa: F401  (finds out itself that there is no triton)

        sys.modules["triton"] = Unused("triton")
        sys.modules["triton"].__version__ = "0"  # Megatron's own functions in place of kernels
        sys.modules["triton.language"] = Unused("triton.language")
    import megatron.core.transformer.moe.token_dispatcher  # noqa: F401


def check_megatron_finds_the_package():
    from megatron.core.transformer.moe import fused_a2a

    assert fused_a2a.HAVE_DEEP_EP and fused_a2a.HAVE_HYBRIDEP


def check_fused_functions():
    """fused_dispatch and fused_combine, in both forms of their events."""
    from megatron.core.transformer.moe.fused_a2a import fused_combine, fused_dispatch

    for asynchronous in (False, True):
        case = Case(1 + asynchronous)
        x, gates = case.x.clone().requires_grad_(), case.gates.clone().requires_grad_()
        matrices = case.local_matrices()
        events = {"async_finish": asynchronous, "allocate_on_comm_stream": asynchronous}
        rows, indices, probs, counts, handle = fused_dispatch(
            x, case.topk_idx, gates, EXPERTS, dist.group.WORLD, **events
        )
        assert counts.tolist() == [int((indices == e).sum()) for e in range(len(matrices))]
        out = torch.zeros_like(rows, dtype=torch.float32)
        for e, matrix in enumerate(matrices):
            out = out + (rows.float() @ matrix) * (probs * (indices == e)).sum(1, keepdim=True)
        sums, _ = fused_combine(out.bfloat16(), dist.group.WORLD, handle, **events)
        sums.backward(case.grad)
        want, grad_x, grad_probs, grad_matrices = case.expected()
        assert close(sums, want) and close(x.grad, grad_x)
        assert close(gates.grad, grad_probs.gather(1, case.topk_idx))
        assert close(matrices.grad, grad_matrices)


def make_dispatcher(backend, **options):
    from megatron.core.transformer.moe.token_dispatcher import MoEFlexTokenDispatcher
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=4,
        num_moe_experts=EXPERTS,
        moe_router_topk=TOP_K,
        moe_router_dtype="fp32",
        moe_token_dispatcher_type="flex",
        moe_flex_dispatcher_backend=backend,
        expert_model_parallel_size=dist.get_world_size(),
        add_bias_linear=False,
        bf16=True,
        params_dtype=torch.bfloat16,
        **options,
    )
    ranks = dist.get_world_size()
    groups = SimpleNamespace(
        ep=dist.group.WORLD, expt_tp=dist.new_subgroups(1)[0], tp_ep=dist.group.WORLD
    )
    local = EXPERTS // ranks
    first = dist.get_rank() * local
    return MoEFlexTokenDispatcher(local, list(range(first, first + local)), config, groups)


def run_layer(dispatcher, case):
    """(output, x, probabilities, matrices) of one layer, as MoELayer calls its dispatcher."""
    routing_map, probs = case.routing()
    x, probs = case.x.clone().requires_grad_(), probs.requires_grad_()
    matrices = case.local_matrices()
    hidden, gates = dispatcher.dispatch_preprocess(x.view(-1, 1, HIDDEN), routing_map, probs)
    rows, gates = dispatcher.token_dispatch(hidden, gates)
    rows, counts, gates = dispatcher.dispatch_postprocess(rows, gates)
    out = run_experts(rows, counts, matrices, gates)
    out = dispatcher.token_combine(dispatcher.combine_preprocess(out))
    return dispatcher.combine_postprocess(out).view(-1, HIDDEN), x, probs, matrices


def verify_layer(dispatcher, case):
    out, x, probs, matrices = run_layer(dispatcher, case)
    out.backward(case.grad)
    want, grad_x, grad_probs, grad_matrices = case.expected()
    assert close(out, want) and close(x.grad, grad_x)
    routing_map, _ = case.routing()
    assert close(probs.grad, grad_probs * routing_map)
    assert close(matrices.grad, grad_matrices)


def check_flex_dispatcher_with_deepep():
    dispatcher = make_dispatcher("deepep")
    assert type(dispatcher._comm_manager).__name__ == "_DeepepManager"
    for seed in (3, 4):
        verify_layer(dispatcher, Case(seed))


class OnCpu(TorchFunctionMode):
    """Tensors that are asked for on a GPU are on the CPU."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = dict(options or {})
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        return function(*arguments, **options)


def check_flex_dispatcher_with_hybridep():
    from megatron.core.transformer.moe.fused_a2a import reset_hybrid_ep_buffer

    with OnCpu():
        dispatcher = make_dispatcher("hybridep")
        assert type(dispatcher._comm_manager).__name__ == "_HybridEPManager"
        for seed in (5, 6):
            verify_layer(dispatcher, Case(seed))
    reset_hybrid_ep_buffer()


class EveryExpert(Case):
    """Each token visits each expert, most with a probability of 0: what Megatron's router selects
    where an expert's capacity is the number of tokens."""

    def routing(self):
        routing_map, probs = super().routing()
        return torch.ones_like(routing_map), probs


def check_padded_experts_with_hybridep():
    """With pad-to-capacity the result has a fixed number of rows, and no size reaches the host."""
    with OnCpu():
        dispatcher = make_dispatcher(
            "hybridep",
            moe_expert_capacity_factor=EXPERTS / TOP_K,
            moe_pad_expert_input_to_capacity=True,
        )
        verify_layer(dispatcher, EveryExpert(7, tokens=8))
    assert dispatcher._comm_manager.num_permuted_tokens == 8 * dist.get_world_size() * 2


add_tests_or_run(globals(), setup)
