# SPDX-License-Identifier: Apache-2.0
"""The ``shoal.ep`` groups behind normal-mode calls.

A buffer learns hidden size, top-k and the number of experts from its calls, so groups are created
when a call needs them.
"""

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
    """The options that are fixed for the life of a group."""

    hidden: int
    top_k: int
    experts: int


class Received(NamedTuple):
    """The tensors of one dispatch. Only ``x`` may lie in the symmetric heap; its memory returns to
    the heap when the tensor is released."""

    x: torch.Tensor
    scales: torch.Tensor | None
    topk_idx: torch.Tensor | None
    topk_weights: torch.Tensor | None
    source_token: torch.Tensor | None
    rows_per_source: list[int]
    tokens_per_expert: list[int]
    handle: Any


def to_torch(array: Any) -> torch.Tensor | None:
    """A shoal.Array as a tensor over the same memory."""
    return None if array is None else torch.from_dlpack(array)


def to_torch_copy(array: Any) -> torch.Tensor | None:
    """A contiguous copy of a shoal.Array in torch's memory."""
    if array is None:
        return None
    return torch.from_dlpack(array).clone(memory_format=torch.contiguous_format)


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its gradient, which DLPack cannot export."""
    return tensor.detach() if tensor.requires_grad else tensor


def as_rows(x: torch.Tensor) -> tuple[torch.Tensor, str | None]:
    """The tensor to pass to shoal, and its ``dtype=`` where DLPack cannot express the dtype."""
    x = detached(x)
    if x.dtype == torch.float8_e4m3fn:
        return x.view(torch.uint8), "float8_e4m3"
    return x, None


class NormalGroup:
    """A ``shoal.ep.Group`` in normal mode that counts the results which callers hold.

    A result stays in the heap while there is room for one more after it; later results are copied
    to torch's memory. A caller can therefore hold any number of results. On GPUs all other tensors
    lie in torch's memory, whose allocator tracks streams and graphs. With EP_COPY_RECEIVED set, no
    result stays in the heap.
    """

    # Results that may stay in the heap. On the host they take address space, on GPUs memory.
    LIVE_RESULTS = {"cpu": 7, "cuda": 1}

    def __init__(
        self, team: Any, shape: GroupShape, max_tokens: int, max_scales: int, device: torch.device
    ):
        self.shape = shape
        self.max_tokens = max_tokens
        self.max_scales = max_scales
        self._stay = 0 if is_set("EP_COPY_RECEIVED") else self.LIVE_RESULTS[device.type]
        self._held: set[object] = set()
        self._captured: list[Any] = []
        self.group = shoal.ep.Group(
            team,
            **shape._asdict(),
            max_tokens=max_tokens,
            max_scales=max_scales,
            live_results=self._stay + 1,
        )

    def dispatch(
        self, x: torch.Tensor, routing_or_handle: Any, *, captured: bool = False, **options: Any
    ) -> Received:
        """``shoal.ep.Group.dispatch`` with tensors. ``captured``: a CUDA graph captures the
        call."""
        rows, dtype = as_rows(x)
        stays = not (captured or self._captured) and len(self._held) < self._stay
        on_gpu = rows.is_cuda
        # On GPUs the kernels have the names that profilers look for.
        with nullcontext() if on_gpu else profiled("dispatch_impl"):
            got = self.group.dispatch(
                rows, routing_or_handle, dtype=dtype, copy_out=not (stays or on_gpu), **options
            )
        if captured:
            # Every replay writes to their places in the heap.
            self._captured += (routing_or_handle, got.handle)
        received = to_torch(got.x)
        if stays:
            self._hold(received)
        elif on_gpu:
            received = received.clone()
        small = to_torch_copy if stays or on_gpu else to_torch
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
        """``shoal.ep.Group.combine`` with tensors; ``tokens`` is what the dispatch sent."""
        y = detached(y)
        if not y.is_cuda:
            with profiled("combine_impl"):
                sums = self.group.combine(y, handle, **options)
            return to_torch(sums.x), to_torch(sums.topk_weights)
        out = torch.empty((tokens, self.shape.hidden), dtype=y.dtype, device=y.device)
        sums = self.group.combine(y, handle, out=out, **options)
        return out, to_torch_copy(sums.topk_weights)

    def _hold(self, tensor: torch.Tensor) -> None:
        """Counts a result in the heap until its memory is released."""
        token = object()
        self._held.add(token)
        stream = torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None

        def release(held=self._held) -> None:
            held.discard(token)
            # The heap does not track streams: the next dispatch waits for the last reader.
            if stream is not None and not torch.cuda.is_current_stream_capturing():
                stream.wait_stream(torch.cuda.current_stream(stream.device))

        weakref.finalize(tensor.untyped_storage(), release).atexit = False


class GroupPool:
    """The normal-mode groups of one team, by shape.

    Ranks call with different numbers of tokens. Before a dispatch they agree on the largest number
    (``agree``) and replace a group that is too small by one with room for the next power of two.
    A replaced group stays for the handles that it issued; together, replaced groups take less
    memory than the current one.
    """

    _RECORD = struct.Struct("<5q")

    def __init__(self, team: Any, device: torch.device):
        self._team = team
        self._device = device
        self._groups: dict[GroupShape, NormalGroup] = {}
        self._replaced: list[NormalGroup] = []

    def agree(self, shape: GroupShape, tokens: int, scales: int) -> tuple[int, int]:
        """The largest ``tokens`` and ``scales`` of all ranks. Collective.

        Raises RuntimeError on all ranks when they differ in ``shape``.
        """
        blocks = self._team.exchange(self._RECORD.pack(*shape, tokens, scales))
        records = [self._RECORD.unpack(block) for block in blocks]
        for rank, record in enumerate(records):
            if record[:3] != records[0][:3]:
                names = [
                    f"hidden {r[0]}, top-k {r[1]}, {r[2]} experts" for r in (records[0], record)
                ]
                raise RuntimeError(
                    f"deep_ep: ranks differ in what they pass: rank 0 {names[0]}; "
                    f"rank {rank} {names[1]}"
                )
        return max(record[3] for record in records), max(record[4] for record in records)

    def get(self, shape: GroupShape, tokens: int, scales: int) -> NormalGroup:
        """A group with room for ``tokens`` and ``scales``, which are the same on all ranks.

        Collective when it creates the group.
        """
        group = self._groups.get(shape)
        if group is not None and group.max_tokens >= tokens and group.max_scales >= scales:
            return group
        if group is not None:
            self._replaced.append(group)
            tokens, scales = max(tokens, group.max_tokens), max(scales, group.max_scales)
        nominal = -(-shape.hidden // 128)
        group = NormalGroup(
            self._team, shape, _power_of_two(tokens), max(scales, nominal), self._device
        )
        self._groups[shape] = group
        return group

    def existing(self, shape: GroupShape) -> NormalGroup | None:
        """The current group of ``shape``, or None; local."""
        return self._groups.get(shape)

    def __iter__(self):
        return iter([*self._groups.values(), *self._replaced])


def _power_of_two(tokens: int) -> int:
    """``tokens`` rounded up to a power of two, at least 16."""
    return 1 << (max(tokens, 16) - 1).bit_length()
