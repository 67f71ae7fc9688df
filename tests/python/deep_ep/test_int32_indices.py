# SPDX-License-Identifier: Apache-2.0
"""Expert indices of 32 bits (EP_NUM_TOPK_IDX_BITS=32) in every call that takes or returns them,
on two ranks."""

import multiprocessing
import os

import pytest
import torch
import torch.distributed as dist
from torch_ranks import add_tests, run_checks, seeded

# Only in the processes of ranks; the import reads it.
if multiprocessing.parent_process() is not None:
    os.environ["EP_NUM_TOPK_IDX_BITS"] = "32"

import deep_ep
from deep_ep.utils import refs

H, K, E, N = 512, 3, 8, 16


def make_inputs(seed):
    generator = seeded(10 * seed + dist.get_rank())
    x = torch.randn((9, H), generator=generator).bfloat16()
    weights, topk_idx = torch.rand((9, E), generator=generator).topk(K, dim=1)
    topk_idx[torch.rand((9, K), generator=generator) < 0.2] = -1
    return x, topk_idx.int(), weights


def check_the_type(_):
    assert deep_ep.topk_idx_t is torch.int32
    assert (
        deep_ep.Config(20, 6, 256, 6, 256).get_nvl_buffer_size_hint(14336, 8)
        == 335_709_824 - 10 * 8 * 256 * 128 * 4
    )


def check_normal_mode(_):
    buffer = deep_ep.Buffer(dist.group.WORLD, 1 << 20, explicitly_destroy=True)
    x, topk_idx, weights = make_inputs(1)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, E)
    layout = {
        "num_tokens_per_rank": per_rank,
        "is_token_in_rank": in_rank,
        "num_tokens_per_expert": per_expert,
    }
    for worst in (0, 2 * N):
        recv_x, recv_idx, recv_weights, _, handle, _ = buffer.dispatch(
            x, topk_idx=topk_idx, topk_weights=weights, num_worst_tokens=worst, **layout
        )
        want_x, want_idx, *_ = refs.dispatch(x, topk_idx, weights, N, E)
        rows = len(want_x)
        assert recv_idx.dtype == torch.int32 and want_idx.dtype == torch.int32
        assert torch.equal(recv_x[:rows], want_x) and torch.equal(recv_idx[:rows], want_idx)
        assert (recv_idx[rows:] == -1).all()
        sums, back, _ = buffer.combine(recv_x, handle, recv_weights)
        assert torch.equal(sums, (x.float() * in_rank.sum(1, keepdim=True)).bfloat16())
        assert torch.equal(back, weights.masked_fill(topk_idx < 0, 0))
    with pytest.raises(RuntimeError, match="topk_idx is int64.*allowed: contiguous int32"):
        buffer.get_dispatch_layout(topk_idx.long(), E)
    with pytest.raises(RuntimeError, match="topk_idx is int64.*allowed: contiguous int32"):
        buffer.dispatch(x, topk_idx=topk_idx.long(), topk_weights=weights, **layout)
    buffer.destroy()


def check_low_latency(_):
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(N, H, 2, E)
    buffer = deep_ep.Buffer(
        dist.group.WORLD, 0, size, low_latency_mode=True, explicitly_destroy=True
    )
    for seed, hooks in enumerate((False, True, True, True)):
        x, topk_idx, weights = make_inputs(seed)
        recv, count, handle, _, hook = buffer.low_latency_dispatch(
            x, topk_idx, N, E, use_fp8=False, return_recv_hook=hooks
        )
        if hooks:
            hook()
        assert count.tolist() == [
            (refs.dispatch(x, topk_idx, None, N, E)[1] == e).sum() for e in range(E // 2)
        ]
        sums, _, hook = buffer.low_latency_combine(
            recv, topk_idx, weights, handle, return_recv_hook=hooks
        )
        if hooks:
            hook()
        want = x.float() * weights.masked_fill(topk_idx < 0, 0).sum(1, keepdim=True)
        assert torch.allclose(sums.float(), want, rtol=0.02, atol=0.01)
    with pytest.raises(RuntimeError, match="topk_idx is int64"):
        buffer.low_latency_dispatch(x, topk_idx.long(), N, E, use_fp8=False, return_recv_hook=True)
    buffer.destroy()


def check_elastic(_):
    buffer = deep_ep.ElasticBuffer(
        dist.group.WORLD, num_max_tokens_per_rank=N, hidden=H, num_topk=K, explicitly_destroy=True
    )
    x, topk_idx, weights = make_inputs(3)
    in_rank = torch.stack(
        [((topk_idx >= 0) & (topk_idx // (E // 2) == r)).any(1) for r in range(2)]
    ).sum(0)
    slots = (topk_idx >= 0).sum(1)
    for options in ({}, {"do_cpu_sync": False}, {"do_expand": True}):
        recv_x, recv_idx, _, handle, _ = buffer.dispatch(
            x, topk_idx, weights, num_experts=E, **options
        )
        want_x, want_idx, *_ = refs.dispatch(x, topk_idx, weights, N, E)
        assert handle.topk_idx.dtype == torch.int32
        if "do_expand" not in options:
            assert recv_idx.dtype == torch.int32 and torch.equal(recv_idx[: len(want_x)], want_idx)
        sums, *_ = buffer.combine(recv_x, handle)
        times = slots if "do_expand" in options else in_rank
        assert torch.allclose(sums.float(), x.float() * times[:, None], rtol=0.02)
    buffer.destroy()


add_tests(globals(), lambda: run_checks(2, __name__))
