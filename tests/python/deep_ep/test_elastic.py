# SPDX-License-Identifier: Apache-2.0
"""ElasticBuffer on four ranks of a gloo group, against deep_ep.utils.refs, bit by bit."""

import pytest
import torch
import torch.distributed as dist
from torch_ranks import names_of_checks, run_checks, seeded

import deep_ep
from deep_ep.utils import refs, testing
from deep_ep.utils.math import align, per_token_cast_to_fp8

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

    def expand(self, flat, fill=0):
        out = torch.full((sum(self.aligned), *flat.shape[1:]), fill, dtype=flat.dtype)
        for row, slot in (self.slot_rows >= 0).nonzero().tolist():
            out[self.slot_rows[row, slot]] = flat[row]
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


def check_flat(_):
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
        for alignment in (1, 8):
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
            flat_weights = torch.zeros(sum(want.aligned))
            flat_weights[want.slot_rows[slot_rows]] = want.weights[slot_rows]
            assert torch.equal(recv_weights, flat_weights)
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
    buffer = the_buffer()
    x, topk_idx, _ = make_inputs(5)
    data, scales = per_token_cast_to_fp8(x)
    for given in (
        scales,
        scales.t().contiguous().t(),
        torch.ones((len(x), 3), dtype=torch.int32) * 77,
    ):
        for columns_first in (False, True):
            for expand in (False, True):
                (recv, recv_scales), _, none, handle, _ = buffer.dispatch(
                    (data, given),
                    topk_idx,
                    num_experts=E,
                    expert_alignment=4,
                    do_expand=expand,
                    do_zero_padding=expand,
                    use_tma_aligned_col_major_sf=columns_first,
                )
                want = Expected((data, given), topk_idx, None, 4)
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


def check_hints(_):
    group, buffer = dist.group.WORLD, the_buffer()
    assert (
        buffer.num_bytes == deep_ep.ElasticBuffer.get_buffer_size_hint(group, M, H, K)
        and buffer.num_bytes % (2 * MIB) == 0
    )
    assert buffer.get_physical_domain_size() == buffer.get_logical_domain_size() == (1, 4)
    assert (buffer.scaleout_rank_idx, buffer.scaleup_rank_idx) == (0, dist.get_rank())
    slow, fast = (buffer.get_theoretical_num_sms(E, K, nvlink_gbs=gbs) for gbs in (300, 900))
    sms = buffer.get_theoretical_num_sms(num_experts=E, num_topk=K)
    assert slow % 2 == fast % 2 == sms % 2 == 0 and 4 <= slow < fast and sms >= 4
    assert buffer.get_theoretical_num_qps(sms) <= buffer.num_allocated_qps
    assert deep_ep.ElasticBuffer.get_engram_storage_size_hint(100, 100, 7) == (2 * MIB, 2 * MIB)
    assert deep_ep.ElasticBuffer.get_pp_buffer_size_hint(MIB + 1, 2) == 10 * MIB
    assert (
        deep_ep.ElasticBuffer.get_agrs_num_max_session_bytes(group, [(3,), (5, 2)], torch.bfloat16)
        == 32 + 96
    )
    assert deep_ep.ElasticBuffer.get_agrs_buffer_size_hint(group, 100) == 2 * MIB


