# SPDX-License-Identifier: Apache-2.0
"""shoal.ep groups, made when first needed: a buffer learns hidden size, top-k and experts from its calls only."""

from __future__ import annotations

import struct
import weakref
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

import shoal
import shoal.ep

from ..utils.envs import is_set
from ..utils.event import profiled


class GroupShape(NamedTuple):
    """What cannot change within a group."""

    hidden: int
    top_k: int
    experts: int


class Received(NamedTuple):
    """The tensors of one dispatch. Only ``x`` may lie in the symmetric heap; its memory returns there when it goes."""

    x: torch.Tensor
    scales: torch.Tensor | None
    topk_idx: torch.Tensor | None
    topk_weights: torch.Tensor | None
    source_token: torch.Tensor | None
    rows_per_source: list[int]
    tokens_per_expert: list[int]
    handle: Any


def to_torch(array: Any) -> torch.Tensor | None:
    """A shoal.Array as a tensor of the same memory."""
    return None if array is None else torch.from_dlpack(array)


def to_own_memory(array: Any) -> torch.Tensor | None:
    """A contiguous copy of a shoal.Array in torch's memory."""
    return None if array is None else torch.from_dlpack(array).clone(memory_format=torch.contiguous_format)


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as DLPack takes it, which knows no gradients."""
    return tensor.detach() if tensor.requires_grad else tensor


def as_rows(x: torch.Tensor) -> tuple[torch.Tensor, str | None]:
    """The tensor as it is given to shoal, and what its elements mean where its own dtype does not say."""
    x = detached(x)
    if x.dtype == torch.float8_e4m3fn:
        return x.view(torch.uint8), "float8_e4m3"
    return x, None


class NormalGroup:
    """A group in normal mode, and how many of its results are held.

    Results stay in the heap while room for one more is left; then they are copied out. So a caller may hold as many
    as it likes, as it may with tensors of torch's own. On GPUs copies and sums are in torch's own memory, whose
    allocator knows streams and graphs. With EP_COPY_RECEIVED no result stays in the heap.
    """

    LIVE_RESULTS = {"cpu": 7, "cuda": 1}  # in the heap; on the host room is address space, on GPUs it is memory

    def __init__(self, team: Any, shape: GroupShape, max_tokens: int, max_scales: int, device: torch.device):
        self.shape = shape
        self.max_tokens = max_tokens
        self.max_scales = max_scales
        self._stay = 0 if is_set("EP_COPY_RECEIVED") else self.LIVE_RESULTS[device.type]
        self._held: set[object] = set()
        self._captured: list[Any] = []
        self.group = shoal.ep.Group(
            team, **shape._asdict(), max_tokens=max_tokens, max_scales=max_scales, live_results=self._stay + 1
        )

    def dispatch(self, x: torch.Tensor, routing_or_handle: Any, *, captured: bool = False, **options: Any) -> Received:
        """As shoal.ep.Group.dispatch, in tensors. ``captured``: by a CUDA graph."""
        rows, dtype = as_rows(x)
        stays = not (captured or self._captured) and len(self._held) < self._stay
        on_gpu = rows.is_cuda
        with nullcontext() if on_gpu else profiled("dispatch_impl"):  # on GPUs kernels have the names
            got = self.group.dispatch(rows, routing_or_handle, dtype=dtype, copy_out=not (stays or on_gpu), **options)
        if captured:
            self._captured += (routing_or_handle, got.handle)  # each replay writes to their places in the heap
        received = to_torch(got.x)
        if stays:
            self._hold(received)
        elif on_gpu:
            received = received.clone()
        small = to_own_memory if stays or on_gpu else to_torch
        return Received(
            received,
            small(got.scales),
            small(got.topk_idx),
            small(got.topk_weights),
            small(got.source_token),
            list(got.rows_per_source),
            list(got.tokens_per_expert),
            got.handle,
        )

    def combine(
        self, y: torch.Tensor, handle: Any, tokens: int, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As shoal.ep.Group.combine of a dispatch of so many tokens, in tensors."""
        y = detached(y)
        if not y.is_cuda:
            with profiled("combine_impl"):
                sums = self.group.combine(y, handle, **options)
            return to_torch(sums.x), to_torch(sums.topk_weights)
        out = torch.empty((tokens, self.shape.hidden), dtype=y.dtype, device=y.device)
        return out, to_own_memory(self.group.combine(y, handle, out=out, **options).topk_weights)

    def _hold(self, tensor: torch.Tensor) -> None:
        token = object()
        self._held.add(token)
        stream = torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None

        def release(held=self._held) -> None:
            held.discard(token)
            # The heap knows no streams: the next dispatch waits for whoever read this memory last.
            if stream is not None and not torch.cuda.is_current_stream_capturing():
                stream.wait_stream(torch.cuda.current_stream(stream.device))

        weakref.finalize(tensor.untyped_storage(), release).atexit = False


class GroupPool:
    """The normal-mode groups of one team.

    Members call with different numbers of tokens, so before a dispatch they agree on the largest one (``agree``), and
    replace a group that is too small by one of the next power of two. Replaced groups stay for the handles that were
    made with them; their sizes add up to less than that of the last one.
    """

    _RECORD = struct.Struct("<5q")

    def __init__(self, team: Any, device: torch.device):
        self._team = team
        self._device = device
        self._groups: dict[GroupShape, NormalGroup] = {}
        self._replaced: list[NormalGroup] = []

    def agree(self, shape: GroupShape, tokens: int, scales: int) -> tuple[int, int]:
        """The largest ``tokens`` and ``scales`` of all members. Collective. Raises RuntimeError on all members when
        they differ in ``shape``."""
        records = [
            self._RECORD.unpack(block) for block in self._team.exchange(self._RECORD.pack(*shape, tokens, scales))
        ]
        for rank, record in enumerate(records):
            if record[:3] != records[0][:3]:
                names = [f"hidden {r[0]}, top-k {r[1]}, {r[2]} experts" for r in (records[0], record)]
                raise RuntimeError(
                    f"deep_ep: ranks differ in what they pass: rank 0 {names[0]}; rank {rank} {names[1]}"
                )
        return max(record[3] for record in records), max(record[4] for record in records)

    def get(self, shape: GroupShape, tokens: int, scales: int) -> NormalGroup:
        """A group for calls of at most so many tokens and scales; the arguments are the same on all members."""
        group = self._groups.get(shape)
        if group is not None and group.max_tokens >= tokens and group.max_scales >= scales:
            return group
        if group is not None:
            self._replaced.append(group)
            tokens, scales = max(tokens, group.max_tokens), max(scales, group.max_scales)
        nominal = -(-shape.hidden // 128)
        group = NormalGroup(self._team, shape, _power_of_two(tokens), max(scales, nominal), self._device)
        self._groups[shape] = group
        return group

    def existing(self, shape: GroupShape) -> NormalGroup | None:
        """The group that serves ``shape`` now, without any agreement."""
        return self._groups.get(shape)

    def __iter__(self):
        return iter([*self._groups.values(), *self._replaced])


def _power_of_two(tokens: int) -> int:
    return 1 << (max(tokens, 16) - 1).bit_length()
