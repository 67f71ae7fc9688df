# SPDX-License-Identifier: Apache-2.0
"""Results and gradients of shoal.torch.dispatch and combine, among 4 ranks and among pairs of them.

The reference is the same mixture of experts in float64 on one process, which has the tokens of
all ranks.
"""

import functools
from contextlib import nullcontext
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch_ranks import all_ranks, each_group, add_tests, run_checks, seeded

import shoal
import shoal.ep
import shoal.torch
from shoal._core.ep import count_torch_layouts, torch_layout
from shoal.torch import eager, ops

HIDDEN, EXPERTS, TOP_K, MAX_TOKENS = 16, 8, 3, 12
TOKENS = (12, 5, 0, 9)  # by rank; one has none


def on_groups(**options):
    """Turns check(group) into check(world), which runs it on a group of all ranks and on one of
    each pair."""
    options = {
        "hidden": HIDDEN,
        "experts": EXPERTS,
        "top_k": TOP_K,
        "max_tokens": MAX_TOKENS,
        "dtype": "float32",
        **options,
    }

    def decorate(check):
        @functools.wraps(check)
        def on_world(world):
            for group in each_group(world, options):
                check(group)

        return on_world

    return decorate


def tokens_of(group):
    """x, topk_idx and topk_weights of this rank; some top-k slots and some tokens have no
    expert."""
    count = TOKENS[group.team.world_pe(group.team.my_pe)]
    idx = torch.rand(count, EXPERTS).argsort(dim=1)[:, :TOP_K]
    idx[torch.rand(count, TOP_K) < 0.2] = -1
    idx[:1] = -1
    x = torch.randn(count, HIDDEN, requires_grad=True)
    weights = torch.rand(count, TOP_K, requires_grad=True)
    return x, idx, weights


def expert_output(x, idx, weights, matrices):
    """The weighted sum of each row's experts in `matrices` [experts, hidden, hidden]."""
    share = (F.one_hot(idx + 1, len(matrices) + 1)[..., 1:] * weights.unsqueeze(-1)).sum(dim=1)
    return torch.einsum("re,rh,ehk->rk", share.to(x.dtype), x.tanh(), matrices)


def all_matrices():
    return torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=seeded(5))


def local_matrices(group):
    return all_matrices().chunk(group.team.size)[group.team.my_pe].clone().requires_grad_()


def loss_of(out):
    return (out.sin() + out.square()).sum()


class Reference:
    """The layer in float64 over the tokens of all ranks, with their losses added."""

    def __init__(self, group, x, idx, weights):
        parts = all_ranks(group.team, (x.detach(), idx, weights.detach()))
        self.me, self.counts = group.team.my_pe, [len(part[0]) for part in parts]
        self.ranks = group.team.size
        self.x = torch.cat([part[0] for part in parts]).double().requires_grad_()
        self.idx = torch.cat([part[1] for part in parts])
        self.weights = torch.cat([part[2] for part in parts]).double().requires_grad_()
        self.matrices = all_matrices().double().requires_grad_()
        self.out = expert_output(self.x, self.idx, self.weights, self.matrices)

    def mine(self, rows):
        return rows.split(self.counts)[self.me]

    def verify_gradients(self, x, weights, matrices):
        close(x.grad, self.mine(self.x.grad))
        close(weights.grad, self.mine(self.weights.grad))
        close(matrices.grad, self.matrices.grad.chunk(self.ranks)[self.me])


def by_operators_only():
    """Makes dispatch use operators for all tensors."""
    never = {"fits": lambda *_: False, "try_dispatch": lambda *_: None}
    return mock.patch.multiple(eager, **never)


def close(actual, expected):
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=2e-5, atol=2e-5)


def moe(group, x, idx, weights, matrices, **options):
    received = shoal.torch.dispatch(group, x, idx, weights, **options)
    return shoal.torch.combine(
        group,
        expert_output(received.x, received.topk_idx, received.topk_weights, matrices),
        received,
    )


@on_groups()
def check_received_rows(group):
    """Rows, experts, weights and origins are those of the tokens with a local expert, by rank,
    then token."""
    x, idx, weights = tokens_of(group)
    received = shoal.torch.dispatch(group, x, idx.int(), weights)
    first = group.team.my_pe * group.local_experts
    rows = []
    everything = all_ranks(group.team, (x.detach(), idx, weights.detach()))
    for x, idx, weights in everything:
        here = (idx >= first) & (idx < first + group.local_experts)
        token = here.any(dim=1).nonzero().flatten()
        rows.append(
            (
                x[token],
                torch.where(here, idx - first, -1)[token],
                torch.where(here, weights, 0)[token],
                token.int(),
            )
        )
    for actual, expected in zip(received, (torch.cat(parts) for parts in zip(*rows))):
        assert torch.equal(actual, expected)


