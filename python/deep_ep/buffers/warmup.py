# SPDX-License-Identifier: Apache-2.0
"""Warm-up: what first calls would do, ahead of them; and ``warmup`` of ``ElasticBuffer``.

A first call creates a group with its memory, loads kernels, and makes torch allocate results. A
warm-up makes calls of the largest size on generated tokens, in this thread or in the background.
"""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import shoal

from ..config import MAX_HIDDEN, MAX_TOKENS, topk_idx_t
from ..utils.envs import fills_new_tensors
from ..utils.semantic import native_assert
from .checks import require_experts
from .groups import GroupShape, NormalGroup, power_of_two
from .runtime import Runtime
from .spread import first_experts

_MAX_TOP_K = 128
# Two results of 4096 tokens a rank, 7168 channels, bfloat16, take this much.
_MOST_PREPARED_BYTES_A_RANK = 112 << 20
_MOST_EXPERTS = 512
_USUAL_TOP_K = 8
_REHEARSED_TOKENS = 16
# The C library gives aligned arrays new pages until its cache of the remainders between them is
# full, which takes seven arrays; a round has four pairs.
ROUNDS = {"cpu": 2, "cuda": 1}
_CPU = torch.device("cpu")
# Errors of a group that no rank can create.
REFUSALS = (
    shoal.errors.InvalidArgumentError,
    shoal.errors.UnsupportedError,
    shoal.errors.ExhaustedError,
)


class Known(NamedTuple):
    """Sizes that a constructor was given; 0: unknown."""

    tokens: int
    hidden: int
    top_k: int


UNKNOWN = Known(0, 0, 0)


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
        """True if this is the thread of the work."""
        return threading.current_thread() is self._thread

    def wait(self) -> None:
        """Waits for the work, and raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error


class Sizes:
    """The sizes of a warm-up. Raises RuntimeError for sizes that no call can have."""

    def __init__(self, ranks: int, tokens: int, hidden: int, experts: int, top_k: int):
        require_experts("warmup", experts)
        for name, value, allowed, fits in (
            ("num_max_tokens_per_rank", tokens, f"1 to {MAX_TOKENS}", 1 <= tokens <= MAX_TOKENS),
            (
                "hidden",
                hidden,
                f"positive multiples of 8 up to {MAX_HIDDEN}",
                0 < hidden <= MAX_HIDDEN and hidden % 8 == 0,
            ),
            (
                "num_topk",
                top_k,
                f"1 to {min(_MAX_TOP_K, experts)}",
                1 <= top_k <= min(_MAX_TOP_K, experts),
            ),
        ):
            native_assert(fits, f"warmup: {name} is {value}; allowed: {allowed}")
        self.tokens, self.ranks = tokens, ranks
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
        # Consecutive numbers are experts of different ranks, so that a token goes to many.
        starts = first_experts(experts, self.ranks)
        order = sorted(
            range(experts),
            key=lambda expert: (expert - starts[bisect_right(starts, expert) - 1], expert),
        )
        topk_idx = torch.tensor(order, device=device)[topk_idx]
        x = torch.zeros((tokens, hidden), dtype=torch.bfloat16, device=device)
        # Programs set default dtypes.
        return x, topk_idx, torch.ones((tokens, top_k), dtype=torch.float32, device=device)


def forms_of(x: torch.Tensor) -> list[Any]:
    """The rows of a warm-up: bfloat16, and float8 with scales where the hidden size allows it."""
    if x.shape[1] % 128 != 0:
        return [x]
    groups = x.shape[1] // 128
    scales = torch.ones((x.shape[0], groups), dtype=torch.float32, device=x.device)
    return [x, (x.to(torch.float8_e4m3fn), scales)]


def expert_output_of(received: Any) -> torch.Tensor:
    """bfloat16 rows in torch's memory of the shape of received ones."""
    rows = received[0] if isinstance(received, tuple) else received
    return torch.zeros(rows.shape, dtype=torch.bfloat16, device=rows.device)


def touch(runtime: Runtime, shape: GroupShape) -> None:
    """Touches the memory of the normal-mode group of ``shape`` on the CPU, of which pairs use only
    as much as their tokens need. Collective."""
    if runtime.device.type == "cpu":
        runtime.groups.existing(shape).group.warmup()


def prepare(
    runtime: Runtime, work: Callable[[], None], background: bool, result: tuple[int, int]
) -> None:
    """Runs ``work`` here, or in a thread that later calls of the buffer wait for. result: the shape
    of the largest sums of a combine."""

    def complete() -> None:
        work()
        runtime.synchronize_stream()
        if runtime.device.type == "cpu":
            # The C library returns pages when the inputs of the work are released. Sums find those
            # that this array leaves.
            torch.zeros(result, dtype=torch.bfloat16)

    if background:
        runtime.preparation = Preparation(runtime.device, complete)
    else:
        complete()


def prepare_unknown_sizes(buffer: Any, num_bytes: int, known: Known = UNKNOWN) -> None:
    """``rehearse`` on a GPU; nothing on the CPU."""
    if buffer.runtime.device.type == "cuda":
        rehearse(buffer, num_bytes, known)


