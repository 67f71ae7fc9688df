# SPDX-License-Identifier: Apache-2.0
"""What buffers take of a GPU besides torch's memory, by the driver: pairs of 4096 tokens, each with
the result before it still held. Ranks with a GPU each."""

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
from torch_ranks import names_of_checks, run_checks, settle

import deep_ep
import shoal.ep

TOKENS, H, E, K = 4096, 7168, 256, 8
MOST = {2: 350e6, 4: 560e6}  # by ranks


def taken():
    """Bytes in use on this GPU, without those of torch's allocator."""
    settle()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def expect_little(make, pair):
    """pair(buffer, x, topk_idx, weights): a received tensor."""
    slots = torch.arange(TOKENS * K).reshape(TOKENS, K) * 37 % E
    x, weights = torch.ones(TOKENS, H).bfloat16(), torch.ones(TOKENS, K)
    before = taken()
    buffer, seen, held = make(), [], None
    for _ in range(4):
        held = pair(buffer, x, slots.to(deep_ep.topk_idx_t), weights)
        seen.append(taken() - before)
    ranks = dist.get_world_size()
    options = {"hidden": H, "top_k": K, "experts": E, "max_tokens": TOKENS, "live_results": 1}
    group = shoal.ep.size_hint(ranks, heap="cuda", **options)["total"]
    assert group <= min(seen) and max(seen) <= MOST[ranks], (group, seen)
    del held
    settle()
    buffer.destroy()


def check_buffer(_):
    def pair(buffer, x, topk_idx, weights):
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, E)
        layout = (per_rank, None, in_rank, per_expert)
        got, _, gates, _, handle, _ = buffer.dispatch(x, None, *layout, topk_idx, weights)
        buffer.combine(got + 1, handle, topk_weights=gates)
        return got

    expect_little(
        lambda: deep_ep.Buffer(dist.group.WORLD, 1 << 30, 0, explicitly_destroy=True), pair
    )


def check_elastic_buffer(_):
    def pair(buffer, x, topk_idx, weights):
        got, _, gates, handle, _ = buffer.dispatch(x, topk_idx, weights, num_experts=E)
        buffer.combine(got + 1, handle, topk_weights=gates)
        return got

    sizes = {"num_max_tokens_per_rank": TOKENS, "hidden": H, "num_topk": K}
    expect_little(
        lambda: deep_ep.ElasticBuffer(dist.group.WORLD, **sizes, explicitly_destroy=True), pair
    )


CHECKS = names_of_checks(globals())


@pytest.fixture(scope="module", params=sorted(MOST))
def results(request):
    if torch.cuda.device_count() < request.param:
        pytest.skip(f"needs {request.param} GPUs")
    return run_checks(request.param, __name__, "cuda")


@pytest.mark.parametrize("name", CHECKS)
def test_on_gpus(results, name):
    results.verify(name)
