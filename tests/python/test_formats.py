# SPDX-License-Identifier: Apache-2.0
"""Dispatched rows in every format, against float64 and ml_dtypes: codes and scales bit by bit, each
layout of scales, the same in normal mode, and the errors that docs/guide/formats.md states, also of
combines, with their bounds."""

import re
from pathlib import Path

import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes")
torch = pytest.importorskip("torch")

import shoal
import shoal.torch

HIDDEN, TOKENS, GLOBAL = 1024, 130, 3.7
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "formats.md"
GROUPS = {"fp8": 128, "fp8_power_of_two": 128, "fp8_ue8m0": 128, "mxfp8": 32, "nvfp4": 16}


def activations():
    """Heavy-tailed rows with a few large channels, as hidden states have; exact in bfloat16."""
    random = np.random.default_rng(7)
    channels = np.exp(random.normal(0, 0.6, HIDDEN))
    channels[random.permutation(HIDDEN)[:8]] *= 30
    rows = random.standard_t(4, (TOKENS, HIDDEN)) * channels
    rows[0], rows[1, :64], rows[2, 5] = 0, 1e-30, np.nan
    rows[3, 40], rows[4, :16] = np.inf, -3
    return torch.from_numpy(rows).to(torch.bfloat16)


def in_bytes(tensor):
    """A copy of its elements in their order."""
    if tensor.element_size() == 1:
        tensor = tensor.view(torch.uint8)
    return np.array(tensor.numpy(), order="C").reshape(tensor.shape).copy("C").view(np.uint8)


def received(settings, x, **options):
    """What one rank with one expert receives of its own rows: (x, scales) as NumPy bytes."""

    def body(world):
        group = shoal.ep.Group(
            world.team, hidden=x.shape[1], top_k=1, experts=1, low_latency_max_tokens=len(x)
        )
        indices = torch.zeros((len(x), 1), dtype=torch.int64)
        got = group.low_latency_dispatch(x, indices, **options).receive()
        parts = [in_bytes(got.x[0]), in_bytes(got.scales[0])]
        group.close()
        return parts

    return shoal.run_threads(1, body, settings)[0]


