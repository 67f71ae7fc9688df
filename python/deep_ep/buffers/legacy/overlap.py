# SPDX-License-Identifier: Apache-2.0
"""Completion signals of a GEMM that runs while ``low_latency_combine`` sends its output."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch

from ...utils.semantic import native_assert, native_fail
from ..checks import require_tensor

_POLL_SECONDS = 20e-6


class Overlap(NamedTuple):
    """The overlap arguments of ``low_latency_combine``.

    Two protocols exist. With ``comp_signal``, blocks of ``block_m`` rows of an expert count up to
    ``threshold``: int32 [E / R * blocks per expert], where an expert with ``packed_recv_count``
    rows uses its first ceil(count / block_m) entries. With ``src_signals``, each expert counts up
    to ``src_signal_expect_value``: int32 or uint32 [E / R].
    """

    packed_recv_count: Any
    comp_signal: Any
    block_m: int
    threshold: int
    src_signals: Any
    src_signal_expect_value: int

    def wait(
        self, call: str, rows: int, experts: int, device: torch.device, timeout: float
    ) -> None:
        """Waits until the output of all rows that experts received is complete.

        rows: those of an expert's part of x. timeout: in seconds. Raises RuntimeError for arguments
        that do not fit, TimeoutError where signals stay below their value.
        """
        signals, needed, value = self._needed(call, rows, experts, device)
        if device.type != "cpu":
            native_fail(
                f"{call}: overlap=True is available for tensors on the CPU; on GPUs, call it without "
                "overlap on a stream that waits for the GEMM"
            )
        deadline = time.monotonic() + timeout
        while not bool((signals[needed] >= value).all()):
            if time.monotonic() > deadline:
                missing = (needed & (signals < value)).nonzero()[0].tolist()
                raise TimeoutError(
                    f"deep_ep: {call}: the signal of {self._name(missing)} is "
                    f"{signals[tuple(missing)].item()} after {timeout:g} s, expected {value}. "
                    "Setting: SHOAL_TIMEOUT_MS."
                )
            time.sleep(_POLL_SECONDS)

    def _needed(
        self, call: str, rows: int, experts: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """(signals [experts, blocks], which of them count, the value to reach)."""
        native_assert(
            (self.comp_signal is None) != (self.src_signals is None),
            f"{call}: overlap=True needs either comp_signal or src_signals",
        )
        if self.comp_signal is None:
            kinds = (torch.int32, torch.uint32)
            require_tensor(call, "src_signals", self.src_signals, kinds, (experts,), device)
            signals = self.src_signals.view(torch.int32).view(experts, 1)
            everywhere = torch.ones((experts, 1), dtype=torch.bool, device=device)
            return signals, everywhere, self.src_signal_expect_value
        native_assert(
            self.block_m > 0 and self.threshold > 0,
            f"{call}: block_m is {self.block_m} and threshold {self.threshold}; both must be positive",
        )
        blocks = -(-rows // self.block_m)
        kinds, shape = (torch.int32,), (experts * blocks,)
        require_tensor(call, "comp_signal", self.comp_signal, kinds, shape, device)
        count = self.packed_recv_count
        require_tensor(call, "packed_recv_count", count, kinds, (experts,), device)
        first_rows = torch.arange(blocks, device=device) * self.block_m
        needed = first_rows[None, :] < count[:, None]
        return self.comp_signal.view(experts, blocks), needed, self.threshold

    def _name(self, index: list[int]) -> str:
        expert, block = index
        if self.comp_signal is None:
            return f"local expert {expert}"
        return f"block {block} of local expert {expert}"
