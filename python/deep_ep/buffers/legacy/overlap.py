# SPDX-License-Identifier: Apache-2.0
"""Completion signals of a GEMM that runs while ``low_latency_combine`` sends its output."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch

from shoal._core.ep import wait_signals

from ...utils.semantic import native_assert
from ...utils.streams import current_stream
from ..checks import require_tensor

_POLL_SECONDS = 20e-6


class Overlap(NamedTuple):
    """The overlap arguments of ``low_latency_combine``.

    Two protocols exist. With ``comp_signal``, blocks of ``block_m`` rows of an expert count up to
    ``threshold``: int32 with at least E / R * blocks elements, where blocks is ceil(rows of an
    expert / block_m). Expert e has the ``blocks`` elements from e * blocks on, and with
    ``packed_recv_count`` rows it uses the first ceil(count / block_m) of them. With
    ``src_signals``, each expert counts up to ``src_signal_expect_value``: int32 or uint32 [E / R].
    """

    packed_recv_count: Any
    comp_signal: Any
    block_m: int
    threshold: int
    src_signals: Any
    src_signal_expect_value: int

    def wait(
        self,
        call: str,
        sizes: tuple[int, int],
        device: torch.device,
        stream: int | None,
        timeout: float,
    ) -> None:
        """Waits until the output of all rows that experts received is complete: the host for
        tensors on the CPU, else ``stream``.

        sizes: local experts and the rows of an expert's part of x. timeout: in seconds. Raises
        RuntimeError for arguments that do not fit, and on the CPU TimeoutError where signals stay
        below their value; on a GPU the program's work there ends by a trap then.
        """
        experts, rows = sizes
        signals, counts, value = self._checked(call, rows, experts, device)
        if stream is None:
            self._poll(call, signals, counts, value, timeout)
            return
        signals.record_stream(current_stream())
        wait_signals(
            signals.data_ptr(),
            0 if counts is None else counts.data_ptr(),
            experts,
            signals.shape[1],
            self.block_m,
            value,
            timeout,
            stream,
        )

    def _poll(
        self,
        call: str,
        signals: torch.Tensor,
        counts: torch.Tensor | None,
        value: int,
        timeout: float,
    ) -> None:
        needed = torch.ones_like(signals, dtype=torch.bool)
        if counts is not None:
            first_rows = torch.arange(signals.shape[1], device=signals.device) * self.block_m
            needed = first_rows[None, :] < counts[:, None]
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

    def _checked(
        self, call: str, rows: int, experts: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor | None, int]:
        """(signals [experts, blocks], rows of each expert or None for one block each, the value
        to reach)."""
        native_assert(
            (self.comp_signal is None) != (self.src_signals is None),
            f"{call}: overlap=True needs either comp_signal or src_signals",
        )
        if self.comp_signal is None:
            kinds = (torch.int32, torch.uint32)
            require_tensor(call, "src_signals", self.src_signals, kinds, (experts,), device)
            signals = self.src_signals.view(torch.int32).view(experts, 1)
            return signals, None, self.src_signal_expect_value
        native_assert(
            self.block_m > 0 and self.threshold > 0,
            f"{call}: block_m is {self.block_m} and threshold {self.threshold}; both must be "
            "positive",
        )
        blocks = -(-rows // self.block_m)
        signals, counts, kinds = self.comp_signal, self.packed_recv_count, (torch.int32,)
        require_tensor(call, "comp_signal", signals, kinds, (None,), device)
        native_assert(
            signals.numel() >= experts * blocks,
            f"{call}: comp_signal has {signals.numel()} elements; allowed: at least "
            f"{experts * blocks}, {blocks} blocks of {self.block_m} rows for each of {experts} "
            "local experts",
        )
        require_tensor(call, "packed_recv_count", counts, kinds, (experts,), device)
        return signals[: experts * blocks].view(experts, blocks), counts, self.threshold

    def _name(self, index: list[int]) -> str:
        expert, block = index
        if self.comp_signal is None:
            return f"local expert {expert}"
        return f"block {block} of local expert {expert}"
