# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine of Buffer in normal mode on four ranks of a gloo group, against plain torch
on gathered inputs."""

import os

import pytest
import torch
import torch.distributed as dist
from buffer_cases import (
    E,
    H,
    K,
    MOST,
    layout_of,
    make_buffer,
    make_inputs,
    masked,
    my_tokens,
    plain_sum,
    the_buffer,
)
from torch_ranks import add_tests, run_checks

import deep_ep
from deep_ep.utils import refs
from deep_ep.utils.math import per_token_cast_back, per_token_cast_to_fp8


def check_layout(_):
    _, topk_idx, _ = make_inputs(my_tokens())
    layout = layout_of(the_buffer(), topk_idx)
    rank_of = torch.where(topk_idx < 0, -1, topk_idx // (E // dist.get_world_size()))
    for rank in range(dist.get_world_size()):
        in_rank = (rank_of == rank).any(1)
        assert torch.equal(layout["is_token_in_rank"][:, rank], in_rank)
        assert layout["num_tokens_per_rank"][rank] == in_rank.sum()
    for expert in range(E):
        assert layout["num_tokens_per_expert"][expert] == (topk_idx == expert).sum()
    assert (
        layout["num_tokens_per_rank"].dtype == layout["num_tokens_per_expert"].dtype == torch.int32
    )


def check_dispatch_and_combine(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=1)
    layout = layout_of(buffer, topk_idx)
    recv_x, recv_idx, recv_weights, per_expert, handle, event = buffer.dispatch(
        x, topk_idx=topk_idx, topk_weights=weights, expert_alignment=8, **layout
    )
    ref_x, ref_idx, ref_weights, ref_source, ref_counts = refs.dispatch(
        x, topk_idx, weights, MOST, E
    )
    assert torch.equal(recv_x, ref_x) and torch.equal(recv_idx, ref_idx)
    assert torch.equal(recv_weights, masked(ref_weights, ref_idx))
    assert (
        recv_idx.dtype == deep_ep.topk_idx_t
        and recv_x.is_contiguous()
        and recv_weights.is_contiguous()
    )
    local = E // dist.get_world_size()
    assert per_expert == [-(-int((ref_idx == e).sum()) // 8) * 8 for e in range(local)]
    assert event.event is None

    rank, ranks = dist.get_rank(), dist.get_world_size()
    assert isinstance(handle, tuple) and len(handle) == 6
    prefix, channel_prefix, recv_channel_prefix, source, in_rank, send_head = handle
    assert (
        prefix.shape == (ranks, ranks) and prefix[:, rank].tolist() == ref_counts.cumsum(0).tolist()
    )
    assert torch.equal(channel_prefix, layout["num_tokens_per_rank"][:, None])
    assert torch.equal(recv_channel_prefix, torch.zeros((ranks, 1), dtype=torch.int32))
    assert torch.equal(source, ref_source % MOST) and source.dtype == torch.int32
    assert torch.equal(in_rank, layout["is_token_in_rank"])
    assert torch.equal(send_head >= 0, in_rank) and send_head.shape == (x.shape[0], ranks)

    sums, summed_weights, _ = buffer.combine(recv_x, handle, topk_weights=recv_weights)
    assert torch.equal(sums, plain_sum(x, in_rank))
    assert torch.equal(summed_weights, masked(weights, topk_idx))


def check_sum_in_float32(_):
    """Expert output that differs by rank: added in float32 after the biases, rounded once."""
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=2)
    layout = layout_of(buffer, topk_idx)
    recv_x, recv_idx, *_, handle, _ = buffer.dispatch(
        x, topk_idx=topk_idx, topk_weights=weights, **layout
    )
    rank, ranks = dist.get_rank(), dist.get_world_size()
    expert_output = (recv_x.float() * (1.37 + rank)).bfloat16()
    for bias in (None, torch.randn_like(x), (torch.randn_like(x), torch.randn_like(x))):
        sums, none, _ = buffer.combine(expert_output, handle, bias=bias)
        # In the order of the last top-k slot of each rank.
        slots = torch.zeros((x.shape[0], K, H), dtype=torch.bfloat16)
        rank_of = torch.where(topk_idx < 0, -1, topk_idx // (E // ranks))
        for t, row in enumerate(rank_of.tolist()):
            for k, owner in enumerate(row):
                if owner >= 0 and owner not in row[k + 1 :]:
                    slots[t, k] = (x[t].float() * (1.37 + owner)).bfloat16()
        assert torch.equal(sums, refs.ordered_accumulate(slots, bias)) and none is None


def check_cached_dispatch(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=3)
    *_, handle, _ = buffer.dispatch(
        x, topk_idx=topk_idx, topk_weights=weights, **layout_of(buffer, topk_idx)
    )
    other = x * 2
    result = buffer.dispatch(other, handle=handle)
    assert len(result) == 6 and result[1:5] == (None, None, None, None)
    assert torch.equal(result[0], refs.dispatch(other, topk_idx, None, MOST, E)[0])
    data, scales = per_token_cast_to_fp8(x)
    (recv_data, recv_scales), *_ = buffer.dispatch((data, scales), handle=handle)
    want_data, want_scales = refs.dispatch((data, scales), topk_idx, None, MOST, E)[0]
    assert torch.equal(recv_data.view(torch.uint8), want_data.view(torch.uint8))
    assert torch.equal(recv_scales, want_scales)


def check_fp8(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=4)
    data, scales = per_token_cast_to_fp8(x)
    for given in (
        scales,
        scales.t().contiguous().t(),
        torch.randint(0, 1 << 30, (x.shape[0], 5), dtype=torch.int32),
    ):
        (recv_data, recv_scales), recv_idx, *_ = buffer.dispatch(
            (data, given), topk_idx=topk_idx, topk_weights=weights, **layout_of(buffer, topk_idx)
        )
        (want_data, want_scales), want_idx, *_ = refs.dispatch(
            (data, given), topk_idx, None, MOST, E
        )
        assert recv_data.dtype == torch.float8_e4m3fn
        assert torch.equal(recv_data.view(torch.uint8), want_data.view(torch.uint8))
        assert (
            torch.equal(recv_scales, want_scales)
            and recv_scales.is_contiguous()
            and recv_scales.dtype == given.dtype
        )
        assert torch.equal(recv_idx, want_idx)
    back = per_token_cast_back(recv_data, torch.ones((recv_data.shape[0], H // 128)))
    assert back.shape == recv_data.shape


def check_worst_tokens(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=5)
    worst = MOST * dist.get_world_size() + 3
    recv_x, recv_idx, recv_weights, per_expert, handle, _ = buffer.dispatch(
        x,
        topk_idx=topk_idx,
        topk_weights=weights,
        num_worst_tokens=worst,
        **layout_of(buffer, topk_idx),
    )
    want_x, want_idx, *_ = refs.dispatch(x, topk_idx, None, MOST, E)
    rows = want_x.shape[0]
    assert (
        recv_x.shape == (worst, H)
        and recv_idx.shape == recv_weights.shape == (worst, K)
        and per_expert == []
    )
    assert torch.equal(recv_x[:rows], want_x) and torch.equal(recv_idx[:rows], want_idx)
    assert (recv_idx[rows:] == -1).all()
    again, *_ = buffer.dispatch(x, handle=handle)
    assert again.shape == recv_x.shape and torch.equal(again[:rows], want_x)
    sums, *_ = buffer.combine(recv_x, handle)
    assert torch.equal(sums, plain_sum(x, handle[4]))


def check_without_topk(_):
    """A caller without top-k indices gets counts per expert from all ranks."""
    buffer = the_buffer()
    x, topk_idx, _ = make_inputs(my_tokens(), seed=6)
    layout = layout_of(buffer, topk_idx)
    recv_x, recv_idx, recv_weights, per_expert, handle, _ = buffer.dispatch(
        x, expert_alignment=4, **layout
    )
    want_x, want_idx, *_ = refs.dispatch(x, topk_idx, None, MOST, E)
    assert torch.equal(recv_x, want_x) and recv_idx is None and recv_weights is None
    assert per_expert == [
        -(-int((want_idx == e).sum()) // 4) * 4 for e in range(E // dist.get_world_size())
    ]
    sums, *_ = buffer.combine(recv_x, handle)
    assert torch.equal(sums, plain_sum(x, layout["is_token_in_rank"]))


def check_growth_keeps_old_handles(_):
    """A handle stays usable after calls with more tokens, more scales and another top-k."""
    buffer = make_buffer()
    x, topk_idx, weights = make_inputs(7, seed=7)
    recv_x, *_, handle, _ = buffer.dispatch(
        x, topk_idx=topk_idx, topk_weights=weights, **layout_of(buffer, topk_idx)
    )
    for tokens, top_k in ((300, K), (3, 2), (700, 2)):
        more_x, more_idx, more_weights = make_inputs(tokens, top_k, seed=8)
        more, *_ = buffer.dispatch(
            more_x, topk_idx=more_idx, topk_weights=more_weights, **layout_of(buffer, more_idx)
        )
        assert torch.equal(more, refs.dispatch(more_x, more_idx, None, 700, E)[0])
    sums, *_ = buffer.combine(recv_x, handle)
    assert torch.equal(sums, plain_sum(x, handle[4]))
    again, *_ = buffer.dispatch(x, handle=handle)
    assert torch.equal(again, recv_x)
    few_x, few_idx, few_weights = make_inputs(3, seed=9)
    few = (per_token_cast_to_fp8(few_x)[0], torch.ones((3, 40)))
    buffer.dispatch(few, topk_idx=few_idx, topk_weights=few_weights, **layout_of(buffer, few_idx))
    more_x, more_idx, more_weights = make_inputs(300, seed=8)
    buffer.dispatch(
        more_x, topk_idx=more_idx, topk_weights=more_weights, **layout_of(buffer, more_idx)
    )
    # 7, 300 and 40 scales with top-4; 3 and 700 with top-2.
    assert len(list(buffer.runtime.groups)) == 5
    buffer.destroy()


def check_results_are_ordinary_tensors(_):
    """A caller may hold more results than fit in the heap; they stay valid after destroy."""
    buffer = make_buffer()
    held = []
    for seed in range(20):
        x, topk_idx, weights = make_inputs(16, seed=seed)
        recv_x, *_ = buffer.dispatch(
            x, topk_idx=topk_idx, topk_weights=weights, **layout_of(buffer, topk_idx)
        )
        held.append((recv_x, refs.dispatch(x, topk_idx, None, MOST, E)[0]))
    calls = next(iter(buffer.runtime.groups)).calls
    assert 0 < calls.held < 20
    view = held[0][0][1:]
    held[1:2] = []
    buffer.destroy()
    assert all(torch.equal(got, want) for got, want in held)
    want = held[0][1][1:]
    held.clear()
    assert torch.equal(view, want) and calls.held == 1


def check_results_are_copied_where_that_is_asked_for(_):
    """With EP_COPY_RECEIVED, read at the first call of a shape, no result stays in the heap.
    Nothing else changes."""
    os.environ["EP_COPY_RECEIVED"] = "1"
    try:
        buffer, held = make_buffer(), []
        for seed in range(3):
            x, topk_idx, weights = make_inputs(16, seed=seed)
            layout = layout_of(buffer, topk_idx)
            recv_x, recv_idx, recv_weights, _, handle, _ = buffer.dispatch(
                x, topk_idx=topk_idx, topk_weights=weights, **layout
            )
            again, *_ = buffer.dispatch(2 * x, handle=handle)
            held.append((recv_x, again, refs.dispatch(x, topk_idx, None, MOST, E)[0]))
            sums, summed_weights, _ = buffer.combine(recv_x, handle, topk_weights=recv_weights)
            assert torch.equal(sums, plain_sum(x, layout["is_token_in_rank"]))
            assert torch.equal(summed_weights, masked(weights, topk_idx))
        assert [group.calls.held for group in buffer.runtime.groups] == [0]
        assert all(
            torch.equal(got, want) and torch.equal(twice, 2 * want) for got, twice, want in held
        )
        buffer.destroy()
    finally:
        del os.environ["EP_COPY_RECEIVED"]


def check_events(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=9)
    options = {
        "previous_event": buffer.capture(),
        "async_finish": True,
        "allocate_on_comm_stream": True,
    }
    per_rank, _, per_expert, in_rank, event = buffer.get_dispatch_layout(topk_idx, E, **options)
    event.current_stream_wait()
    recv_x, *_, handle, event = buffer.dispatch(
        x,
        None,
        per_rank,
        None,
        in_rank,
        per_expert,
        topk_idx,
        weights,
        1,
        0,
        deep_ep.Buffer.get_dispatch_config(4),
        **options,
    )
    with event:
        pass
    sums, _, event = buffer.combine(
        recv_x, handle, config=deep_ep.Buffer.get_combine_config(4), **options
    )
    event.current_stream_wait()
    assert torch.equal(sums, plain_sum(x, in_rank))


def check_internode_methods(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=10)
    layout = layout_of(buffer, topk_idx)
    config = deep_ep.Config()
    recv_x, *_, handle, _ = buffer.internode_dispatch(
        x, topk_idx=topk_idx, topk_weights=weights, config=config, **layout
    )
    sums, *_ = buffer.internode_combine(recv_x, handle, config=config)
    assert torch.equal(sums, plain_sum(x, handle[4]))
    with pytest.raises(AssertionError, match="config"):
        buffer.internode_combine(recv_x, handle)


add_tests(globals(), lambda: run_checks(4, __name__))