def rehearse(buffer: Any, num_bytes: int, known: Known = UNKNOWN) -> None:
    """Does what a first pair needs whatever its sizes: takes memory for the heap, loads kernels,
    and runs the code of calls once. Collective.

    A group is created, makes two small pairs where that is possible, and is closed. Heap memory
    stays taken, so a later group of at most that size takes none. The group has the ``known`` sizes
    where they are given, else about ``num_bytes``, at most 112 MiB for each rank, because what a
    rank can receive grows with them; it is small where the size of the heap was chosen, or ranks
    are on several nodes.
    """
    runtime = buffer.runtime
    group = _first_group(runtime, num_bytes, known)
    if _may_make_pairs(runtime):
        runtime.groups.add(group)
        try:
            _rehearse_pairs(buffer, group.shape)
        finally:
            buffer._forget_groups()
            runtime.groups.clear()
    group.group.close()


def _rehearse_pairs(buffer: Any, shape: GroupShape) -> None:
    runtime, (hidden, top_k, experts) = buffer.runtime, shape
    sizes = Sizes(runtime.num_ranks, _REHEARSED_TOKENS, hidden, experts, top_k)
    x, topk_idx, weights = (one.to(runtime.device) for one in sizes.inputs(_CPU))
    worst_rows = _REHEARSED_TOKENS * runtime.num_ranks
    for _ in range(2):  # the first one takes the group, the second one has it
        buffer._pair(x, topk_idx.to(topk_idx_t), weights, experts, worst_rows)
    runtime.synchronize_stream()


def _may_make_pairs(runtime: Runtime) -> bool:
    """Return true if all ranks can make pairs now. Collective.

    Not where two ranks have the same GPU, because memory that one allocates could wait for a kernel
    of the other, which waits for it; nor where a rank makes torch fill new tensors, which calls
    refuse (check_torch_deterministic).
    """
    gpu = runtime.rank.to_bytes(16, "little")
    if runtime.device.type == "cuda":
        uuid = getattr(torch.cuda.get_device_properties(runtime.device), "uuid", None)
        gpu = bytes(16) if uuid is None else bytes(uuid.bytes)  # torch before 2.4 has none
    ready = not fills_new_tensors()
    ranks = runtime.team.exchange(gpu + bytes([ready]))
    return all(rank[16] for rank in ranks) and len({rank[:16] for rank in ranks}) == len(ranks)


def _first_group(runtime: Runtime, num_bytes: int, known: Known) -> NormalGroup:
    ranks = runtime.num_ranks
    whole = "SHOAL_SYMMETRIC_SIZE" not in os.environ and runtime.world.pes_per_node == ranks
    top_k = known.top_k or _USUAL_TOP_K
    sized = min(known.tokens, known.hidden) > 0
    if whole and sized and known.hidden % 8 == 0 and top_k <= _MAX_TOP_K:
        # More experts take more memory, and no program has more than a few hundred.
        shape = GroupShape(known.hidden, top_k, -(-_MOST_EXPERTS // ranks) * ranks)
        # Limits of sizes are those of the first dispatch, which reports them.
        with contextlib.suppress(*REFUSALS):
            return _agreed_group(runtime, shape, power_of_two(known.tokens))
    shape = GroupShape(hidden=1024, top_k=1, experts=ranks)
    # Two results, of bfloat16 rows from every rank.
    bytes_of_token = 2 * ranks * shape.hidden * 2
    most = min(num_bytes, _MOST_PREPARED_BYTES_A_RANK * ranks)
    tokens = most // bytes_of_token if whole else 0
    return _agreed_group(runtime, shape, max(tokens, _REHEARSED_TOKENS))


def _agreed_group(runtime: Runtime, shape: GroupShape, tokens: int) -> NormalGroup:
    tokens, scales = runtime.groups.agree(shape, tokens, -(-shape.hidden // 128))
    return NormalGroup(runtime.team, shape, tokens, scales, runtime.device)


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
            for rows in forms_of(x) * ROUNDS[runtime.device.type]:
                for cpu_sync in (False, True):
                    self._elastic_pair(
                        rows, topk_idx, weights, num_experts, most, cpu_sync, do_expand
                    )
            touch(runtime, sizes.shape)

        prepare(runtime, work, background, (sizes.tokens, sizes.shape.hidden))

    def _pair(
        self,
        rows: Any,
        topk_idx: torch.Tensor,
        weights: torch.Tensor,
        num_experts: int,
        worst_rows: int,
    ) -> None:
        most = worst_rows // self.runtime.num_ranks
        self._elastic_pair(rows, topk_idx, weights, num_experts, most, False, False)

    def _elastic_pair(
        self,
        rows: Any,
        topk_idx: torch.Tensor,
        weights: torch.Tensor,
        num_experts: int,
        most: int,
        cpu_sync: bool,
        expand: bool,
    ) -> None:
        received, _, received_weights, handle, _ = self.dispatch(
            rows,
            topk_idx,
            weights,
            num_experts=num_experts,
            num_max_tokens_per_rank=most,
            do_cpu_sync=cpu_sync,
            do_expand=expand,
        )
        self.combine(expert_output_of(received), handle, topk_weights=received_weights)

    def _forget_groups(self) -> None:
        """The next calls look groups up again."""
        self._calls.forget_groups()
