# SPDX-License-Identifier: Apache-2.0
"""Expert-major dispatch and combine of shoal.torch on 4 ranks against one process."""

import threading

import pytest

torch = pytest.importorskip("torch")

from torch_ranks import add_tests, all_ranks, each_group, run_checks

import shoal
import shoal.ep
import shoal.torch

HIDDEN, EXPERTS, TOP_K, MAX_TOKENS = 16, 8, 3, 24
OPTIONS = {
    "hidden": HIDDEN,
    "experts": EXPERTS,
    "top_k": TOP_K,
    "max_tokens": MAX_TOKENS,
    "dtype": "float32",
}


def batch(me, tokens=None):
    """x, topk_idx and topk_weights of one rank; some top-k slots have no expert."""
    generator = torch.Generator().manual_seed(100 + me)
    tokens = 5 + 3 * me if tokens is None else tokens
    x = torch.randn(tokens, HIDDEN, generator=generator)
    scores = torch.rand(tokens, EXPERTS, generator=generator)
    weights, idx = scores.topk(TOP_K, dim=-1)
    return x, idx.masked_fill(weights < 0.5, -1), weights


def matrices():
    generator = torch.Generator().manual_seed(7)
    return torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5


def alone(x, idx, weights, experts):
    """The layer in one process: the weighted sum of each token's experts."""
    out = torch.zeros_like(x)
    for slot in range(TOP_K):
        chosen = experts[idx[:, slot].clamp(min=0)]
        y = torch.einsum("th,thk->tk", x, chosen) * weights[:, slot, None].to(x.dtype)
        out = out + torch.where(idx[:, slot, None] < 0, 0, y)
    return out


def spread(group, x, idx, weights, experts):
    received = shoal.torch.dispatch(group, x, idx, weights, expert_major=True)
    parts = received.x.split(received.tokens_per_expert)
    y = torch.cat([rows @ matrix for rows, matrix in zip(parts, experts)])
    if weights is not None:
        y = y * received.topk_weights.unsqueeze(1).to(y.dtype)
    return shoal.torch.combine(group, y, received)


def mine(group, value):
    return value.chunk(group.team.size)[group.team.my_pe]


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def check_results_and_gradients(world):
    for group in each_group(world, OPTIONS):
        me = group.team.my_pe
        x, idx, weights = batch(me)
        inputs = [x.requires_grad_(), weights.requires_grad_()]
        experts = mine(group, matrices()).clone().requires_grad_()
        out = spread(group, x, idx, weights, experts)
        out.square().sum().backward()
        whole = matrices().requires_grad_()
        parts = [batch(pe) for pe in range(group.team.size)]
        for part in parts:
            part[0].requires_grad_(), part[2].requires_grad_()
        expected = [alone(*part, whole) for part in parts]
        sum(part.square().sum() for part in expected).backward()
        close(out, expected[me])
        close(inputs[0].grad, parts[me][0].grad)
        close(inputs[1].grad, parts[me][2].grad)
        close(experts.grad, mine(group, whole.grad))


def check_rows_by_expert_and_by_rank_agree(world):
    """Rows travel once per expert where the memory of all ranks has room for them, else once per
    rank. All tokens go to the experts of rank 0, so that a group without room has none there."""
    results = []
    for room in (MAX_TOKENS, 14):
        group = shoal.ep.Group(world.team, **OPTIONS | {"max_tokens": room, "live_results": 3})
        x, idx, weights = batch(group.team.my_pe, tokens=14)
        x.requires_grad_(), weights.requires_grad_()
        idx[:] = torch.tensor([1, -1, 0])
        received = shoal.torch.dispatch(group, x, idx, weights, expert_major=True)
        assert group.statistics()["rows_sent"] == (28 if room == MAX_TOKENS else 14)
        y = received.x * received.topk_weights.unsqueeze(1)
        out = shoal.torch.combine(group, y, received)
        out.square().sum().backward()
        results.append((received.x, received.topk_weights, out, x.grad, weights.grad))
    for with_room, without in zip(*results):
        assert torch.equal(with_room, without)


