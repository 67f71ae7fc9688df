# SPDX-License-Identifier: Apache-2.0
"""Forms of a routing on the GPU against the same on the host, and the launches that calls take
with them: HybridEPBuffer, and the first layout of a program."""

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
from gpu_worlds import fetch
from test_gpu_elastic import kernels
from torch_ranks import add_tests, run_checks

import deep_ep
from deep_ep.buffers.hybrid import routing
from deep_ep.buffers.legacy import layout

H, E, K, T = 512, 64, 6, 300


def make_map(seed):
    """A routing map bool [T, E] with 0 to K experts for each token, and probabilities."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand((T, E), generator=generator).argsort(1) < K
    chosen &= torch.rand((T, E), generator=generator) < 0.8
    return chosen, torch.rand((T, E), generator=generator)


@pytest.mark.parametrize("top_k", [K, K - 2, 32])
def test_slots_of_a_map(top_k):
    chosen, probs = make_map(1)
    want = routing.slots_of_map(chosen, probs, top_k)
    most = torch.full((1,), 1, dtype=torch.int32).cuda()
    got = routing.slots_of_map(chosen.cuda(), probs.cuda(), top_k, most)
    assert torch.equal(fetch(got.topk_idx), want.topk_idx)
    assert torch.equal(fetch(got.weights), want.weights)
    assert fetch(most).item() == chosen.sum(1).max().item()
    none = routing.slots_of_map(chosen.cuda(), None, top_k)
    assert torch.equal(fetch(none.topk_idx), want.topk_idx) and none.weights is None
    for first, columns in ((0, E), (E, 3 * E)):
        shape = (T, columns)
        wanted = routing.by_expert(want.weights, want.topk_idx, shape, first)
        back = routing.by_expert(got.weights, got.topk_idx, shape, first)
        assert torch.equal(fetch(back), wanted)


@pytest.mark.parametrize("room", [0, 8, 100])
def test_rows_of_experts(room):
    ends = torch.tensor([4, 4, 12, 16], dtype=torch.int32)
    rows, overflow = routing.rows_of_experts(ends, room)
    on_gpu, flag = routing.rows_of_experts(ends.cuda(), room)
    assert torch.equal(fetch(on_gpu), rows) and torch.equal(fetch(flag), overflow)


@pytest.mark.parametrize("ranks, dtype", [(1, torch.int64), (8, torch.int64), (64, torch.int32)])
def test_counts_of_tokens(ranks, dtype):
    topk_idx = routing.slots_of_map(make_map(2)[0], None, K).topk_idx.to(dtype)
    want = layout.count_tokens(topk_idx, E, ranks, 1, 0)
    stream = torch.cuda.current_stream().cuda_stream or 1
    got = layout.count_tokens(topk_idx.cuda(), E, ranks, 1, stream)
    for name in ("tokens_per_rank", "tokens_per_expert", "is_token_in_rank"):
        assert torch.equal(fetch(getattr(got, name)), getattr(want, name)), name


def check_launches_of_hybrid_pairs(_):
    """Also the copy of a number to the host that a blocking call makes."""
    buffer = deep_ep.HybridEPBuffer(dist.group.WORLD, H, T, E)
    routing_map, probs = (one.cuda() for one in make_map(3))
    x = torch.randn((T, H)).bfloat16().cuda()
    rows = int(routing_map.sum()) + 4 * E

    def pair(**options):
        received, gates, _, _, handle = buffer.dispatch_with_permute(
            hidden=x, routing_map=routing_map, probs=probs, pad_multiple=4, **options
        )
        return buffer.combine_with_unpermute(hidden=received, probs=gates, handle=handle)

    for options in ({}, {"non_blocking": True, "num_permuted_tokens": rows // 4 * 4}):
        for _ in range(2):
            sums, gates = pair(**options)
            want = x.float() * routing_map.sum(1, keepdim=True)
            assert torch.allclose(sums.float(), want, rtol=0.02, atol=1e-6)
            assert torch.equal(gates, probs * routing_map)
        launched = kernels(lambda options=options: pair(**options))
        assert len(launched) <= 10, launched


def check_launches_of_a_first_layout(_):
    buffer = deep_ep.Buffer(dist.group.WORLD, 1 << 20, explicitly_destroy=True)
    topk_idx = torch.zeros((T, K), dtype=torch.int64).cuda()
    launched = kernels(lambda: buffer.get_dispatch_layout(topk_idx, E))
    assert len(launched) == 1, launched
    buffer.destroy()


add_tests(globals(), lambda: run_checks(1, __name__))
