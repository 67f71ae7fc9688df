# SPDX-License-Identifier: Apache-2.0
"""A small layer of experts on CUDA tensors, and buffers of deep_ep between ranks that are threads
sharing one GPU and a communicator like that of mpi4py."""

import torch
from gpu_worlds import fail, fetch, on_threads, settle

from deep_ep import Buffer
from deep_ep.utils.math import calc_diff, per_token_cast_back

H, K, E, N = 512, 3, 16, 8


def make_inputs(rank, tokens, seed):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    x = torch.randn((tokens, H), generator=generator).bfloat16()
    scores = torch.rand((tokens, E), generator=generator)
    topk_weights, topk_ids = scores.softmax(1).topk(K, dim=1)
    return x.cuda(), topk_ids.cuda(), topk_weights.cuda()


def all_experts():
    """The factor of each expert; experts differ without a matrix product."""
    return torch.linspace(-2, 2, E)


def local_experts(rank, ranks):
    return all_experts().chunk(ranks)[rank].cuda()


def layer(x, topk_ids, topk_weights, experts):
    """The layer in one process, in float32; ids outside `experts` are ignored."""
    known = (topk_ids >= 0) & (topk_ids < len(experts))
    factor = (experts[topk_ids.clamp(0, len(experts) - 1)] * topk_weights * known).sum(
        1, keepdim=True
    )
    return x.float() * factor


def weighted_expert_output(rows, ids, weights, experts):
    return layer(rows, ids, weights, experts).bfloat16()


def close(got, want, tolerance=1e-3):
    return got.numel() == 0 or calc_diff(fetch(got), fetch(want)) < tolerance


def with_buffer(ranks, body, **options):
    def pe(comm):
        buffer = Buffer(None, comm=comm, explicitly_destroy=True, **options)
        try:
            result = body(buffer, comm)
            settle()
            comm.Barrier()  # destroy() waits for the whole GPU
            buffer.destroy()
        except BaseException as error:
            if buffer.runtime is not None:
                fail(buffer.runtime.world, error)
            del buffer  # this frame lives on with the exception
            raise
        return result

    return on_threads(ranks, pe)


def layout_of(buffer, topk_ids):
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_ids, E)
    return {
        "num_tokens_per_rank": per_rank,
        "is_token_in_rank": in_rank,
        "num_tokens_per_expert": per_expert,
    }


def low_latency(ranks):
    size = Buffer.get_low_latency_rdma_size_hint(N, H, ranks, E)
    return {"num_rdma_bytes": size, "low_latency_mode": True, "num_qps_per_rank": E // ranks}


def expert_rows(recv, count, use_fp8, experts):
    rows = recv
    if use_fp8:
        rows = per_token_cast_back(recv[0].flatten(0, 1), recv[1].flatten(0, 1)).view(recv[0].shape)
    expert_output = (rows.float() * experts[:, None, None]).bfloat16()
    return expert_output.masked_fill_(
        torch.arange(rows.shape[1], device="cuda")[None, :, None] >= count[:, None, None], 0
    )
