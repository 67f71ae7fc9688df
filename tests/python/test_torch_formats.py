# SPDX-License-Identifier: Apache-2.0
"""Results and gradients of shoal.torch.dispatch and combine in formats, among 4 ranks and among
pairs of them, against float64 within the bounds that docs/guide/formats.md states."""

import pytest

torch = pytest.importorskip("torch")

from torch_ranks import add_tests, each_group, run_checks

import shoal
import shoal.torch
from shoal.torch import formats

HIDDEN, EXPERTS, TOP_K, MAX_TOKENS = 256, 8, 3, 12
TOKENS = (12, 5, 0, 9)  # by rank; one has none
OPTIONS = {
    "hidden": HIDDEN,
    "experts": EXPERTS,
    "top_k": TOP_K,
    "max_tokens": MAX_TOKENS,
    "dtype": "bfloat16",
}
#: Channels that share a scale, and the bound of an error by their largest magnitude.
BOUNDS = {"none": (HIDDEN, 0), "fp8": (128, 1 / 28), "mxfp8": (32, 1 / 16)}
ROUNDING = 2**-8  # to bfloat16


def on_groups(check, **options):
    def on_world(world):
        for group in each_group(world, OPTIONS | options):
            check(group)

    return on_world


def on_groups_for_rows_of_experts(check):
    """Rows outside the group's memory are combined from room for ranks * max_tokens of them."""
    return on_groups(check, max_tokens=MAX_TOKENS * TOP_K)


def heavy_tailed(count):
    rows = torch.randn(count, HIDDEN) / torch.rand(count, HIDDEN).clamp(0.02)
    rows[:, 5::97] *= 30
    return (rows * 4096.0 ** (torch.arange(count) % 3 - 1).unsqueeze(1)).bfloat16()


def tokens_of(group):
    """x, topk_idx and topk_weights of this rank; one token has no expert."""
    count = TOKENS[group.team.world_pe(group.team.my_pe)]
    idx = torch.rand(count, EXPERTS).argsort(dim=1)[:, :TOP_K].contiguous()
    idx[:1] = -1
    return heavy_tailed(count).requires_grad_(), idx, torch.rand(count, TOP_K, requires_grad=True)


