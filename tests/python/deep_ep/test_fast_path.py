# SPDX-License-Identifier: Apache-2.0
"""Repeated calls of Buffer and ElasticBuffer: their results are those of the first ones, whatever
the calls between, and unusual arguments change no more than they should."""

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from buffer_cases import (
    E,
    H,
    MOST,
    layout_of,
    make_buffer,
    make_elastic,
    make_inputs,
    masked,
    my_tokens,
    plain_sum,
)
from torch_ranks import add_tests, run_checks

import deep_ep
from deep_ep.buffers.groups import GroupPool
from deep_ep.utils import EventHandle, EventOverlap, refs
from deep_ep.utils.math import per_token_cast_to_fp8


def worst():
    return MOST * dist.get_world_size()


def dispatch(buffer, x, topk_idx, weights, layout=None, **options):
    layout = layout or layout_of(buffer, topk_idx)
    options = {"num_worst_tokens": worst(), **options}
    return buffer.dispatch(x, topk_idx=topk_idx, topk_weights=weights, **layout, **options)


def warm_buffer():
    """A buffer after a first pair, which creates the group."""
    buffer = make_buffer()
    dispatch(buffer, *make_inputs(my_tokens()))
    return buffer


def check_later_pairs(_):
    buffer = warm_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=1)
    ref_x, ref_idx, ref_weights, ref_source, ref_counts = refs.dispatch(
        x, topk_idx, weights, MOST, E
    )
    rows = len(ref_x)
    layout = layout_of(buffer, topk_idx)
    recv_x, recv_idx, recv_weights, per_expert, handle, event = dispatch(
        buffer, x, topk_idx, weights, layout
    )
    sums, summed_weights, _ = buffer.combine(recv_x, handle, topk_weights=recv_weights)
    again, *rest = buffer.dispatch(2 * x, handle=handle)
    assert recv_x.shape == (worst(), H) and torch.equal(recv_x[:rows], ref_x)
    assert torch.equal(recv_idx[:rows], ref_idx) and bool((recv_idx[rows:] == -1).all())
    assert torch.equal(recv_weights[:rows], masked(ref_weights, ref_idx))
    assert per_expert == [] and event.event is None and rest[:4] == [None] * 4
    assert torch.equal(sums, plain_sum(x, layout["is_token_in_rank"]))
    assert torch.equal(summed_weights, masked(weights, topk_idx))
    assert torch.equal(again[:rows], 2 * ref_x)
    prefix, sent, _, source, in_rank, _ = handle
    assert prefix[:, dist.get_rank()].tolist() == ref_counts.cumsum(0).tolist()
    assert torch.equal(source[:rows], ref_source % MOST)
    assert torch.equal(sent[:, 0], layout["num_tokens_per_rank"])
    assert in_rank is layout["is_token_in_rank"]
    local = E // dist.get_world_size()
    counted = [int((ref_idx == e).sum()) for e in range(local)]
    assert handle.layout.expert_counts.tolist() == counted
    assert handle.layout.expert_ends.tolist() == torch.tensor(counted).cumsum(0).tolist()
    buffer.destroy()


