# SPDX-License-Identifier: Apache-2.0
"""The groups of low-latency mode, and how ``Buffer`` connects with ``LowLatencyCalls``, which has
the one path of its calls in C++."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import torch

import shoal
import shoal.ep
from shoal._allocation import empty_strided
from shoal._core.ep import LowLatencyCalls, LowLatencyGroup

from ... import config as sizes
from ...utils.event import profiled
from ...utils.semantic import native_assert
from ...utils.streams import current_stream
from ..calls import setup
from ..checks import require_experts, require_tensor
from ..groups import GroupShape
from ..runtime import Runtime
from ..warmup import REFUSALS
from . import nvfp4, received_weights
from .early_shapes import EarlyShapes
from .handles import LowLatencyHandle


class LowLatencyGroups:
    """The low-latency groups of a buffer, by shape, and the ranks that all of them mask."""

    def __init__(self, runtime: Runtime, num_rdma_bytes: int, enabled: bool, enable_shrink: bool):
        self._runtime, self._num_rdma_bytes = runtime, num_rdma_bytes
        self._enabled, self._enable_shrink = enabled, enable_shrink
        self._groups: dict[tuple[int, int, int, int], LowLatencyGroup] = {}
        self._masked: set[int] = set()
        self._early: tuple[int, int, int, int] | None = None

    def get(self, hidden: int, top_k: int, experts: int, max_tokens: int) -> LowLatencyGroup:
        """The group of this shape. Collective when it creates the group.

        An early group is closed where the first request has another shape: kernels depend on the
        number of groups, and a hint must not change them.
        """
        key = (hidden, top_k, experts, max_tokens)
        if (guessed := self._early) is not None:
            self._early = None
            if key != guessed:
                self._groups.pop(guessed).close()
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = self._create(GroupShape(hidden, top_k, experts), max_tokens)
            for rank in self._masked:
                group.group.set_mask(rank, True)
        return group

    def _create(self, shape: GroupShape, max_tokens: int) -> LowLatencyGroup:
        runtime = self._runtime
        try:
            group = shoal.ep.Group(
                runtime.team,
                **shape._asdict(),
                low_latency_max_tokens=max_tokens,
                mask_failed=self._enable_shrink,
            )
            return LowLatencyGroup(group, torch.from_dlpack, runtime.current_stream() or 0)
        except shoal.Error as error:
            if self._enable_shrink and hasattr(error, "add_note"):  # Python 3.11
                error.add_note(
                    f"deep_ep: the first call of {shape} with {max_tokens} tokens creates its "
                    "memory and needs all ranks. To continue without absent ranks, create it early: "
                    "Buffer(num_topk=), EP_LOW_LATENCY_TOPK, or Buffer.warmup_low_latency."
                )
            raise

    def create(
        self, call: str, max_tokens: int, hidden: int, num_experts: int, top_k: int
    ) -> LowLatencyGroup:
        """``get`` with checked sizes."""
        self.check_sizes(call, max_tokens, hidden, num_experts)
        native_assert(top_k > 0, f"{call}: num_topk is {top_k}; at least 1 is allowed")
        return self.get(hidden, top_k, num_experts, max_tokens)

    def create_early(self, num_topk: int) -> None:
        """Creates the group of the shape that a size hint of this process gives, if there is one,
        so that the first call takes no memory and loads no kernels. Collective.

        num_topk: 0 where the caller gave none.
        """
        guessed, known = EarlyShapes.guess(self._runtime, self._num_rdma_bytes, num_topk)
        if known is None:
            return
        max_tokens, hidden, experts, top_k = known
        # Calls of another top-k may fit where the guessed one does not.
        refusals = REFUSALS if guessed and not self._enable_shrink else ()
        with contextlib.suppress(*refusals):
            self.create("Buffer", *known)
            self._early = (hidden, top_k, experts, max_tokens)

    def check_sizes(self, call: str, max_tokens: int, hidden: int, num_experts: int) -> None:
        ranks = self._runtime.num_ranks
        native_assert(
            self._enabled, f"{call}: this buffer was created without low_latency_mode=True"
        )
        native_assert(
            max_tokens > 0,
            f"{call}: num_max_dispatch_tokens_per_rank is {max_tokens}; at least 1 is allowed",
        )
        native_assert(
            hidden > 0 and hidden % 128 == 0,
            f"{call}: hidden is {hidden}; allowed: multiples of 128",
        )
        require_experts(call, num_experts)
        needed = sizes.get_low_latency_rdma_size_hint(max_tokens, hidden, ranks, num_experts)
        native_assert(
            self._num_rdma_bytes >= needed,
            f"{call}: num_rdma_bytes is {self._num_rdma_bytes}; "
            f"these sizes need {needed} (see the size hint)",
        )

    def update_mask(self, rank: int, masked: bool) -> None:
        self._check_shrink()
        ranks = self._runtime.num_ranks
        native_assert(
            0 <= rank < ranks,
            f"low_latency_update_mask_buffer: rank {rank}; allowed: 0 to {ranks - 1}",
        )
        for group in self._groups.values():
            group.group.set_mask(rank, masked)
        (self._masked.add if masked else self._masked.discard)(rank)

    def query_mask(self, status: torch.Tensor) -> None:
        """Includes ranks that calls have masked after a timeout."""
        self._check_shrink()
        ranks, device = self._runtime.num_ranks, self._runtime.device
        call = "low_latency_query_mask_buffer"
        require_tensor(call, "mask_status", status, (torch.int32,), (ranks,), device)
        self._runtime.synchronize_stream()  # calls that are queued may mask ranks
        masks = [group.group.masked() for group in self._groups.values()]
        masked = [rank in self._masked or any(m[rank] for m in masks) for rank in range(ranks)]
        status.copy_(torch.tensor(masked, dtype=torch.int32))

    def clean_masks(self) -> None:
        self._check_shrink()
        for group in self._groups.values():
            group.group.clear_masks()
        self._masked.clear()

    def _check_shrink(self) -> None:
        native_assert(
            self._enable_shrink,
            "Shrink mode must be enabled: create the buffer with enable_shrink=True",
        )


def _in_turn(steps: list[Callable[[], object]]) -> Callable[[], None]:
    """A hook that makes several steps."""

    def receive() -> None:
        for step in steps:
            step()

    return receive


def _traced(name: str, hook: Callable[[], object]) -> Callable[[], None]:
    """``hook`` in a profiler range."""

    def receive() -> None:
        with profiled(name):
            hook()

    return receive


def low_latency_calls(runtime: Runtime, groups: LowLatencyGroups) -> LowLatencyCalls:
    """The low-latency calls of a buffer."""
    return LowLatencyCalls(
        runtime.num_ranks,
        runtime.timeout,
        **setup(runtime, {}),
        group=groups.get,
        check_sizes=groups.check_sizes,
        handle_type=LowLatencyHandle,
        empty=empty_strided(runtime.device),
        nvfp4_scale=partial(nvfp4.global_scale_of, device=runtime.device),
        pack_weights=partial(received_weights.pack, runtime.rank),
        unpack_weights=partial(received_weights.unpack, runtime.rank),
        in_turn=_in_turn,
        traced=_traced,
        used_here=lambda tensor: tensor.record_stream(current_stream()),
    )
