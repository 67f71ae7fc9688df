# SPDX-License-Identifier: Apache-2.0
"""ep.Group in Python against NumPy: dispatch and combine, their options, and their errors."""

import gc
import signal
import threading
import time

import numpy as np
import pytest
from waits import wait_for

import shoal

PES, EXPERTS, TOP_K, HIDDEN, TOKENS = 4, 8, 3, 64, 20


def tokens_of(pe):
    """float32 rows of small integers, so that every sum is exact; indices, some of them -1;
    weights."""
    random = np.random.default_rng(pe)
    count = TOKENS - 3 * pe
    rows = random.integers(-8, 8, (count, HIDDEN)).astype(np.float32)
    indices = np.stack([random.permutation(EXPERTS)[:TOP_K] for _ in range(count)]).astype(np.int64)
    indices[random.random(indices.shape) < 0.2] = -1
    return rows, indices, random.integers(1, 5, indices.shape).astype(np.float32)


def received_by(pe):
    """(source, token) of the rows of one rank, by source, then token."""
    local = range(pe * EXPERTS // PES, (pe + 1) * EXPERTS // PES)
    return [
        (s, t)
        for s in range(PES)
        for t, row in enumerate(tokens_of(s)[1])
        if any(e in local for e in row)
    ]


def with_group(body, settings, **options):
    def pe(world):
        group = shoal.ep.Group(
            world.team,
            **{
                "hidden": HIDDEN,
                "top_k": TOP_K,
                "experts": EXPERTS,
                "max_tokens": TOKENS,
                "dtype": "float32",
                **options,
            },
        )
        try:
            return body(group, world.my_pe)
        finally:
            gc.collect()
            group.close()

    return shoal.run_threads(PES, pe, settings)


def expected_dispatch(pe):
    sources = received_by(pe)
    first = pe * EXPERTS // PES
    x = np.array([tokens_of(s)[0][t] for s, t in sources])
    idx = np.array([tokens_of(s)[1][t] for s, t in sources]) - first
    here = (idx >= 0) & (idx < EXPERTS // PES)
    weights = np.where(here, np.array([tokens_of(s)[2][t] for s, t in sources]), 0)
    return x, np.where(here, idx, -1), weights, np.array([t for _, t in sources])


def test_dispatch_and_combine(settings):
    def body(group, pe):
        rows, indices, weights = tokens_of(pe)
        routing = group.route(indices)
        received = group.dispatch(rows, routing, weights=weights)
        for got, wanted in zip(
            (received.x, received.topk_idx, received.topk_weights, received.source_token),
            expected_dispatch(pe),
        ):
            assert np.array_equal(got, wanted)
        assert (
            received.rows
            == sum(received.rows_per_source)
            == received.handle.received_rows
            == len(received_by(pe))
        )
        counts = [int((received.topk_idx == e).sum()) for e in range(group.local_experts)]
        assert received.tokens_per_expert == counts
        bias = np.full_like(rows, 3)
        combined = group.combine(
            received.x, received.handle, weights=received.topk_weights, bias=(bias, rows)
        )
        ranks = np.array(
            [sum(routing.is_token_in_rank(t, r) for r in range(PES)) for t in range(len(rows))]
        )
        assert np.array_equal(combined.x, rows * ranks[:, None] + 3 + rows)
        assert np.array_equal(combined.topk_weights, np.where(indices >= 0, weights, 0))
        assert routing.tokens_per_rank == [
            int(sum(routing.is_token_in_rank(t, r) for t in range(len(rows)))) for r in range(PES)
        ]

        again = group.dispatch(2 * rows, received.handle)  # the same layout, new rows
        assert np.array_equal(again.x, 2 * received.x) and again.topk_idx is None
        out = np.empty_like(rows)
        assert group.combine(again.x.copy(), again.handle, out=out).x is out
        assert np.array_equal(out, 2 * rows * ranks[:, None])
        return group.statistics()["combines"]

    assert with_group(body, settings) == [2] * PES


def test_worst_case_rows_alignment_and_copy_out(settings):
    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        received = group.dispatch(
            rows, group.route(indices), worst_case_rows=PES * TOKENS, copy_out=True
        )
        assert received.x.shape == (PES * TOKENS, HIDDEN) and received.tokens_per_expert == []
        wanted = expected_dispatch(pe)
        assert np.array_equal(received.x[: received.rows], wanted[0])
        assert (received.topk_idx[received.rows :] == -1).all()
        aligned = group.dispatch(rows, group.route(indices.astype(np.int32)), expert_alignment=16)
        assert all(count % 16 == 0 for count in aligned.tokens_per_expert)
        return True

    assert all(with_group(body, settings))


def test_expanded_layout_is_grouped_by_expert(settings):
    def body(group, pe):
        rows, indices, weights = tokens_of(pe)
        received = group.dispatch(
            rows, group.route(indices), weights=weights, expert_major=True, expert_alignment=4
        )
        first = received.expert_first_row
        for expert in range(group.local_experts):
            block = received.topk_idx[first[expert] : first[expert + 1], 0]
            assert first[expert] % 4 == 0 and set(block[block >= 0]) <= {expert}
        combined = group.combine(received.x, received.handle)
        assert np.array_equal(combined.x, rows * (indices >= 0).sum(1)[:, None])
        return True

    assert all(with_group(body, settings))


def test_asynchronous_calls(settings):
    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        future = group.dispatch_async(rows, group.route(indices))
        received = future.result()
        assert future.done() and np.array_equal(received.x, expected_dispatch(pe)[0])
        with pytest.raises(shoal.InvalidArgumentError, match="taken once"):
            future.result()
        combined = group.combine_async(received.x, received.handle).result()
        return combined.x.shape == rows.shape

    assert all(with_group(body, settings))


@pytest.mark.parametrize("quantize", ["none", "fp8", "fp8_power_of_two", "fp8_ue8m0"])
@pytest.mark.parametrize("reduction", ["per_rank", "exact"])
def test_low_latency(quantize, reduction, settings):
    torch = pytest.importorskip("torch")
    hidden = 512

    def body(group, pe):
        rows, indices, weights = tokens_of(pe)
        x = torch.from_numpy(np.tile(rows, (1, hidden // HIDDEN))).to(torch.bfloat16)
        counts = np.zeros(EXPERTS // PES, np.int32)
        pending = group.low_latency_dispatch(x, indices, quantize=quantize, expert_counts=counts)
        received = pending.receive()
        y = received.x
        if quantize == "fp8_ue8m0":
            exponents = torch.from_numpy(
                np.ascontiguousarray(received.scales.numpy()).view(np.uint8)
            ).int()
            scales = (exponents << 23).view(torch.float32)[..., : hidden // 128]
        elif quantize != "none":
            scales = received.scales
        if quantize != "none":
            y = (
                (y.float().unflatten(-1, (-1, 128)) * scales[..., None])
                .flatten(-2)
                .to(torch.bfloat16)
            )
        valid = received.counts.numpy()
        assert np.array_equal(valid, counts)
        y = torch.where(
            torch.arange(y.shape[1])[None, :, None] < torch.from_numpy(valid)[:, None, None], y, 0
        )
        sent = group.low_latency_combine(
            y.contiguous(), indices, weights, received.handle, reduction=reduction
        )
        combined = sent.receive().float()
        wanted = x.float() * torch.from_numpy(np.where(indices >= 0, weights, 0).sum(1)[:, None])
        error = (combined - wanted).abs().max().item()
        assert error <= (0.01 if quantize == "none" else 0.07) * wanted.abs().max().item(), error
        return True

    sizes = {
        "low_latency_max_tokens": TOKENS,
        "hidden": hidden,
        "dtype": "bfloat16",
        "max_tokens": 0,
    }
    assert all(with_group(body, settings, **sizes))


def test_zero_copy_combine(settings):
    torch = pytest.importorskip("torch")

    def body(group, pe):
        rows, indices, weights = tokens_of(pe)
        x = torch.from_numpy(rows).to(torch.bfloat16)
        received = group.low_latency_dispatch(x, indices, quantize="none").receive()
        buffer = group.next_combine_buffer(like=x)
        buffer.copy_(received.x)
        out = torch.empty_like(x)
        result = group.low_latency_combine(
            buffer, indices, weights, received.handle, zero_copy=True, out=out
        ).receive()
        assert result is out
        wanted = x.float() * torch.from_numpy(np.where(indices >= 0, weights, 0).sum(1)[:, None])
        return torch.allclose(out.float(), wanted, rtol=0.02, atol=0.5)

    assert all(
        with_group(body, settings, low_latency_max_tokens=TOKENS, dtype="bfloat16", max_tokens=0)
    )


def test_bad_arguments_leave_the_group_usable(settings):
    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        received = group.dispatch(rows, group.route(indices))
        cases = [
            (
                lambda: group.route(np.full((2, TOP_K), EXPERTS)),
                r"topk_idx\[0, 0\] is 8; allowed: 0 to 7",
            ),
            (lambda: group.route(np.zeros((2, TOP_K), np.int64)), "twice"),
            (lambda: group.dispatch(rows[:, :32].copy(), group.route(indices)), "32"),
            (
                lambda: group.dispatch(rows, "everywhere"),
                "a Routing or the Handle of an earlier dispatch, got a str",
            ),
            (lambda: group.combine(received.x, received.handle, bias=(rows,) * 3), "bias"),
            (lambda: group.low_latency_dispatch(rows, indices), "low_latency_max_tokens"),
        ]
        for call, message in cases:
            with pytest.raises(shoal.InvalidArgumentError, match=message):
                call()
        with pytest.raises(TypeError, match='unexpected argument "scale"'):
            group.dispatch(rows, group.route(indices), scale=rows)
        return group.dispatch(rows, group.route(indices)).rows == len(received_by(pe))

    assert all(with_group(body, settings))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"first_expert": [0, 3]}, ValueError, "first_expert has 2 numbers; allowed: none, 4"),
        ({"first_expert": [0, 3, 2, 6]}, ValueError, r"first_expert\[2\] is 2; allowed: 3 to 8"),
        ({"first_expert": 3}, ValueError, "first_expert"),
        ({"hiden": 64}, TypeError, 'no option "hiden"; there are hidden, top_k'),
        ({"top_k": "three"}, ValueError, "top_k='three' has the wrong type"),
        ({"max_tokens": 1 << 22}, shoal.ExhaustedError, "SHOAL_SYMMETRIC_SIZE"),
    ],
)
def test_options_that_cannot_be_are_refused(options, error, message, settings):
    with pytest.raises(error, match=message):
        with_group(lambda group, pe: None, settings, **options)


def test_results_outlive_their_group(settings):
    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        held = group.dispatch(rows, group.route(indices))
        group.close()
        with pytest.raises(shoal.ClosedError, match="the group is closed"):
            group.combine(held.x, held.handle)
        return np.array_equal(held.x, expected_dispatch(pe)[0])

    assert all(with_group(body, settings))


def test_asynchronous_calls_wait_for_events_of_the_host(settings):
    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        first, second = shoal.ep.HostEvent(), shoal.ep.HostEvent()
        future = group.dispatch_async(rows, group.route(indices), after=first)
        time.sleep(0.05)
        assert not future.done() and not first.is_set
        first.set()
        first.set()
        received = future.result()
        assert first.is_set and np.array_equal(received.x, expected_dispatch(pe)[0])
        combining = group.combine_async(received.x, received.handle, after=second)
        del first
        assert not combining.done()
        second.set()
        assert combining.result().x.shape == rows.shape
        return True

    assert with_group(body, settings) == [True] * PES


def test_an_event_that_is_gone_holds_nothing_back(settings):
    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        future = group.dispatch_async(rows, group.route(indices), after=shoal.ep.HostEvent())
        return np.array_equal(future.result().x, expected_dispatch(pe)[0])

    assert with_group(body, settings) == [True] * PES


def test_waiting_for_a_result_can_be_interrupted(settings):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with shoal.World.from_unique_id(str(shoal.UniqueId.create()), 0, 1, settings) as world:
            group = shoal.ep.Group(
                world.team, hidden=HIDDEN, top_k=1, experts=1, max_tokens=2, dtype="float32"
            )
            rows, event = np.ones((2, HIDDEN), np.float32), shoal.ep.HostEvent()
            future = group.dispatch_async(
                rows, group.route(np.zeros((2, 1), np.int64)), after=event
            )
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                future.result()
            event.set()  # the operation still exists
            received = future.result()
            assert np.array_equal(received.x, rows)
            del received, future
            gc.collect()
            group.close()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_groups_that_are_prepared(settings):
    """preinitialize, warmup, threads and sms change no result. ready() reports whether receive
    waits."""
    torch = pytest.importorskip("torch")

    def body(group, pe):
        group.warmup()
        rows, indices, weights = tokens_of(pe)
        received = group.dispatch(rows, group.route(indices, sms=2), sms=2)
        assert np.array_equal(received.x, expected_dispatch(pe)[0])
        assert group.options["preinitialize"] and group.options["threads"] == 2
        for defer in (True, False):
            pending = group.low_latency_dispatch(
                torch.from_numpy(rows).bfloat16(), indices, quantize="none", defer_receive=defer
            )
            wait_for(pending.ready)
            got = pending.receive()
            y = group.next_combine_buffer()
            combined = group.low_latency_combine(
                y, indices, weights, got.handle, zero_copy=True, defer_receive=defer
            )
            assert combined.receive().shape == rows.shape
        return True

    options = {
        "preinitialize": True,
        "threads": 2,
        "low_latency_max_tokens": TOKENS,
        "hidden": HIDDEN,
    }
    assert with_group(body, settings, **options) == [True] * PES


def test_size_hints_of_several_nodes():
    options = {"hidden": HIDDEN, "top_k": TOP_K, "experts": EXPERTS, "max_tokens": TOKENS}
    alone, spread = shoal.ep.size_hint(8, **options), shoal.ep.size_hint(8, nodes=4, **options)
    assert spread["normal"] != alone["normal"] and sum(list(spread.values())[:3]) == spread["total"]


def test_size_hints_add_up():
    options = {"hidden": 7168, "top_k": 8, "experts": 256, "max_tokens": 4096}
    hint = shoal.ep.size_hint(8, **options)
    assert (
        hint["total"] == hint["control"] + hint["normal"] + hint["low_latency"]
        and hint["low_latency"] == 0
    )
    assert shoal.ep.size_hint(8, heap="cuda", combine_staging=False, **options)["total"] < 1.2e9
    low_latency = {"hidden": 7168, "top_k": 8, "experts": 256, "low_latency_max_tokens": 128}
    assert hint["results"] == 0 == shoal.ep.size_hint(2, **low_latency)["results"]
    assert 4.8e8 < shoal.ep.size_hint(2, heap="cuda", **low_latency)["results"] < 4.9e8
    assert shoal.ep.low_latency_size_hint(128, 7168, 8, 256) > 2 * 128 * 7168 * 8


def test_gate_chooses_as_numpy_does():
    random = np.random.default_rng(1)
    logits, bias = (
        random.normal(size=(50, 16)).astype(np.float32),
        random.normal(size=16).astype(np.float32),
    )
    chosen, weights = shoal.ep.gate(logits, bias, top_k=4)
    scores = 1 / (1 + np.exp(-logits))
    wanted = np.argsort(-(scores + bias), axis=1, kind="stable")[:, :4]
    assert np.array_equal(chosen, wanted)
    picked = np.take_along_axis(scores, wanted, 1)
    assert np.allclose(weights, picked / picked.sum(1, keepdims=True), rtol=1e-5)


def test_gate_fills_arrays():
    logits = np.random.default_rng(2).normal(size=(20, 12)).astype(np.float32)
    options = {"top_k": 3, "groups": 4, "groups_kept": 2, "score": "softmax"}
    chosen, weights = shoal.ep.gate(logits, **options)
    out = np.full((20, 3), -7, np.int64), np.full((20, 3), -7, np.float32)
    assert shoal.ep.gate(logits, **options, out=out) is out
    assert np.array_equal(out[0], chosen) and np.array_equal(out[1], weights)
    with pytest.raises(shoal.InvalidArgumentError, match=r"GateArrays.topk_idx is int64 \[20, 2\]"):
        shoal.ep.gate(logits, **options, out=(out[0][:, :2].copy(), out[1]))
    with pytest.raises(shoal.InvalidArgumentError, match="a tuple"):
        shoal.ep.gate(logits, **options, out=out[0])
    torch = pytest.importorskip("torch")
    from shoal.torch import gate

    idx, scores = gate(torch.from_numpy(logits), **options)
    assert np.array_equal(idx.numpy(), chosen) and np.array_equal(scores.numpy(), weights)


def test_groups_have_their_own_chunks(settings):
    def body(world):
        options = {"hidden": 64, "top_k": 1, "experts": 2, "max_tokens": 4}
        group = shoal.ep.Group(world.team, **options, chunk_bytes=8192, chunks_in_flight=3)
        assert group.options["chunk_bytes"] == 8192 and group.options["chunks_in_flight"] == 3
        with pytest.raises(shoal.InvalidArgumentError, match="chunk_bytes is 100; allowed: 4096"):
            shoal.ep.Group(world.team, **options, chunk_bytes=100)
        group.close()

    shoal.run_threads(2, body, settings=settings)


def test_a_handle_does_not_keep_the_rows(settings):
    """Handles may live long, as in autograd and cached routings; they do not hold the receive
    area."""

    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        handle = group.dispatch(rows, group.route(indices)).handle
        for _ in range(20):
            assert group.dispatch(rows, handle).rows == handle.received_rows
        return True

    assert all(with_group(body, settings, live_results=1))


def test_an_unclosed_group_ends_with_its_world(settings):
    """Freeing is collective, and the garbage collectors of PEs run at different times."""

    def body(world):
        group = shoal.ep.Group(
            world.team, hidden=16, top_k=1, experts=PES, max_tokens=4, dtype="float32"
        )
        received = group.dispatch(
            np.ones((4, 16), np.float32), group.route(np.full((4, 1), world.my_pe))
        )
        return received.x  # outlives the group and the world

    assert [x.sum() for x in shoal.run_threads(PES, body, settings)] == [64] * PES


def test_queries_of_a_group_let_other_threads_run(settings):
    """statistics() waits for asynchronous operations and so for other PEs, which are threads
    that need the GIL."""

    waits = threading.Event()

    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        if pe > 0:
            waits.wait()
        future = group.dispatch_async(rows, group.route(indices))
        waits.set()
        counted = group.statistics()["dispatches"]
        return counted, future.result().rows == len(received_by(pe))

    assert with_group(body, settings) == [(1, True)] * PES


def test_outputs_have_to_be_writable(settings):
    def body(group, pe):
        rows, indices, _ = tokens_of(pe)
        received = group.dispatch(rows, group.route(indices))
        out = np.zeros_like(rows)
        out.flags.writeable = False
        with pytest.raises(shoal.InvalidArgumentError, match="out is read-only"):
            group.combine(received.x, received.handle, out=out)
        return bool(group.combine(received.x, received.handle).x.any()) and not out.any()

    assert all(with_group(body, settings))


def test_a_future_can_be_taken_after_its_group_is_closed(settings):
    def body(world):
        group = shoal.ep.Group(
            world.team, hidden=16, top_k=1, experts=PES, max_tokens=4, dtype="float32"
        )
        received = group.dispatch(
            np.ones((4, 16), np.float32), group.route(np.full((4, 1), world.my_pe))
        )
        future = group.combine_async(received.x.copy(), received.handle)
        wait_for(future.done)
        del received
        group.close()
        return float(future.result().x.sum())

    assert shoal.run_threads(PES, body, settings) == [64.0] * PES