@on_groups()
def check_layer(group):
    """The result and all gradients of the layer, with the loss of every rank."""
    x, idx, weights = tokens_of(group)
    matrices = local_matrices(group)
    reference = Reference(group, x, idx, weights)
    out = moe(group, x, idx, weights, matrices)
    close(out, reference.mine(reference.out))
    loss_of(out).backward()
    loss_of(reference.out).backward()
    reference.verify_gradients(x, weights, matrices)


@on_groups()
def check_layer_with_fixed_size(group):
    """worst_case_rows changes the number of received rows, and no bit of results and gradients.
    On a GPU it selects another kernel for the experts' matrices, and so changes the order of
    sums.
    """
    x, idx, weights = tokens_of(group)
    results = []
    for options in ({}, {"worst_case_rows": group.team.size * MAX_TOKENS}, {"copy_out": True}):
        x.grad = weights.grad = None
        matrices = local_matrices(group)
        out = moe(group, x, idx, weights, matrices, **options)
        loss_of(out).backward()
        results.append((out.detach(), x.grad, weights.grad))
    for other in results[1:]:
        for actual, expected in zip(other, results[0]):
            rtol, atol = (1e-6, 1e-5) if x.is_cuda else (0, 0)
            torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


@on_groups()
def check_unused_rows_are_zero(group):
    x, idx, weights = tokens_of(group)
    most = group.team.size * MAX_TOKENS
    received = shoal.torch.dispatch(group, x, idx, weights, worst_case_rows=most)
    unused = (received.topk_idx < 0).all(dim=1)
    assert received.x.shape == (most, HIDDEN)
    assert unused.any()
    assert received.x[unused].eq(0).all()
    assert received.topk_weights[unused].eq(0).all()
    y = torch.ones(most, HIDDEN, requires_grad=True)
    shoal.torch.combine(group, y, received).sum().backward()
    assert torch.equal(y.grad, (~unused).float().unsqueeze(1).expand(most, HIDDEN))


