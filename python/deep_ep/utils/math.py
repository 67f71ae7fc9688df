# SPDX-License-Identifier: Apache-2.0
"""Numeric helpers of tests and callers: rounding, FP8 casts, differences, hashes, sizes."""

from collections.abc import Iterable, Iterator

import torch

FP8_GROUP = 128  # channels that share a scale
FP8_MAX = torch.finfo(torch.float8_e4m3fn).max  # 448


def ceil_div(x: int, y: int) -> int:
    """x / y rounded up; y > 0."""
    return (x + y - 1) // y


def align(x: int, y: int) -> int:
    """x rounded up to a multiple of y; y > 0."""
    return ceil_div(x, y) * y


def safe_div(a: float, b: float) -> float:
    """a / b, or 0 where b is 0."""
    return a / b if b else 0


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """1 - 2 sum(ab) / sum(a^2 + b^2) with a = x + 1 and b = y + 1 in float64.

    0 for equal tensors, about half the squared relative error for close ones; defined for zeros.
    """
    a, b = x.double() + 1, y.double() + 1
    return (1 - 2 * (a * b).sum() / (a * a + b * b).sum()).item()


def _grouped(x: torch.Tensor) -> torch.Tensor:
    """float32 [..., ceil(n / 128), 128] of [..., n], padded with zeros."""
    x = torch.nn.functional.pad(x.float(), (0, -x.size(-1) % FP8_GROUP))
    return x.unflatten(-1, (x.size(-1) // FP8_GROUP, FP8_GROUP))


def per_token_cast_to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises [m, n] to (e4m3 [m, n], float32 scales [m, ceil(n / 128)]); value = fp8 * scale.

    The scale of a group is its largest magnitude, at least 1e-4, divided by 448.
    """
    assert x.dim() == 2, (
        f"per_token_cast_to_fp8: got {x.dim()} dimensions, need 2 (tokens, channels)"
    )
    groups = _grouped(x)
    amax = groups.abs().amax(dim=-1, keepdim=True).clamp(min=1e-4)
    quantised = (groups * (FP8_MAX / amax)).to(torch.float8_e4m3fn)
    return quantised.flatten(-2)[:, : x.size(1)].contiguous(), (amax / FP8_MAX).squeeze(-1)


def per_token_cast_back(x_fp8: torch.Tensor, x_scales: torch.Tensor) -> torch.Tensor:
    """BF16 [..., n] of FP8 [..., n] and its x_scales, one per 128 channels.

    Scales are float32 [..., ceil(n / 128)], or int32 [..., ceil(n / 512)] with four UE8M0 exponents
    each, lowest byte first. Any strides. Where 512 divides n, int32 scales may also be a view
    [rows / 4, n / 128] of all rows. Raises AssertionError where the shapes do not fit.
    """
    num_channels = x_fp8.size(-1)
    num_groups = ceil_div(num_channels, FP8_GROUP)
    if x_scales.dtype == torch.int32:
        # An exponent byte in bits 23 to 30 is a float32 power of two.
        exponents = as_bytes(x_scales)
        rows = x_fp8.shape[:-1]
        if (
            num_groups % 4 == 0
            and x_scales.shape[-1] == num_groups
            and exponents.numel() == rows.numel() * num_groups
        ):
            exponents = exponents.view(*rows, num_groups)
        exponents = exponents[..., :num_groups]
        x_scales = (exponents.int() << 23).view(torch.float32)
    assert x_scales.shape == (*x_fp8.shape[:-1], num_groups), (
        f"per_token_cast_back: got scales for {tuple(x_scales.shape)}, "
        f"need {(*x_fp8.shape[:-1], num_groups)}"
    )
    values = _grouped(x_fp8) * x_scales.float().unsqueeze(-1)
    return values.flatten(-2)[..., :num_channels].bfloat16()


def inplace_unique(x: torch.Tensor, num_slots: int) -> None:
    """Replaces each row of x [m, k] by its distinct values in 0..num_slots - 1, in descending
    order.

    -1 fills the rest of the row; negative values count as -1.
    """
    assert x.dim() == 2, f"inplace_unique: got {x.dim()} dimensions, need 2"
    assert x.numel() == 0 or x.max() < num_slots, (
        f"inplace_unique: got {x.max()}, need less than {num_slots}"
    )
    ordered = x.clamp(min=-1).sort(dim=1, descending=True).values
    ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1].clone()] = -1
    x.copy_(ordered.sort(dim=1, descending=True).values)


def create_grouped_scores(
    scores: torch.Tensor, group_idx: torch.Tensor, num_groups: int
) -> torch.Tensor:
    """scores [tokens, experts] with zeros outside the selected groups of experts.

    group_idx [tokens, k] selects among `num_groups` groups.
    """
    num_tokens, num_experts = scores.shape
    assert num_experts % num_groups == 0, (
        f"create_grouped_scores: {num_experts} experts in {num_groups} groups"
    )
    selected = torch.zeros(
        (num_tokens, num_groups), dtype=torch.bool, device=scores.device
    ).scatter_(1, group_idx, True)
    return scores.masked_fill(~selected.repeat_interleave(num_experts // num_groups, dim=1), 0)


def as_bytes(t: torch.Tensor) -> torch.Tensor:
    """A copy of t as uint8 [..., n * element size]; any strides."""
    # contiguous() would keep strides that torch cannot view as bytes where a dimension is 1.
    return t.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def _tensors(items: Iterable) -> Iterator[torch.Tensor]:
    """The tensors of nested tuples and lists, without None."""
    for item in items:
        if isinstance(item, torch.Tensor):
            yield item
        elif item is not None:
            yield from _tensors(item)


def hash_tensor(t: torch.Tensor) -> int:
    """The sum of the bytes of t as int32 (padded with zeros), for comparing results bit by bit."""
    data = as_bytes(t.detach().flatten())
    return (
        torch.nn.functional.pad(data, (0, -data.numel() % 4))
        .view(torch.int32)
        .sum(dtype=torch.int64)
        .item()
    )


def hash_tensors(*tensors: torch.Tensor | tuple | None) -> int:
    """hash_tensor of all, combined by exclusive or; accepts nested tuples and None."""
    result = 0
    for t in _tensors(tensors):
        result ^= hash_tensor(t)
    return result


def count_bytes(*tensors: torch.Tensor | tuple | None) -> int:
    """Bytes of all elements; accepts nested tuples and None."""
    return sum(t.numel() * t.element_size() for t in _tensors(tensors))
