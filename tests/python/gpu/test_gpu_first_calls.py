# SPDX-License-Identifier: Apache-2.0
"""On GPUs, first calls after a warm-up make the calls of CUDA that later ones make: they allocate
nothing and load nothing. Two ranks with a GPU each."""

import os

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
from torch_ranks import names_of_checks, run_checks, seeded, settle

import deep_ep
import shoal.ep

TOKENS, H, E, K = 64, 1024, 16, 4
SIZES = {"num_max_tokens_per_rank": TOKENS, "hidden": H, "num_experts": E, "num_topk": K}
# Parts of the names of calls that create something.
CREATE = ("Alloc", "Create", "Load", "Register", "Open", "GetAttributes", "SetAttribute")


def inputs():
    x = torch.randn((TOKENS, H), generator=seeded(dist.get_rank())).bfloat16()
    scores = torch.rand((TOKENS, E), generator=seeded(7 + dist.get_rank()))
    return x, scores.topk(K, dim=1).indices, torch.ones(TOKENS, K)


def calls_of(pair):
    """(calls of CUDA by name, what torch's allocator and the process have afterwards)."""
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
        pair()
        settle()
    counts = {}
    for event in profile.events():
        if event.device_type != torch.profiler.DeviceType.CUDA and event.name.startswith("cu"):
            counts[event.name] = counts.get(event.name, 0) + 1
    return counts


def resources():
    return {
        "allocations of torch": torch.cuda.memory_stats().get("num_device_alloc"),
        "free bytes of the GPU": torch.cuda.mem_get_info()[0],
        "threads": len(os.listdir("/proc/self/task")),
        "files and connections": len(os.listdir("/proc/self/fd")),
    }


def expect_no_creation(pair):
    calls_of(lambda: None)  # the profiler's own first use
    before = resources()
    first = calls_of(pair)
    after = resources()
    for _ in range(3):
        pair()
    later = calls_of(pair)
    created = {
        name: (count, later.get(name, 0))
        for name, count in first.items()
        if any(part in name for part in CREATE) and count > later.get(name, 0)
    }
    assert first and not created, (created, first, later)
    assert after == before


def check_buffer(_):
    x, topk_idx, weights = inputs()
    y = torch.ones(TOKENS * dist.get_world_size(), H).bfloat16()
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(TOKENS, H, dist.get_world_size(), E)
    buffer = deep_ep.Buffer(
        dist.group.WORLD,
        64 << 20,
        hint,
        low_latency_mode=True,
        explicitly_destroy=True,
        **SIZES,
        preinitialize=True,
    )

    def normal():
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, E)
        layout = (per_rank, None, in_rank, per_expert)
        got, _, gates, _, handle, _ = buffer.dispatch(
            x, None, *layout, topk_idx, weights, num_worst_tokens=len(y)
        )
        buffer.combine(y[: len(got)], handle, topk_weights=gates)

    rows = torch.ones(E // dist.get_world_size(), TOKENS * dist.get_world_size(), H).bfloat16()

    def low_latency(hooks):
        _, _, handle, _, hook = buffer.low_latency_dispatch(
            x, topk_idx, TOKENS, E, return_recv_hook=hooks
        )
        hook() if hooks else None
        *_, hook = buffer.low_latency_combine(
            rows, topk_idx, weights, handle, return_recv_hook=hooks
        )
        hook() if hooks else None

    expect_no_creation(normal)
    for hooks in (False, True):
        expect_no_creation(lambda hooks=hooks: low_latency(hooks))
    settle()
    buffer.destroy()


def check_elastic_buffer(_):
    x, topk_idx, weights = inputs()
    y = torch.ones(TOKENS * dist.get_world_size(), H).bfloat16()
    buffer = deep_ep.ElasticBuffer(
        dist.group.WORLD, **SIZES, explicitly_destroy=True, preinitialize=True
    )

    def pair():
        got, _, gates, handle, _ = buffer.dispatch(
            x, topk_idx, weights, num_experts=E, do_cpu_sync=False
        )
        buffer.combine(y[: len(got)], handle, topk_weights=gates)

    expect_no_creation(pair)
    settle()
    buffer.destroy()


def check_group(world):
    x, topk_idx, weights = inputs()
    options = {"hidden": H, "top_k": K, "experts": E, "preinitialize": True}
    normal = shoal.ep.Group(world.team, **options, max_tokens=TOKENS)

    def pair():
        got = normal.dispatch(x, normal.route(topk_idx), weights=weights)
        normal.combine(got.x, got.handle)

    expect_no_creation(pair)
    settle()
    normal.close()
    group = shoal.ep.Group(world.team, **options, low_latency_max_tokens=TOKENS)
    rows = torch.ones(E // dist.get_world_size(), TOKENS * dist.get_world_size(), H).bfloat16()

    def low_latency_pair():
        got = group.low_latency_dispatch(x, topk_idx).receive()
        group.low_latency_combine(rows, topk_idx, weights, got.handle).receive()

    expect_no_creation(low_latency_pair)
    settle()
    group.close()


CHECKS = names_of_checks(globals())
results = pytest.fixture(scope="module")(lambda: run_checks(2, __name__, "cuda"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", CHECKS)
def test_on_two_gpus(results, name):
    results.verify(name)