@on_groups()
def check_gradient_of_rows_is_the_sum_over_ranks(group):
    x, idx, weights = tokens_of(group)
    received = shoal.torch.dispatch(group, x, idx, weights)
    (received.x * (1 + group.team.my_pe)).sum().backward()
    rank_of = torch.where(idx < 0, -1, idx // group.local_experts)
    expected = sum((1 + m) * (rank_of == m).any(dim=1) for m in range(group.team.size))
    assert torch.equal(x.grad, expected.float().unsqueeze(1).expand_as(x))
    assert torch.equal(weights.grad, torch.zeros_like(weights))


@on_groups()
def check_slots_of_other_ranks_get_no_gradient(group):
    """exp has slope 1 at the 0 of a top-k slot whose expert is elsewhere; that slope must not
    return."""
    x, idx, weights = tokens_of(group)
    received = shoal.torch.dispatch(group, x, idx, weights)
    received.topk_weights.exp().sum().backward()
    close(weights.grad, torch.where(idx < 0, 0, weights.exp()).detach())
    assert torch.equal(x.grad, torch.zeros_like(x))


@on_groups()
def check_infinite_slopes_of_other_ranks_stay_there(group):
    """The slope of sqrt is infinite at these 0; the gradients of the others stay finite."""
    for by_operators in (False, True):
        x, idx, weights = tokens_of(group)
        with by_operators_only() if by_operators else nullcontext():
            received = shoal.torch.dispatch(group, x, idx, weights)
        assert bool((received.topk_weights == 0).any()) or not len(received.x)
        received.topk_weights.sqrt().sum().backward()
        close(weights.grad, torch.where(idx < 0, 0, 0.5 / weights.sqrt()).detach())


@on_groups()
def check_changed_indices_are_reported_by_backward(group):
    x, idx, weights = tokens_of(group)
    received = shoal.torch.dispatch(group, x, idx, weights)
    loss = received.topk_weights.sum()
    kept = received.topk_idx.clone()
    received.topk_idx.fill_(0)
    with pytest.raises(RuntimeError, match="topk_idx that a dispatch returned was modified"):
        loss.backward(retain_graph=True)
    received.topk_idx.copy_(kept)
    with pytest.raises(RuntimeError, match="modified in place"):
        loss.backward()


@on_groups()
def check_weights_along_a_dispatch_without_gradients(group):
    """Sums of weights along layouts of dispatches without gradients: the first call of a
    group, later ones, and calls under inference_mode. Slots of other ranks add nothing, NaN
    included.
    """
    x, idx, weights = tokens_of(group)
    number = shoal.torch.register(group)
    expected = torch.where(idx < 0, 0, weights.detach())
    for context in (torch.no_grad, torch.no_grad, torch.inference_mode):
        with context():
            received = shoal.torch.dispatch(group, x, idx, weights)
            rows = received.topk_weights.masked_fill(received.topk_idx < 0, float("nan"))
            y, handle = received.x.clone(), received.handle
            sums = torch.ops.shoal.combine(y, rows, handle, number, received.tokens)
            assert torch.equal(sums[1], expected)
            again = eager.combine(y, rows, handle, group)
            assert torch.equal(again[0], sums[0]) and torch.equal(again[1], expected)
    with torch.no_grad():
        received = shoal.torch.dispatch(group, x, idx, weights)
        received.topk_idx.fill_(0)
        with pytest.raises(RuntimeError, match="or a combine with weights, needs it as it was"):
            eager.combine(received.x, received.topk_weights, received.handle, group)


@on_groups()
def check_gradient_of_the_gradient(group):
    x, idx, weights = tokens_of(group)
    matrices = local_matrices(group)
    reference = Reference(group, x, idx, weights)

    def penalty(out, *inputs):
        return sum(
            grad.square().sum()
            for grad in torch.autograd.grad(loss_of(out), inputs, create_graph=True)
        )

    penalty(moe(group, x, idx, weights, matrices), x, weights, matrices).backward()
    penalty(reference.out, reference.x, reference.weights, reference.matrices).backward()
    # Second derivatives are three orders of magnitude larger than first ones.
    scale = reference.x.grad.abs().max()
    for leaf, rows in ((x, reference.x), (weights, reference.weights)):
        close(leaf.grad / scale, reference.mine(rows.grad) / scale)
    close(
        matrices.grad / scale,
        reference.matrices.grad.chunk(group.team.size)[group.team.my_pe] / scale,
    )


@on_groups()
def check_two_layers_and_inputs_without_gradient(group):
    """Backward runs in reverse order on all ranks, and tensors without requires_grad get no
    gradient."""
    x, idx, weights = tokens_of(group)
    x, weights = x.detach(), weights.detach()
    matrices = local_matrices(group)
    reference = Reference(group, x, idx, weights)
    hidden = moe(group, x, idx, weights, matrices)
    loss_of(moe(group, hidden, idx, weights, matrices)).backward()
    loss_of(
        expert_output(reference.out, reference.idx, reference.weights, reference.matrices)
    ).backward()
    expected = reference.matrices.grad.chunk(group.team.size)[group.team.my_pe]
    close(matrices.grad / expected.abs().max(), expected / expected.abs().max())
    assert x.grad is None and weights.grad is None


@on_groups(dtype="bfloat16")
def check_bfloat16_rows(group):
    x, idx, weights = tokens_of(group)
    rows = x.detach().bfloat16().requires_grad_()
    received = shoal.torch.dispatch(group, rows, idx, weights)
    shoal.torch.combine(group, received.x, received).sum().backward()
    rank_of = torch.where(idx < 0, -1, idx // group.local_experts)
    copies = sum((rank_of == m).any(dim=1) for m in range(group.team.size))
    assert rows.grad.dtype == torch.bfloat16
    assert torch.equal(rows.grad, copies.bfloat16().unsqueeze(1).expand_as(rows))


@on_groups(live_results=1)
def check_rows_kept_until_backward(group):
    """The group's memory holds few results. More of them are an error on all ranks, unless they
    are copied out."""
    x, idx, weights = tokens_of(group)
    for copy_out in (True, False):
        kept = []
        try:
            for _ in range(16):
                kept.append(shoal.torch.dispatch(group, x, idx, weights, copy_out=copy_out))
        except shoal.ExhaustedError as error:
            assert not copy_out and "live_results" in str(error)
        assert copy_out == (len(kept) == 16)


@on_groups(live_results=4)  # two results are kept, and backward sends
def check_plain_calls_need_no_operator(group):
    """Ordinary tensors take the path without operators, with their results and gradients. A
    profiler sees operators."""
    x, idx, weights = tokens_of(group)
    results = []
    for operators in (False, True):
        inputs = [x.detach().requires_grad_(), weights.detach().requires_grad_()]
        if operators:
            with torch.profiler.profile() as profile:
                received = shoal.torch.dispatch(group, inputs[0], idx, inputs[1])
                out = shoal.torch.combine(group, received.x * 2, received)
            names = {event.name for event in profile.events()}
            assert {"shoal::dispatch", "shoal::combine"} <= names
        else:
            with mock.patch.object(ops, "register", side_effect=AssertionError):
                received = shoal.torch.dispatch(group, inputs[0], idx, inputs[1])
                out = shoal.torch.combine(group, received.x * 2, received)
        ((out * out.detach()).sum() + (received.topk_weights**2).sum()).backward()
        results.append((*received[:4], out, inputs[0].grad, inputs[1].grad))
    for one, other in zip(*results):
        assert one.dtype == other.dtype and torch.equal(one, other)


@on_groups(live_results=4)
def check_later_calls_are_one_binding_call(group):
    """After the first call of a group; what is no ordinary tensor takes the general path, with the
    same results and gradients."""
    x, idx, weights = tokens_of(group)
    idx = idx.contiguous()

    def gradients(x, idx, weights):
        inputs = [x.detach().requires_grad_(), weights.detach().requires_grad_()]
        received = shoal.torch.dispatch(group, inputs[0], idx, inputs[1])
        out = shoal.torch.combine(group, received.x * 2, received)
        ((out * out.detach()).sum() + (received.topk_weights**2).sum()).backward()
        return (*received[:4], out, inputs[0].grad, inputs[1].grad)

    gradients(x, idx, weights)
    with mock.patch.object(eager, "fits", side_effect=AssertionError):
        fast = gradients(x, idx, weights)
        received = shoal.torch.dispatch(group, x.detach(), idx, weights.detach())
        assert type(received) is shoal.torch.Received and received.tokens == len(x)
        assert not received.x.requires_grad
        out = shoal.torch.combine(group, received.x * 2, received)
        assert torch.equal(out, fast[4]) and not out.requires_grad
    with mock.patch.object(eager, "dispatch", wraps=eager.dispatch) as general:
        others = gradients(x.t().contiguous().t(), idx.int(), weights)
    assert general.call_count == 1
    for one, other in zip(fast, others):
        assert one.dtype == other.dtype and torch.equal(one, other)


@on_groups()
def check_a_graph_runs_backward_once(group):
    x, idx, weights = tokens_of(group)
    for _ in range(2):  # the first call of a group takes another path than later ones
        received = shoal.torch.dispatch(group, x, idx, weights)
        shoal.torch.combine(group, received.x, received).sum().backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            received.x.sum().backward()


@on_groups()
def check_layouts_live_as_long_as_handles(group):
    x, idx, weights = tokens_of(group)
    before = count_torch_layouts()
    out = moe(group, x, idx, weights, local_matrices(group))
    assert count_torch_layouts() == before + 1, "backward needs it"
    out.sum().backward()
    assert count_torch_layouts() == before
    with torch.no_grad():
        received = shoal.torch.dispatch(group, x, idx, weights)
        number = int(received.handle)
        del received
    assert torch_layout(number) is None
    with pytest.raises(RuntimeError, match=f"handle {number} belongs to no dispatch"):
        torch.ops.shoal.redispatch(x, None, torch.tensor(number), ops.register(group), 0)


@on_groups()
def check_bad_arguments(group):
    """A bad argument is an error on the rank that passes it, before anything is sent. The group
    stays usable."""
    x, idx, weights = tokens_of(group)
    with pytest.raises(shoal.InvalidArgumentError, match="float64"):
        shoal.torch.dispatch(group, x.double(), idx, weights)
    with pytest.raises(shoal.InvalidArgumentError, match="weights"):
        shoal.torch.dispatch(group, x, idx, weights[:, :1])
    with pytest.raises(shoal.InvalidArgumentError, match="worst_case_rows"):
        shoal.torch.dispatch(
            group, x, idx, weights, worst_case_rows=group.team.size * MAX_TOKENS + 1
        )
    wrong = torch.full((1, TOP_K), EXPERTS)
    with pytest.raises(shoal.InvalidArgumentError, match=str(EXPERTS)):
        shoal.torch.dispatch(group, torch.zeros(1, HIDDEN), wrong, torch.zeros(1, TOP_K))
    received = shoal.torch.dispatch(group, x, idx, weights)
    with pytest.raises(shoal.InvalidArgumentError, match="y is"):
        shoal.torch.combine(group, torch.zeros(len(received.x) + 1, HIDDEN), received)
    assert shoal.torch.combine(group, received.x, received).shape == x.shape


def check_gradcheck_on_one_rank(world):
    """Finite differences, forward and twice backward, on a team of this rank alone."""
    options = {"hidden": 4, "experts": 3, "top_k": 2, "max_tokens": 4, "dtype": "float32"}
    group = shoal.ep.Group(world.self_team, **options)
    idx = torch.tensor([[0, 2], [1, -1], [-1, -1]])
    x = torch.randn(3, 4, requires_grad=True)
    weights = torch.rand(3, 2, requires_grad=True)

    def layer(x, weights):
        received = shoal.torch.dispatch(group, x, idx, weights, copy_out=True)
        return shoal.torch.combine(
            group, received.x * received.topk_weights.sum(dim=1, keepdim=True), received
        )

    # The function is bilinear: a step may be large, and float32 is enough.
    torch.autograd.gradcheck(layer, (x, weights), eps=0.25, atol=1e-4, rtol=1e-4)
    torch.autograd.gradgradcheck(layer, (x, weights), eps=0.25, atol=1e-4, rtol=1e-4)
    group.close()


add_tests(globals(), lambda: run_checks(4, __name__))
