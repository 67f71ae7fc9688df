# SPDX-License-Identifier: Apache-2.0
"""Inputs, buffers and references for the tests of Buffer and ElasticBuffer in normal mode."""

import torch
import torch.distributed as dist
from torch_ranks import seeded

import deep_ep

H, K, E, MOST = 256, 4, 16, 64


def make_buffer(**options):
    return deep_ep.Buffer(dist.group.WORLD, 1 << 20, explicitly_destroy=True, **options)


def make_elastic(**options):
    """An ElasticBuffer of the same sizes."""
    return deep_ep.ElasticBuffer(
        dist.group.WORLD,
        num_max_tokens_per_rank=MOST,
        hidden=H,
        num_topk=K,
        explicitly_destroy=True,
        **options,
    )


_shared = []


def the_buffer():
    if not _shared:
        _shared.append(make_buffer())
    return _shared[0]


def make_inputs(tokens, top_k=K, seed=0, none=0.2):
    generator = seeded(100 * seed + dist.get_rank())
    x = torch.randn((tokens, H), generator=generator).bfloat16()
    topk_idx = torch.rand((tokens, E), generator=generator).topk(top_k, dim=1).indices
    topk_idx[torch.rand((tokens, top_k), generator=generator) < none] = -1
    return x, topk_idx, torch.rand((tokens, top_k), generator=generator)


def my_tokens():
    return (37, 0, 64, 5)[dist.get_rank() % 4]


def layout_of(buffer, topk_idx):
    per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(topk_idx, E)
    layout = {
        "num_tokens_per_rank": per_rank,
        "is_token_in_rank": in_rank,
        "num_tokens_per_expert": per_expert,
    }
    assert per_node is None and event.event is None
    return layout


def masked(weights, idx):
    return weights.masked_fill(idx < 0, 0)


def plain_sum(y_rows, in_rank):
    """The combine of the received rows as expert output."""
    return (y_rows.float() * in_rank.sum(1, keepdim=True)).bfloat16()
