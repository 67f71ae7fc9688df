# SPDX-License-Identifier: Apache-2.0
"""torchtitan's dispatcher (PyPI) over deep_ep on four CPU ranks, forward and backward.

Three things are not torchtitan's own here. Its operators are registered for CUDA only; the test
registers the same functions for the CPU. tyro (command lines) and minimal_async_ep (another
dispatcher, which needs triton) are imported by the module but unused; empty modules replace them.
Its HybridEP operators need a newer torch than the tests have; test_megatron.py covers the calls.
"""

import sys

from forked_ranks import add_tests_or_run, require

require("torch", "torchtitan", "spmd_types", installed_by="./run setup --checks")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from bare_packages import Unused  # noqa: E402
from dense_experts import EXPERTS, HIDDEN, TOP_K, Case, close, run_experts  # noqa: E402


def setup():
    """Imports the dispatcher, which takes seconds."""
    for name in ("tyro", "torchtitan.distributed.minimal_async_ep"):
        sys.modules[name] = Unused(name)
    from torchtitan.distributed.deepep import deepep
    from torchtitan.models.common import token_dispatcher  # noqa: F401

    deepep._lib.impl("dispatch", deepep._dispatch_op_impl, "CPU")
    deepep._lib.impl("combine", deepep._combine_op_impl, "CPU")


def make_dispatcher(max_tokens, **options):
    from torch.distributed.device_mesh import init_device_mesh
    from torchtitan.models.common.token_dispatcher import DeepEPTokenDispatcher

    config = DeepEPTokenDispatcher.Config(
        num_experts=EXPERTS,
        top_k=TOP_K,
        hidden_dim=HIDDEN,
        num_max_tokens_per_rank=max_tokens,
        **options,
    )
    dispatcher = DeepEPTokenDispatcher(config)
    dispatcher.wire_meshes(ep_mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return dispatcher


def run_layer(dispatcher, case, x, gates, matrices):
    counts = torch.bincount(case.topk_idx.flatten(), minlength=EXPERTS)
    rows, counts, metadata = dispatcher.dispatch(x, gates, case.topk_idx, counts)
    valid = int(counts.sum())
    out = torch.zeros_like(rows)
    out[:valid] = run_experts(rows[:valid], counts, matrices)
    return dispatcher.combine(out, metadata, x)


def check_training():
    dispatcher = make_dispatcher(16)
    for seed in (1, 2):
        case = Case(seed, tokens=16)  # torchtitan pads all ranks to the same number
        x, gates = case.x.clone().requires_grad_(), case.gates.clone().requires_grad_()
        matrices = case.local_matrices()
        out = run_layer(dispatcher, case, x, gates, matrices)
        out.backward(case.grad)
        want, grad_x, grad_probs, grad_matrices = case.expected()
        assert close(out, want) and close(x.grad, grad_x)
        assert close(gates.grad, grad_probs.gather(1, case.topk_idx))
        assert close(matrices.grad, grad_matrices)


def check_inference_in_the_static_layout():
    """cudagraphable: expert-major rows whose number does not depend on the routing."""
    dispatcher = make_dispatcher(16, cudagraphable=True)
    case = Case(3, tokens=16)
    with torch.no_grad():
        out = run_layer(dispatcher, case, case.x, case.gates, case.local_matrices())
    assert close(out, case.expected()[0])


add_tests_or_run(globals(), setup)
