# SPDX-License-Identifier: Apache-2.0
"""The DeepEP transport of DeepSpeed's AutoEP (PyPI) over deep_ep on four CPU ranks, forward and
backward, also with activation checkpointing.

DeepSpeed's logger, the only other name that the file imports, is Python's.
"""

import importlib.util
import logging
import sys
import types

from forked_ranks import add_tests_or_run, require

require("torch", "deepspeed", installed_by="./run setup --checks")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from bare_packages import bare  # noqa: E402
from dense_experts import EXPERTS, HIDDEN, TOP_K, Case, close, run_experts  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


def setup():
    bare("deepspeed.module_inject")
    sys.modules["deepspeed.utils"] = types.ModuleType("deepspeed.utils")
    sys.modules["deepspeed.utils"].logger = logging.getLogger("deepspeed")
    importlib.import_module("deepspeed.module_inject.auto_ep_comm")


def auto_ep_comm():
    return importlib.import_module("deepspeed.module_inject.auto_ep_comm")


def make_exchange(scope):
    return auto_ep_comm().shared_exchange(scope, dist.group.WORLD, EXPERTS, TOP_K, HIDDEN, 16)


def run_layer(exchange, case, x, gates, matrices, replay=None):
    auto = auto_ep_comm()
    rows, weights, _ = auto.deepep_dispatch(exchange, x, case.topk_idx, gates, replay)
    handle = exchange.last_handle
    counts = handle.num_recv_tokens_per_expert_list
    valid = sum(counts)
    out = torch.zeros_like(rows)
    out[:valid] = run_experts(rows[:valid], counts, matrices, weights[:valid])
    return auto.deepep_combine(exchange, out, handle)


def verify(case, run):
    x, gates = case.x.clone().requires_grad_(), case.gates.clone().requires_grad_()
    matrices = case.local_matrices()
    sums = run(x, gates, matrices)
    sums.backward(case.grad)
    want, grad_x, grad_probs, grad_matrices = case.expected()
    assert close(sums, want) and close(x.grad, grad_x)
    assert close(gates.grad, grad_probs.gather(1, case.topk_idx))
    assert close(matrices.grad, grad_matrices)


def check_training():
    exchange = make_exchange(0)
    assert make_exchange(0) is exchange
    for seed in (1, 2):
        case = Case(seed)
        verify(case, lambda *inputs, case=case: run_layer(exchange, case, *inputs))
    exchange.release()
    assert not exchange.destroyed
    exchange.release()
    assert exchange.destroyed


def check_activation_checkpointing():
    """Without reentrance the recomputation replays the dispatch of the forward pass."""
    exchange = make_exchange(1)
    for reentrant in (False, True):
        case, replay = Case(3 + reentrant), auto_ep_comm().DeepEPCheckpointReplay()

        def run(*inputs, case=case, replay=replay, reentrant=reentrant):
            def layer(*tensors):
                return run_layer(exchange, case, *tensors, replay)

            return checkpoint(layer, *inputs, use_reentrant=reentrant)

        verify(case, run)
    exchange.destroy()


add_tests_or_run(globals(), setup)