def check_gradients_wider_than_the_rows(world):
    """Rows of bfloat16 would fit where their gradients of float32 do not; all go to rank 0."""
    group = shoal.ep.Group(world.team, **OPTIONS | {"max_tokens": 14, "live_results": 3})
    x, idx, weights = batch(group.team.my_pe, tokens=14)
    x = x.bfloat16().requires_grad_()
    idx[:] = torch.tensor([1, -1, 0])
    received = shoal.torch.dispatch(group, x, idx, weights, expert_major=True)
    out = shoal.torch.combine(group, received.x.float(), received)
    close(out, 2 * x.float())
    out.sum().backward()
    close(x.grad.float(), torch.full_like(x, 2, dtype=torch.float32))


def check_rows_of_many_layers_are_kept(world):
    """More layers wait for backward than results have room in the group's memory."""
    group = shoal.ep.Group(world.team, **OPTIONS | {"live_results": 3})
    x, idx, weights = batch(group.team.my_pe)
    x.requires_grad_()
    held = []
    for layer in range(5):
        received = shoal.torch.dispatch(group, (layer + 1) * x, idx, weights, expert_major=True)
        held.append((received, shoal.torch.combine(group, received.x.square(), received)))
    for layer, (received, out) in enumerate(held):
        pairs = (idx >= 0).sum(1, keepdim=True)
        close(out, ((layer + 1) * x).square() * pairs)
    sum(out.sum() for _, out in held).backward()
    close(x.grad, sum((layer + 1) ** 2 for layer in range(5)) * 2 * x * pairs)


