# SPDX-License-Identifier: Apache-2.0
"""The fused all-to-all functions of NeMo AutoModel (PyPI) over deep_ep on four CPU ranks, forward
and backward, with the replay of a dispatch by activation checkpointing, and with HybridEP."""

import importlib.util

from forked_ranks import add_tests_or_run, require

require("torch", "nemo_automodel", installed_by="./run setup --checks")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from bare_packages import bare  # noqa: E402
from dense_experts import EXPERTS, HIDDEN, Case, close, run_experts  # noqa: E402

GROUP = "nemo_automodel.components.moe.megatron"


def setup():
    bare(GROUP)
    importlib.import_module(f"{GROUP}.fused_a2a")


def fused_a2a():
    return importlib.import_module(f"{GROUP}.fused_a2a")


def check_nemo_finds_the_package():
    nemo = fused_a2a()
    assert nemo.HAVE_DEEP_EP and nemo.HAVE_HYBRIDEP and nemo._is_nvshmem_available()
    assert nemo._deep_ep_version() == "2.1.0+shoal"


def run_layer(case, x, gates, matrices, **events):
    nemo = fused_a2a()
    rows, indices, probs, counts, handle = nemo.fused_dispatch(
        x, case.topk_idx, gates, EXPERTS, dist.group.WORLD, **events
    )
    assert counts.tolist() == [int((indices == e).sum()) for e in range(len(matrices))]
    out = torch.zeros_like(rows, dtype=torch.float32)
    for e, matrix in enumerate(matrices):
        out = out + (rows.float() @ matrix) * (probs * (indices == e)).sum(1, keepdim=True)
    return nemo.fused_combine(out.bfloat16(), dist.group.WORLD, handle, **events)[0]


def verify(case, sums, x, gates, matrices):
    sums.backward(case.grad)
    want, grad_x, grad_probs, grad_matrices = case.expected()
    assert close(sums, want) and close(x.grad, grad_x)
    assert close(gates.grad, grad_probs.gather(1, case.topk_idx))
    assert close(matrices.grad, grad_matrices)


def check_fused_functions():
    for asynchronous in (False, True):
        case = Case(1 + asynchronous)
        x, gates = case.x.clone().requires_grad_(), case.gates.clone().requires_grad_()
        matrices = case.local_matrices()
        events = {"async_finish": asynchronous, "allocate_on_comm_stream": asynchronous}
        verify(case, run_layer(case, x, gates, matrices, **events), x, gates, matrices)


def check_a_recomputed_dispatch_uses_the_recorded_layout():
    nemo, case = fused_a2a(), Case(3)
    recorder = nemo.DispatchReplayRecorder()
    arguments = (case, case.x, case.gates, case.local_matrices().detach())
    with nemo.dispatch_replay_scope(recorder, "record"):
        want = run_layer(*arguments)
    recorder.rewind()
    with nemo.dispatch_replay_scope(recorder, "replay"):
        assert torch.equal(run_layer(*arguments), want)
    assert recorder.replay_misses == 0


def check_a_freed_buffer_is_made_anew():
    nemo = fused_a2a()
    first = nemo._buffer
    nemo.free_buffer()
    assert nemo._buffer is None and first.runtime is None
    check_fused_functions()
    nemo.free_buffer()


def check_hybrid_ep():
    nemo, ranks = fused_a2a(), dist.get_world_size()
    # The first dispatch would do so and then wait for a GPU.
    nemo.init_hybrid_ep_buffer(dist.group.WORLD, HIDDEN, 16, EXPERTS // ranks, 24, 24, False)
    for seed in (4, 5):
        case = Case(seed)
        routing_map, probs = case.routing()
        x, probs = case.x.clone().requires_grad_(), probs.requires_grad_()
        matrices = case.local_matrices()
        rows, gates, _, counts, handle = nemo.hybrid_ep_dispatch(
            x, routing_map, probs, dist.group.WORLD, EXPERTS // ranks
        )
        sums = nemo.hybrid_ep_combine(run_experts(rows, counts, matrices, gates), handle)
        sums.backward(case.grad)
        want, grad_x, grad_probs, grad_matrices = case.expected()
        assert close(sums, want) and close(x.grad, grad_x)
        assert close(probs.grad, grad_probs * routing_map)
        assert close(matrices.grad, grad_matrices)
    nemo.reset_hybrid_ep_buffer()


add_tests_or_run(globals(), setup)
