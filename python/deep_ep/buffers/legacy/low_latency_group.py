# SPDX-License-Identifier: Apache-2.0
"""``shoal.ep`` groups in low-latency mode with results at addresses that are known in advance.

DeepEP returns the tensors of a low-latency dispatch with the send, and the hook fills them. A group
has two sets of receive arrays, used in turn and fixed for its life. Two empty dispatches of each
quantization therefore give the addresses of all later results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import shoal
import shoal.ep
from shoal._core.ep import HookedCalls

from ...utils.semantic import native_fail
from ..groups import GroupShape, detached, to_torch
from .handles import LowLatencyHandle

_FORMS = ("none", "fp8", "fp8_ue8m0")


def _form(quantize: str) -> str:
    """The quantization whose receive arrays ``quantize`` uses."""
    return "fp8" if quantize == "fp8_power_of_two" else quantize


class ReceiveArrays(NamedTuple):
    """The arrays of one received dispatch."""

    x: torch.Tensor
    scales: torch.Tensor | None
    counts: torch.Tensor
    source_token: torch.Tensor
    layout: torch.Tensor

    @classmethod
    def of(cls, received: Any) -> ReceiveArrays:
        return cls(*(to_torch(getattr(received, name)) for name in cls._fields))

    @property
    def rows(self) -> Any:
        """``recv_x`` of DeepEP: x, or (x, scales)."""
        return self.x if self.scales is None else (self.x, self.scales)


class LowLatencyGroup:
    """A ``shoal.ep.Group`` in low-latency mode, and its receive arrays by quantization."""

    def __init__(
        self, team: Any, shape: GroupShape, max_tokens: int, mask_failed: bool, device: torch.device
    ):
        self.shape, self.max_tokens, self.ranks = shape, max_tokens, team.size
        self.group = shoal.ep.Group(
            team, **shape._asdict(), low_latency_max_tokens=max_tokens, mask_failed=mask_failed
        )
        # [local experts, ranks * max tokens, hidden]
        self.result_shape = (shape.experts // self.ranks, self.ranks * max_tokens, shape.hidden)
        self.combine_buffer: torch.Tensor | None = None
        self.sent = 0  # number of dispatches; its parity selects the set of receive arrays
        x = torch.empty((0, shape.hidden), dtype=torch.bfloat16, device=device)
        topk_idx = torch.empty((0, shape.top_k), dtype=torch.int64, device=device)
        self.arrays: dict[str, list[ReceiveArrays]] = {}
        for form in _FORMS:
            self.arrays[form] = [self._receive_empty(x, topk_idx, form) for _ in range(2)]
        self._hooked_calls: dict[str, HookedCalls] = {}
        self.hooked_combine = self.hooked_calls("none").combine  # independent of the quantization
        self.sums_strides = (shape.hidden, 1)

    def arrays_of(self, quantize: str) -> list[ReceiveArrays]:
        """The two sets of receive arrays of a quantization."""
        return self.arrays[_form(quantize)]

    def hooked_calls(self, quantize: str) -> HookedCalls:
        """The fast binding of calls with this quantization."""
        calls = self._hooked_calls.get(quantize)
        if calls is None:
            first, second = self.arrays_of(quantize)
            calls = HookedCalls(self.group, quantize, first.x, second.x)
            self._hooked_calls[quantize] = calls
        return calls

    def handle_entries(self, arrays: ReceiveArrays) -> tuple[Any, ...]:
        """The entries of the handle of a dispatch that is received into ``arrays``."""
        shape = self.shape
        return (arrays.source_token, arrays.layout, self.max_tokens, shape.hidden, shape.experts)

    def dispatch(
        self, x: torch.Tensor, topk_idx: torch.Tensor, quantize: str, options: dict[str, Any]
    ) -> tuple[ReceiveArrays, LowLatencyHandle, Callable[[], None]]:
        """Sends. Returns the arrays of the result, the handle, and a function that receives."""
        pending = self.group.low_latency_dispatch(
            detached(x), topk_idx, quantize=quantize, **options
        )
        arrays = self.arrays_of(quantize)[self.sent & 1]
        self.sent += 1
        handle = LowLatencyHandle(self.handle_entries(arrays))
        handle.group, handle.sent = self, pending

        def receive() -> None:
            received = pending.receive()
            if received.x.data_ptr != arrays.x.data_ptr():
                native_fail(
                    "low_latency_dispatch: the result lies outside the two sets of receive arrays"
                )

        return arrays, handle, receive

    def combine(
        self,
        y: torch.Tensor,
        topk_idx: torch.Tensor,
        weights: torch.Tensor,
        handle: Any,
        out: torch.Tensor,
        options: dict[str, Any],
    ) -> Callable[[], object]:
        """Sends expert output; returns a function that waits for the sums and writes ``out``."""
        pending = self.group.low_latency_combine(
            detached(y), topk_idx, detached(weights), handle.shoal, out=out, **options
        )
        self.combine_buffer = None
        return pending.receive

    def close(self) -> None:
        """Frees the memory. Collective. No result may be in use."""
        self.arrays.clear()
        self._hooked_calls.clear()
        del self.hooked_combine
        self.group.close()

    def next_combine_buffer(self) -> torch.Tensor:
        """The memory from which the next combine sends expert output without a copy."""
        self.combine_buffer = to_torch(self.group.next_combine_buffer())
        return self.combine_buffer

    def _receive_empty(self, x: torch.Tensor, topk_idx: torch.Tensor, form: str) -> ReceiveArrays:
        self.sent += 1
        return ReceiveArrays.of(
            self.group.low_latency_dispatch(x, topk_idx, quantize=form).receive()
        )


class HookedPath:
    """The fast path of dispatches with one quantization.

    Attributes: ``group``; ``calls`` (the binding); ``results``: rows, counts and handle entries of
    each of the two sets of receive arrays.
    """

    __slots__ = ("group", "calls", "results")

    def __init__(self, group: LowLatencyGroup, quantize: str):
        self.group = group
        self.calls = group.hooked_calls(quantize)
        self.results = [
            (arrays.rows, arrays.counts, group.handle_entries(arrays))
            for arrays in group.arrays_of(quantize)
        ]


class LowLatencyPool:
    """The low-latency groups of a buffer, by shape, and the ranks that all of them mask."""

    def __init__(self, team: Any, device: torch.device, mask_failed: bool):
        self._team, self._device, self._mask_failed = team, device, mask_failed
        self._groups: dict[tuple[int, int, int, int], LowLatencyGroup] = {}
        self._masked: set[int] = set()
        self._provisional: tuple[int, int, int, int] | None = None

    def get(
        self, hidden: int, top_k: int, experts: int, max_tokens: int, provisional: bool = False
    ) -> LowLatencyGroup:
        """The group of this shape. Collective when it creates the group.

        A ``provisional`` group is closed where the first request names another top-k.
        """
        key = (hidden, top_k, experts, max_tokens)
        group = self._groups.get(key)
        if not provisional and (replaced := self._provisional) is not None:
            self._provisional = None
            if group is None and key[:1] + key[2:] == replaced[:1] + replaced[2:]:
                self._groups.pop(replaced).close()
        if group is None:
            if provisional:
                self._provisional = key
            group = self._create(GroupShape(hidden, top_k, experts), max_tokens)
            self._groups[key] = group
            for rank in self._masked:
                group.group.set_mask(rank, True)
        return group

    def _create(self, shape: GroupShape, max_tokens: int) -> LowLatencyGroup:
        try:
            return LowLatencyGroup(self._team, shape, max_tokens, self._mask_failed, self._device)
        except shoal.Error as error:
            if self._mask_failed and hasattr(error, "add_note"):  # Python 3.11
                error.add_note(
                    f"deep_ep: the first call of {shape} with {max_tokens} tokens creates its "
                    "memory and needs all ranks. To go on without absent ranks, create it early: "
                    "Buffer(num_topk=), EP_LOW_LATENCY_TOPK, or Buffer.warmup_low_latency."
                )
            raise

    def set_mask(self, rank: int, masked: bool) -> None:
        for group in self._groups.values():
            group.group.set_mask(rank, masked)
        if masked:
            self._masked.add(rank)
        else:
            self._masked.discard(rank)

    def clear_masks(self) -> None:
        for group in self._groups.values():
            group.group.clear_masks()
        self._masked.clear()

    def masked(self) -> set[int]:
        """Ranks that are masked by request or after a timeout."""
        masks = [group.group.masked() for group in self._groups.values()]
        return self._masked | {rank for mask in masks for rank, out in enumerate(mask) if out}
