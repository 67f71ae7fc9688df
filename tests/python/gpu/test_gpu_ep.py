# SPDX-License-Identifier: Apache-2.0
"""ep.Group on CUDA tensors, eight ranks on one GPU, against torch on the host: both modes,
streams, events, CUDA graphs."""

import pytest

torch = pytest.importorskip("torch")

from gpu_worlds import capture, delay, fetch, on_gpu, settle, with_group

import shoal
import shoal.ep

PES, EXPERTS, TOP_K, HIDDEN, TOKENS = 8, 16, 3, 128, 24
LOCAL = EXPERTS // PES
NORMAL = {
    "hidden": HIDDEN,
    "top_k": TOP_K,
    "experts": EXPERTS,
    "max_tokens": TOKENS,
    "dtype": "float32",
}
LOW_LATENCY = {"hidden": 512, "top_k": TOP_K, "experts": EXPERTS, "low_latency_max_tokens": TOKENS}


def tokens_of(pe, seed=0, hidden=HIDDEN):
    """Inputs on the host: rows of small integers, so that every sum is exact; indices, some of
    them -1; weights."""
    generator = torch.Generator().manual_seed(100 * seed + pe)
    count = TOKENS - 3 * pe if pe < 7 else 0
    rows = torch.randint(-8, 8, (count, hidden), generator=generator).float()
    indices = torch.rand(count, EXPERTS, generator=generator).argsort(1)[:, :TOP_K]
    indices[torch.rand(indices.shape, generator=generator) < 0.2] = -1
    return rows, indices, torch.randint(1, 5, indices.shape, generator=generator).float()


def expected_dispatch(pe, seed=0):
    """Rows, local indices, weights and source tokens, by source rank, then token."""
    parts = []
    for source in range(PES):
        rows, indices, weights = tokens_of(source, seed)
        here = (indices >= pe * LOCAL) & (indices < (pe + 1) * LOCAL)
        token = here.any(1).nonzero()[:, 0]
        local = torch.where(here, indices - pe * LOCAL, -1)
        parts.append((rows[token], local[token], torch.where(here, weights, 0)[token], token.int()))
    return tuple(torch.cat(part) for part in zip(*parts))


