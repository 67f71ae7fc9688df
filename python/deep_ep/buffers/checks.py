# SPDX-License-Identifier: Apache-2.0
"""Argument checks: AssertionError where the contract has a Python assert, RuntimeError (native_assert) elsewhere."""

from __future__ import annotations

from typing import Any

import torch

from ..utils.semantic import native_assert


def expect(condition: bool, message: str) -> None:
    """Raises AssertionError; unlike ``assert`` it survives ``python -O``."""
    if not condition:
        raise AssertionError(f"deep_ep: {message}")


def describe(value: Any) -> str:
    """A tensor's dtype, shape and device; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value!r}"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} on {value.device}"


def _fits(extents: torch.Size, wanted: tuple[int | None, ...]) -> bool:
    """Whether the extents are those wanted; None: any. A plain loop takes a third of the time of a generator."""
    if len(extents) != len(wanted):
        return False
    for extent, one in zip(extents, wanted):
        if one is not None and extent != one:
            return False
    return True


def require_tensor(
    call: str,
    name: str,
    value: Any,
    dtypes: tuple[torch.dtype, ...],
    shape: tuple[int | None, ...],
    device: torch.device,
) -> None:
    """``value`` has to be a contiguous tensor of one of ``dtypes`` and of ``shape`` (None: any extent)."""
    if (
        isinstance(value, torch.Tensor)
        and value.dtype in dtypes
        and value.device == device
        and value.is_contiguous()
        and _fits(value.shape, shape)
    ):
        return  # before any text is made: every call comes through here
    kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    extents = ", ".join("*" if extent is None else str(extent) for extent in shape)
    contiguous = "" if not isinstance(value, torch.Tensor) or value.is_contiguous() else " (not contiguous)"
    native_assert(
        False,
        f"{call}: {name} is {describe(value)}{contiguous}; allowed: contiguous {kinds} [{extents}] on {device.type}",
    )
