# SPDX-License-Identifier: Apache-2.0
"""LMDeploy's dispatchers (PyPI) over deep_ep on four CPU ranks, with the one buffer that LMDeploy
makes for both modes. The wheel has 107 MB: ./run soak installs it."""

import importlib.util

import pytest
from forked_ranks import add_tests_or_run, require

pytestmark = pytest.mark.soak
require("torch", "lmdeploy", installed_by="./run soak")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from bare_packages import bare  # noqa: E402
from torch_ranks import of_all_ranks, seeded  # noqa: E402

from deep_ep.utils.math import calc_diff, per_token_cast_back  # noqa: E402

HIDDEN, EXPERTS, TOP_K, TOKENS = 512, 8, 3, 16
BACKENDS = "lmdeploy.pytorch.backends"


def setup():
    for name in ("cuda", "default"):
        bare(f"{BACKENDS}.{name}")
    importlib.import_module(f"{BACKENDS}.cuda.token_dispatcher")


def lmdeploy():
    return importlib.import_module(f"{BACKENDS}.cuda.token_dispatcher")


def make(name, **options):
    sizes = (dist.group.WORLD, EXPERTS, EXPERTS // dist.get_world_size(), HIDDEN, torch.bfloat16)
    options["num_max_dispatch_tokens_per_rank"] = TOKENS
    return getattr(lmdeploy(), name)(*sizes, **options)


def make_inputs(seed):
    generator = seeded(10 * seed + dist.get_rank())
    tokens = (12, 7, 16, 9)[dist.get_rank()]
    x = torch.randn((tokens, HIDDEN), generator=generator).bfloat16()
    scores = torch.rand((tokens, EXPERTS), generator=generator)
    weights, topk_idx = scores.softmax(1).topk(TOP_K, dim=1)
    return x, topk_idx, weights


def factor(expert):
    return 0.5 + expert / EXPERTS


def local_experts():
    local = EXPERTS // dist.get_world_size()
    return range(dist.get_rank() * local, (dist.get_rank() + 1) * local)


def expected(x, topk_idx, weights):
    return x.float() * (weights * (0.5 + topk_idx / EXPERTS)).sum(1, keepdim=True)


def check_lmdeploy_finds_the_package():
    assert lmdeploy().use_deepep
    assert lmdeploy().DeepEPBuffer.set_explicitly_destroy()


def check_dispatcher_for_prefill():
    """DeepEPTokenDispatcher gives rows grouped by expert, and weights them in its combine."""
    for seed in (1, 2):
        x, topk_idx, weights = make_inputs(seed)
        dispatcher = make("DeepEPTokenDispatcher")
        rows, _, _, counts = dispatcher.dispatch(x, topk_idx, weights)
        chosen = torch.cat([indices for _, indices, _ in of_all_ranks((x, topk_idx, weights))])
        assert counts.tolist() == [int((chosen == expert).sum()) for expert in local_experts()]
        parts = rows.split(counts.tolist())
        out = [part * factor(expert) for part, expert in zip(parts, local_experts())]
        sums = dispatcher.combine(torch.cat(out))
        assert calc_diff(sums, expected(x, topk_idx, weights)) < 1e-4
        dispatcher.release()


def check_dispatcher_of_normal_mode():
    """DeepEPTokenDispatcherNormal, also asynchronous; expert_alignment is 128."""
    dispatcher = make("DeepEPTokenDispatcherNormal")
    for asynchronous in (False, True):
        x, topk_idx, weights = make_inputs(3 + asynchronous)
        if asynchronous:
            previous = dispatcher.get_buffer().capture()
            rows, indices, gates, counts, handle, event = dispatcher.dispatch_normal_async(
                x, topk_idx, weights, previous_event=previous
            )
            event.current_stream_wait()
        else:
            rows, indices, gates, counts = dispatcher.dispatch(x, topk_idx, weights)
        assert all(count % 128 == 0 for count in counts)
        known = (indices >= 0) * gates
        factors = 0.5 + (indices + local_experts().start) / EXPERTS
        out = (rows.float() * (known * factors).sum(1, keepdim=True)).bfloat16()
        if asynchronous:
            sums, event = dispatcher.combine_normal_async(out, handle)
            event.current_stream_wait()
        else:
            sums = dispatcher.combine(out)
        assert calc_diff(sums, expected(x, topk_idx, weights)) < 1e-4
        dispatcher.release()


def check_dispatcher_of_low_latency_mode():
    for seed in range(5, 11):
        x, topk_idx, weights = make_inputs(seed)
        lmdeploy().DeepEPBuffer.set_deepep_mode(lmdeploy().DeepEPMode.LOW_LATENCY)
        dispatcher = make("DeepEPTokenDispatcherLowLatency", return_recv_hook=seed % 2 == 1)
        (values, scales), indices, gates, counts, _ = dispatcher.dispatch(
            x, topk_idx, weights, EXPERTS
        )
        rows = per_token_cast_back(values.value, scales.value)
        out = torch.zeros_like(rows)
        for e, expert in enumerate(local_experts()):
            out[e, : counts[e]] = rows[e, : counts[e]] * factor(expert)
        values.dispose()
        sums = dispatcher.combine(out, indices, gates)
        assert calc_diff(sums, expected(x, topk_idx, weights)) < 1e-3


def check_all_dispatchers_share_a_buffer_which_is_destroyed():
    buffers = lmdeploy().DeepEPBuffer
    buffer = make("DeepEPTokenDispatcherNormal").get_buffer()
    assert make("DeepEPTokenDispatcherLowLatency").get_buffer() is buffer
    assert buffers.destroy() and buffer.runtime is None


add_tests_or_run(globals(), setup)