def ranks_of(indices):
    """The number of ranks of each token."""
    return torch.stack([(indices // LOCAL == pe).any(1) for pe in range(PES)]).sum(0)[:, None]


def same(actual, wanted):
    return torch.equal(fetch(torch.as_tensor(actual)), wanted)


def test_dispatch_and_combine():
    def body(group, pe):
        rows, indices, weights = tokens_of(pe)
        x, idx, device_weights = rows.cuda(), indices.cuda(), weights.cuda()
        routing = group.route(idx)
        per_rank = torch.stack([(indices // LOCAL == rank).any(1).sum() for rank in range(PES)])
        assert routing.tokens_per_rank == [] and same(routing.rank_counts, per_rank.int())
        in_rank = torch.full((len(rows), PES), 7, dtype=torch.uint8).cuda()
        group.route(idx, is_token_in_rank=in_rank)
        wanted_ranks = torch.stack([(indices // LOCAL == rank).any(1) for rank in range(PES)], 1)
        assert same(in_rank, wanted_ranks.byte())
        assert same(routing.node_counts, wanted_ranks.any(1).sum()[None].int())
        for token, ranks in list(enumerate(wanted_ranks.tolist()))[:3]:
            assert [routing.is_token_in_rank(token, rank) for rank in range(PES)] == ranks
        received = group.dispatch(x, routing, weights=device_weights)
        wanted = expected_dispatch(pe)
        for got, want in zip(
            (received.x, received.topk_idx, received.topk_weights, received.source_token), wanted
        ):
            assert got.is_cuda and same(got, want)
        assert (
            received.rows
            == sum(received.rows_per_source)
            == received.handle.received_rows
            == len(wanted[0])
        )
        assert received.tokens_per_expert == [int((wanted[1] == e).sum()) for e in range(LOCAL)]
        assert received.x is received.x  # made once

        bias = torch.full_like(x, 3)
        expert_output = received.topk_weights
        combined = group.combine(received.x, received.handle, weights=expert_output, bias=(bias, x))
        ranks = ranks_of(indices)
        assert same(combined.x, rows * ranks + 3 + rows)
        assert same(combined.topk_weights, torch.where(indices >= 0, weights, 0))

        again = group.dispatch(2 * x, received.handle)  # the same layout, new rows
        assert same(again.x, 2 * wanted[0]) and again.topk_idx is None
        out = torch.empty_like(x)
        y = again.x.clone()  # memory of torch, which is copied first
        assert group.combine(y, again.handle, out=out).x is out
        assert same(out, 2 * rows * ranks)
        group.synchronize()
        return group.statistics()["combines"]

    assert with_group(PES, body, **NORMAL) == [2] * PES


def test_expert_output_in_memory_of_torch_is_fetched_from_there():
    """Shared buffers need no staging; this group has none (combine_staging)."""

    def on_world(world):
        group = shoal.ep.Group(world.team, **NORMAL, combine_staging=False)
        pe = world.my_pe
        rows, indices, _ = tokens_of(pe)
        received = group.dispatch(rows.cuda(), group.route(indices.cuda()))
        y = received.x.clone()
        settle()
        shared = world.share_buffer(y if y.numel() > 0 else None)
        assert [shared.bytes(other) for other in range(PES)] == [
            4 * expected_dispatch(p)[0].numel() for p in range(PES)
        ]
        assert y.numel() == 0 or shared.address(pe) == y.data_ptr()
        combined = group.combine(y, received.handle)
        good = same(combined.x, rows * ranks_of(indices))
        group.synchronize()
        shoal.barrier(world.team)
        shared.unshare()
        del received, combined
        group.close()
        return good

    assert on_gpu(PES, on_world) == [True] * PES


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8])
def test_rows_of_all_types_with_scales(dtype):
    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        scales = torch.arange(rows.shape[0] * 2, dtype=torch.float32).view(-1, 2) + 1000 * pe
        received = group.dispatch(
            rows.to(dtype).cuda(), group.route(indices.cuda().int()), scales=scales.cuda()
        )
        wanted, _, _, token = expected_dispatch(pe)
        assert received.x.dtype == dtype and same(received.x.float(), wanted.to(dtype).float())
        source = torch.repeat_interleave(torch.arange(PES), torch.tensor(received.rows_per_source))
        want = torch.stack([2 * token + 1000 * source, 2 * token + 1 + 1000 * source], 1).float()
        return same(received.scales, want)

    assert all(with_group(PES, body, **NORMAL, max_scales=2))


def test_worst_case_rows_reach_no_host():
    def body(group, pe):
        rows, indices, weights = tokens_of(pe)
        most = PES * TOKENS
        for copy_out in (False, True):
            routing = group.route(indices.cuda())
            received = group.dispatch(
                rows.cuda(),
                routing,
                weights=weights.cuda(),
                worst_case_rows=most,
                copy_out=copy_out,
            )
            assert (
                received.rows == -1
                and received.x.shape == (most, HIDDEN)
                and received.rows_per_source == []
            )
            x, idx, _, _ = expected_dispatch(pe)
            assert same(received.row_count, torch.tensor([len(x)], dtype=torch.int32))
            assert same(received.x[: len(x)], x) and bool(
                (fetch(received.topk_idx)[len(x) :] == -1).all()
            )
            counts = torch.stack([(idx == e).sum() for e in range(LOCAL)]).int()
            assert same(received.expert_counts, counts)
            combined = group.combine(received.x, received.handle)
            assert same(combined.x, rows * ranks_of(indices))
        return True

    assert all(with_group(PES, body, **NORMAL))


def test_expanded_layout():
    def body(group, pe):
        rows, indices, weights = tokens_of(pe)
        received = group.dispatch(
            rows.cuda(),
            group.route(indices.cuda()),
            weights=weights.cuda(),
            expert_major=True,
            expert_alignment=4,
        )
        first, idx = (fetch(received.expert_first_row).tolist(), fetch(received.topk_idx)[:, 0])
        for expert in range(LOCAL):
            block = idx[first[expert] : first[expert + 1]]
            assert first[expert] % 4 == 0 and set(block[block >= 0].tolist()) <= {expert}
        combined = group.combine(received.x, received.handle)
        return same(combined.x, rows * (indices >= 0).sum(1, keepdim=True))

    assert all(with_group(PES, body, **{**NORMAL, "max_tokens": 3 * TOKENS}))


def test_futures():
    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        received = group.dispatch_async(rows.cuda(), group.route(indices.cuda())).result()
        assert same(received.x, expected_dispatch(pe)[0])
        combined = group.combine_async(received.x, received.handle).result()
        return same(combined.x, rows * ranks_of(indices))

    assert all(with_group(PES, body, **NORMAL))


# Streams and events.


def test_calls_follow_the_current_stream():
    """A call sends the values that earlier work on the current stream writes. Results are usable
    on that stream without a wait of the host, and on other streams by DLPack."""

    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        source, x, idx = rows.cuda(), torch.full(rows.shape, 99.0, device="cuda"), indices.cuda()
        other = torch.cuda.Stream()
        out = torch.empty((PES * TOKENS, HIDDEN), device="cuda")
        results = []
        for turn in range(3):
            settle()
            routing = group.route(idx)
            delay()
            x.copy_(source * (turn + 1))
            received = group.dispatch(x, routing, worst_case_rows=PES * TOKENS)
            with torch.cuda.stream(other):  # ordered after the call by the access
                out.copy_(received.x)
            torch.cuda.current_stream().wait_stream(other)
            y = received.x
            y.mul_(2)
            results.append(group.combine(y, received.handle).x.clone())
        settle()
        wanted = expected_dispatch(pe)[0]
        assert same(out[: len(wanted)], 3 * wanted)
        return all(
            same(sums, 2 * (turn + 1) * rows * ranks_of(indices))
            for turn, sums in enumerate(results)
        )

    assert all(with_group(PES, body, **NORMAL))


@pytest.mark.parametrize("as_numbers", [False, True])
def test_stream_and_events_that_are_given(as_numbers):
    """after: the call waits for the event. done: a stream that waits for the event sees the
    result."""

    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        source, x, idx = rows.cuda(), torch.zeros(rows.shape, device="cuda"), indices.cuda()
        out = torch.empty(rows.shape, device="cuda")
        copy = torch.empty_like(out)
        made, done = torch.cuda.Event(), torch.cuda.Event()
        # Two streams per PE: one that waits for an event holds up all others of its hardware queue,
        # and there are 32 of these.
        own, caller = torch.cuda.current_stream(), torch.cuda.Stream()
        caller.wait_stream(own)
        delay()
        x.copy_(source)
        made.record()
        done.record(caller)  # creates it
        number = (
            (lambda thing, name: getattr(thing, name))
            if as_numbers
            else (lambda thing, name: thing)
        )
        stream = number(caller, "cuda_stream")
        routing = group.route(idx, stream=stream)
        received = group.dispatch(
            x,
            routing,
            worst_case_rows=PES * TOKENS,
            stream=stream,
            after=number(made, "cuda_event"),
        )
        group.combine(
            received.x, received.handle, out=out, stream=stream, done=number(done, "cuda_event")
        )
        own.wait_event(done)
        copy.copy_(out)
        settle()
        return same(copy, rows * ranks_of(indices))

    assert all(with_group(PES, body, **NORMAL))


# Low latency.


def weighted(rows, indices, weights):
    return rows * torch.where(indices >= 0, weights, 0).sum(1, keepdim=True)


def dequantized(received, quantize):
    y = received.x
    if quantize == "none":
        return y
    if quantize == "fp8_ue8m0":
        packed = received.scales.clone(memory_format=torch.contiguous_format)
        scales = (packed.view(torch.uint8)[..., : y.shape[-1] // 128].int() << 23).view(
            torch.float32
        )
    else:
        scales = received.scales
    return (y.float().unflatten(-1, (-1, 128)) * scales[..., None]).flatten(-2).bfloat16()


def valid_rows(y, counts):
    """Rows after the valid ones may hold any value; they are set to 0."""
    return y.masked_fill(
        torch.arange(y.shape[1], device="cuda")[None, :, None] >= counts[:, None, None], 0
    )


@pytest.mark.parametrize("quantize", ["none", "fp8", "fp8_power_of_two", "fp8_ue8m0"])
@pytest.mark.parametrize("reduction", ["per_rank", "exact"])
@pytest.mark.parametrize("defer", [True, False])
def test_low_latency(quantize, reduction, defer):
    def body(group, pe):
        rows, indices, weights = tokens_of(pe, hidden=512)
        x, idx, device_weights = rows.bfloat16().cuda(), indices.cuda(), weights.cuda()
        counted = torch.zeros(LOCAL, dtype=torch.int32, device="cuda")
        waited = torch.zeros(PES, dtype=torch.int64, device="cuda")
        for turn in range(3):
            pending = group.low_latency_dispatch(
                x,
                idx,
                quantize=quantize,
                expert_counts=counted,
                wait_ns=waited,
                weights=device_weights if turn == 1 else None,
                defer_receive=defer,
            )
            received = pending.receive()
            counts = received.counts
            wanted = torch.stack(
                [
                    sum((tokens_of(s, hidden=512)[1] == e).any(1).sum() for s in range(PES))
                    for e in range(pe * LOCAL, (pe + 1) * LOCAL)
                ]
            )
            assert same(counts, wanted.int()) and same(counted, (turn + 1) * wanted.int())
            y = valid_rows(dequantized(received, quantize), counts)
            sent = group.low_latency_combine(
                y,
                idx,
                device_weights,
                received.handle,
                reduction=reduction,
                log_fmt=turn == 2,
                defer_receive=defer,
            )
            sums = fetch(sent.receive()).float()
            want = weighted(rows, indices, weights)
            tolerance = 0.01 if quantize == "none" and turn < 2 else 0.07
            if len(rows):
                assert (sums - want).abs().max() <= tolerance * want.abs().max()
        return bool((fetch(waited) >= 0).all())

    assert all(with_group(PES, body, **LOW_LATENCY))


def test_zero_copy_combine_into_out():
    def body(group, pe):
        rows, indices, weights = tokens_of(pe, hidden=512)
        x, idx, device_weights = rows.bfloat16().cuda(), indices.cuda(), weights.cuda()
        received = group.low_latency_dispatch(x, idx, quantize="none").receive()
        buffer = group.next_combine_buffer(like=x)
        buffer.copy_(received.x)
        out = torch.empty_like(x)
        assert (
            group.low_latency_combine(
                buffer, idx, device_weights, received.handle, zero_copy=True, out=out
            ).receive()
            is out
        )
        return torch.allclose(
            fetch(out).float(), weighted(rows, indices, weights), rtol=0.02, atol=0.5
        )

    assert all(with_group(PES, body, **LOW_LATENCY))


def test_two_low_latency_operations_overlap_with_work_between():
    """Send, work on the same stream, receive: the work in between does not affect the result."""

    def body(group, pe):
        results = []
        both = [tokens_of(pe, seed, 512) for seed in (1, 2)]
        on_device = [
            (rows.bfloat16().cuda(), idx.cuda(), weights.cuda()) for rows, idx, weights in both
        ]
        for _ in range(3):
            sent = [group.low_latency_dispatch(x, idx, quantize="none") for x, idx, _ in on_device]
            delay(2)
            received = [pending.receive() for pending in sent]
            expert_output = [valid_rows(r.x, r.counts) for r in received]
            sent = [
                group.low_latency_combine(y, idx, weights, r.handle)
                for y, (_, idx, weights), r in zip(expert_output, on_device, received)
            ]
            delay(2)
            results += [pending.receive().clone() for pending in sent]
        settle()
        wanted = [weighted(*part) for part in both] * 3
        return all(
            torch.allclose(fetch(got).float(), want, rtol=0.02, atol=0.5)
            for got, want in zip(results, wanted)
        )

    assert all(with_group(PES, body, **LOW_LATENCY))


# CUDA graphs.


@pytest.mark.parametrize("early_weights", [False, True])
def test_low_latency_in_a_graph(early_weights):
    """Captured once, replayed with other rows, experts and weights, also between plain calls."""

    def body(group, pe):
        x = torch.zeros(TOKENS, 512, dtype=torch.bfloat16, device="cuda")
        idx = torch.full((TOKENS, TOP_K), -1, dtype=torch.int64, device="cuda")
        device_weights, out = torch.zeros(TOKENS, TOP_K, device="cuda"), torch.empty_like(x)
        mask = torch.arange(PES * TOKENS, device="cuda")[None, :, None]
        y = torch.empty(LOCAL, PES * TOKENS, 512, dtype=torch.bfloat16, device="cuda")
        dropped = torch.empty(LOCAL, PES * TOKENS, 1, dtype=torch.bool, device="cuda")

        def layer():
            pending = group.low_latency_dispatch(
                x, idx, quantize="none", weights=device_weights if early_weights else None
            )
            received = pending.receive()
            torch.ge(mask, received.counts[:, None, None], out=dropped)
            y.copy_(received.x)
            y.masked_fill_(dropped, 0)
            group.low_latency_combine(y, idx, device_weights, received.handle, out=out).receive()
            return received

        def load(seed):
            rows, indices, weights = tokens_of(pe, seed, 512)
            (
                x[: len(rows)].copy_(rows),
                idx[: len(rows)].copy_(indices),
                device_weights[: len(rows)].copy_(weights),
            )
            return rows, weighted(rows, indices, weights)

        load(0)
        for _ in range(2):
            layer()
        settle()
        shoal.barrier(group.team)  # no other work runs during captures
        graph, kept = capture(layer)
        shoal.barrier(group.team)
        for seed in range(1, 6):
            rows, wanted = load(seed)
            out.fill_(float("nan"))
            graph.replay() if seed != 3 else layer()
            result = fetch(out[: len(rows)]).float()
            assert torch.allclose(result, wanted, rtol=0.02, atol=0.5), seed
        settle()
        shoal.barrier(group.team)
        del graph, kept
        return True

    assert all(with_group(PES, body, **LOW_LATENCY))


def test_normal_mode_in_a_graph():
    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        x = torch.zeros(TOKENS, HIDDEN, device="cuda")
        idx = torch.full((TOKENS, TOP_K), -1, dtype=torch.int64, device="cuda")
        out = torch.empty_like(x)

        def layer():
            routing = group.route(idx)
            received = group.dispatch(x, routing, worst_case_rows=PES * TOKENS)
            group.combine(received.x, received.handle, out=out)
            return routing, received

        for _ in range(2):
            layer()
        settle()
        shoal.barrier(group.team)
        with pytest.raises(shoal.InvalidArgumentError):  # sizes would have to reach the host
            capture(lambda: group.dispatch(x, group.route(idx)))
        shoal.barrier(group.team)
        graph, kept = capture(layer)
        shoal.barrier(group.team)
        for seed in range(1, 4):
            rows, indices, _ = tokens_of(pe, seed)
            x[: len(rows)].copy_(rows), idx[: len(rows)].copy_(indices)
            out.fill_(float("nan"))
            graph.replay()
            if not same(out[: len(rows)], rows * ranks_of(indices)):
                group.synchronize()  # the report of the GPU has more detail
                raise AssertionError(f"replay {seed} on PE {pe}")
        settle()
        shoal.barrier(group.team)
        del graph, kept
        return True

    assert all(with_group(PES, body, **NORMAL))


# Errors.


def test_what_the_gpu_finds_is_raised():
    """The GPU finds an index out of range, and the next call that waits raises it. The group
    stays usable."""

    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        bad = indices.clone()
        if pe == 0:
            bad[1, 0] = EXPERTS + 3
        routing = group.route(bad.cuda())
        raised = ""
        try:
            group.dispatch(rows.cuda(), routing)
            group.synchronize()
        except shoal.InvalidArgumentError as error:
            raised = str(error)
        assert (str(EXPERTS + 3) in raised) == (pe == 0), raised
        received = group.dispatch(rows.cuda(), group.route(indices.cuda()))
        return same(received.x, expected_dispatch(pe)[0])

    assert all(with_group(PES, body, **NORMAL))


def test_a_missing_rank_is_named():
    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        x, routing = rows.cuda(), group.route(indices.cuda())
        group.synchronize()
        shoal.barrier(group.team)
        message = ""
        if pe != 2:
            with pytest.raises((shoal.TimeoutError, shoal.PeerFailedError)) as raised:
                group.dispatch(x, routing)
            message = str(raised.value) if isinstance(raised.value, shoal.TimeoutError) else ""
            with pytest.raises(shoal.ClosedError):
                group.dispatch(x, routing)
        shoal.barrier(group.team)
        return message

    messages = with_group(4, body, close=False, **{**NORMAL, "timeout": 0.5})
    assert any("PE 2" in message and "Setting: timeout" in message for message in messages), (
        messages
    )