def factors_of(group, idx, expert_major=False):
    """[tokens, ranks]: the sum of the factors by which each rank multiplies rows of the token: a
    power of two, or 0 without an expert there; expert-major, that for each expert there."""
    rank_of = torch.where(idx < 0, -1, idx // group.local_experts)
    here = torch.stack([(rank_of == rank).sum(dim=1) for rank in range(group.team.size)], dim=1)
    return (here if expert_major else here.clamp(max=1)) * 2.0 ** torch.arange(group.team.size)


def bound_of(name, rows):
    """The bound of an error of rows in this format."""
    group, factor = BOUNDS[name]
    amax = rows.abs().view(len(rows), HIDDEN // group, group).amax(dim=2)
    return (factor + 1e-6 * (factor > 0)) * amax.repeat_interleave(group, dim=1)


def within(actual, expected, bound, least=0.0):
    assert actual.dtype is torch.bfloat16
    error = (actual.double() - expected).abs()
    assert (error <= bound).all(), (error / bound).nan_to_num().max()
    if least and len(actual) > 2:
        assert (error / bound).nan_to_num().max() >= least, "the bound says little"


def sum_bound(name, rows, factors):
    """The bound of the sum of a row times each of its factors, as the rows travel."""
    each = sum(bound_of(name, rows * factor.unsqueeze(1)) for factor in factors.unbind(dim=1))
    total = (rows * factors.sum(dim=1, keepdim=True)).abs()
    return each + ROUNDING * (total + each)


def verify_layer(group, quantize, grad_quantize, back, **options):
    x, idx, weights = tokens_of(group)
    received = shoal.torch.dispatch(
        group, x, idx, weights, quantize=quantize, grad_quantize=grad_quantize, **options
    )
    y = received.x * 2.0**group.team.my_pe
    out = shoal.torch.combine(group, y, received, quantize=back)
    coefficients = heavy_tailed(len(x))
    slopes = 0.25 + torch.arange(EXPERTS) / 7
    local = slopes[group.team.my_pe * group.local_experts :][: group.local_experts]
    loss = (out.double() * coefficients.double()).sum()
    here = received.topk_idx.clamp(min=0)
    assert here.shape[1] == (1 if options.get("expert_major") else TOP_K)
    (loss + (received.topk_weights * local[here]).exp().sum()).backward()

    factors = factors_of(group, idx, options.get("expert_major", False)).double()
    rows = x.detach().double()
    sent = bound_of(quantize, rows)
    sent = sent + (quantize != "none") * ROUNDING * (rows.abs() + sent)
    largest = rows.abs() + sent
    forward = sum_bound(back, largest, factors) + sent * factors.sum(dim=1, keepdim=True)
    total = factors.sum(dim=1, keepdim=True)
    within(out.detach(), rows * total, forward)
    backward = sum_bound(grad_quantize, coefficients.double(), factors)
    least = 0.3 if grad_quantize != "none" else 0
    within(x.grad, coefficients.double() * total, backward, least)
    slope = torch.where(idx < 0, 0, slopes[idx.clamp(min=0)])
    torch.testing.assert_close(weights.grad, (slope * (weights * slope).exp()).detach())
    return out.detach(), x.grad


@on_groups
def check_gradients_in_bfloat16_and_in_formats(group):
    for quantize in ("none", "fp8", "mxfp8"):
        for grad_quantize in ("none", "fp8", "mxfp8"):
            verify_layer(group, quantize, grad_quantize, "none")


@on_groups_for_rows_of_experts
def check_expert_major_rows(group):
    for quantize, grad_quantize, back in (
        ("none", "none", "none"),
        ("none", "mxfp8", "fp8"),
        ("fp8", "none", "mxfp8"),
        ("mxfp8", "fp8", "none"),
    ):
        verify_layer(group, quantize, grad_quantize, back, expert_major=True)
    most = group.team.size * MAX_TOKENS * min(TOP_K, group.local_experts)
    x, idx, weights = tokens_of(group)
    received = shoal.torch.dispatch(
        group, x, idx, weights, quantize="mxfp8", expert_major=True, worst_case_rows=most
    )
    assert received.x.shape == (most, HIDDEN)
    assert received.x[received.topk_idx[:, 0] < 0].eq(0).all()
    shoal.torch.combine(group, received.x, received).sum().backward()
    exact = shoal.torch.dispatch(group, x, idx, weights, quantize="mxfp8", expert_major=True)
    assert sum(exact.tokens_per_expert) == len(exact.x)
    assert torch.equal(exact.x, received.x[: len(exact.x)])
    experts = exact.topk_idx[:, 0].bincount(minlength=group.local_experts)
    assert experts.tolist() == exact.tokens_per_expert
    shoal.torch.combine(group, exact.x, exact).sum().backward()


@on_groups
def check_combines_in_formats(group):
    for back in ("fp8", "mxfp8"):
        verify_layer(group, "mxfp8", "mxfp8", back, copy_out=True)
        verify_layer(group, "none", "none", back)


@on_groups
def check_a_fixed_size_changes_no_bit(group):
    most = group.team.size * MAX_TOKENS
    results = []
    for rows in (0, most):
        torch.manual_seed(group.team.my_pe)
        results.append(verify_layer(group, "mxfp8", "mxfp8", "fp8", worst_case_rows=rows))
    for actual, expected in zip(*results):
        assert torch.equal(actual, expected)
    x, idx, weights = tokens_of(group)
    received = shoal.torch.dispatch(group, x, idx, weights, quantize="fp8", worst_case_rows=most)
    unused = (received.topk_idx < 0).all(dim=1)
    assert unused.any() and received.x[unused].eq(0).all()
    y = torch.ones(most, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    shoal.torch.combine(group, y, received, quantize="mxfp8").sum().backward()
    assert torch.equal(y.grad[:, 0], (~unused).bfloat16())


@on_groups
def check_codes_and_scales(group):
    x, idx, _ = tokens_of(group)
    for name, (dtype, scales) in {
        "fp8": (torch.float32, 2),
        "fp8_power_of_two": (torch.float32, 2),
        "fp8_ue8m0": (torch.uint8, 2),
        "mxfp8": (torch.uint8, 8),
    }.items():
        received = shoal.torch.dispatch(group, x, idx, quantize=name)
        assert received.codes.dtype is torch.float8_e4m3fn and received.topk_weights is None
        assert received.scales.dtype is dtype and received.scales.shape[1] == scales
        assert received.x.requires_grad and not received.codes.requires_grad
        assert torch.equal(received.x, formats.decoded(received.codes, received.scales))
        shoal.torch.combine(group, received.x, received).sum().backward()


@on_groups
def check_a_combine_in_a_format_of_a_plain_dispatch(group):
    x, idx, weights = tokens_of(group)
    received = shoal.torch.dispatch(group, x, idx, weights)
    out = shoal.torch.combine(group, received.x, received, quantize="fp8")
    out.sum().backward()
    factors = (factors_of(group, idx) > 0).double()
    rows = x.detach().double()
    bound = sum_bound("fp8", rows, factors)
    within(out.detach(), rows * factors.sum(dim=1, keepdim=True), bound)
    assert torch.equal(x.grad[:, 0].double(), factors.sum(dim=1))


@on_groups
def check_what_is_refused(group):
    x, idx, weights = tokens_of(group)
    for options, text in (
        ({"quantize": "nvfp4"}, "quantize is 'nvfp4'; allowed: none, fp8, fp8_power_of_two"),
        ({"quantize": "fp8", "grad_quantize": "fp8_ue8m0"}, "grad_quantize is 'fp8_ue8m0'"),
        ({"grad_quantize": "fp8"}, "grad_quantize is 'fp8' without quantize"),
    ):
        with pytest.raises(shoal.InvalidArgumentError, match=text):
            shoal.torch.dispatch(group, x, idx, weights, **options)
    with pytest.raises(shoal.InvalidArgumentError, match="x has dtype torch.float32"):
        shoal.torch.dispatch(group, x.float(), idx, weights, quantize="fp8")
    received = shoal.torch.dispatch(group, x, idx, weights, expert_major=True)
    with pytest.raises(shoal.InvalidArgumentError, match="quantize is 'fp8' for an expert"):
        shoal.torch.combine(group, received.x, received, quantize="fp8")


@on_groups
def check_ranks_that_differ(group):
    x, idx, weights = tokens_of(group)
    name = "fp8" if group.team.my_pe == 0 else "mxfp8"
    with pytest.raises(shoal.MismatchError, match="sent as fp8.*sent as mxfp8"):
        shoal.torch.dispatch(group, x, idx, weights, quantize=name)
    received = shoal.torch.dispatch(group, x, idx, weights, quantize="fp8", grad_quantize=name)
    with pytest.raises(shoal.MismatchError, match="sent as fp8.*sent as mxfp8"):
        received.x.sum().backward()
    verify_layer(group, "fp8", "fp8", "fp8")


add_tests(globals(), lambda: run_checks(4, __name__))
