# SPDX-License-Identifier: Apache-2.0
"""Buffer in low-latency mode on four ranks of a gloo group, against plain torch on gathered
inputs."""

import os

import pytest
import torch
import torch.distributed as dist
from torch_ranks import add_tests, of_all_ranks, run_checks, seeded

import deep_ep
from deep_ep.utils.math import calc_diff, per_token_cast_back, per_token_cast_to_fp8

H, K, E, N = 1024, 3, 8, 12


def make_buffer(**options):
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(N, H, dist.get_world_size(), E)
    return deep_ep.Buffer(
        dist.group.WORLD, 0, size, low_latency_mode=True, explicitly_destroy=True, **options
    )


_shared = []


def the_buffer():
    if not _shared:
        _shared.append(make_buffer(enable_shrink=True))
    return _shared[0]


def make_inputs(seed=0, tokens=None):
    generator = seeded(100 * seed + dist.get_rank())
    tokens = (5, 0, N, 9)[dist.get_rank() % 4] if tokens is None else tokens
    x = torch.randn((tokens, H), generator=generator).bfloat16()
    topk_idx = torch.rand((tokens, E), generator=generator).topk(K, dim=1).indices
    topk_idx[torch.rand((tokens, K), generator=generator) < 0.2] = -1
    return x, topk_idx, torch.rand((tokens, K), generator=generator)


def expected_rows(x, topk_idx):
    """For each local expert (rows bfloat16 [n, H], source tokens [n], rows of each rank [R]),
    ordered by source rank, then token."""
    local, of_ranks = E // dist.get_world_size(), of_all_ranks((x, topk_idx))
    result = []
    for expert in range(dist.get_rank() * local, (dist.get_rank() + 1) * local):
        tokens = [(idx == expert).any(1).nonzero()[:, 0] for _, idx in of_ranks]
        rows = torch.cat([x_of[chosen] for (x_of, _), chosen in zip(of_ranks, tokens)])
        result.append((rows, torch.cat(tokens), [len(chosen) for chosen in tokens]))
    return result


def verify_received(recv, count, handle, want, dequantize):
    src_info, layout_range, n, hidden, experts = handle
    assert (n, hidden, experts) == (N, H, E)
    assert count.dtype == torch.int32 and count.tolist() == [len(rows) for rows, _, _ in want]
    for e, (rows, tokens, per_rank) in enumerate(want):
        assert torch.equal(dequantize(recv, e, len(rows)), rows), e
        assert torch.equal(src_info[e, : len(rows)].long(), tokens)
        assert [int(v) & 0xFFFFFFFF for v in layout_range[e]] == per_rank
        assert [int(v) >> 32 for v in layout_range[e]] == [
            sum(per_rank[:r]) for r in range(len(per_rank))
        ]


def as_received(recv, e, count):
    return recv[e, :count]


def weighted(x, topk_idx, weights):
    """The combine of the received rows as expert output."""
    return x.float() * weights.masked_fill(topk_idx < 0, 0).sum(1, keepdim=True)


def close(got, want):
    return got.numel() == 0 or calc_diff(got, want) < 1e-5


def close_in_fp8(got, want):
    return got.numel() == 0 or calc_diff(got, want) < 1e-3


def waited(times):
    """On a GPU the last rank finds all rows and does not wait."""
    return bool((times >= 0).all()) and (times.is_cuda or bool(times.sum() > 0))


