# SPDX-License-Identifier: Apache-2.0
"""The low-latency half of the legacy buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import shoal.ep
from shoal._core.ep import HookedCalls

from ..utils.semantic import native_fail
from .groups import GroupShape, detached, to_torch
from .handles import LowLatencyHandle

_KINDS = ("none", "fp8", "fp8_ue8m0")


def _kind(quantize: str) -> str:
    """Which arrays rows of a form come into."""
    return "fp8" if quantize == "fp8_power_of_two" else quantize


class Slot(NamedTuple):
    """The arrays of one received dispatch."""

    x: torch.Tensor
    scales: torch.Tensor | None
    counts: torch.Tensor
    source_token: torch.Tensor
    layout: torch.Tensor

    @classmethod
    def of(cls, received: Any) -> Slot:
        return cls(*(to_torch(getattr(received, name)) for name in cls._fields))

    @property
    def rows(self) -> Any:
        """As callers get them: the scales with the rows, where there are any."""
        return self.x if self.scales is None else (self.x, self.scales)


class LowLatencyGroup:
    """A shoal.ep.Group in low-latency mode whose results are known before they are received.

    Callers get the tensors with the send and fill them by the hook. Shoal has two sets of arrays, used in turn and
    fixed for the life of the group, so two empty dispatches of each kind show where the results of all later ones lie.
    """

    def __init__(self, team: Any, shape: GroupShape, max_tokens: int, mask_failed: bool, device: torch.device):
        self.shape, self.max_tokens, self.ranks = shape, max_tokens, team.size
        self.group = shoal.ep.Group(team, **shape._asdict(), low_latency_max_tokens=max_tokens, mask_failed=mask_failed)
        # [local experts, ranks * max tokens, hidden]
        self.result_shape = (shape.experts // self.ranks, self.ranks * max_tokens, shape.hidden)
        self.combine_buffer: torch.Tensor | None = None
        self.sent = 0  # dispatches
        x = torch.empty((0, shape.hidden), dtype=torch.bfloat16, device=device)
        topk_idx = torch.empty((0, shape.top_k), dtype=torch.int64, device=device)
        self.slots: dict[str, list[Slot]] = {}
        for kind in _KINDS:
            self.slots[kind] = [self._receive_empty(x, topk_idx, kind) for _ in range(2)]
        self._hooked_calls: dict[str, HookedCalls] = {}
        self.hooked_combine = self.hooked_calls("none").combine  # which does not depend on the form
        self.sums_strides = (shape.hidden, 1)

    def hooked_calls(self, quantize: str) -> HookedCalls:
        """What takes plain calls the short way."""
        calls = self._hooked_calls.get(quantize)
        if calls is None:
            slots = self.slots[_kind(quantize)]
            calls = self._hooked_calls[quantize] = HookedCalls(self.group, quantize, slots[0].x, slots[1].x)
        return calls

    def entries(self, slot: Slot) -> tuple[Any, ...]:
        """What the handle of a dispatch contains whose rows come into this slot."""
        return (slot.source_token, slot.layout, self.max_tokens, self.shape.hidden, self.shape.experts)

    def dispatch(
        self, x: torch.Tensor, topk_idx: torch.Tensor, quantize: str, options: dict[str, Any]
    ) -> tuple[Slot, LowLatencyHandle, Callable[[], None]]:
        """Sends; returns where the rows will be, the handle, and what waits for them."""
        pending = self.group.low_latency_dispatch(detached(x), topk_idx, quantize=quantize, **options)
        slot = self.slots[_kind(quantize)][self.sent & 1]
        self.sent += 1
        handle = LowLatencyHandle(self.entries(slot))
        handle.group, handle.sent = self, pending

        def receive() -> None:
            received = pending.receive()
            if received.x.data_ptr != slot.x.data_ptr():
                native_fail("low_latency_dispatch: shoal has put a result where none of the two before it was")

        return slot, handle, receive

    def combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        weights: torch.Tensor,
        handle: Any,
        out: torch.Tensor,
        options: dict[str, Any],
    ) -> Callable[[], object]:
        """Sends the answers; returns what waits for the sums and puts them into ``out``."""
        pending = self.group.low_latency_combine(
            detached(x), topk_idx, detached(weights), handle.shoal, out=out, **options
        )
        self.combine_buffer = None
        return pending.receive

    def next_combine_buffer(self) -> torch.Tensor:
        """Where the answers of the next combine may be written so that they are not copied."""
        self.combine_buffer = to_torch(self.group.next_combine_buffer())
        return self.combine_buffer

    def _receive_empty(self, x: torch.Tensor, topk_idx: torch.Tensor, kind: str) -> Slot:
        self.sent += 1
        return Slot.of(self.group.low_latency_dispatch(x, topk_idx, quantize=kind).receive())


class HookedPath:
    """The short way of dispatches in one form: what Shoal takes, and what callers get, by turns.

    Attributes: group; calls (shoal's HookedCalls); results (two of rows, counts and what a handle contains).
    """

    __slots__ = ("group", "calls", "results")

    def __init__(self, group: LowLatencyGroup, quantize: str):
        self.group = group
        self.calls = group.hooked_calls(quantize)
        self.results = [(slot.rows, slot.counts, group.entries(slot)) for slot in group.slots[_kind(quantize)]]


class LowLatencyPool:
    """The low-latency groups of a buffer, by shape, and the ranks that all of them leave out."""

    def __init__(self, team: Any, device: torch.device, mask_failed: bool):
        self._team, self._device, self._mask_failed = team, device, mask_failed
        self._groups: dict[tuple[int, int, int, int], LowLatencyGroup] = {}
        self._masked: set[int] = set()

    def get(self, hidden: int, top_k: int, experts: int, max_tokens: int) -> LowLatencyGroup:
        """The group of this shape. Collective when it is the first call of the shape."""
        key = (hidden, top_k, experts, max_tokens)
        group = self._groups.get(key)
        if group is None:
            shape = GroupShape(hidden, top_k, experts)
            group = self._groups[key] = LowLatencyGroup(self._team, shape, max_tokens, self._mask_failed, self._device)
            for rank in self._masked:
                group.group.set_mask(rank, True)
        return group

    def of_handle(self, call: str, handle: Any) -> LowLatencyGroup:
        """The group that made a handle."""
        if not isinstance(handle, LowLatencyHandle) or handle.group is None:
            native_fail(
                f"{call}: handle is a {type(handle).__name__}; allowed: what low_latency_dispatch returned, unchanged"
            )
        return handle.group

    def set_mask(self, rank: int, masked: bool) -> None:
        for group in self._groups.values():
            group.group.set_mask(rank, masked)
        (self._masked.add if masked else self._masked.discard)(rank)

    def clear_masks(self) -> None:
        for group in self._groups.values():
            group.group.clear_masks()
        self._masked.clear()

    def masked(self) -> set[int]:
        """Ranks left out by request, or since they did not answer."""
        found = {rank for group in self._groups.values() for rank, out in enumerate(group.group.masked()) if out}
        return found | self._masked