def check_argument_errors(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(9, tokens=8)
    recv_x, _, recv_weights, handle, _ = buffer.dispatch(x, topk_idx, weights, num_experts=E)

    def fails(kind, match, call, *args, **kwargs):
        with pytest.raises(kind, match=match):
            call(*args, **kwargs)

    dispatch, combine = buffer.dispatch, buffer.combine
    fails(AssertionError, "topk_idx and num_experts", dispatch, x)
    fails(
        AssertionError,
        "previous_event",
        dispatch,
        x,
        topk_idx,
        num_experts=E,
        previous_event=buffer.capture(),
    )
    fails(AssertionError, "num_qps", dispatch, x, topk_idx, num_experts=E, num_qps=1000)
    fails(
        AssertionError,
        "do_zero_padding",
        dispatch,
        x,
        topk_idx,
        num_experts=E,
        do_zero_padding=True,
    )
    fails(
        AssertionError,
        "statistics",
        dispatch,
        x,
        None,
        None,
        torch.zeros(3, dtype=torch.int32),
        handle=handle,
    )
    fails(AssertionError, "expert_alignment", dispatch, x, handle=handle, expert_alignment=2)
    fails(AssertionError, "num_experts", dispatch, x, handle=handle, num_experts=E + 4)
    fails(
        AssertionError, "num_max_tokens", dispatch, x, handle=handle, num_max_tokens_per_rank=M + 1
    )
    fails(AssertionError, "do_expand", dispatch, x, handle=handle, do_expand=True)
    fails(AssertionError, "topk_idx", dispatch, x, topk_idx, handle=handle)
    torch.use_deterministic_algorithms(True)  # which fills new tensors
    try:
        fails(AssertionError, "fill_uninitialized_memory", dispatch, x, topk_idx, num_experts=E)
        fails(AssertionError, "fill_uninitialized_memory", combine, recv_x, handle)
    finally:
        torch.use_deterministic_algorithms(False)
    fails(RuntimeError, "8", dispatch, x[:3].contiguous(), handle=handle)
    fails(RuntimeError, "x is float32", dispatch, x.float(), topk_idx, num_experts=E)
    fails(
        RuntimeError,
        "at most num_max",
        dispatch,
        x,
        topk_idx,
        num_experts=E,
        num_max_tokens_per_rank=7,
    )
    fails(RuntimeError, "num_experts is 10", dispatch, x, topk_idx, num_experts=10)
    fails(RuntimeError, "topk_idx is int32", dispatch, x, topk_idx.int(), num_experts=E)
    fails(
        RuntimeError,
        "topk_weights",
        dispatch,
        x,
        topk_idx,
        weights[:, :1].contiguous(),
        num_experts=E,
    )
    fails(RuntimeError, "recv_stats", dispatch, x, topk_idx, weights, torch.zeros(1), num_experts=E)
    fails(
        RuntimeError,
        "scales",
        dispatch,
        (per_token_cast_to_fp8(x)[0], torch.ones(8, 2).half()),
        topk_idx,
        num_experts=E,
    )
    fails(
        RuntimeError, "expert_alignment", dispatch, x, topk_idx, num_experts=E, expert_alignment=0
    )
    fails(RuntimeError, "top-k", dispatch, x, torch.full((8, 33), -1), num_experts=E)
    fails(RuntimeError, "handle", combine, recv_x, None)
    fails(RuntimeError, "x is", combine, recv_x.float(), handle)
    fails(RuntimeError, "topk_weights", combine, recv_x, handle, recv_weights[:, :1].contiguous())
    fails(RuntimeError, "bias", combine, recv_x, handle, None, x[:2])
    fails(RuntimeError, "at most 2", combine, recv_x, handle, None, (x, x, x))
    fails(
        AssertionError, "topk_idx", deep_ep.EPHandle, False, E, 1, M, 0, None, 0, 0, [], *[None] * 7
    )
    fails(RuntimeError, "2 MiB", deep_ep.ElasticBuffer, dist.group.WORLD, 100)
    fails(AssertionError, "num_cpu_bytes", deep_ep.ElasticBuffer, dist.group.WORLD, None, 2 * MIB)
    fails(AssertionError, "num_bytes", deep_ep.ElasticBuffer, dist.group.WORLD)
    fails(RuntimeError, "pp_set_config", buffer.pp_send, x, 1)
    fails(RuntimeError, "agrs_set_config", buffer.create_agrs_session)
    fails(RuntimeError, "no session", buffer.all_gather, x)
    fails(RuntimeError, "engram_write", buffer.engram_fetch, torch.zeros((1, 1), dtype=torch.int32))
    handle.deterministic_sort(True, False, recv_x, None, None, None, None)
    assert torch.equal(recv_x, refs.dispatch(x, topk_idx, None, M, E)[0])


def check_ring(_):
    """More tensors than slots in both directions, of several sizes and dtypes, arrive in order."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    buffer = make_buffer(num_bytes=2 * MIB, allow_hybrid_mode=False)
    following, previous = (rank + 1) % ranks, (rank - 1) % ranks
    for slots in (1, 3):
        buffer.pp_set_config(4096, slots)

        def tensor(source, towards, number):
            generator = seeded(1000 * source + 100 * towards + number)
            return torch.randn((5 + number, 16), generator=generator).to(
                (torch.bfloat16, torch.float32)[number % 2]
            )

        for number in range(7):
            buffer.pp_send(tensor(rank, 0, number), following)
            buffer.pp_send(tensor(rank, 1, number), previous)
            for source, towards in ((previous, 0), (following, 1)):
                want = tensor(source, towards, number)
                got = torch.empty_like(want)
                buffer.pp_recv(got, source)
                assert torch.equal(got, want)
        for number in range(slots):  # all slots of a link in flight
            buffer.pp_send(tensor(rank, 0, number), following)
        for number in range(slots):
            got = torch.empty_like(tensor(previous, 0, number))
            buffer.pp_recv(got, previous)
            assert torch.equal(got, tensor(previous, 0, number))
    with pytest.raises(RuntimeError, match="neighbours"):
        buffer.pp_send(got, (rank + 2) % ranks)
    with pytest.raises(RuntimeError, match="up to 4096"):
        buffer.pp_send(torch.zeros(4097, dtype=torch.int8), following)
    with pytest.raises(RuntimeError, match="up to 4096"):
        buffer.pp_recv(torch.zeros((4, 4)).t()[1:], previous)  # not contiguous
    with pytest.raises(RuntimeError, match="num_bytes"):
        buffer.pp_set_config(MIB, 4)
    with pytest.raises(RuntimeError, match="num_max_tensor_bytes is 0"):
        buffer.pp_set_config(0, 4)
    with pytest.raises(RuntimeError, match="num_max_inflight_tensors is 0"):
        buffer.pp_set_config(4096, 0)
    buffer.destroy()


def check_gather_sessions(_):
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    shapes = [(3, 5), (16,)]
    size = deep_ep.ElasticBuffer.get_agrs_num_max_session_bytes(group, shapes * 2, torch.bfloat16)
    buffer = make_buffer(num_bytes=deep_ep.ElasticBuffer.get_agrs_buffer_size_hint(group, size))
    for wrong, match in (
        ((0, 2), "session_bytes is 0"),
        ((size, 0), "is 0; allowed: 1"),
        ((size, 33), "is 33"),
    ):
        with pytest.raises(RuntimeError, match=match):
            buffer.agrs_set_config(*wrong)
    with pytest.raises(RuntimeError, match="num_bytes is"):
        buffer.agrs_set_config(buffer.num_bytes + 1, 2)
    buffer.agrs_set_config(size, 2)

    def part(source, session, i):
        generator = seeded(100 * source + 10 * session + i)
        return torch.randn(shapes[i % 2], generator=generator).bfloat16()

    for session in range(5):
        with buffer.agrs_new_session():
            first, second = buffer.agrs_get_inplace_tensor(shapes, torch.bfloat16)
            first.copy_(part(rank, session, 0))
            second.copy_(part(rank, session, 1))
            gathered_0, gathered_1, handle = buffer.all_gather((first, second))
            assert gathered_0[rank].data_ptr() == first.data_ptr()
            one = buffer.agrs_get_inplace_tensor(shapes[0], torch.bfloat16)
            gathered_2, later = buffer.all_gather(part(rank, session, 2))
            assert one.data_ptr() == gathered_2[rank].data_ptr()
            handle()
            later()
            for i, gathered in enumerate((gathered_0, gathered_1, gathered_2)):
                assert torch.equal(
                    gathered, torch.stack([part(source, session, i) for source in range(ranks)])
                )
            with pytest.raises(RuntimeError, match="agrs_set_config allows"):
                buffer.all_gather(part(rank, session, 2))
            for wrong in (
                torch.zeros(0),
                torch.zeros((4, 4)).t(),
                [part(rank, session, 2), torch.zeros(0)],
            ):
                with pytest.raises(RuntimeError, match="empty or not contiguous"):
                    buffer.all_gather(wrong)
            for again in (buffer.create_agrs_session, lambda: buffer.agrs_set_config(size, 2)):
                with pytest.raises(RuntimeError, match="a session is active"):
                    again()
        with pytest.raises(RuntimeError, match="before its session ends"):
            handle()
    with pytest.raises(RuntimeError, match="no session is active"):
        buffer.destroy_agrs_session()
    with buffer.agrs_new_session(enabled=False), pytest.raises(RuntimeError, match="no session"):
        buffer.all_gather(part(rank, 0, 0))
    buffer.destroy()


def check_engram(_):
    rank, ranks, entries, width = dist.get_rank(), dist.get_world_size(), 10, 64
    buffer = make_buffer(num_bytes=4 * MIB, num_cpu_bytes=2 * MIB)

    def table(round_):
        generator = seeded(round_)
        return torch.randn((ranks * entries, width), generator=generator).bfloat16()

    generator = seeded(rank)
    for round_ in range(3):
        full = table(round_)
        buffer.engram_write(full[rank * entries : (rank + 1) * entries].contiguous())
        indices = torch.randint(
            0, ranks * entries, (3 + rank, 4), generator=generator, dtype=torch.int32
        )
        indices[0] = torch.tensor([8, 9, 10, 11])  # neighbours, of two ranks
        data, scales = buffer.engram_fetch(indices)()
        assert scales is None and torch.equal(data, full[indices.long()].flatten(1))
    data, scales = per_token_cast_to_fp8(table(7))
    buffer.engram_write(data[rank * entries : (rank + 1) * entries].contiguous(), scales)
    for columns_first in (False, True):
        got, got_scales = buffer.engram_fetch(indices, use_tma_aligned_col_major_sf=columns_first)()
        assert torch.equal(got.view(torch.uint8), data.view(torch.uint8)[indices.long()].flatten(1))
        assert torch.equal(got_scales, scales[indices.long()].flatten(1))
    with pytest.raises(RuntimeError, match="out of 0 to 39"):
        buffer.engram_fetch(indices + 40)
    with pytest.raises(AssertionError, match="num_qps is 1000"):
        buffer.engram_fetch(indices, num_qps=1000)
    for wrong in (indices.long(), indices.flatten()):
        with pytest.raises(RuntimeError, match=r"allowed: int32 \[T, n\]"):
            buffer.engram_fetch(wrong)
    with pytest.raises(RuntimeError, match="sf is required"):
        buffer.engram_write(data[:entries])
    with pytest.raises(RuntimeError, match="sf is required"):
        buffer.engram_write(full[:entries], scales)
    mine = data[:entries].contiguous()
    for wrong in (
        scales[1:].contiguous(),
        scales.half(),
        torch.ones((2, len(scales))).t(),
        scales[:, 0],
    ):
        with pytest.raises(RuntimeError, match="allowed: contiguous elements of four bytes"):
            buffer.engram_write(mine, wrong)
    for wrong in (full.float()[:entries], full[:entries].t(), full[0]):
        with pytest.raises(RuntimeError, match="allowed: contiguous bfloat16 or float8_e4m3fn"):
            buffer.engram_write(wrong)
    with pytest.raises(RuntimeError, match="rank . has . entries in"):  # on all ranks
        buffer.engram_write(full[: entries - 1 if rank == 2 else entries - 2].contiguous())
    # As before.
    assert torch.equal(buffer.engram_fetch(indices)()[0].view(torch.uint8), got.view(torch.uint8))
    with pytest.raises(RuntimeError, match="num_cpu_bytes"):
        buffer.engram_write(torch.zeros((MIB, 2)).bfloat16())
    buffer.destroy()


def check_profilers_find_every_name(_):
    """A profiler finds every name that DeepEP's test programs look for, as a kernel or as a
    range."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    buffer = make_buffer(num_bytes=8 * MIB, num_cpu_bytes=2 * MIB)
    x, topk_idx, weights = make_inputs(11, tokens=8)
    buffer.pp_set_config(4096, 2)
    buffer.engram_write(x)
    wanted = torch.tensor([[0, 8 * ranks - 1]], dtype=torch.int32)

    def step():
        for expand in (False, True):
            recv_x, _, _, handle, _ = buffer.dispatch(
                x, topk_idx, weights, num_experts=E, do_expand=expand
            )
            buffer.combine(recv_x, handle)
        buffer.pp_send(x, (rank + 1) % ranks)
        buffer.pp_recv(torch.empty_like(x), (rank - 1) % ranks)
        buffer.engram_fetch(wanted)()
        buffer.barrier()

    names = "dispatch_impl dispatch_copy_epilogue_impl combine_impl combine_reduce_epilogue_impl barrier "
    names += "engram_fetch_impl engram_fetch_wait_impl send_impl recv_impl"
    step()
    times = testing.bench_kineto(step, tuple(names.split()), num_tests=2, flush_l2=False)
    assert all(0 < time < 1 for time in times), dict(zip(names.split(), times))
    buffer.destroy()


def check_destroy(_):
    buffer = deep_ep.ElasticBuffer(dist.group.WORLD, 2 * MIB)
    with pytest.raises(AssertionError, match="explicitly_destroy"):
        buffer.destroy()
    for buffer in _shared.values():
        buffer.destroy()
        buffer.destroy()
        with pytest.raises(RuntimeError, match="destroyed"):
            buffer.barrier()


CHECKS = names_of_checks(globals())
results = pytest.fixture(scope="module")(lambda: run_checks(4, __name__))


@pytest.mark.parametrize("name", CHECKS)
def test_on_four_ranks(results, name):
    results.verify(name)
