# SPDX-License-Identifier: Apache-2.0
"""torch.compile and the operators of shoal.torch: fake implementations, fixed and data-dependent
sizes."""

import functools

import pytest

torch = pytest.importorskip("torch")

from torch_ranks import add_tests, run_checks

import shoal
import shoal.ep
import shoal.torch
from shoal.torch import ops

HIDDEN, INNER, EXPERTS, TOP_K, MAX_TOKENS = 16, 8, 8, 2, 12
OPTIONS = {
    "hidden": HIDDEN,
    "experts": EXPERTS,
    "top_k": TOP_K,
    "max_tokens": MAX_TOKENS,
    "dtype": "float32",
}


def on_group(check):
    """Turns check(group) into check(world), with a group of all ranks and nothing compiled yet."""

    @functools.wraps(check)
    def on_world(world):
        group = shoal.ep.Group(world.team, **OPTIONS)
        torch._dynamo.reset()
        check(group)
        torch._dynamo.reset()
        group.close()

    return on_world


def tokens_of(group, count=None):
    count = 5 + 2 * group.team.my_pe if count is None else count
    idx = torch.rand(count, EXPERTS).argsort(dim=1)[:, :TOP_K]
    return (
        torch.randn(count, HIDDEN, requires_grad=True),
        idx,
        torch.rand(count, TOP_K, requires_grad=True),
    )


def layer(group, x, idx, weights, worst_case_rows):
    received = shoal.torch.dispatch(
        group, x, idx, weights, worst_case_rows=worst_case_rows, copy_out=True
    )
    y = received.x.tanh() * received.topk_weights.sum(dim=1, keepdim=True)
    return shoal.torch.combine(group, y, received)


def compare(compiled, plain, *inputs):
    """Results and gradients of both versions, which see the same rows in the same order."""
    results = []
    for function in (compiled, plain):
        leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs]
        out = function(*leaves)
        out.square().sum().backward()
        results.append([out.detach(), *(leaf.grad for leaf in leaves if leaf.requires_grad)])
    for actual, expected in zip(*results):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


@on_group
def check_operators(group):
    """The checks of PyTorch, without those that compare two runs of dispatch: each run has its
    own handle."""
    checks = ("test_autograd_registration", "test_faketensor")
    number = ops.register(group)
    x, idx, weights = tokens_of(group)
    most = group.team.size * MAX_TOKENS
    for rows in (0, most):
        arguments = (x, idx, weights, number, rows, True)
        torch.library.opcheck(
            torch.ops.shoal.dispatch.default, arguments, test_utils=("test_schema", *checks)
        )
    received = shoal.torch.dispatch(group, x, idx, weights, copy_out=True)
    rows = [received.x.detach().requires_grad_(), received.topk_weights.detach().requires_grad_()]
    # The schema test copies its arguments, and a copied handle is invalid.
    for row_weights in (weights, None):
        arguments = (x, row_weights, received.handle, number, len(rows[0]))
        torch.library.opcheck(
            torch.ops.shoal.redispatch.default,
            arguments,
            test_utils=(*checks, "test_aot_dispatch_static"),
        )
    for row_weights in (rows[1], None):
        arguments = (rows[0], row_weights, received.handle, number, len(x))
        torch.library.opcheck(
            torch.ops.shoal.combine.default,
            arguments,
            test_utils=(*checks, "test_aot_dispatch_static"),
        )


@on_group
def check_fixed_size_is_one_graph(group):
    ops.register(group)
    most = group.team.size * MAX_TOKENS
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for count in (6, 9):
        compare(
            lambda *inputs: compiled(group, *inputs, most),
            lambda *inputs: layer(group, *inputs, most),
            *tokens_of(group, count),
        )


@on_group
def check_size_that_depends_on_data_is_one_graph(group):
    ops.register(group)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for count in (6, 9):
        compare(
            lambda *inputs: compiled(group, *inputs, 0),
            lambda *inputs: layer(group, *inputs, 0),
            *tokens_of(group, count),
        )


@on_group
def check_each_group_has_its_graph(group):
    """A graph holds the number of its group and must not run for another group."""
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    other = shoal.ep.Group(group.team, **OPTIONS)
    for used in (group, other, group):
        ops.register(used)
        before = used.statistics()["dispatches"]
        compiled(used, *tokens_of(used, 6), 0)
        assert used.statistics()["dispatches"] == before + 1
    other.close()


@on_group
def check_layer_with_fixed_size_is_one_graph(group):
    torch.manual_seed(group.team.my_pe)
    moe = shoal.torch.MoE(
        HIDDEN, INNER, EXPERTS, TOP_K, group=group, worst_case_rows=group.team.size * MAX_TOKENS
    )
    compare(
        torch.compile(moe, backend="aot_eager", fullgraph=True),
        moe,
        torch.randn(9, HIDDEN, requires_grad=True),
    )


@on_group
def check_layer_with_size_that_depends_on_data(group):
    """The number of rows is read on the host, where the graph is cut."""
    torch.manual_seed(group.team.my_pe)
    moe = shoal.torch.MoE(HIDDEN, INNER, EXPERTS, TOP_K, group=group)
    compare(
        torch.compile(moe, backend="aot_eager"), moe, torch.randn(9, HIDDEN, requires_grad=True)
    )


@on_group
def check_group_that_was_not_seen_before(group):
    x, idx, weights = tokens_of(group)
    ops._groups.pop(id(group), None)  # an earlier group may have had the same number
    with pytest.raises(Exception, match=r"call shoal.torch.register\(group\)"):
        torch.compile(layer, backend="aot_eager", fullgraph=True)(group, x, idx, weights, 0)


add_tests(globals(), lambda: run_checks(2, __name__))
