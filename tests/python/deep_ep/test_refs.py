# SPDX-License-Identifier: Apache-2.0
"""The reference dispatch and combine against loops over the routing of all ranks."""

import itertools
import math
import os
import socket

import pytest
import torch
import torch.distributed as dist
from deep_ep.utils import envs, refs
from torch_ranks import spawn

RANKS, MAX_TOKENS, HIDDEN, TOPK, EXPERTS = 4, 9, 32, 3, 8
PER_RANK = EXPERTS // RANKS


def make(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, scales, expert indices and weights of a rank; every rank can compute those of all
    ranks."""
    generator = torch.Generator().manual_seed(rank + 1)
    tokens = [MAX_TOKENS, 0, 5, 7][rank]
    x = torch.randn(tokens, HIDDEN, generator=generator).bfloat16()
    scales = torch.rand(tokens, 2, generator=generator)
    choice = [torch.randperm(EXPERTS, generator=generator)[:TOPK] for _ in range(tokens)]
    topk_idx = torch.stack(choice) if choice else torch.empty((0, TOPK), dtype=torch.int64)
    topk_idx[torch.rand(topk_idx.shape, generator=generator) < 0.3] = -1
    weights = torch.rand(tokens, TOPK, generator=generator)
    return x, scales, topk_idx, weights


def expected_rows(rank: int) -> list[tuple[int, int]]:
    """(source rank, token) of the rows of `rank`, in order."""
    local = range(rank * PER_RANK, (rank + 1) * PER_RANK)
    return [
        (source, token)
        for source in range(RANKS)
        for token, experts in enumerate(make(source)[2].tolist())
        if any(e in local for e in experts)
    ]


def check_dispatch(rank: int, fp8: bool, index_type: torch.dtype) -> None:
    x, scales, topk_idx, weights = make(rank)
    data = (x.to(torch.float8_e4m3fn), scales.t().contiguous().t()) if fp8 else x
    got_x, got_idx, got_weights, got_source, got_counts = refs.dispatch(
        data, topk_idx.to(index_type), weights, MAX_TOKENS, EXPERTS
    )
    rows = expected_rows(rank)
    assert (
        got_source.dtype == torch.int32
        and got_counts.dtype == torch.int32
        and got_idx.dtype == index_type
    )
    assert got_source.tolist() == [source * MAX_TOKENS + token for source, token in rows]
    assert got_counts.tolist() == [sum(source == r for source, _ in rows) for r in range(RANKS)]
    inputs = [make(source) for source in range(RANKS)]
    for row, (source, token) in enumerate(rows):
        sent_x, sent_scales, sent_idx, sent_weights = (t[token] for t in inputs[source])
        local = [e - rank * PER_RANK for e in sent_idx.tolist()]
        assert got_idx[row].tolist() == [e if 0 <= e < PER_RANK else -1 for e in local]
        assert torch.equal(got_weights[row], sent_weights)
        if fp8:
            assert torch.equal(got_x[0][row].float(), sent_x.to(torch.float8_e4m3fn).float())
            assert torch.equal(got_x[1][row], sent_scales)
        else:
            assert torch.equal(got_x[row], sent_x)


def check_round_trip(rank: int, group: dist.ProcessGroup) -> None:
    """Expert output generated at the receiver equals that generated at the source, so reference
    and loops agree."""
    envs.init_seed(11)
    _, _, topk_idx, weights = make(rank)
    _, got_idx, no_weights, source, _ = refs.dispatch(
        make(rank)[0], topk_idx, None, MAX_TOKENS, EXPERTS, group
    )
    assert no_weights is None
    there = refs.generate_pre_combine_data(source, MAX_TOKENS, TOPK, HIDDEN, group)
    for row, global_token in enumerate(source.tolist()):
        for slot in range(TOPK):
            seed = global_token * TOPK + slot
            limit = RANKS * MAX_TOKENS * TOPK
            for channel in (0, 1, HIDDEN - 1):
                angle = (seed * 131071 % limit + 1) / limit * (channel + 1) + math.sin(11)
                assert there[row, slot, channel].item() == pytest.approx(math.sin(angle), abs=0.005)
    # Sends all rows back by an object gather and compares them with those that the source computes.
    sent = [None] * RANKS
    dist.all_gather_object(sent, (source.tolist(), got_idx.tolist(), there), group=group)
    mine = rank * MAX_TOKENS + torch.arange(topk_idx.size(0))
    here = refs.generate_pre_combine_data(mine, MAX_TOKENS, TOPK, HIDDEN)
    seen = torch.zeros(topk_idx.shape, dtype=torch.int)
    for owner, (tokens, local_idx, rows) in enumerate(sent):
        for row, global_token in enumerate(tokens):
            token = global_token - rank * MAX_TOKENS
            if not 0 <= token < topk_idx.size(0):
                continue
            for slot, expert in enumerate(local_idx[row]):
                if expert >= 0:
                    assert topk_idx[token, slot] == owner * PER_RANK + expert
                    assert torch.equal(rows[row, slot], here[token, slot])
                    seen[token, slot] += 1
    assert torch.equal(seen, (topk_idx >= 0).int())


def run_rank(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="1", RANK="0")
    _, num_ranks, group = envs.init_dist(rank, RANKS, seed=5)
    assert num_ranks == RANKS
    torch.set_default_dtype(torch.float32)
    torch.set_default_device("cpu")
    for fp8, index_type in itertools.product((False, True), (torch.int64, torch.int32)):
        check_dispatch(rank, fp8, index_type)
    check_round_trip(rank, group)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.skipif(
    0 < torch.cuda.device_count() < RANKS, reason="host tensors need gloo, or no GPU"
)
def test_dispatch_on_4_ranks():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(run_rank, (port,), RANKS)


def test_dispatch_alone_needs_no_group():
    x, _, topk_idx, weights = make(0)
    got_x, got_idx, got_weights, source, counts = refs.dispatch(x, topk_idx, weights, 20, EXPERTS)
    kept = (topk_idx >= 0).any(dim=1)
    assert torch.equal(got_x, x[kept]) and torch.equal(got_idx, topk_idx[kept])
    assert torch.equal(got_weights, weights[kept])
    assert source.tolist() == kept.nonzero().flatten().tolist() and counts.tolist() == [
        int(kept.sum())
    ]
    with pytest.raises(AssertionError, match="num_max_tokens_per_rank: got 3"):
        refs.dispatch(x, topk_idx, weights, 3, EXPERTS)


def rounded(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).bfloat16().item()


def sum_in_order(values: list[float]) -> float:
    """The sum in float32, in order."""
    total = torch.zeros((), dtype=torch.float32)
    for value in values:
        total = total + torch.tensor(value, dtype=torch.float32)
    return total.item()


def reduce_slots(slots: dict[int, float], part_of_slot: dict[int, int]) -> dict[int, float]:
    parts: dict[int, list[int]] = {}
    for slot in sorted(slots):
        parts.setdefault(part_of_slot[slot], []).append(slot)
    return {
        max(part): rounded(sum_in_order([slots[slot] for slot in part])) for part in parts.values()
    }


@pytest.mark.parametrize("recipe", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("num_bias", [0, 1, 2])
def test_combine(recipe, num_bias):
    torch.manual_seed(7)
    scaleout, scaleup, experts, topk, tokens, hidden = 2, 2, 16, 6, 40, 5
    per_rank = experts // (scaleout * scaleup)
    topk_idx = torch.stack([torch.randperm(experts)[:topk] for _ in range(tokens)])
    topk_idx[torch.rand(tokens, topk) < 0.2] = -1
    topk_idx[0] = -1
    y = (
        torch.randn(tokens, topk, hidden) * 10 ** torch.randint(-2, 3, (tokens, topk, 1)).float()
    ).bfloat16()
    biases = tuple(torch.randn(tokens, hidden).bfloat16() for _ in range(num_bias))
    bias = (None, biases[0] if biases else None, biases)[num_bias]
    got = refs.combine(y, topk_idx, scaleout, scaleup, experts, bias, *recipe)
    assert got.dtype == torch.bfloat16 and got.shape == (tokens, hidden)
    plain = torch.zeros_like(got)
    for token in range(tokens):
        valid = [slot for slot in range(topk) if topk_idx[token, slot] >= 0]
        rank_of = {slot: int(topk_idx[token, slot]) // per_rank for slot in valid}
        node_of = {slot: rank_of[slot] // scaleup for slot in valid}
        for channel in range(hidden):
            slots = {slot: y[token, slot, channel].item() for slot in valid}
            bias_values = [b[token, channel].item() for b in biases]
            plain[token, channel] = rounded(
                sum_in_order(bias_values + [slots[slot] for slot in valid])
            )
            if recipe[0]:
                slots = reduce_slots(slots, rank_of)
            if recipe[1]:
                slots = reduce_slots(slots, node_of)
            expected = rounded(sum_in_order(bias_values + [slots[slot] for slot in sorted(slots)]))
            assert got[token, channel].item() == expected
    # The data distinguish the orders of summation.
    assert torch.equal(got, plain) == (recipe == (False, False))


def test_ordered_accumulate_rounds_once_and_keeps_the_order():
    # 2^24 + 1 is lost in float32, unless the large values cancel first.
    big, one = float(1 << 24), 1.0
    y = torch.tensor(
        [[[big], [one], [-big]], [[big], [-big], [one]], [[1.0], [2.0**-9], [2.0**-9]]]
    ).bfloat16()
    assert refs.ordered_accumulate(y).flatten().tolist() == [0.0, 1.0, rounded(1 + 2.0**-8)]
    # The bias is first: 1 is lost in 2^24, which then cancels; -2^24 + 2^24 + 1 - 2^24 rounds to
    # -2^24.
    bias = torch.tensor([[-big], [1.0], [0.0]]).bfloat16()
    assert refs.ordered_accumulate(y, bias)[:2].flatten().tolist() == [-big, 1.0]
    assert refs.ordered_accumulate(y[:, :0], (bias, bias)).flatten().tolist() == [
        -2 * big,
        2.0,
        0.0,
    ]
