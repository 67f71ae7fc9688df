# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine of ElasticBuffer on four ranks of a gloo group, against
deep_ep.utils.refs, bit by bit."""

import pytest
import torch
import torch.distributed as dist
from elastic_cases import (
    E,
    Expected,
    H,
    K,
    M,
    combined,
    expert_output_of_ranks,
    expert_output_of_slots,
    local_expert_output,
    make_buffer,
    make_inputs,
    the_buffer,
    verify_handle,
)
from torch_ranks import add_tests, run_checks

from deep_ep.utils import refs
from deep_ep.utils.math import align, per_token_cast_to_fp8


def check_rank_major(_):
    for multiple in (True, False):
        buffer = the_buffer(multiple)
        x, topk_idx, weights = make_inputs(1)
        want = Expected(x, topk_idx, weights, 4)
        stats = torch.full((E // 4,), 2, dtype=torch.int32)
        recv_x, recv_idx, recv_weights, handle, event = buffer.dispatch(
            x, topk_idx, weights, stats, num_experts=E, expert_alignment=4
        )
        assert (
            torch.equal(recv_x, want.x)
            and torch.equal(recv_idx, want.idx)
            and torch.equal(recv_weights, want.weights)
        )
        assert (
            handle.num_recv_tokens == recv_x.shape[0]
            and handle.num_recv_tokens_per_expert_list == want.aligned
        )
        assert stats.tolist() == [2 + count for count in want.counts] and event.event is None
        verify_handle(handle, want, topk_idx, expert_major=False)

        y = expert_output_of_ranks(want)
        bias = (torch.randn_like(x), torch.randn_like(x))
        for biases in (None, bias[0], bias):
            sums, back, _ = buffer.combine(y, handle, recv_weights, biases)
            assert torch.equal(sums, combined(local_expert_output(len(x)), topk_idx, biases))
            assert torch.equal(back, weights.masked_fill(topk_idx < 0, 0))


def check_expert_major(_):
    for multiple in (True, False):
        for alignment in (1, 8, 128, 224, 256):
            buffer = the_buffer(multiple)
            x, topk_idx, weights = make_inputs(2)
            want = Expected(x, topk_idx, weights, alignment)
            recv_x, recv_idx, recv_weights, handle, _ = buffer.dispatch(
                x,
                topk_idx,
                weights,
                num_experts=E,
                expert_alignment=alignment,
                do_expand=True,
                do_zero_padding=True,
            )
            assert recv_idx is None and torch.equal(recv_x, want.expand(want.x))
            slot_rows = want.slot_rows >= 0
            expected_weights = torch.zeros(sum(want.aligned))
            expected_weights[want.slot_rows[slot_rows]] = want.weights[slot_rows]
            assert torch.equal(recv_weights, expected_weights)
            assert handle.num_expanded_tokens == sum(
                want.aligned
            ) and handle.num_recv_tokens == len(want.x)
            assert handle.num_recv_tokens_per_expert_list == want.aligned
            verify_handle(handle, want, topk_idx, expert_major=True)

            y = expert_output_of_slots(want.source, want.slot_rows, handle.num_expanded_tokens)
            # Padding is not read.
            y[(want.expand(torch.ones(len(want.x), 1)) == 0)[:, 0]] = float("nan")
            bias = (torch.randn_like(x), torch.randn_like(x))
            for biases in (None, bias[0], bias):
                sums, none, _ = buffer.combine(y, handle, bias=biases)
                assert (
                    torch.equal(
                        sums, combined(local_expert_output(len(x)), topk_idx, biases, multiple)
                    )
                    and none is None
                )
            if multiple:
                _, back, _ = buffer.combine(y, handle, recv_weights)
                assert torch.equal(back, weights.masked_fill(topk_idx < 0, 0))
            else:
                with pytest.raises(RuntimeError, match="topk_weights"):
                    buffer.combine(y, handle, recv_weights)


def check_reduction_orders_differ(_):
    """All orders of summation give different bits for these inputs, so the other checks
    distinguish them."""
    x, topk_idx, _ = make_inputs(2, tokens=M, none=0)
    sums = [
        refs.combine(local_expert_output(M), topk_idx, 2, 2, E, None, in_local, in_node)
        for in_local in (True, False)
        for in_node in (True, False)
    ]
    assert not any(torch.equal(one, other) for i, one in enumerate(sums) for other in sums[:i])


def check_order_of_sums(_):
    """1 + 2^30 - 2^30 is 0 in float32 in this order, and 1 in the reverse order."""
    x, rank, values = (
        torch.zeros((5, H)).bfloat16(),
        dist.get_rank(),
        torch.tensor([1.0, 2.0**30, -(2.0**30)]),
    )
    y = values[:, None].expand(5, 3, H).bfloat16()
    # Top-k slots, not experts, determine the order.
    one_rank = (torch.arange(3) + 3 * ((rank + 1) % 4)).flip(0)
    three_ranks = torch.tensor([7, 1, 4])
    several_nodes = the_buffer().num_rdma_ranks > 1
    for experts in (one_rank, three_ranks):
        topk_idx = experts.expand(5, 3).contiguous()
        for multiple in (True, False):
            for expand in (True, False):
                if experts is one_rank and not expand:
                    continue  # the caller sums the rows of a rank then
                *_, handle, _ = the_buffer(multiple).dispatch(
                    x, topk_idx, num_experts=E, do_expand=expand
                )
                idx = refs.dispatch(x, topk_idx, None, M, E)[1]
                slot_rows = (
                    handle.recv_src_metadata[:, 2:]
                    if expand
                    else torch.arange(len(idx))[:, None].expand(-1, 3)
                )
                expert_output = torch.zeros(
                    (handle.num_expanded_tokens if expand else len(idx), H)
                ).bfloat16()
                for row, slot in (idx >= 0).nonzero().tolist():
                    expert_output[slot_rows[row, slot]] = values[slot].bfloat16()
                sums, *_ = the_buffer(multiple).combine(expert_output, handle)
                assert torch.equal(sums, combined(y, topk_idx, None, multiple or not expand))
                # One node has only the 1 there.
                assert (sums == (three_ranks is experts and several_nodes)).all()


def check_without_cpu_sync(_):
    """Outputs have the most rows possible; rows after the received ones are marked."""
    for multiple in (True, False):
        buffer = the_buffer(multiple)
        x, topk_idx, weights = make_inputs(3)
        want = Expected(x, topk_idx, weights, 8)
        options = {"num_experts": E, "expert_alignment": 8, "do_cpu_sync": False}
        recv_x, recv_idx, recv_weights, handle, _ = buffer.dispatch(x, topk_idx, weights, **options)
        rows = len(want.x)
        assert (
            recv_x.shape == (4 * M, H)
            and handle.num_recv_tokens == 4 * M
            and handle.num_recv_tokens_per_expert_list == []
        )
        assert torch.equal(recv_x[:rows], want.x) and torch.equal(recv_weights[:rows], want.weights)
        assert torch.equal(recv_idx[:rows], want.idx) and (recv_idx[rows:] == -1).all()
        verify_handle(handle, want, topk_idx, expert_major=False)
        sums, *_ = buffer.combine(recv_x, handle)
        in_rank = (
            torch.stack([(topk_idx >= 0) & (topk_idx // (E // 4) == r) for r in range(4)])
            .any(-1)
            .sum(0)
        )
        if buffer.num_rdma_ranks == 1:  # otherwise 1 + 2 times a row is rounded twice
            assert torch.equal(sums, (x.float() * in_rank[:, None]).bfloat16())
        y = torch.zeros_like(recv_x)
        y[:rows] = expert_output_of_ranks(want)
        sums, *_ = buffer.combine(y, handle)
        assert torch.equal(sums, combined(local_expert_output(len(x)), topk_idx))

        recv_x, _, _, handle, _ = buffer.dispatch(
            x, topk_idx, weights, do_expand=True, do_zero_padding=True, **options
        )
        most = align(4 * M * min(K, E // 4) + 7 * (E // 4), 8)
        assert recv_x.shape == (most, H) and handle.num_expanded_tokens == most
        full = want.expand(want.x)
        assert torch.equal(recv_x[: len(full)], full) and (recv_x[len(full) :] == 0).all()
        verify_handle(handle, want, topk_idx, expert_major=True)
        y = expert_output_of_slots(want.source, want.slot_rows, most)
        sums, *_ = buffer.combine(y, handle)
        assert torch.equal(sums, combined(local_expert_output(len(x)), topk_idx, None, multiple))


def check_cached(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(4)
    for options in ({}, {"do_expand": True, "do_zero_padding": True}, {"do_cpu_sync": False}):
        first, *_, handle, _ = buffer.dispatch(
            x, topk_idx, weights, num_experts=E, expert_alignment=8, **options
        )
        want = Expected(2 * x, topk_idx, weights, 8)
        options.pop("do_cpu_sync", None)
        recv_x, recv_idx, recv_weights, same, _ = buffer.dispatch(
            2 * x, None, weights, handle=handle, num_sms=4, **options
        )
        assert same is handle and recv_x.shape == first.shape
        if options:
            assert recv_idx is None and torch.equal(recv_x, want.expand(want.x))
        else:
            rows = len(want.x)
            assert torch.equal(recv_x[:rows], want.x) and torch.equal(recv_idx[:rows], want.idx)
            assert torch.equal(recv_weights[:rows], want.weights)
        without, _, none, *_ = buffer.dispatch(2 * x, handle=handle, **options)
        assert none is None and torch.equal(without[: len(want.x)], recv_x[: len(want.x)])
        y = torch.zeros_like(recv_x)
        if options:
            y = expert_output_of_slots(want.source, want.slot_rows, len(recv_x))
        else:
            y[: len(want.x)] = expert_output_of_ranks(want)
        for _ in range(2):  # a handle serves any number of combines
            sums, *_ = buffer.combine(y, handle, None, x)
            assert torch.equal(sums, combined(local_expert_output(len(x)), topk_idx, x))


def check_fp8_and_column_major_scales(_):
    """Scales for 128 channels, and those of MXFP8 for 32: float32, or four UE8M0 in an int32."""
    buffer = the_buffer()
    x, topk_idx, _ = make_inputs(5)
    data, scales = per_token_cast_to_fp8(x)
    for given, alignment in (
        (scales, 4),
        (scales.t().contiguous().t(), 128),
        (torch.ones((len(x), 3), dtype=torch.int32) * 77, 4),
        (torch.rand((len(x), H // 32)).log2().floor().exp2(), 224),
        (torch.randint(1 << 31, (len(x), H // 128), dtype=torch.int32), 256),
    ):
        for columns_first in (False, True):
            for expand in (False, True):
                (recv, recv_scales), _, none, handle, _ = buffer.dispatch(
                    (data, given),
                    topk_idx,
                    num_experts=E,
                    expert_alignment=alignment,
                    do_expand=expand,
                    do_zero_padding=expand,
                    use_tma_aligned_col_major_sf=columns_first,
                )
                want = Expected((data, given), topk_idx, None, alignment)
                want_data, want_scales = want.x
                if expand:
                    want_data, want_scales = (
                        want.expand(want_data.view(torch.uint8)),
                        want.expand(want_scales),
                    )
                assert recv.dtype == torch.float8_e4m3fn and none is None
                assert torch.equal(recv.view(torch.uint8), want_data.view(torch.uint8))
                assert torch.equal(recv_scales, want_scales) and recv_scales.dtype == given.dtype
                strides = (1, align(len(recv), 4)) if columns_first else (given.shape[1], 1)
                assert len(recv) == 0 or recv_scales.stride() == strides


def check_sizes_of_each_call(_):
    """num_max_tokens_per_rank, top-k and alignment may change between calls; old handles stay
    valid."""
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(6)
    *_, handle, _ = buffer.dispatch(x, topk_idx, weights, num_experts=E)
    more_x, more_idx, more_weights = make_inputs(7, tokens=100)
    recv, _, _, more, _ = buffer.dispatch(
        more_x, more_idx, more_weights, num_experts=E, num_max_tokens_per_rank=128
    )
    assert (
        torch.equal(recv, refs.dispatch(more_x, more_idx, None, 128, E)[0])
        and more.num_max_tokens_per_rank == 128
    )
    fewer, *_ = buffer.dispatch(x, topk_idx[:, :2].contiguous(), num_experts=E)
    assert torch.equal(fewer, refs.dispatch(x, topk_idx[:, :2].contiguous(), None, M, E)[0])
    again, *_ = buffer.dispatch(x, handle=handle)
    assert torch.equal(again, refs.dispatch(x, topk_idx, None, M, E)[0])


def check_events_and_barrier(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(8)
    options = {
        "previous_event": buffer.capture(),
        "async_with_compute_stream": True,
        "allocate_on_comm_stream": True,
    }
    recv_x, *_, handle, event = buffer.dispatch(x, topk_idx, weights, num_experts=E, **options)
    event.current_stream_wait()
    options["previous_event_before_epilogue"] = buffer.capture()
    sums, _, event = buffer.combine(recv_x, handle, **options)
    with event:
        pass
    assert torch.equal(sums, buffer.combine(recv_x, handle)[0])
    for arguments in (
        {},
        {"use_comm_stream": False},
        {"with_cpu_sync": True},
        {"sequential": False},
    ):
        buffer.barrier(**arguments)


def check_deterministic(_):
    """Has no effect: results always have the same bits."""
    x, topk_idx, weights = make_inputs(9)
    results = []
    for buffer in (the_buffer(), make_buffer(deterministic=True)):
        rows, _, _, handle, _ = buffer.dispatch(x, topk_idx, weights, num_experts=E)
        results.append((rows, buffer.combine(rows, handle)[0]))
    assert buffer.deterministic and all(torch.equal(a, b) for a, b in zip(*results))
    del rows, handle
    buffer.destroy()


add_tests(globals(), lambda: run_checks(4, __name__))
