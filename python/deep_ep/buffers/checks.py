# SPDX-License-Identifier: Apache-2.0
"""Argument checks. A failed check raises what DeepEP raises in the same place: AssertionError where
DeepEP has a Python assert (``expect``), RuntimeError where its native part checks
(``native_assert``)."""

from __future__ import annotations

from typing import Any

import torch

from ..config import MAX_EXPERT_ALIGNMENT, MAX_EXPERTS
from ..utils.semantic import native_assert


def expect(condition: bool, message: str) -> None:
    """Raises AssertionError unless ``condition``; unlike ``assert``, also under ``python -O``."""
    if not condition:
        raise AssertionError(f"deep_ep: {message}")


def describe(value: Any) -> str:
    """The dtype, shape and device of a tensor; type and value of anything else."""
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value!r}"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} on {value.device}"


def _fits(extents: torch.Size, wanted: tuple[int | None, ...]) -> bool:
    """Return true if a shape is ``wanted``; None allows any extent."""
    if len(extents) != len(wanted):
        return False
    for extent, one in zip(extents, wanted):  # a third of the time of a generator expression
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
    """Raises RuntimeError unless ``value`` is a contiguous tensor on ``device`` with one of
    ``dtypes`` and with ``shape`` (None: any extent)."""
    if (
        isinstance(value, torch.Tensor)
        and value.dtype in dtypes
        and value.device == device
        and value.is_contiguous()
        and _fits(value.shape, shape)
    ):
        return  # before the message is built: every call passes here
    kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    extents = ", ".join("*" if extent is None else str(extent) for extent in shape)
    contiguous = (
        "" if not isinstance(value, torch.Tensor) or value.is_contiguous() else " (not contiguous)"
    )
    native_assert(
        False,
        f"{call}: {name} is {describe(value)}{contiguous}; "
        f"allowed: contiguous {kinds} [{extents}] on {device.type}",
    )


def require_experts(call: str, num_experts: int, name: str = "num_experts") -> None:
    """Raises RuntimeError unless a group can have so many experts."""
    native_assert(
        0 < num_experts <= MAX_EXPERTS,
        f"{call}: {name} is {num_experts}; allowed: positive numbers up to {MAX_EXPERTS}",
    )


def require_alignment(call: str, name: str, alignment: int) -> None:
    native_assert(
        1 <= alignment <= MAX_EXPERT_ALIGNMENT,
        f"{call}: {name} is {alignment}; allowed: 1 to {MAX_EXPERT_ALIGNMENT}",
    )
