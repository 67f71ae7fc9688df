# SPDX-License-Identifier: Apache-2.0
"""``warmup`` of both interfaces: what first calls would do, ahead of them.

A first call creates a group with its memory, loads kernels, and makes torch allocate results. A
warm-up makes calls of the largest size on generated tokens, in this thread or in the background.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..config import topk_idx_t
from ..utils.semantic import native_assert
from .groups import GroupShape, NormalGroup
from .runtime import Runtime

_MAX_TOP_K = 32
_MOST_PREPARED_BYTES = 512 << 20


class Preparation:
    """Work of a buffer in a thread of its own, which later calls wait for."""

    def __init__(self, device: torch.device, work: Callable[[], None]):
        self._device, self._work = device, work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="deep_ep-warmup")
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            self._work()
        except BaseException as error:  # of any class: it belongs to the thread that waits
            self._error = error

    def is_here(self) -> bool:
        """Whether this is the thread of the work."""
        return threading.current_thread() is self._thread

    def wait(self) -> None:
        """Waits for the work, and raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error


class Sizes:
    """The sizes of a warm-up. Raises RuntimeError for sizes that no call can have."""

    def __init__(self, ranks: int, tokens: int, hidden: int, experts: int, top_k: int):
        for name, value, allowed, fits in (
            ("num_max_tokens_per_rank", tokens, "at least 1", tokens >= 1),
            ("hidden", hidden, "positive multiples of 8", hidden > 0 and hidden % 8 == 0),
            (
                "num_experts",
                experts,
                f"positive multiples of the {ranks} ranks",
                experts > 0 and experts % ranks == 0,
            ),
            (
                "num_topk",
                top_k,
                f"1 to {min(_MAX_TOP_K, max(experts, 1))}",
                1 <= top_k <= min(_MAX_TOP_K, experts),
            ),
        ):
            native_assert(fits, f"warmup: {name} is {value}; allowed: {allowed}")
        self.tokens, self.experts = tokens, experts
        self.shape = GroupShape(hidden, top_k, experts)

    def agree(self, runtime: Runtime) -> int:
        """The most tokens of a rank. Collective. Raises RuntimeError where ranks differ in other
        sizes."""
        return runtime.groups.agree(self.shape, self.tokens, -(-self.shape.hidden // 128))[0]

    def inputs(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x, top-k indices that load all experts evenly, and weights."""
        tokens, (hidden, top_k, experts) = self.tokens, self.shape
        first = torch.arange(tokens, device=device)[:, None] * top_k
        topk_idx = (first + torch.arange(top_k, device=device)) % experts
        x = torch.zeros((tokens, hidden), dtype=torch.bfloat16, device=device)
        return x, topk_idx, torch.ones((tokens, top_k), device=device)


def forms_of(x: torch.Tensor) -> list[Any]:
    """The rows of a warm-up: bfloat16, and float8 with scales where the hidden size allows it."""
    if x.shape[1] % 128 != 0:
        return [x]
    scales = torch.ones((x.shape[0], x.shape[1] // 128), device=x.device)
    return [x, (x.to(torch.float8_e4m3fn), scales)]


def expert_output_of(received: Any) -> torch.Tensor:
    """bfloat16 rows in torch's memory of the shape of received ones."""
    rows = received[0] if isinstance(received, tuple) else received
    return torch.zeros(rows.shape, dtype=torch.bfloat16, device=rows.device)


def prepare(runtime: Runtime, work: Callable[[], None], background: bool) -> None:
    """Runs ``work`` here, or in a thread that later calls of the buffer wait for."""

    def complete() -> None:
        work()
        runtime.synchronize_stream()

    if background:
        runtime.preparation = Preparation(runtime.device, complete)
    else:
        complete()


def prepare_unknown_sizes(runtime: Runtime, num_bytes: int) -> None:
    """Does what the first group of a process needs whatever its sizes: loads the kernels and takes
    memory for the heap, up to ``num_bytes`` and 512 MiB. Collective; nothing on the CPU.

    A group is created and closed. Heap memory stays taken, so a later group of that size takes
    none.
    """
    if runtime.device.type == "cuda":
        create_and_close(runtime, num_bytes)


def create_and_close(runtime: Runtime, num_bytes: int) -> None:
    """A group of about ``num_bytes``, at most 512 MiB; a small one where the size of the heap was
    chosen, or ranks are on several nodes. Collective."""
    shape = GroupShape(hidden=1024, top_k=1, experts=runtime.num_ranks)
    whole = "SHOAL_SYMMETRIC_SIZE" not in os.environ
    whole = whole and runtime.world.pes_per_node == runtime.num_ranks
    # Two results and a staging area, of bfloat16 rows from every rank.
    bytes_of_token = 3 * runtime.num_ranks * shape.hidden * 2
    tokens = min(num_bytes, _MOST_PREPARED_BYTES) // bytes_of_token if whole else 0
    tokens, scales = runtime.groups.agree(shape, max(tokens, 16), shape.hidden // 128)
    group = NormalGroup(runtime.team, shape, tokens, scales, runtime.device)
    group.group.close()


class WarmBuffer:
    """``warmup`` of ``Buffer``."""

    def _prepare(self, preinitialize: bool, *known: int) -> None:
        """What the constructor does ahead of the first call."""
        if preinitialize:
            self.warmup(*known)
        elif self.num_nvl_bytes > 0:
            prepare_unknown_sizes(self.runtime, self.num_nvl_bytes)

    def warmup(
        self,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_experts: int,
        num_topk: int,
        background: bool = False,
    ) -> None:
        """Prepares normal-mode calls of these sizes, so that the first is as fast as later ones.
        Collective.

        Creates what calls of up to num_max_tokens_per_rank tokens use and makes some, in bfloat16
        and float8. background: in a thread; the next call of this buffer waits for it, and raises
        its error. Raises RuntimeError for sizes outside their limits, and where ranks differ.
        """
        runtime = self._open("warmup")
        sizes = Sizes(runtime.num_ranks, num_max_tokens_per_rank, hidden, num_experts, num_topk)

        def work() -> None:
            most = sizes.agree(runtime)
            x, topk_idx, weights = sizes.inputs(runtime.device)
            topk_idx = topk_idx.to(topk_idx_t)
            for rows in forms_of(x):
                for worst in (most * runtime.num_ranks, 0):
                    counts = self.get_dispatch_layout(topk_idx, num_experts)
                    per_rank, per_node, per_expert, in_rank, _ = counts
                    received, _, received_weights, _, handle, _ = self.dispatch(
                        rows,
                        None,
                        per_rank,
                        per_node,
                        in_rank,
                        per_expert,
                        topk_idx,
                        weights,
                        num_worst_tokens=worst,
                    )
                    y = expert_output_of(received)
                    self.combine(y, handle, topk_weights=received_weights)

        prepare(runtime, work, background)


class WarmElasticBuffer:
    """``warmup`` of ``ElasticBuffer``."""

    def warmup(
        self,
        num_experts: int,
        num_topk: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        do_expand: bool = False,
        background: bool = False,
    ) -> None:
        """Prepares dispatch and combine of these sizes, so that the first is as fast as later ones.
        Collective.

        Sizes that are 0 are those of the constructor. Creates what calls use and makes some, in
        bfloat16 and float8, with and without CPU sync. background: in a thread; the next call of
        this buffer waits for it, and raises its error. Raises RuntimeError for sizes outside their
        limits, and where ranks differ.
        """
        runtime = self._open("warmup")
        tokens = num_max_tokens_per_rank or self.num_max_tokens_per_rank
        top_k = num_topk or self.num_topk
        sizes = Sizes(runtime.num_ranks, tokens, hidden or self.hidden, num_experts, top_k)

        def work() -> None:
            most = sizes.agree(runtime)
            x, topk_idx, weights = sizes.inputs(runtime.device)
            topk_idx = topk_idx.to(topk_idx_t)
            for rows in forms_of(x):
                for cpu_sync in (False, True):
                    received, _, received_weights, handle, _ = self.dispatch(
                        rows,
                        topk_idx,
                        weights,
                        num_experts=num_experts,
                        num_max_tokens_per_rank=most,
                        do_cpu_sync=cpu_sync,
                        do_expand=do_expand,
                    )
                    y = expert_output_of(received)
                    self.combine(y, handle, topk_weights=received_weights)

        prepare(runtime, work, background)
