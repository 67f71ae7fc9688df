# SPDX-License-Identifier: Apache-2.0
"""Groups whose ranks hold different numbers of experts, or none: rows, sums, layers of torch."""

import copy

import numpy as np
import pytest

import shoal

PES, TOP_K, HIDDEN, TOKENS = 4, 3, 64, 20
SPREADS = [
    (10, None, [0, 3, 6, 8, 10]),
    (3, None, [0, 1, 2, 3, 3]),
    (9, (0, 5, 5, 7), [0, 5, 5, 7, 9]),
    (6, [0, 0, 0, 6, 6], [0, 0, 0, 6, 6]),
]
spreads = pytest.mark.parametrize(("experts", "given", "first"), SPREADS)


def tokens_of(pe, experts):
    """float32 rows of small integers, so that every sum is exact; indices, some of them -1."""
    random = np.random.default_rng(pe)
    rows = random.integers(-8, 8, (TOKENS, HIDDEN)).astype(np.float32)
    indices = np.stack([random.permutation(experts)[:TOP_K] for _ in range(TOKENS)])
    indices[random.random(indices.shape) < 0.2] = -1
    return rows, indices.astype(np.int64)


def with_group(body, settings, experts, given, **options):
    def pe(world):
        group = shoal.ep.Group(
            world.team,
            hidden=HIDDEN,
            top_k=TOP_K,
            experts=experts,
            first_expert=given,
            dtype="float32",
            **{"max_tokens": 4 * TOKENS, **options},
        )
        result = body(group, world.my_pe)
        group.close()
        return result

    return shoal.run_threads(PES, pe, settings)


@spreads
def test_rows_and_sums(experts, given, first, settings):
    def body(group, pe):
        here = first[pe + 1] - first[pe]
        assert group.first_expert == first and group.local_experts == here
        assert group.max_local_experts == max(np.diff(first))
        assert group.options["first_expert"] == list(given or [])
        rows, indices = tokens_of(pe, experts)
        routing = group.route(indices)
        factors = np.arange(1, experts + 1)[first[pe] : first[pe + 1]]
        wanted = rows * np.where(indices < 0, 0, indices + 1).sum(1)[:, None]

        received = group.dispatch(rows, routing)
        assert len(received.tokens_per_expert) == here
        idx = received.topk_idx
        assert idx.max(initial=-1) < here
        y = received.x * np.where(idx < 0, 0, idx + first[pe] + 1).sum(1)[:, None]
        assert np.array_equal(group.combine(y.astype(np.float32), received.handle).x, wanted)

        received = group.dispatch(rows, routing, expert_major=True, expert_alignment=4)
        starts = received.expert_first_row
        assert len(starts) == here + 1 and list(np.diff(starts)) == received.tokens_per_expert
        y = received.x * np.repeat(factors, received.tokens_per_expert)[:, None]
        assert np.array_equal(group.combine(y.astype(np.float32), received.handle).x, wanted)
        return True

    assert all(with_group(body, settings, experts, given))


@spreads
def test_low_latency(experts, given, first, settings):
    torch = pytest.importorskip("torch")

    def body(group, pe):
        rows, indices = tokens_of(pe, experts)
        x = torch.from_numpy(rows).to(torch.bfloat16)
        counts = np.zeros(group.max_local_experts, np.int32)
        received = group.low_latency_dispatch(
            x, indices, quantize="none", expert_counts=counts
        ).receive()
        assert received.x.shape[0] == group.max_local_experts
        assert (counts[group.local_experts :] == 0).all() and np.array_equal(
            counts, received.counts
        )
        factors = torch.arange(first[pe] + 1, first[pe] + 1 + group.max_local_experts)
        y = received.x * factors[:, None, None].to(torch.bfloat16)
        weights = np.ones(indices.shape, np.float32)
        out = group.low_latency_combine(y, indices, weights, received.handle).receive()
        wanted = rows * np.where(indices < 0, 0, indices + 1).sum(1)[:, None]
        assert np.abs(out.float().numpy() - wanted).max() <= 2
        return True

    assert all(with_group(body, settings, experts, given, low_latency_max_tokens=TOKENS))


