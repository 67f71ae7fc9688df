# SPDX-License-Identifier: Apache-2.0
"""Inputs, buffers and references for the tests of ElasticBuffer."""

import torch
import torch.distributed as dist
from torch_ranks import seeded

import deep_ep
from deep_ep.utils import refs
from deep_ep.utils.math import align

H, K, E, M = 256, 4, 12, 32
MIB = 1 << 20


def make_buffer(**options):
    options = {"num_max_tokens_per_rank": M, "hidden": H, "num_topk": K, **options}
    return deep_ep.ElasticBuffer(dist.group.WORLD, explicitly_destroy=True, **options)


_shared = {}


def the_buffer(multiple=True):
    if multiple not in _shared:
        _shared[multiple] = make_buffer(allow_multiple_reduction=multiple)
    return _shared[multiple]


def make_inputs(seed, tokens=None, none=0.2):
    generator = seeded(100 * seed + dist.get_rank())
    tokens = (13, 0, M, 6)[dist.get_rank() % 4] if tokens is None else tokens
    x = torch.randn((tokens, H), generator=generator).bfloat16()
    topk_idx = torch.rand((tokens, E), generator=generator).topk(K, dim=1).indices
    topk_idx[torch.rand((tokens, K), generator=generator) < none] = -1
    return x, topk_idx, torch.rand((tokens, K), generator=generator)


class Expected:
    """The rows of a dispatch by the reference, rank-major and by expert."""

    def __init__(self, x, topk_idx, weights, alignment=1):
        self.x, self.idx, self.weights, self.source, self.per_rank = refs.dispatch(
            x, topk_idx, weights, M, E
        )
        ranks = dist.get_world_size()
        self.counts = [int((self.idx == e).sum()) for e in range(E // ranks)]
        self.aligned = [align(count, alignment) for count in self.counts]
        self.starts = [sum(self.aligned[:e]) for e in range(E // ranks)]
        self.slot_rows = torch.full_like(self.idx, -1)  # expert-major row of each top-k slot
        for e, start in enumerate(self.starts):
            for number, (row, slot) in enumerate((self.idx == e).nonzero().tolist()):
                self.slot_rows[row, slot] = start + number

    def expand(self, rows, fill=0):
        out = torch.full((sum(self.aligned), *rows.shape[1:]), fill, dtype=rows.dtype)
        for row, slot in (self.slot_rows >= 0).nonzero().tolist():
            out[self.slot_rows[row, slot]] = rows[row]
        return out


def expert_output_of_slots(handle_source, slot_rows, rows):
    """[rows, H] with generated expert output for the top-k slots of each received token, at the
    rows in `slot_rows`."""
    expert_output = refs.generate_pre_combine_data(handle_source, M, K, H)
    out = torch.zeros((rows, H), dtype=torch.bfloat16)
    for row, slot in (slot_rows >= 0).nonzero().tolist():
        out[slot_rows[row, slot]] = expert_output[row, slot]
    return out


def local_expert_output(tokens):
    """The same expert output at the sender: [T, K, H]."""
    first = dist.get_rank() * M
    return refs.generate_pre_combine_data(torch.arange(first, first + tokens), M, K, H)


def combined(expert_output, topk_idx, bias=None, in_local=True):
    """The combine of [T, K, H]. The sum of a node is rounded before it crosses to another node,
    whatever the options."""
    nodes, per_node = the_buffer().get_physical_domain_size()
    return refs.combine(expert_output, topk_idx, nodes, per_node, E, bias, in_local, nodes > 1)


def expert_output_of_ranks(want):
    """The generated expert output for received rows, summed over the experts of a rank."""
    expert_output = refs.generate_pre_combine_data(want.source, M, K, H)
    return refs.ordered_accumulate(expert_output.masked_fill((want.idx < 0)[..., None], 0))


def verify_handle(handle, want, topk_idx, expert_major):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = want.idx.shape[0]
    assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == want.per_rank.cumsum(0).tolist()
    ends = [
        start + (count if expert_major else full)
        for start, count, full in zip(want.starts, want.counts, want.aligned)
    ]
    assert handle.psum_num_recv_tokens_per_expert.tolist() == ends
    assert handle.num_unaligned_recv_tokens_per_expert.tolist() == want.counts
    metadata = handle.recv_src_metadata
    assert metadata.dtype == torch.int32 and metadata.shape[1] == K + 2
    assert torch.equal(metadata[:rows, 0], want.source) and (metadata[rows:] == -1).all()
    for row in range(rows):
        last = int((want.idx[row] >= 0).nonzero()[-1])
        assert metadata[row, 1] == want.source[row] // M * K + last
    assert torch.equal(
        metadata[:rows, 2:].long(),
        want.slot_rows if expert_major else torch.full_like(want.idx, -1),
    )
    slots, counters = torch.full_like(topk_idx, -1), [0] * ranks
    for t, row in enumerate(topk_idx.tolist()):
        owners = [expert // (E // ranks) if expert >= 0 else -1 for expert in row]
        for k, owner in enumerate(owners):
            if owner >= 0 and owner not in owners[k + 1 :]:
                slots[t, k] = rank * M + counters[owner]
        for owner in set(owners) - {-1}:
            counters[owner] += 1
    assert torch.equal(handle.dst_buffer_slot_idx.long(), slots)