def check_second_derivative(world):
    group = shoal.ep.Group(world.team, **OPTIONS)
    x, idx, weights = batch(group.team.my_pe)
    x.requires_grad_(), weights.requires_grad_()
    experts = mine(group, matrices())

    def norm_of_gradient(layer, x, weights):
        gradient = torch.autograd.grad(layer(x, weights).pow(3).sum(), x, create_graph=True)[0]
        gradient.square().sum().backward()

    norm_of_gradient(lambda x, weights: spread(group, x, idx, weights, experts), x, weights)
    expected = batch(group.team.my_pe)
    expected[0].requires_grad_(), expected[2].requires_grad_()
    norm_of_gradient(
        lambda x, weights: alone(x, idx, weights, matrices()), expected[0], expected[2]
    )
    torch.testing.assert_close(x.grad, expected[0].grad, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(weights.grad, expected[2].grad, rtol=1e-3, atol=1e-3)


def check_order_of_rows(world):
    group = shoal.ep.Group(world.team, **OPTIONS)
    me, ranks, here = group.team.my_pe, group.team.size, group.local_experts
    x, idx, weights = batch(me)
    received = shoal.torch.dispatch(group, x, idx, weights, expert_major=True)
    sent = [batch(pe) for pe in range(ranks)]
    rows, row_weights, counts = [], [], []
    for expert in range(me * here, (me + 1) * here):
        before = len(rows)
        for one_x, one_idx, one_weights in sent:
            for token, slot in (one_idx == expert).nonzero().tolist():
                rows.append(one_x[token])
                row_weights.append(one_weights[token, slot])
        counts.append(len(rows) - before)
    assert received.tokens_per_expert == counts
    assert torch.equal(received.x, torch.stack(rows))
    assert torch.equal(received.topk_weights, torch.stack(row_weights))


def check_ranks_without_tokens_or_rows(world):
    """All tokens are of rank 1 and go to expert 0."""
    group = shoal.ep.Group(world.team, **OPTIONS)
    me = group.team.my_pe
    x, _, weights = batch(me, tokens=4 if me == 1 else 0)
    x.requires_grad_()
    idx = torch.full((x.shape[0], TOP_K), -1)
    idx[:, 1:2] = 0
    received = shoal.torch.dispatch(group, x, idx, weights, expert_major=True)
    assert received.x.shape == (4 if me == 0 else 0, HIDDEN)
    out = shoal.torch.combine(group, 2 * received.x, received)
    close(out, 2 * x)
    out.sum().backward()
    close(x.grad, torch.full_like(x, 2))
    with pytest.raises(shoal.InvalidArgumentError, match=r"y is .*; it must have the \d rows"):
        shoal.torch.combine(group, torch.zeros(5, HIDDEN), received)


def check_weights_of_other_dtypes_and_none(world):
    group = shoal.ep.Group(world.team, **OPTIONS)
    x, idx, weights = batch(group.team.my_pe)
    experts = mine(group, matrices())
    for dtype in (torch.float64, torch.bfloat16):
        given = weights.to(dtype).requires_grad_()
        out = spread(group, x, idx, given, experts)
        out.square().sum().backward()
        assert given.grad.dtype is dtype
        close(out, alone(x, idx, given.float(), matrices()))
    close(spread(group, x, idx, None, experts), alone(x, idx, torch.ones_like(weights), matrices()))
    plain = shoal.torch.dispatch(group, x, idx, None)
    assert plain.topk_weights is None
    close(
        shoal.torch.combine(group, plain.x, plain),
        x
        * ((idx.unsqueeze(-1) // group.local_experts == torch.arange(4)) & (idx >= 0)[..., None])
        .any(1)
        .sum(1, keepdim=True),
    )
    with pytest.raises(shoal.InvalidArgumentError, match="topk_weights has dtype torch.int64"):
        shoal.torch.dispatch(group, x, idx, idx)


def check_bfloat16(world):
    group = shoal.ep.Group(world.team, **{**OPTIONS, "dtype": "bfloat16"})
    x, idx, weights = batch(group.team.my_pe)
    received = shoal.torch.dispatch(group, x.bfloat16(), idx, weights, expert_major=True)
    assert received.x.dtype is torch.bfloat16
    out = shoal.torch.combine(group, received.x, received)
    expected = x.bfloat16().float() * (idx >= 0).sum(1, keepdim=True)
    # Sums are rounded once per rank and once at the source.
    torch.testing.assert_close(out.float(), expected, rtol=2**-7, atol=0)


def check_low_latency_layer(world):
    group = shoal.ep.Group(world.team, **OPTIONS | {"hidden": 128, "low_latency_max_tokens": 24})
    me, here = group.team.my_pe, group.local_experts
    _, idx, weights = batch(me)
    x = torch.randn(idx.shape[0], 128).bfloat16()

    def experts(rows, counts):
        """Expert e multiplies by e + 1."""
        assert rows.shape == (here, 4 * 24, 128)
        assert counts.shape == (here,)
        return rows * torch.arange(me * here + 1, (me + 1) * here + 1)[:, None, None]

    columns = (one.t().contiguous().t() for one in (x, idx, weights.double()))
    out = shoal.torch.low_latency(group, *columns, experts)
    factor = torch.where(idx < 0, 0, weights * (idx + 1)).sum(1, keepdim=True)
    torch.testing.assert_close(out.float(), x.float() * factor, rtol=0.02, atol=1e-2)
    with pytest.raises(shoal.InvalidArgumentError, match="x has dtype torch.float32; allowed"):
        shoal.torch.low_latency(group, x.float(), idx, weights, experts)


def check_worst_case_rows_are_refused(world):
    group = shoal.ep.Group(world.team, **OPTIONS)
    with pytest.raises(shoal.InvalidArgumentError, match="worst_case_rows is 4; allowed"):
        shoal.torch.dispatch(group, *batch(group.team.my_pe), expert_major=True, worst_case_rows=4)


def test_compiled_code_breaks_its_graph():
    with shoal.World.open({"symmetric_size": "64M"}) as world:
        group = shoal.ep.Group(world.team, **OPTIONS)
        x, idx, weights = batch(0)
        x.requires_grad_()

        def layer(x):
            received = shoal.torch.dispatch(group, 2 * x, idx, weights, expert_major=True)
            y = received.x * received.topk_weights.unsqueeze(1)
            return shoal.torch.combine(group, y, received) + 1

        out = torch.compile(layer, backend="eager")(x)
        factor = 2 * weights.masked_fill(idx < 0, 0).sum(1, keepdim=True)
        close(out, factor * x + 1)
        out.sum().backward()
        close(x.grad, factor.expand_as(x))


@pytest.mark.parametrize("expert_major", [True, False])
def test_skipped_backward_is_named(expert_major):
    done = threading.Event()

    def pe(world):
        group = shoal.ep.Group(world.team, **OPTIONS)
        x, idx, weights = batch(world.my_pe)
        x.requires_grad_()
        received = shoal.torch.dispatch(group, x, idx, weights, expert_major=expert_major)
        out = shoal.torch.combine(group, 2 * received.x, received)
        if world.my_pe == 1:
            assert done.wait(30)
            return
        try:
            with pytest.raises(shoal.TimeoutError, match="combine.*did PE 1 skip backward()?"):
                out.sum().backward()
        finally:
            done.set()

    shoal.run_threads(2, pe, {"symmetric_size": "64M", "timeout": 1.0})


add_tests(globals(), lambda: run_checks(4, __name__))
