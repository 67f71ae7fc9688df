# SPDX-License-Identifier: Apache-2.0
"""shoal.torch.MoE among 4 ranks and pairs of them against the same layer on one process."""

import copy
import io

import pytest

torch = pytest.importorskip("torch")

from torch_ranks import all_ranks, each_group, add_tests, run_checks

import shoal
import shoal.ep
import shoal.torch

HIDDEN, INNER, EXPERTS, TOP_K, MAX_TOKENS = 16, 8, 8, 2, 24
OPTIONS = {
    "hidden": HIDDEN,
    "experts": EXPERTS,
    "top_k": TOP_K,
    "max_tokens": MAX_TOKENS,
    "dtype": "float32",
}


def layers(group, **options):
    """The layer over a group, and the same layer without a group, with all experts."""
    torch.manual_seed(3)
    alone = shoal.torch.MoE(HIDDEN, INNER, EXPERTS, TOP_K, **{**options, "worst_case_rows": 0})
    spread = shoal.torch.MoE(HIDDEN, INNER, EXPERTS, TOP_K, group=group, **options)
    with torch.no_grad():
        for name, mine in spread.named_parameters():
            mine.copy_(part_of(group, name, alone.get_parameter(name)))
    torch.manual_seed(group.team.world_pe(group.team.my_pe))
    return spread, alone


def part_of(group, name, value):
    return value if name == "router.weight" else value.chunk(group.team.size)[group.team.my_pe]


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def compare(group, **options):
    """Results and gradients of the sum of the losses of all ranks."""
    spread, alone = layers(group, **options)
    x = torch.randn(2, 5 + group.team.my_pe, HIDDEN, requires_grad=True)
    out = spread(x)
    assert out.shape == x.shape
    out.square().sum().backward()
    parts = [part.requires_grad_() for part in all_ranks(group.team, x.detach())]
    expected = [alone(part) for part in parts]
    sum(part.square().sum() for part in expected).backward()
    me = group.team.my_pe
    close(out, expected[me])
    close(x.grad, parts[me].grad)
    for name, parameter in spread.named_parameters():
        gradient = parameter.grad
        if name == "router.weight":  # replicated: each rank has the part of its own tokens
            gradient = sum(all_ranks(group.team, gradient))
        close(gradient, part_of(group, name, alone.get_parameter(name).grad))


def check_softmax(world):
    for group in each_group(world, OPTIONS):
        compare(group)


def check_sigmoid(world):
    for group in each_group(world, OPTIONS):
        compare(group, score="sigmoid", normalize=False)


def check_fixed_size(world):
    for group in each_group(world, OPTIONS):
        compare(group, worst_case_rows=group.team.size * MAX_TOKENS)


def check_copies_and_pickles(world):
    group = shoal.ep.Group(world.team, **OPTIONS)
    layer, _ = layers(group)
    x = torch.randn(4, HIDDEN)
    expected = layer(x)
    copied = copy.deepcopy(torch.nn.Sequential(layer))
    assert copied[0].group is group
    assert copied[0].w_in is not layer.w_in
    assert torch.equal(copied(x), expected)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    with pytest.raises(ValueError, match="pickled with 2 of 8 experts and without its group"):
        loaded(x)
    loaded.group = group
    assert torch.equal(loaded(x), expected)
    group.close()


def check_data_parallel(world):
    """DistributedDataParallel that ignores the experts, and one that would average them."""
    group = shoal.ep.Group(world.team, **OPTIONS)
    spread, alone = layers(group)
    ddp, x = torch.nn.parallel.DistributedDataParallel, torch.randn(4, HIDDEN)
    with pytest.raises(ValueError, match="has taken the experts of this rank for replicas"):
        ddp(copy.deepcopy(spread))(x)
    ddp._set_params_and_buffers_to_ignore_for_model(spread, ["w_in", "w_out"])
    close(ddp(spread)(x), alone(x))
    group.close()