def check_bfloat16(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(1)
    stats, waits = torch.full((E // 4,), 5, dtype=torch.int32), torch.zeros(4, dtype=torch.int64)
    recv, count, handle, event, hook = buffer.low_latency_dispatch(
        x, topk_idx, N, E, stats, waits, use_fp8=False
    )
    assert (
        recv.shape == (E // 4, 4 * N, H)
        and recv.dtype == torch.bfloat16
        and hook is None
        and event.event is None
    )
    verify_received(recv, count, handle, expected_rows(x, topk_idx), as_received)
    assert torch.equal(stats, 5 + count) and waited(waits)
    waits.zero_()
    out = torch.full_like(x, 7)
    sums, event, hook = buffer.low_latency_combine(
        recv, topk_idx, weights, handle, out=out, combine_wait_recv_cost_stats=waits
    )
    assert sums is out and hook is None and close(sums, weighted(x, topk_idx, weights))


def check_fp8(_):
    """Rows and column-major scales follow the documented quantization."""
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(2)
    want = expected_rows(x, topk_idx)
    for round_scale in (False, True):
        (recv, scales), count, handle, *_ = buffer.low_latency_dispatch(
            x, topk_idx, N, E, round_scale=round_scale
        )
        assert recv.dtype == torch.float8_e4m3fn and scales.dtype == torch.float32
        assert scales.shape == (E // 4, 4 * N, H // 128) and scales.stride()[1:] == (1, 4 * N)
        assert count.tolist() == [len(rows) for rows, _, _ in want]
        for e, (rows, _, _) in enumerate(want):
            back = per_token_cast_back(recv[e, : len(rows)], scales[e, : len(rows)])
            assert close(back, rows) or calc_diff(back, rows) < 1e-3
            if round_scale:
                assert torch.equal(
                    torch.frexp(scales[e, : len(rows)]).mantissa,
                    torch.full((len(rows), H // 128), 0.5),
                )
            else:
                data, factors = per_token_cast_to_fp8(rows)
                assert torch.allclose(scales[e, : len(rows)], factors, rtol=1e-6)
                assert (
                    recv[e, : len(rows)].view(torch.uint8) == data.view(torch.uint8)
                ).float().mean() > 0.99 or not len(rows)
        expert_output = torch.stack(
            [per_token_cast_back(recv[e], scales[e]) for e in range(E // 4)]
        )
        sums, *_ = buffer.low_latency_combine(expert_output, topk_idx, weights, handle)
        assert x.shape[0] == 0 or calc_diff(sums, weighted(x, topk_idx, weights)) < 1e-3


def check_ue8m0(_):
    buffer = the_buffer()
    x, topk_idx, _ = make_inputs(3)
    (recv, packed), count, *_ = buffer.low_latency_dispatch(
        x, topk_idx, N, E, round_scale=True, use_ue8m0=True
    )
    assert packed.dtype == torch.int32 and packed.shape == (E // 4, 4 * N, H // 512)
    for e, (rows, _, _) in enumerate(expected_rows(x, topk_idx)):
        if len(rows):
            assert (
                calc_diff(
                    per_token_cast_back(recv[e, : len(rows)], packed[e, : len(rows)].contiguous()),
                    rows,
                )
                < 1e-3
            )


def check_multiples_of_128(_):
    """Hidden sizes whose scales fill no multiple of 16 bytes, in every form."""
    ranks, hiddens = dist.get_world_size(), (128, 640, 2688, 2944)
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(N, max(hiddens), ranks, E)
    buffer = deep_ep.Buffer(
        dist.group.WORLD, 0, size, low_latency_mode=True, explicitly_destroy=True
    )
    for hidden in hiddens:
        assert 0 < buffer.get_low_latency_rdma_size_hint(N, hidden, ranks, E) <= size
        buffer.clean_low_latency_buffer(N, hidden, E)
        _, topk_idx, weights = make_inputs(30)
        x = torch.randn((len(topk_idx), hidden), generator=seeded(dist.get_rank())).bfloat16()
        want = expected_rows(x, topk_idx)
        for round_scale, use_ue8m0 in ((None, False), (False, False), (True, False), (True, True)):
            use_fp8 = round_scale is not None
            recv, count, handle, *_ = buffer.low_latency_dispatch(
                x, topk_idx, N, E, None, None, use_fp8, bool(round_scale), use_ue8m0
            )
            assert count.tolist() == [len(rows) for rows, _, _ in want]
            y = recv
            if use_fp8:
                groups = -(-hidden // 512) if use_ue8m0 else hidden // 128
                assert recv[0].shape == (E // ranks, ranks * N, hidden)
                assert recv[1].shape == (E // ranks, ranks * N, groups)
                assert recv[1].stride()[1:] == (1, ranks * N)
                y = torch.stack([per_token_cast_back(*both) for both in zip(*recv)])
            for e, (rows, _, _) in enumerate(want):
                got = y[e, : len(rows)]
                assert torch.equal(got, rows) if not use_fp8 else close_in_fp8(got, rows)
            for use_logfmt in (False, True):
                sums, *_ = buffer.low_latency_combine(y, topk_idx, weights, handle, use_logfmt)
                assert close_in_fp8(sums, weighted(x, topk_idx, weights))
    buffer.destroy()


def check_hooks(_):
    """The send returns the tensors and the hook fills them. Two calls may be open, as with two
    micro-batches."""
    buffer = the_buffer()
    inputs = [make_inputs(4), make_inputs(5)]
    opened = [
        buffer.low_latency_dispatch(x, topk_idx, N, E, use_fp8=False, return_recv_hook=True)
        for x, topk_idx, _ in inputs
    ]
    assert opened[0][0].data_ptr() != opened[1][0].data_ptr()
    with pytest.raises(RuntimeError, match="hook"):
        buffer.low_latency_combine(opened[0][0], inputs[0][1], inputs[0][2], opened[0][2])
    for (recv, count, handle, event, hook), (x, topk_idx, _) in zip(opened, inputs):
        assert event.event is None
        hook()
        verify_received(recv, count, handle, expected_rows(x, topk_idx), as_received)
    closing = []
    for (recv, _, handle, _, _), (x, topk_idx, weights) in zip(opened, inputs):
        closing.append(
            buffer.low_latency_combine(recv, topk_idx, weights, handle, return_recv_hook=True)
        )
    for (sums, _, hook), given in zip(closing, inputs):
        hook()
        assert close(sums, weighted(*given))


def check_kinds_in_turn(_):
    """Results keep their addresses, whatever the forms of earlier calls."""
    buffer = the_buffer()
    for seed, use_fp8 in enumerate((True, False, False, True, True, False, True)):
        x, topk_idx, weights = make_inputs(20 + seed)
        recv, count, handle, _, hook = buffer.low_latency_dispatch(
            x, topk_idx, N, E, use_fp8=use_fp8, return_recv_hook=True
        )
        hook()
        want = expected_rows(x, topk_idx)
        assert count.tolist() == [len(rows) for rows, _, _ in want]
        for e, (rows, _, _) in enumerate(want):
            got = (
                per_token_cast_back(recv[0][e, : len(rows)], recv[1][e, : len(rows)])
                if use_fp8
                else recv[e, : len(rows)]
            )
            assert (
                torch.equal(got, rows)
                if not use_fp8
                else len(rows) == 0 or calc_diff(got, rows) < 1e-3
            )


def check_zero_copy_and_logfmt(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(6)
    for turn in range(3):
        recv, _, handle, *_ = buffer.low_latency_dispatch(x, topk_idx, N, E, use_fp8=False)
        target = buffer.get_next_low_latency_combine_buffer(handle)
        assert target.shape == recv.shape and target.dtype == torch.bfloat16
        target[:] = recv
        sums, *_ = buffer.low_latency_combine(
            (target, recv)[turn % 2], topk_idx, weights, handle, zero_copy=True
        )
        assert close(sums, weighted(x, topk_idx, weights))
    recv, _, handle, *_ = buffer.low_latency_dispatch(x, topk_idx, N, E, use_fp8=False)
    sums, *_ = buffer.low_latency_combine(recv, topk_idx, weights, handle, use_logfmt=True)
    assert x.shape[0] == 0 or calc_diff(sums, weighted(x, topk_idx, weights)) < 1e-3


def check_masks(_):
    """Ranks 0 to 2 mask rank 3, which sends nothing; then all ranks are unmasked."""
    buffer = the_buffer()
    status = torch.full((4,), 9, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0, 0, 0, 0]
    if dist.get_rank() != 3:
        buffer.low_latency_update_mask_buffer(3, True)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 0, 0, 1]
        buffer.low_latency_update_mask_buffer(3)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 0, 0, 0]
        buffer.low_latency_update_mask_buffer(3, True)
    buffer.low_latency_clean_mask_buffer()
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0, 0, 0, 0]
    check_bfloat16(_)


def check_rank_that_does_not_combine(_):
    """The others continue without it and report it."""
    os.environ["SHOAL_TIMEOUT_MS"] = "1500"
    buffer = make_buffer(enable_shrink=True)
    del os.environ["SHOAL_TIMEOUT_MS"]
    x, topk_idx, weights = make_inputs(10, tokens=6)
    for missing in (False, True):
        if missing and dist.get_rank() == 3:
            break
        recv, count, handle, *_ = buffer.low_latency_dispatch(x, topk_idx, N, E, use_fp8=False)
        sums, *_ = buffer.low_latency_combine(recv, topk_idx, weights, handle)
        reached = topk_idx < E // 4 * (3 if missing else 4)
        assert close(sums, weighted(x, topk_idx, weights * reached))
        status = torch.zeros(4, dtype=torch.int32)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 0, 0, int(missing)]
        assert not missing or (handle[1][:, 3] & 0xFFFFFFFF == 0).all()
    dist.barrier()
    buffer.destroy()


def check_normal_and_low_latency_in_turn(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(7)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, E)
    recv_x, *_, handle, _ = buffer.dispatch(
        x, None, per_rank, None, in_rank, per_expert, topk_idx, weights
    )
    buffer.clean_low_latency_buffer(N, H, E)
    check_bfloat16(_)
    sums, *_ = buffer.combine(recv_x, handle)
    assert torch.equal(sums, (x.float() * in_rank.sum(1, keepdim=True)).bfloat16())


def check_async_finish(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(8)
    recv, _, handle, event, hook = buffer.low_latency_dispatch(
        x, topk_idx, N, E, use_fp8=False, async_finish=True
    )
    event.current_stream_wait()
    sums, event, _ = buffer.low_latency_combine(recv, topk_idx, weights, handle, async_finish=True)
    event.current_stream_wait()
    assert hook is None and close(sums, weighted(x, topk_idx, weights))


def check_hooks_with_any_tensors(_):
    """Parameters and tensors with a gradient give the results of plain tensors."""
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(11)
    want = expected_rows(x, topk_idx)
    for turn, (rows, gates) in enumerate(
        (
            (x, weights),
            (x, weights),
            (torch.nn.Parameter(x), weights),  # a subclass of Tensor
            (x, torch.nn.Parameter(weights)),
            (x.clone().requires_grad_(), weights.clone().requires_grad_()),
        )
    ):
        stats, waits = (
            torch.full((E // 4,), turn, dtype=torch.int32),
            torch.zeros(4, dtype=torch.int64),
        )
        recv, count, handle, event, hook = buffer.low_latency_dispatch(
            rows, topk_idx, N, E, stats, waits, use_fp8=False, return_recv_hook=True
        )
        with pytest.raises(RuntimeError, match="hook"):
            buffer.low_latency_combine(recv, topk_idx, gates, handle, return_recv_hook=True)
        assert hook() is None and event.event is None
        verify_received(recv, count, handle, want, as_received)
        assert torch.equal(stats, turn + count) and waited(waits)
        with pytest.raises(RuntimeError, match="has been received"):
            hook()
        waits.zero_()
        out = torch.full_like(x, 7) if turn % 2 else None
        sums, event, hook = buffer.low_latency_combine(
            recv,
            topk_idx,
            gates,
            handle,
            return_recv_hook=True,
            out=out,
            combine_wait_recv_cost_stats=waits,
        )
        hook()
        assert (
            event.event is None
            and not sums.requires_grad
            and (out is None or sums is out)
            and waited(waits)
        )
        assert sums.shape == x.shape and sums.dtype == torch.bfloat16 and sums.is_contiguous()
        assert close(sums, weighted(x, topk_idx, weights))
        with pytest.raises(RuntimeError, match="has been received"):
            hook()


def check_hooks_and_none_in_turn(_):
    """A handle serves combines with and without a hook, however its dispatch was sent. The
    caller owns the results."""
    buffer = the_buffer()
    kept = []
    for seed, (with_hook, then) in enumerate(
        ((True, False), (False, True), (True, True), (False, False), (True, True))
    ):
        x, topk_idx, weights = make_inputs(30 + seed)
        recv, count, handle, _, hook = buffer.low_latency_dispatch(
            x, topk_idx, N, E, use_fp8=False, return_recv_hook=with_hook
        )
        assert (hook is not None) == with_hook
        if hook is not None:
            hook()
        verify_received(recv, count, handle, expected_rows(x, topk_idx), as_received)
        sums, _, hook = buffer.low_latency_combine(
            recv, topk_idx, weights, handle, use_logfmt=seed == 2, return_recv_hook=then
        )
        assert (hook is not None) == then
        if hook is not None:
            hook()
        kept.append((sums, weighted(x, topk_idx, weights), seed == 2))
    for sums, want, coarse in kept:
        assert close(sums, want) or coarse and calc_diff(sums, want) < 1e-3


def check_zero_copy_with_hooks(_):
    """A combine invalidates the next combine buffer."""
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(12)
    for turn in range(4):
        recv, _, handle, _, hook = buffer.low_latency_dispatch(
            x, topk_idx, N, E, use_fp8=False, return_recv_hook=True
        )
        hook()
        target = buffer.get_next_low_latency_combine_buffer(handle)
        target[:] = recv
        sums, _, hook = buffer.low_latency_combine(
            recv, topk_idx, weights, handle, zero_copy=turn % 2 == 0, return_recv_hook=True
        )
        hook()
        assert close(sums, weighted(x, topk_idx, weights))
        with pytest.raises(RuntimeError, match="get_next"):
            buffer.low_latency_combine(
                recv, topk_idx, weights, handle, zero_copy=True, return_recv_hook=True
            )


def check_argument_errors(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(9, tokens=6)
    for hooks in (False, True):
        for use_fp8 in (True, False, False):
            recv, _, handle, _, hook = buffer.low_latency_dispatch(
                x, topk_idx, N, E, use_fp8=use_fp8, return_recv_hook=hooks
            )
            if hooks:
                hook()
        verify_argument_errors(buffer, hooks, x, topk_idx, weights, recv, handle)
        sums, _, hook = buffer.low_latency_combine(
            recv, topk_idx, weights, handle, return_recv_hook=hooks
        )
        if hooks:
            hook()
        assert close(sums, weighted(x, topk_idx, weights))
    buffer.destroy()
    with pytest.raises(RuntimeError, match="has been destroyed"):
        buffer.low_latency_dispatch(x, topk_idx, N, E, use_fp8=False, return_recv_hook=True)
    with pytest.raises(RuntimeError, match="has been destroyed"):
        buffer.low_latency_combine(recv, topk_idx, weights, handle, return_recv_hook=True)


def verify_argument_errors(buffer, hooks, x, topk_idx, weights, recv, handle):
    def fails(match, call, *args, **kwargs):
        with pytest.raises(RuntimeError, match=match):
            call(*args, **kwargs)

    def dispatch(*args, **kwargs):
        buffer.low_latency_dispatch(*args, **{"return_recv_hook": hooks, **kwargs})

    def combine(*args, **kwargs):
        buffer.low_latency_combine(*args, **{"return_recv_hook": hooks, **kwargs})

    torch.use_deterministic_algorithms(True)  # which fills new tensors
    try:
        for call in (
            lambda: dispatch(x, topk_idx, N, E),
            lambda: combine(recv, topk_idx, weights, handle),
        ):
            with pytest.raises(AssertionError, match="fill_uninitialized_memory"):
                call()
    finally:
        torch.use_deterministic_algorithms(False)
    fails("x is float32", dispatch, x.float(), topk_idx, N, E)
    fails("x is list", dispatch, [1.0], topk_idx, N, E)
    fails("not contiguous", dispatch, x.t().contiguous().t(), topk_idx, N, E)
    fails("topk_idx is int32", dispatch, x, topk_idx.int(), N, E)
    fails("topk_idx is", dispatch, x, topk_idx[:3], N, E)
    fails("topk_idx is .*not contiguous", dispatch, x, topk_idx.t().contiguous().t(), N, E)
    fails("topk_idx is NoneType", dispatch, x, None, N, E)
    fails("at most num_max", dispatch, x, topk_idx, 4, E)
    many = make_inputs(9, tokens=N + 1)
    fails("at most num_max", dispatch, *many[:2], N, E, use_fp8=False)
    fails("num_experts is 0", dispatch, x, topk_idx, N, 0)
    fails("hidden", dispatch, x[:, :120].contiguous(), topk_idx, N, E)
    fails("num_rdma_bytes", dispatch, x, topk_idx, 100 * N, E)
    fails("round_scale", dispatch, x, topk_idx, N, E, use_ue8m0=True)
    fails(
        "exclude each other", dispatch, x, topk_idx, N, E, async_finish=True, return_recv_hook=True
    )
    fails("recv_stats", dispatch, x, topk_idx, N, E, torch.zeros(1, dtype=torch.int32))
    fails("cost_stats", dispatch, x, topk_idx, N, E, None, torch.zeros(4, 4, dtype=torch.int64))
    fails("x is", combine, recv[:, :-1], topk_idx, weights, handle)
    fails("x is float32", combine, recv.float(), topk_idx, weights, handle)
    fails("topk_weights", combine, recv, topk_idx, weights.double(), handle)
    fails("topk_weights", combine, recv, topk_idx, weights[:-1], handle)
    fails("topk_idx is", combine, recv, topk_idx[:, :1].contiguous(), weights, handle)
    fails("weights", combine, recv, topk_idx[:-1], weights[:-1], handle)
    fails("handle", combine, recv, topk_idx, weights, tuple(handle))
    fails(
        "exclude each other",
        combine,
        recv,
        topk_idx,
        weights,
        handle,
        use_logfmt=True,
        zero_copy=True,
    )
    fails(
        "exclude each other",
        combine,
        recv,
        topk_idx,
        weights,
        handle,
        async_finish=True,
        return_recv_hook=True,
    )
    fails("get_next", combine, recv, topk_idx, weights, handle, zero_copy=True)
    fails("out is", combine, recv, topk_idx, weights, handle, out=x.float())
    fails("out is", combine, recv, topk_idx, weights, handle, out=x[:-1].clone())
    fails(
        "cost_stats",
        combine,
        recv,
        topk_idx,
        weights,
        handle,
        combine_wait_recv_cost_stats=torch.zeros(4, dtype=torch.int32),
    )
    if not x.is_cuda:  # comparing would make the host wait there
        fails("differs", combine, recv, topk_idx.flip(1).contiguous(), weights, handle)
    fails("rank 9", buffer.low_latency_update_mask_buffer, 9, True)
    fails("mask_status", buffer.low_latency_query_mask_buffer, torch.zeros(4))


add_tests(globals(), lambda: run_checks(4, __name__))
