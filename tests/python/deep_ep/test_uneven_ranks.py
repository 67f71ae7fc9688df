# SPDX-License-Identifier: Apache-2.0
"""Numbers of experts that four ranks do not divide, which DeepEP refuses: the first ranks hold one
expert more, and results of low-latency calls have the largest number on a rank."""

import torch
import torch.distributed as dist
from torch_ranks import add_tests, run_checks, seeded

import deep_ep
from deep_ep.buffers.spread import first_experts, ranks_of

H, K, N, RANKS = 512, 2, 16, 4
NUMBERS = (10, 3, 5)


def make_inputs(experts):
    generator = seeded(dist.get_rank())
    x = torch.randint(-8, 8, (N, H), generator=generator).bfloat16()
    topk_idx = torch.rand((N, experts), generator=generator).topk(K, dim=1).indices
    topk_idx[torch.rand(topk_idx.shape, generator=generator) < 0.2] = -1
    return x, topk_idx, torch.ones((N, K))


def wanted_sums(x, topk_idx):
    """Expert e multiplies by e + 1."""
    return x.float() * (topk_idx + 1).sum(1, keepdim=True)


def output_of(x, idx, first):
    return (x.float() * torch.where(idx < 0, 0, idx + first + 1).sum(1, keepdim=True)).bfloat16()


def same(got, want):
    torch.testing.assert_close(got.float(), want.float(), rtol=2**-6, atol=0)


def check_first_experts(_):
    for experts in (1, 3, 4, 5, 10, 127):
        first = first_experts(experts, RANKS)
        owners = [r for r in range(RANKS) for _ in range(first[r], first[r + 1])]
        numbers = torch.arange(experts + 1)
        assert ranks_of(numbers, experts, RANKS).tolist() == [*owners, RANKS]
        assert ranks_of(numbers.int(), experts, RANKS).tolist() == [*owners, RANKS]


def check_low_latency(_):
    rank = dist.get_rank()
    for experts in NUMBERS:
        first = first_experts(experts, RANKS)
        most, here = -(-experts // RANKS), first[rank + 1] - first[rank]
        size = deep_ep.Buffer.get_low_latency_rdma_size_hint(N, H, RANKS, experts)
        buffer = deep_ep.Buffer(
            dist.group.WORLD, 0, size, low_latency_mode=True, explicitly_destroy=True
        )
        x, topk_idx, weights = make_inputs(experts)
        stats = torch.zeros(most, dtype=torch.int32)
        for use_fp8 in (False, True):
            recv, counts, handle, *_ = buffer.low_latency_dispatch(
                x, topk_idx, N, experts, use_fp8=use_fp8, cumulative_local_expert_recv_stats=stats
            )
            rows = recv[0] if use_fp8 else recv
            assert rows.shape[0] == counts.shape[0] == most
            assert (counts[here:] == 0).all()
        assert torch.equal(stats, 2 * counts)
        recv, counts, handle, *_ = buffer.low_latency_dispatch(
            x, topk_idx, N, experts, use_fp8=False
        )
        factors = torch.arange(first[rank] + 1, first[rank] + 1 + most)[:, None, None]
        y = (recv.float() * factors).bfloat16()
        sums, *_ = buffer.low_latency_combine(y, topk_idx, weights, handle)
        same(sums, wanted_sums(x, topk_idx))
        buffer.destroy()


def check_normal(_):
    rank = dist.get_rank()
    buffer = deep_ep.Buffer(dist.group.WORLD, 1 << 24, explicitly_destroy=True)
    for experts in NUMBERS:
        first = first_experts(experts, RANKS)
        here = first[rank + 1] - first[rank]
        x, topk_idx, weights = make_inputs(experts)
        for _ in range(2):  # the first layout comes from no group
            per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(
                topk_idx, experts
            )
            owners = ranks_of(topk_idx, experts, RANKS)
            there = torch.stack(
                [((owners == r) & (topk_idx >= 0)).any(1) for r in range(RANKS)], dim=1
            )
            assert torch.equal(in_rank, there) and torch.equal(per_rank, there.sum(0).int())
            recv_x, recv_idx, recv_weights, counts, handle, _ = buffer.dispatch(
                x,
                num_tokens_per_rank=per_rank,
                num_tokens_per_rdma_rank=per_node,
                is_token_in_rank=in_rank,
                num_tokens_per_expert=per_expert,
                topk_idx=topk_idx,
                topk_weights=weights,
            )
            assert counts == [int((recv_idx == expert).sum()) for expert in range(here)]
            y = output_of(recv_x, recv_idx, first[rank])
            sums, back, _ = buffer.combine(y, handle, recv_weights)
            same(sums, wanted_sums(x, topk_idx))
            assert torch.equal(back, weights.masked_fill(topk_idx < 0, 0))
    buffer.destroy()


def check_elastic(_):
    rank = dist.get_rank()
    buffer = deep_ep.ElasticBuffer(
        dist.group.WORLD, num_max_tokens_per_rank=N, hidden=H, explicitly_destroy=True
    )
    for experts in NUMBERS:
        first = first_experts(experts, RANKS)
        here = first[rank + 1] - first[rank]
        x, topk_idx, weights = make_inputs(experts)
        for expand in (False, True):
            for cpu_sync in (True, False):
                stats = torch.zeros(here, dtype=torch.int32)
                recv_x, recv_idx, recv_weights, handle, _ = buffer.dispatch(
                    x,
                    topk_idx,
                    weights,
                    stats,
                    num_experts=experts,
                    expert_alignment=4,
                    do_expand=expand,
                    do_cpu_sync=cpu_sync,
                )
                ends = handle.psum_num_recv_tokens_per_expert
                assert len(ends) == here and len(handle.tensors) >= 3
                if expand:
                    y, start = recv_x.clone(), 0
                    for local, end in enumerate(ends.tolist()):
                        start = -(-start // 4) * 4
                        y[start:end] *= first[rank] + local + 1
                        start = end
                    sums, *_ = buffer.combine(y, handle)
                else:
                    y = output_of(recv_x, recv_idx, first[rank])
                    sums, *_ = buffer.combine(y, handle, recv_weights)
                same(sums, wanted_sums(x, topk_idx))
    buffer.destroy()


def check_warmup(_):
    for experts in NUMBERS:
        size = deep_ep.Buffer.get_low_latency_rdma_size_hint(N, H, RANKS, experts)
        buffer = deep_ep.Buffer(
            dist.group.WORLD, 1 << 22, size, low_latency_mode=True, explicitly_destroy=True
        )
        buffer.warmup(N, H, experts, K)
        buffer.warmup_low_latency(N, H, experts, K)
        buffer.destroy()


add_tests(globals(), lambda: run_checks(RANKS, __name__))