def check_rank_without_tokens(world):
    """It takes part: its experts receive rows and get gradients."""
    for group in each_group(world, OPTIONS):
        spread, _ = layers(group)
        x = torch.randn(0 if group.team.my_pe == 0 else MAX_TOKENS, HIDDEN)
        spread(x).sum().backward()
        assert spread.w_in.grad.abs().sum() > 0


def check_training_lowers_the_loss(world):
    """The layer learns its own input when all ranks follow the same gradients."""
    for group in each_group(world, OPTIONS):
        spread, _ = layers(group)
        x = torch.randn(MAX_TOKENS, HIDDEN)
        optimizer = torch.optim.Adam(spread.parameters(), lr=0.02)
        losses = []
        for _ in range(60):
            optimizer.zero_grad()
            loss = (spread(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.3 * losses[0]


def check_more_layers_than_results_fit(world):
    """The tensors that backward saves do not hold received rows in the group's memory."""
    for group in each_group(world, {**OPTIONS, "live_results": 1}):
        stack = [shoal.torch.MoE(HIDDEN, INNER, EXPERTS, TOP_K, group=group) for _ in range(16)]
        out = torch.randn(MAX_TOKENS, HIDDEN)
        for layer in stack:
            out = out + layer(out)
        out.sum().backward()
        assert all(layer.w_in.grad.abs().sum() > 0 for layer in stack)
        del out, layer


def check_group_for_something_else(world):
    for group in each_group(world, OPTIONS):
        with pytest.raises(
            ValueError, match=f"hidden is 32, but the group was created with {HIDDEN}"
        ):
            shoal.torch.MoE(32, INNER, EXPERTS, TOP_K, group=group)


add_tests(globals(), lambda: run_checks(4, __name__))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"score": "tanh"}, "score is 'tanh'; allowed: softmax, sigmoid"),
        ({"top_k": 9}, "top_k is 9; allowed: 1 to experts, 8"),
        ({"top_k": 0}, "top_k is 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        shoal.torch.MoE(**{"hidden": 8, "intermediate": 4, "experts": 8, "top_k": 2, **arguments})


def test_layer_alone_is_its_definition():
    torch.manual_seed(0)
    layer = shoal.torch.MoE(6, 5, experts=4, top_k=2, dtype=torch.float64)
    x = torch.randn(7, 6, dtype=torch.float64)
    scores = (x @ layer.router.weight.t()).float().softmax(dim=-1)
    expected = torch.zeros_like(x)
    for token in range(7):
        best = scores[token].argsort(descending=True)[:2]
        for expert in best.tolist():
            gate, up = (x[token] @ layer.w_in[expert]).chunk(2)
            y = (gate * gate.sigmoid() * up) @ layer.w_out[expert]
            expected[token] += scores[token, expert] / scores[token, best].sum() * y
    torch.testing.assert_close(layer(x), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("ends", [[2, 2, 5], [0, 0, 0], [6, 6, 6]])
def test_grouped_linear(ends):
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 3, 4, dtype=torch.float64, requires_grad=True)
    ends = torch.tensor(ends)
    result = shoal.torch.grouped_linear(x, weight, ends)
    for row in range(6):
        expert = int((ends <= row).sum())
        expected = x[row] @ weight[expert] if expert < 3 else torch.zeros(4, dtype=torch.float64)
        torch.testing.assert_close(result[row], expected)
    assert torch.autograd.gradcheck(
        lambda x, weight: shoal.torch.grouped_linear(x, weight, ends), (x, weight)
    )
    assert torch.autograd.gradgradcheck(
        lambda x, weight: shoal.torch.grouped_linear(x, weight, ends), (x, weight)
    )
    torch.library.opcheck(torch.ops.shoal.grouped_linear.default, (x, weight, ends))
    torch.library.opcheck(
        torch.ops.shoal.grouped_outer.default, (x, result.detach().requires_grad_(), ends)
    )