@spreads
def test_layer_of_torch(experts, given, first, settings):
    """The outputs and gradients are those of a layer without a group."""
    torch = pytest.importorskip("torch")
    import shoal.torch

    torch.manual_seed(7)
    reference = shoal.torch.MoE(HIDDEN, 16, experts, TOP_K)
    inputs = [torch.randn(TOKENS, HIDDEN) for _ in range(PES)]

    def body(group, pe):
        alone = copy.deepcopy(reference)
        spread = shoal.torch.MoE(HIDDEN, 16, experts, TOP_K, group=group)
        mine = slice(first[pe], first[pe + 1])
        assert spread.w_in.shape[0] == group.local_experts
        with torch.no_grad():
            spread.router.weight.copy_(alone.router.weight)
            spread.w_in.copy_(alone.w_in[mine])
            spread.w_out.copy_(alone.w_out[mine])
        x = inputs[pe].clone().requires_grad_()
        y = spread(x)
        (y * y).sum().backward()
        for other in range(PES):
            z = inputs[other].clone().requires_grad_()
            wanted = alone(z)
            (wanted * wanted).sum().backward()
            if other == pe:
                torch.testing.assert_close(y, wanted)
                torch.testing.assert_close(x.grad, z.grad)
        torch.testing.assert_close(spread.w_in.grad, alone.w_in.grad[mine], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(spread.w_out.grad, alone.w_out.grad[mine], rtol=1e-4, atol=1e-4)
        return True

    assert all(with_group(body, settings, experts, given))


def test_another_id_for_no_expert(settings):
    """FlashInfer fills unused slots with the number of experts; -1 still means the same."""
    torch = pytest.importorskip("torch")
    experts = 10

    def body(group, pe):
        assert group.options["none_expert"] == experts
        rows, indices = tokens_of(pe, experts)
        given = np.where(indices < 0, experts, indices)
        given[0] = -1
        indices[0] = -1
        factors = np.where(indices < 0, 0, indices + 1).sum(1)[:, None]
        first = group.first_expert[pe]

        routing = group.route(given)
        assert np.array_equal(routing.topk_idx, indices)
        received = group.dispatch(rows, routing)
        idx = received.topk_idx
        y = received.x * np.where(idx < 0, 0, idx + first + 1).sum(1)[:, None]
        assert np.array_equal(
            group.combine(y.astype(np.float32), received.handle).x, rows * factors
        )

        x = torch.from_numpy(rows).to(torch.bfloat16)
        received = group.low_latency_dispatch(x, given, quantize="none").receive()
        scale = torch.arange(first + 1, first + 1 + group.max_local_experts)
        y = received.x * scale[:, None, None].to(torch.bfloat16)
        weights = np.ones(indices.shape, np.float32)
        out = group.low_latency_combine(y, given, weights, received.handle).receive()
        assert np.abs(out.float().numpy() - rows * factors).max() <= 2

        given[3, 1] = experts + 1
        for call in (group.route, lambda bad: group.low_latency_dispatch(x, bad)):
            with pytest.raises(shoal.InvalidArgumentError, match="0 to 9, or -1 or 10 for none"):
                call(given)
        return True

    options = {"none_expert": experts, "low_latency_max_tokens": TOKENS}
    assert all(with_group(body, settings, experts, None, **options))
    with pytest.raises(shoal.InvalidArgumentError, match="none_expert is 9; allowed: -1, or 10"):
        shoal.ep.size_hint(4, hidden=64, top_k=1, experts=10, max_tokens=1, none_expert=9)


@pytest.mark.parametrize("first", [None, [0, 43, 86, 128]])
def test_a_shared_expert_is_the_last_one(first, settings):
    """4096 channels, top-8 of 128 experts, and expert 128 with weight 1 for every token; where the
    caller says so, alone on the last rank."""
    experts, top_k, hidden, tokens = 128, 8, 4096, 6

    def pe(world):
        group = shoal.ep.Group(
            world.team,
            hidden=hidden,
            top_k=top_k + 1,
            experts=experts + 1,
            first_expert=first,
            max_tokens=4 * tokens,
            low_latency_max_tokens=tokens,
            dtype="float32",
        )
        me = world.my_pe
        random = np.random.default_rng(me)
        rows = random.integers(-4, 4, (tokens, hidden)).astype(np.float32)
        routed = np.stack([random.permutation(experts)[:top_k] for _ in range(tokens)])
        shared = np.full((tokens, 1), experts)
        indices = np.concatenate([routed, shared], axis=1).astype(np.int64)
        weights = np.full((tokens, top_k + 1), 0.125, np.float32)
        weights[:, -1] = 1
        wanted = rows * (weights * (indices % 16 + 1)).sum(1, keepdims=True)

        received = group.dispatch(rows, group.route(indices), weights=weights)
        idx = received.topk_idx
        factors = (idx + group.first_expert[me]) % 16 + 1
        y = received.x * (received.topk_weights * np.where(idx < 0, 0, factors)).sum(1)[:, None]
        out = group.combine(y.astype(np.float32), received.handle).x
        assert np.array_equal(out, wanted)
        if me == PES - 1:  # its last expert gets every token
            assert received.tokens_per_expert[-1] == PES * tokens
            assert first is None or len(received.tokens_per_expert) == 1
        group.close()
        return True

    assert all(shoal.run_threads(PES, pe, settings))