def check_aligned_counts(_):
    buffer = warm_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=2)
    *_, handle, _ = dispatch(buffer, x, topk_idx, weights, expert_alignment=8)
    counts = handle.layout.expert_counts
    assert torch.equal(handle.layout.expert_ends, ((counts + 7) // 8 * 8).cumsum(0).int())
    buffer.destroy()


def check_float8(_):
    buffer = warm_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=3)
    codes, scales = per_token_cast_to_fp8(x)
    (got, got_scales), *_, handle, _ = dispatch(buffer, (codes, scales), topk_idx, weights)
    (again, _), *_ = buffer.dispatch((codes, scales.t().contiguous().t()), handle=handle)
    assert got.dtype == torch.float8_e4m3fn
    want, *_ = refs.dispatch(codes.view(torch.uint8), topk_idx, None, MOST, E)
    want_scales, *_ = refs.dispatch(scales, topk_idx, None, MOST, E)
    assert torch.equal(got.view(torch.uint8)[: len(want)], want)
    assert torch.equal(again.view(torch.uint8)[: len(want)], want)
    assert torch.equal(got_scales[: len(want)], want_scales)
    buffer.destroy()


def check_with_sizes_on_the_host(_):
    """Without num_worst_tokens ranks agree on the room once per dispatch."""
    buffer = warm_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=7)
    ref_x, ref_idx, *_ = refs.dispatch(x, topk_idx, weights, MOST, E)
    local = E // dist.get_world_size()
    with mock.patch.object(GroupPool, "agree", autospec=True, side_effect=GroupPool.agree) as agree:
        recv_x, recv_idx, _, per_expert, handle, _ = dispatch(
            buffer, x, topk_idx, weights, num_worst_tokens=0, expert_alignment=4
        )
        sums, *_ = buffer.combine(recv_x, handle)
    assert agree.call_count == 1
    assert torch.equal(recv_x, ref_x) and torch.equal(recv_idx, ref_idx)
    assert per_expert == [-(-int((ref_idx == e).sum()) // 4) * 4 for e in range(local)]
    assert torch.equal(sums, plain_sum(x, handle[4]))
    # One rank passes an event, and one has more tokens than the group has room for.
    for rank, tokens in ((1, 3), (2, 3), (2, 5 * MOST)):
        count = tokens if rank == dist.get_rank() else 8
        x, topk_idx, weights = make_inputs(count, seed=8)
        options = {"async_finish": rank == 1 and dist.get_rank() == 1}
        recv_x, *_ = dispatch(buffer, x, topk_idx, weights, num_worst_tokens=0, **options)
        assert torch.equal(recv_x, refs.dispatch(x, topk_idx, None, 5 * MOST, E)[0])
    buffer.destroy()


def check_changed_tensors_are_routed_anew(_):
    """The routing of a layout counts only for the tensors as they were."""
    buffer = warm_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=4)
    layout = layout_of(buffer, topk_idx)
    topk_idx.copy_(topk_idx.roll(1, 0))
    for name, count in layout_of(buffer, topk_idx.clone()).items():
        layout[name].copy_(count)
    recv_x, recv_idx, *_ = dispatch(buffer, x, topk_idx, weights, layout)
    ref_x, ref_idx, *_ = refs.dispatch(x, topk_idx, weights, MOST, E)
    assert torch.equal(recv_x[: len(ref_x)], ref_x)
    assert torch.equal(recv_idx[: len(ref_x)], ref_idx)
    buffer.destroy()


def check_wrong_arguments_are_explained(_):
    """Every rank raises, and nothing is sent."""
    buffer = warm_buffer()
    x, topk_idx, weights = make_inputs(8, seed=5)
    layout = layout_of(buffer, topk_idx)
    wrong = dict(layout, num_tokens_per_rank=layout["num_tokens_per_rank"] + 1)
    with pytest.raises(RuntimeError, match="num_tokens_per_rank is"):
        dispatch(buffer, x, topk_idx, weights, wrong)
    for other in (x.float(), x[:, :128].contiguous().t().contiguous().t(), x[:4]):
        with pytest.raises(RuntimeError, match="dispatch: "):
            dispatch(buffer, other, topk_idx, weights, layout)
    with pytest.raises(RuntimeError, match="topk_weights is"):
        dispatch(buffer, x, topk_idx, weights.double(), layout)
    with pytest.raises(RuntimeError, match="topk_idx has values"):
        buffer.get_dispatch_layout(topk_idx + E, E)
    recv_x, _, recv_weights, _, handle, _ = dispatch(buffer, x, topk_idx, weights, layout)
    with pytest.raises(RuntimeError, match="combine: x is"):
        buffer.combine(recv_x[:1], handle)
    sums, *_ = buffer.combine(recv_x, handle)
    assert torch.equal(sums, plain_sum(x, layout["is_token_in_rank"]))
    buffer.destroy()
    with pytest.raises(RuntimeError, match="destroyed"):
        buffer.get_dispatch_layout(topk_idx, E)


def check_events_and_larger_calls(_):
    buffer = warm_buffer()
    x, topk_idx, weights = make_inputs(8, seed=6)
    on_comm = {"async_finish": True, "allocate_on_comm_stream": True}
    per_rank, _, per_expert, in_rank, event = buffer.get_dispatch_layout(
        topk_idx, E, previous_event=EventOverlap(EventHandle()), **on_comm
    )
    layout = {
        "num_tokens_per_rank": per_rank,
        "is_token_in_rank": in_rank,
        "num_tokens_per_expert": per_expert,
    }
    recv_x, _, recv_weights, _, handle, event = dispatch(
        buffer, x, topk_idx, weights, layout, previous_event=event, **on_comm
    )
    event.current_stream_wait()
    *sums, event = buffer.combine(recv_x, handle, recv_weights, previous_event=event, **on_comm)
    assert event.event is not None
    event.current_stream_wait()
    plain = dispatch(buffer, x, topk_idx, weights)
    plain_sums = buffer.combine(plain[0], plain[4], plain[2])
    assert all(torch.equal(one, other) for one, other in zip(sums, plain_sums))
    layout = layout_of(buffer, topk_idx)
    # More rows than the group has room for: all ranks replace it.
    dispatch(buffer, x, topk_idx, weights, layout, num_worst_tokens=4 * worst())
    again = dispatch(buffer, x, topk_idx, weights)
    assert torch.equal(again[0], plain[0])
    buffer.destroy()


def check_held_results_are_copied(_):
    """A caller may hold more results than there is room for."""
    buffer = warm_buffer()
    held = []
    for seed in range(12):
        x, topk_idx, weights = make_inputs(16, seed=seed)
        recv_x, *_ = dispatch(buffer, x, topk_idx, weights)
        held.append((recv_x, refs.dispatch(x, topk_idx, None, MOST, E)[0]))
    assert all(torch.equal(got[: len(want)], want) for got, want in held)
    assert next(iter(buffer.runtime.groups)).calls.held < 12
    buffer.destroy()


def elastic_pair(buffer, x, topk_idx, weights, **options):
    result = buffer.dispatch(x, topk_idx, weights, num_experts=E, **options)
    recv_x, recv_idx, recv_weights, handle, _ = result
    rows = recv_x[0].float().bfloat16() if isinstance(recv_x, tuple) else recv_x
    sums, summed_weights, _ = buffer.combine(rows, handle, topk_weights=recv_weights)
    return recv_x, recv_idx, recv_weights, handle, sums, summed_weights


HANDLE_FIELDS = (
    "do_expand num_experts expert_alignment num_max_tokens_per_rank num_sms topk_idx "
    "num_recv_tokens num_expanded_tokens num_recv_tokens_per_expert_list "
    "psum_num_recv_tokens_per_scaleup_rank psum_num_recv_tokens_per_expert "
    "num_unaligned_recv_tokens_per_expert recv_src_metadata dst_buffer_slot_idx "
    "token_metadata_at_forward channel_linked_list"
).split()


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other


def check_elastic_pairs(_):
    """Later pairs give the results and handles of the first one."""
    for options in (
        {"do_cpu_sync": True, "expert_alignment": 4},
        {"do_cpu_sync": False, "num_sms": 6, "do_handle_copy": False},
    ):
        buffer = make_elastic()
        x, topk_idx, weights = make_inputs(my_tokens(), seed=9)
        first = elastic_pair(buffer, x, topk_idx, weights, **options)
        used = len(refs.dispatch(x, topk_idx, None, MOST, E)[0])
        again = elastic_pair(buffer, x, topk_idx, weights, **options)
        codes = (x.to(torch.float8_e4m3fn), torch.ones(len(x), H // 128))
        quantized = elastic_pair(buffer, codes, topk_idx, weights, **options)
        unweighted = buffer.dispatch(x, topk_idx, num_experts=E, **options)
        for one, other in zip(first[:3], again[:3]):
            assert same(one[:used], other[:used])
        assert same(first[4], again[4]) and same(first[5], again[5])
        assert torch.equal(
            quantized[0][0][:used].float(), first[0][:used].to(torch.float8_e4m3fn).float()
        )
        assert unweighted[2] is None and torch.equal(unweighted[0][:used], first[0][:used])
        if not options["do_cpu_sync"]:
            used = slice(0, used)  # other rows of source tokens are undefined
        for name in HANDLE_FIELDS:
            one, other = getattr(first[3], name), getattr(again[3], name)
            if name == "recv_src_metadata" and isinstance(used, slice):
                one, other = one[used], other[used]
            assert same(one, other), name
        assert isinstance(again[3], deep_ep.EPHandle)
        with pytest.raises(AttributeError, match="no_such_field"):
            again[3].no_such_field
        cached, *_ = buffer.dispatch(2 * x, handle=again[3])
        want = 2 * refs.dispatch(x, topk_idx, None, MOST, E)[0]
        assert torch.equal(cached[: len(want)], want)
        group, handle = next(iter(buffer.runtime.groups)), again[3]
        del first, quantized, unweighted, cached, again, one, other
        assert group.calls.held == 0, "a handle keeps no rows"
        assert handle.num_experts == E
        buffer.destroy()


def check_elastic_events_and_cached_dispatches(_):
    """They return what plain calls return."""
    buffer = make_elastic()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=12)
    plain = elastic_pair(buffer, x, topk_idx, weights)
    on_comm = {"async_with_compute_stream": True, "allocate_on_comm_stream": True}
    recv_x, recv_idx, recv_weights, handle, event = buffer.dispatch(
        x,
        topk_idx,
        weights,
        num_experts=E,
        previous_event=buffer.capture(),
        previous_event_before_epilogue=buffer.capture(),
        **on_comm,
    )
    event.current_stream_wait()
    *sums, event = buffer.combine(recv_x, handle, recv_weights, previous_event=event, **on_comm)
    event.current_stream_wait()
    again, again_idx, again_weights, same_handle, event = buffer.dispatch(
        2 * x, handle=handle, **on_comm
    )
    event.current_stream_wait()
    codes, scales = per_token_cast_to_fp8(x)
    (quantized, got_scales), *_ = buffer.dispatch((codes, scales), handle=handle)
    assert all(same(one, other) for one, other in zip((recv_x, recv_idx, recv_weights), plain[:3]))
    assert all(same(one, other) for one, other in zip(sums, plain[4:]))
    assert torch.equal(again, 2 * recv_x) and torch.equal(again_idx, recv_idx)
    assert again_weights is None and same_handle is handle
    assert torch.equal(got_scales, refs.dispatch(scales, topk_idx, None, MOST, E)[0])
    assert quantized.dtype == torch.float8_e4m3fn and len(quantized) == len(recv_x)
    handle.tensors  # before and after the attributes exist
    assert handle.num_experts == E and len(handle.tensors) >= 3
    again, _, again_weights, *_ = buffer.dispatch(x, topk_weights=weights, handle=handle)
    assert same(again, recv_x) and same(again_weights, recv_weights)
    with pytest.raises(RuntimeError, match="tokens; the dispatch of the handle had"):
        buffer.dispatch(x.new_zeros((len(x) + 1, H)), handle=handle)
    with pytest.raises(AssertionError, match="num_experts is"):
        buffer.dispatch(x, handle=handle, num_experts=2 * E)
    buffer.destroy()


def check_elastic_arguments(_):
    buffer = make_elastic()
    x, topk_idx, weights = make_inputs(MOST, seed=11)
    elastic_pair(buffer, x, topk_idx, weights)
    with pytest.raises(RuntimeError, match="at most num_max_tokens_per_rank = 8"):
        buffer.dispatch(x, topk_idx, weights, num_experts=E, num_max_tokens_per_rank=8)
    with pytest.raises(RuntimeError, match="x is"):
        buffer.dispatch(x.float(), topk_idx, weights, num_experts=E)
    recv_x, _, recv_weights, handle, _ = buffer.dispatch(x, topk_idx, weights, num_experts=E)
    with pytest.raises(RuntimeError, match="combine: x is"):
        buffer.combine(recv_x[1:], handle)
    bias = torch.ones_like(x)
    sums, *_ = buffer.combine(recv_x, handle, bias=bias)
    plain, *_ = buffer.combine(recv_x, handle)
    assert not torch.equal(sums, plain)
    buffer.destroy()


add_tests(globals(), lambda: run_checks(4, __name__))
