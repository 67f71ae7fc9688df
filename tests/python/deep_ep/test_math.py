# SPDX-License-Identifier: Apache-2.0
"""deep_ep.utils.math against straightforward computations."""

import numpy as np
import pytest
import torch
from deep_ep.utils import math as ep_math

# The value of each FP8 code, and the finite values in ascending order.
CODES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()
VALUES = np.unique(CODES[np.isfinite(CODES)])


def nearest_fp8(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The FP8 numbers next to x; rounding may give either where x is half way."""
    position = np.clip(np.searchsorted(VALUES, x), 1, len(VALUES) - 1)
    below, above = VALUES[position - 1], VALUES[position]
    down, up = x - below, above - x
    return np.where(down <= up, below, above), np.where(down < up, below, above)


def test_rounding():
    for x in range(0, 40):
        for y in range(1, 9):
            aligned = next(n for n in range(x, x + y) if n % y == 0)
            assert ep_math.align(x, y) == aligned and ep_math.ceil_div(x, y) * y == aligned
    assert ep_math.safe_div(6, 4) == 1.5 and ep_math.safe_div(6, 0) == 0


def test_calc_diff():
    x = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    y = torch.tensor([[1.5, -2.0], [0.0, 3.0]])
    a, b = x.numpy().astype(float) + 1, y.numpy().astype(float) + 1
    expected = 1 - 2 * (a * b).sum() / (a**2 + b**2).sum()
    assert ep_math.calc_diff(x, y) == pytest.approx(expected, rel=1e-12) and expected > 0.01
    assert ep_math.calc_diff(x, x.bfloat16()) == 0
    assert ep_math.calc_diff(torch.zeros(3), torch.zeros(3)) == 0
    z = torch.linspace(1, 2, 1000, dtype=torch.float64) - 1
    assert ep_math.calc_diff(z, z + 0.01 * (z + 1)) == pytest.approx(0.01**2 / 2, rel=0.02)


@pytest.mark.parametrize("shape", [(1, 128), (7, 512), (5, 200), (3, 100), (0, 256)])
def test_cast_to_fp8(shape):
    torch.manual_seed(1)
    x = (torch.randn(shape) * 10 ** torch.randint(-3, 4, (shape[0], 1)).float()).bfloat16()
    x[:1, :50] = 0
    fp8, scales = ep_math.per_token_cast_to_fp8(x)
    groups = -(-shape[1] // 128)
    assert fp8.dtype == torch.float8_e4m3fn and fp8.shape == shape and fp8.is_contiguous()
    assert scales.dtype == torch.float32 and scales.shape == (shape[0], groups)
    exact = x.double().numpy()
    for row in range(shape[0]):
        for g in range(groups):
            part = slice(g * 128, (g + 1) * 128)
            amax = max(1e-4, np.abs(exact[row, part]).max())
            assert scales[row, g].item() == pytest.approx(amax / 448, rel=1e-6)
            scaled = exact[row, part] * (448 / amax)
            got = fp8[row, part].double().numpy()
            # float32 may move a value across the middle of two FP8 numbers, not farther.
            low, high = nearest_fp8(scaled * (1 - 1e-6)), nearest_fp8(scaled * (1 + 1e-6))
            assert np.all((got == low[0]) | (got == low[1]) | (got == high[0]) | (got == high[1]))


def test_cast_of_zeros_and_of_tiny_values():
    fp8, scales = ep_math.per_token_cast_to_fp8(torch.zeros(2, 128))
    assert not fp8.float().any() and torch.allclose(scales, torch.full((2, 1), 1e-4 / 448))
    tiny = torch.full((1, 128), 1e-5)
    assert ep_math.per_token_cast_back(
        *ep_math.per_token_cast_to_fp8(tiny)
    ).float().mean().item() == pytest.approx(1e-5, rel=0.05)


def test_cast_there_and_back():
    torch.manual_seed(2)
    for hidden in (128, 384, 7168, 200):
        x = torch.randn(9, hidden).bfloat16()
        fp8, scales = ep_math.per_token_cast_to_fp8(x)
        back = ep_math.per_token_cast_back(fp8, scales)
        assert back.dtype == torch.bfloat16 and back.shape == x.shape
        expected = fp8.double() * scales.double().repeat_interleave(128, dim=1)[:, :hidden]
        assert torch.allclose(back.double(), expected, rtol=2**-8, atol=0)
        assert 0 < ep_math.calc_diff(x, back) < 1e-3
        transposed = torch.empty_strided(scales.shape, (1, 16)).copy_(scales)
        assert torch.equal(ep_math.per_token_cast_back(fp8, transposed), back)
        assert torch.equal(ep_math.per_token_cast_back(fp8[None], scales[None])[0], back)
    with pytest.raises(AssertionError, match=r"got scales for \(9, 3\), need \(9, 2\)"):
        ep_math.per_token_cast_back(fp8, torch.ones(9, 3))
    with pytest.raises(AssertionError, match="got 1 dimensions"):
        ep_math.per_token_cast_to_fp8(torch.ones(128))


@pytest.mark.parametrize("hidden", [512, 1024, 640])
def test_cast_back_with_packed_exponents(hidden):
    torch.manual_seed(3)
    fp8 = torch.randn(4, hidden).to(torch.float8_e4m3fn)
    groups = -(-hidden // 128)
    exponents = np.random.default_rng(3).integers(-20, 20, (4, groups))
    packed = np.zeros((4, -(-groups // 4)), dtype=np.uint32)
    for row in range(4):
        for g in range(groups):
            packed[row, g // 4] |= np.uint32(exponents[row, g] + 127) << np.uint32(8 * (g % 4))
    scales = torch.from_numpy(packed.view(np.int32))
    back = ep_math.per_token_cast_back(fp8, scales)
    expected = fp8.double().numpy() * np.repeat(2.0**exponents, 128, axis=1)[:, :hidden]
    assert np.array_equal(
        back.double().numpy(), expected
    )  # scales of powers of two cause no rounding
    transposed = torch.empty_strided(scales.shape, (1, 8), dtype=torch.int32).copy_(scales)
    assert torch.equal(ep_math.per_token_cast_back(fp8, transposed), back)
    if hidden % 512 == 0:  # programs view packed scales like those of float32
        assert torch.equal(ep_math.per_token_cast_back(fp8, scales.view(-1, hidden // 128)), back)
        with pytest.raises(AssertionError, match="got scales for"):
            ep_math.per_token_cast_back(fp8[:3], scales.view(-1, hidden // 128))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_inplace_unique(dtype):
    rng = np.random.default_rng(4)
    x = rng.integers(-2, 6, (50, 7))
    got = torch.from_numpy(x.copy()).to(dtype)
    ep_math.inplace_unique(got, 6)
    for row, result in zip(x, got.tolist(), strict=True):
        distinct = sorted({int(v) for v in row if v >= 0}, reverse=True)
        assert result == distinct + [-1] * (7 - len(distinct))
    with pytest.raises(AssertionError, match="got 5, need less than 5"):
        ep_math.inplace_unique(torch.tensor([[5, 0]]), 5)
    ep_math.inplace_unique(torch.empty((0, 3), dtype=dtype), 5)


def test_create_grouped_scores():
    torch.manual_seed(5)
    scores = torch.rand(6, 12) + 1
    group_idx = torch.stack([torch.randperm(4)[:2] for _ in range(6)])
    got = ep_math.create_grouped_scores(scores, group_idx, 4)
    for token in range(6):
        for expert in range(12):
            selected = expert // 3 in group_idx[token].tolist()
            assert got[token, expert] == (scores[token, expert] if selected else 0)
    with pytest.raises(AssertionError):
        ep_math.create_grouped_scores(scores, group_idx, 5)


def test_hashes_and_bytes():
    x = torch.arange(-3, 5, dtype=torch.int32)
    assert ep_math.hash_tensor(x) == sum(range(-3, 5))
    assert ep_math.hash_tensor(torch.tensor([1.0, -2.0])) == 0x3F800000 + (0xC0000000 - 2**32)
    assert ep_math.hash_tensor(torch.tensor([1, 2, 3, 4, 5], dtype=torch.uint8)) == 0x04030201 + 5
    big = torch.full((1000,), 2**31 - 1, dtype=torch.int32)
    assert ep_math.hash_tensor(big) == 1000 * (2**31 - 1)
    y = torch.randn(5, 3).bfloat16()
    assert ep_math.hash_tensor(y.t()) == ep_math.hash_tensor(y.t().contiguous())
    one = torch.ones(1, dtype=torch.int32).as_strided((1, 1), (1, 5))
    assert ep_math.hash_tensor(one) == 1
    assert ep_math.hash_tensors(x, None, (y, x)) == ep_math.hash_tensor(y)
    assert ep_math.hash_tensors(x, big) == ep_math.hash_tensor(x) ^ ep_math.hash_tensor(big)
    assert ep_math.count_bytes(x, None, (y, [y])) == 8 * 4 + 2 * 15 * 2
    assert ep_math.count_bytes(None) == 0