def received_in_normal_mode(settings, x, expert_major, **options):
    def body(world):
        room = -(-len(x) // 128) * 128
        group = shoal.ep.Group(world.team, hidden=x.shape[1], top_k=1, experts=1, max_tokens=room)
        routing = group.route(torch.zeros((len(x), 1), dtype=torch.int64))
        options["expert_alignment"] = 128
        got = group.dispatch(x, routing, expert_major=expert_major, **options)
        parts = [in_bytes(got.x[: len(x)]), in_bytes(got.scales[: len(x)])]
        if expert_major and got.scales.element_size() == 1:
            rows, groups = got.scales.shape
            columns = torch.empty((-(-groups // 4), rows), dtype=torch.int32).t()
            tiles = torch.empty((rows // 128, -(-groups // 4), 512), dtype=torch.uint8)
            for layout, array in {"columns": columns, "tiles": tiles}.items():
                group.unpack(got, scales=array)
                unpacked = in_rows(in_bytes(array.contiguous()), layout, groups, rows)
                np.testing.assert_array_equal(unpacked[: len(x)], parts[1])
        del got, routing
        group.close()
        return parts

    return shoal.run_threads(1, body, settings)[0]


def grouped(x, group):
    values = x.to(torch.float64).numpy().reshape(len(x), -1, group)
    return values, np.abs(values).max(-1, keepdims=True)


def mxfp8(x):
    """(codes, scales) by float64 and the casts of ml_dtypes."""
    values, amax = grouped(x, 32)
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.ceil(np.log2(amax / 448)), -127)
        scale = np.where(np.isfinite(amax), np.exp2(exponent), np.nan)
        codes = (values / scale).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    codes[np.isnan(np.broadcast_to(scale, values.shape))] = 0x7F
    scales = np.where(np.isnan(scale), 0xFF, np.nan_to_num(exponent) + 127).astype(np.uint8)
    return codes.reshape(len(x), -1), scales[..., 0]


def nvfp4(x):
    values, amax = grouped(x, 16)
    one = np.float32(GLOBAL)
    with np.errstate(all="ignore"):
        wanted = np.float32(np.float32(np.float32(amax) / np.float32(6)) * one)
        scale = np.minimum(wanted, 448).astype(ml_dtypes.float8_e4m3fn)
        divisor = scale.astype(np.float32) / one
        usable = np.isfinite(amax) & (divisor > 0)
        quotient = np.where(usable, np.float32(values) / divisor, np.copysign(0, values))
        codes = np.clip(quotient, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    codes = codes.view(np.uint8) & 0xF
    codes[~np.broadcast_to(usable, codes.shape)] &= 0x8
    codes = codes.reshape(len(x), -1, 2)
    scales = scale.view(np.uint8)
    scales[~np.isfinite(amax)] = 0x7F
    return codes[..., 0] | codes[..., 1] << 4, scales[..., 0]


def in_rows(scales, layout, groups, rows):
    """Scales of one byte as [rows, groups], by what ScaleLayout says of each layout."""
    if layout == "rows":
        return scales
    if layout == "columns":  # words of four, which .contiguous() has put in the order of rows
        return scales.reshape(rows, -1)[:, :groups]
    tiles = scales.reshape(-1, -(-groups // 4), 32, 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(-1, 4 * tiles.shape[1])[:rows, :groups]


@pytest.mark.parametrize("layout", ["rows", "columns", "tiles"])
@pytest.mark.parametrize("hidden", [HIDDEN, 960, 64])
@pytest.mark.parametrize("format_", [mxfp8, nvfp4])
def test_codes_and_scales_equal_ml_dtypes(format_, hidden, layout, settings):
    x = activations()[:, :hidden].contiguous()
    options = {"quantize": format_.__name__, "scale_layout": layout}
    if format_ is nvfp4:
        options["global_scale"] = np.array([GLOBAL], np.float32)
    codes, scales = received(settings, x, **options)
    want_codes, want_scales = format_(x)
    np.testing.assert_array_equal(
        in_rows(scales, layout, want_scales.shape[1], len(x)), want_scales
    )
    codes = np.where(codes & 0x7F == 0x7F, 0x7F, codes) if format_ is mxfp8 else codes
    np.testing.assert_array_equal(codes, want_codes)


def test_a_global_scale_per_expert(settings):
    """Expert-major rows for an expert are those of its own scale; other calls refuse [E]."""
    x = activations()
    scales = np.array([GLOBAL, 5 * GLOBAL], np.float32)
    want = [
        received(settings, x, quantize="nvfp4", scale_layout="rows", global_scale=scales[e : e + 1])
        for e in range(2)
    ]

    def body(world):
        group = shoal.ep.Group(
            world.team,
            hidden=HIDDEN,
            top_k=2,
            experts=2,
            max_tokens=2 * TOKENS,
            low_latency_max_tokens=TOKENS,
        )
        indices = torch.tensor([[0, 1]] * TOKENS)
        options = {"quantize": "nvfp4", "global_scale": scales}
        got = group.dispatch(x, group.route(indices), expert_major=True, **options)
        for expert, (codes, bytes_of_scales) in enumerate(want):
            rows = slice(expert * TOKENS, (expert + 1) * TOKENS)
            np.testing.assert_array_equal(in_bytes(got.x[rows]), codes)
            np.testing.assert_array_equal(in_bytes(got.scales[rows]), bytes_of_scales)
        message = "global_scale has a scale per expert, and rows of this call travel once per rank"
        with pytest.raises(shoal.InvalidArgumentError, match=message):
            group.dispatch(x, group.route(indices), **options)
        with pytest.raises(shoal.InvalidArgumentError, match=message):
            group.low_latency_dispatch(x, indices, **options)
        del got
        group.close()
        return True

    assert shoal.run_threads(1, body, settings)[0]


def torchao(module):
    reason = "torchao is not installed; ./run test installs it"
    return pytest.importorskip(f"torchao.prototype.mx_formats.{module}", reason=reason)


@pytest.mark.parametrize("hidden", [HIDDEN, 960, 64])
def test_mxfp8_equals_torchao(hidden, settings):
    """Except in scales of infinities, 2^127 there and NaN here; tiles are its blocked scales."""
    mx, x = torchao("mx_tensor"), activations()[:, :hidden].contiguous()
    rounding = mx.ScaleCalculationMode.RCEIL
    scales, codes = mx.to_mx(x, torch.float8_e4m3fn, 32, rounding)
    scales = scales.view(torch.uint8).reshape(len(x), -1)
    infinite = x.isinf().reshape(len(x), -1, 32).any(-1)
    assert (scales[infinite] == 254).all()
    scales[infinite] = 255
    got_codes, got_scales = received(settings, x, quantize="mxfp8", scale_layout="tiles")
    blocked = torchao("utils").to_blocked(scales).numpy()
    rows = in_rows(blocked, "tiles", scales.shape[1], len(x))
    np.testing.assert_array_equal(in_rows(got_scales, "tiles", scales.shape[1], len(x)), rows)
    codes = codes.view(torch.uint8).numpy().reshape(got_codes.shape).copy()
    codes[np.repeat(infinite.numpy(), 32, 1)] = 0x7F
    for side in (codes, got_codes):  # one NaN
        side[side & 0x7F == 0x7F] = 0x7F
    np.testing.assert_array_equal(got_codes, codes)


def test_nvfp4_equals_torchao(settings):
    """Except in scales below 2^-6, its smallest one, and in NaNs and infinities. It multiplies by a
    rounded reciprocal, so that values at the middle of two codes may get the other one."""
    nvfp4_tensor, x = torchao("nvfp4_tensor"), activations()
    global_scale = np.array([GLOBAL], np.float32)
    scales, codes = nvfp4_tensor.nvfp4_quantize(x, 16, torch.tensor(1 / global_scale[0]))
    scales = scales.view(torch.uint8).numpy()
    options = {"quantize": "nvfp4", "scale_layout": "rows", "global_scale": global_scale}
    got_codes, got_scales = received(settings, x, **options)
    got_scales = got_scales.reshape(scales.shape)
    same = (got_scales >= 8) & x.isfinite().reshape(len(x), -1, 16).all(-1).numpy()
    assert same.mean() > 0.98 and (scales[~same & (got_scales < 8)] == 8).all()
    np.testing.assert_array_equal(scales[same], got_scales[same])
    (theirs, ours), size = (
        [np.stack((c & 0xF, c >> 4), -1).reshape(len(x), -1) for c in (codes.numpy(), got_codes)],
        np.repeat(got_scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64), 16, 1),
    )
    other = (theirs != ours) & np.repeat(same, 16, 1)
    assert other.mean() < 1e-3
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    middle = (magnitudes[theirs[other] & 7] + magnitudes[ours[other] & 7]) / 2
    exact = np.abs(x.to(torch.float64).numpy())[other] * global_scale[0] / size[other]
    np.testing.assert_allclose(exact, middle, rtol=1e-6)


@pytest.mark.parametrize("expert_major", [False, True])
@pytest.mark.parametrize("hidden", [HIDDEN, 960, 64])
@pytest.mark.parametrize("name", GROUPS)
def test_normal_mode_sends_the_same_rows(name, hidden, expert_major, settings):
    x = activations()[:, :hidden].contiguous()
    options = {"quantize": name}
    if name == "nvfp4":
        options["global_scale"] = np.array([GLOBAL], np.float32)
    codes, scales = received_in_normal_mode(settings, x, expert_major, **options)
    want_codes, want_scales = received(settings, x, scale_layout="rows", **options)
    np.testing.assert_array_equal(codes, want_codes)
    np.testing.assert_array_equal(scales, want_scales)


def decoded(name, codes, scales, rows, global_scale):
    """The values as float64."""
    if name == "nvfp4":
        values = np.stack((codes & 0xF, codes >> 4), -1).reshape(rows, -1)
        values = values.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        scales = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64) / global_scale
    else:
        values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        if name in ("fp8", "fp8_power_of_two"):
            scales = scales.view(np.float32).astype(np.float64)
        else:
            scales = np.exp2(scales.astype(np.float64) - 127)
    return values * np.repeat(scales, GROUPS[name], -1)[:, : values.shape[1]]


def errors(name, x, settings):
    """(root mean square error, of that of the values; largest error, of the largest value of its
    row), in percent."""
    options, global_scale = {}, None
    if name == "nvfp4":
        global_scale = np.array([448 * 6 / float(x.abs().max())], np.float32)
        options["global_scale"] = global_scale
    codes, scales = received(settings, x, quantize=name, scale_layout="rows", **options)
    want = x.to(torch.float64).numpy()
    error = np.abs(decoded(name, codes, scales, len(x), global_scale) - want)
    largest = (error / np.abs(want).max(-1, keepdims=True)).max()
    return 100 * np.sqrt((error**2).mean() / (want**2).mean()), 100 * largest


def test_the_page_states_the_errors(settings):
    """Of rows without NaNs and zeros; the page rounds to two digits."""
    x = activations()[5:]
    row = r"^\| `(\w+)` \| e\dm\d .* \| ([\d.]+ \| [\d.]+) \|$"
    stated = dict(re.findall(row, PAGE.read_text(), re.M))
    assert set(stated) == set(GROUPS)
    for name, cells in stated.items():
        mean, largest = (float(cell) for cell in cells.split(" | "))
        got = errors(name, x, settings)
        assert got == pytest.approx((mean, largest), rel=0.05), (name, got)


COMBINES = {
    "bfloat16": ({}, 128, 0),
    "fp8": ({"quantize": "fp8"}, 128, 1 / 28),
    "mxfp8": ({"quantize": "mxfp8"}, 32, 1 / 16),
}
RANKS, EXPERTS, TOP_K = 2, 8, 4
FACTORS = 0.25 + torch.arange(EXPERTS) / 7


def choices(tokens):
    random = torch.Generator().manual_seed(3)
    indices = torch.argsort(torch.rand(tokens, EXPERTS, generator=random))[:, :TOP_K].contiguous()
    return indices, torch.rand(tokens, TOP_K, generator=random)


def combined(settings, x, **options):
    """What each of two ranks gets back of x, from experts that multiply by FACTORS."""
    indices, weights = choices(len(x))

    def body(world):
        group = shoal.ep.Group(
            world.team,
            hidden=x.shape[1],
            top_k=TOP_K,
            experts=EXPERTS,
            low_latency_max_tokens=len(x),
        )
        got = group.low_latency_dispatch(x, indices, quantize="none").receive()
        mine = FACTORS.view(RANKS, -1)[world.my_pe]
        y = (got.x.float() * mine[:, None, None]).bfloat16()
        sums = group.low_latency_combine(y, indices, weights, got.handle, **options).receive()
        sums = sums.to(torch.float64).numpy()
        group.close()
        return sums

    return shoal.run_threads(RANKS, body, settings)


def combined_in_normal_mode(settings, x, name):
    """Combines in normal mode. Also returns, in float64, the rows of the two ranks and their
    largest magnitudes in the channels that share a scale."""
    indices, weights = choices(len(x))
    options, group, _ = COMBINES[name]

    def body(world):
        group = shoal.ep.Group(
            world.team, hidden=x.shape[1], top_k=TOP_K, experts=EXPERTS, max_tokens=len(x)
        )
        got = group.dispatch(x, group.route(indices), weights=weights)
        mine = FACTORS.view(RANKS, -1)[world.my_pe]
        share = (got.topk_weights * mine[got.topk_idx.clamp(min=0)]).sum(1, keepdim=True)
        sums = group.combine((got.x.float() * share).bfloat16(), got.handle, **options).x
        sums = sums.to(torch.float64).numpy()
        del got
        group.close()
        return sums

    here = (indices * RANKS // EXPERTS)[..., None] == torch.arange(RANKS)
    shares = ((weights * FACTORS[indices])[..., None] * here).sum(1)
    rows = (x.float()[:, None] * shares[..., None]).bfloat16().to(torch.float64)
    amax = rows.abs().view(len(x), RANKS, -1, group).amax(-1).repeat_interleave(group, -1)
    return shoal.run_threads(RANKS, body, settings), rows.numpy(), amax.sum(1).numpy()


@pytest.mark.parametrize("name", ["bfloat16", "fp8", "mxfp8"])
def test_errors_of_a_combine_of_normal_mode_are_within_their_bounds(name, settings):
    x = activations()[5:]
    x[::3] *= 4096  # beyond what e4m3 without scales holds
    everywhere, rows, largest = combined_in_normal_mode(settings, x, name)
    want = rows.sum(1)
    # A weighted sum of factors may round another way here than on the rank that makes the row.
    bound = (COMBINES[name][2] + 2**-8 + 1e-6) * largest
    bound += 2**-8 * (np.abs(want) + bound)
    for sums in everywhere:
        assert 0.3 < (np.abs(sums - want) / bound).max() <= 1


def combine_reference(x, group, exact):
    """The sums in float64, and for each channel the sum of the largest magnitudes that the bound of
    an error multiplies."""
    indices, weights = choices(len(x))
    rows = (x.float()[:, None] * FACTORS[indices][..., None]).bfloat16().to(torch.float64)
    terms = rows * weights[..., None].to(torch.float64)
    parts = [terms[:, k] for k in range(TOP_K)]
    if not exact:
        here = indices * RANKS // EXPERTS
        parts = [(terms * (here == rank)[..., None]).sum(1) for rank in range(RANKS)]
    largest = sum(
        part.abs().view(len(x), -1, group).amax(-1).repeat_interleave(group, -1) for part in parts
    )
    return terms.sum(1).numpy(), largest.numpy()


def combine_errors(name, x, settings, reduction="exact"):
    """As errors(); and the largest error of a channel, of its bound."""
    options, group, factor = COMBINES[name]
    want, largest = combine_reference(x, group, reduction == "exact")
    shares = []
    for sums in combined(settings, x, reduction=reduction, defer_receive=False, **options):
        error = np.abs(sums - want)
        # A sum of a rank is rounded to bfloat16 before and after it is encoded, the result once.
        # Sums are float32.
        bound = (factor + 1e-6 + (reduction != "exact") * 2.1 * 2**-8) * largest
        bound += 2**-8 * (np.abs(want) + bound)
        shares.append(
            (
                100 * np.sqrt((error**2).mean() / (want**2).mean()),
                100 * (error / np.abs(want).max(-1, keepdims=True)).max(),
                (error / bound).max(),
            )
        )
    return max(shares)


@pytest.mark.parametrize("reduction", ["per_rank", "exact"])
@pytest.mark.parametrize("name", ["bfloat16", "fp8", "mxfp8"])
def test_errors_of_a_combine_are_within_their_bounds(name, reduction, settings):
    x = activations()[5:]
    x[::3] *= 4096  # beyond what e4m3 without scales holds
    *_, share = combine_errors(name, x, settings, reduction)
    assert 0.3 < share <= 1


def test_the_page_states_the_errors_of_combines(settings):
    x = activations()[5:]
    row = r"^\| `?(\w+)`? \| \d+ \| [^|]* \| ([\d.]+) \| ([\d.]+) \|$"
    stated = {name: cells for name, *cells in re.findall(row, PAGE.read_text(), re.M)}
    assert set(stated) == set(COMBINES)
    for name, cells in stated.items():
        got = combine_errors(name, x, settings)[:2]
        assert got == pytest.approx([float(cell) for cell in cells], rel=0.06), (name, got)


@pytest.mark.parametrize("name", ["fp8", "mxfp8"])
def test_nans_of_a_combine_stay_in_their_group(name, settings):
    x = activations()[:5]
    _, group, _ = COMBINES[name]
    want = np.zeros(x.shape, bool)
    for token, channel in ((2, 5), (3, 40)):
        want[token, channel // group * group : (channel // group + 1) * group] = True
    for sums in (
        combined(settings, x, quantize=name) + combined_in_normal_mode(settings, x, name)[0]
    ):
        np.testing.assert_array_equal(np.isnan(sums), want)
        assert (sums[0] == 0).all()


def test_combines_in_other_formats_are_refused(settings):
    x = activations()[5:]
    for options, text in (
        ({"quantize": "nvfp4"}, "quantize is nvfp4; allowed for the rows of a combine"),
        ({"quantize": "fp8", "log_fmt": True}, "both encode y on its way; choose one"),
        ({"quantize": "e4m3"}, "quantize"),
    ):
        with pytest.raises((shoal.Error, ValueError), match=text):
            combined(settings, x, **options)


def test_unsummed_rows(settings):
    x = activations()[5:]
    indices, weights = choices(len(x))
    indices[3, 1], indices[7] = -1, -1
    want = (x.float()[:, None] * FACTORS[indices][..., None] * (indices >= 0)[..., None]).bfloat16()

    def body(world):
        mine = FACTORS.view(RANKS, -1)[world.my_pe]
        group = shoal.ep.Group(
            world.team,
            hidden=x.shape[1],
            top_k=TOP_K,
            experts=EXPERTS,
            max_tokens=TOP_K * len(x),
            low_latency_max_tokens=len(x),
        )

        def experts(rows, counts):
            return (rows.float() * mine[:, None, None]).bfloat16()

        got = group.low_latency_dispatch(x, indices, quantize="none").receive()
        y = experts(got.x, got.counts)
        for options in ({}, {"quantize": "fp8"}, {"log_fmt": True}):
            out = torch.empty_like(want)
            sent = group.low_latency_combine(
                y, indices, None, got.handle, unsummed=True, out=out, **options
            )
            assert sent.receive() is out
            if not options:
                assert torch.equal(out, want)
            error = (out.float() - want.float()).abs()
            assert (error <= want.float().abs().amax(-1, keepdim=True) / 20).all()
        with pytest.raises(shoal.InvalidArgumentError, match="unsummed with reduction per_rank"):
            group.low_latency_combine(
                y, indices, weights, got.handle, unsummed=True, reduction="per_rank"
            )
        with pytest.raises(shoal.InvalidArgumentError, match="weights is"):
            group.low_latency_combine(y, indices, None, got.handle, quantize="fp8")
        rows = shoal.torch.low_latency(group, x, indices, None, experts, unsummed=True)
        assert torch.equal(rows, want)
        with pytest.raises(shoal.InvalidArgumentError, match="topk_weights is None"):
            shoal.torch.low_latency(group, x, indices, None, experts)

        routing = group.route(indices)
        received = group.dispatch(x, routing, weights=weights, expert_major=True)
        factors = mine[received.topk_idx.clamp(min=0)]
        y = (received.x.float() * factors).bfloat16()
        back = group.combine(y, received.handle, weights=received.topk_weights, unsummed=True)
        assert torch.equal(back.x, want)
        assert torch.equal(back.topk_weights, weights * (indices >= 0))
        received = group.dispatch(x, routing)
        with pytest.raises(shoal.InvalidArgumentError, match="unsummed is for expert-major"):
            group.combine(received.x, received.handle, unsummed=True)
        group.close()

    shoal.run_threads(RANKS, body, settings)
