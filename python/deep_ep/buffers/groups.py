# SPDX-License-Identifier: Apache-2.0
"""The ``shoal.ep`` groups behind normal-mode calls.

A buffer learns hidden size, top-k and the number of experts from its calls, so groups are created
when a call needs them.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import torch

import shoal
import shoal.ep
from shoal._allocation import capture_query, empty_strided
from shoal._core.ep import NormalCalls

from ..utils.envs import is_set


class GroupShape(NamedTuple):
    """The options that are fixed for the life of a group."""

    hidden: int
    top_k: int
    experts: int


def to_torch(array: Any) -> torch.Tensor | None:
    """A shoal.Array as a tensor over the same memory."""
    return None if array is None else torch.from_dlpack(array)


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """The tensor to pass to shoal, without its gradient, which DLPack cannot export; float8 as
    bytes, because older DLPack has no float8."""
    x = x.detach()
    return x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x


class NormalGroup:
    """A ``shoal.ep.Group`` in normal mode that counts the results which callers hold.

    A result stays in the heap while there is room for one more after it; later results are copied
    to torch's memory. A caller can therefore hold any number of results. Results of captured
    dispatches stay there for the first graph alone; others are copied, so that no replay writes to
    what another graph returned. Combines copy expert output to the room for one more. On GPUs all
    other tensors lie in torch's memory, whose allocator tracks streams and graphs. With
    EP_COPY_RECEIVED set, no result stays in the heap.
    """

    # Results that may stay in the heap. On the host they take address space, on GPUs memory.
    LIVE_RESULTS = {"cpu": 7, "cuda": 1}

    def __init__(
        self, team: Any, shape: GroupShape, max_tokens: int, max_scales: int, device: torch.device
    ):
        self.shape = shape
        self.max_tokens = max_tokens
        self.max_scales = max_scales
        most_held = 0 if is_set("EP_COPY_RECEIVED") else self.LIVE_RESULTS[device.type]
        self.group = shoal.ep.Group(
            team,
            **shape._asdict(),
            max_tokens=max_tokens,
            max_scales=max_scales,
            # On GPUs, a group for one result has room for a transient one besides.
            live_results=1 if device.type == "cuda" else most_held + 1,
        )
        self.calls = NormalCalls(
            self.group,
            torch.Tensor,
            empty_strided(device),
            (torch.bool, torch.int32, torch.int64, torch.float32),
            capture_query() if device.type == "cuda" else None,
        )
        self.calls.set_most_held(most_held)


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
        shape = GroupShape(*shape)
        group = self._groups.get(shape)
        if group is not None and group.max_tokens >= tokens and group.max_scales >= scales:
            return group
        if group is not None:
            self._replaced.append(group)
            tokens, scales = max(tokens, group.max_tokens), max(scales, group.max_scales)
        nominal = -(-shape.hidden // 128)
        group = NormalGroup(
            self._team, shape, power_of_two(tokens), max(scales, nominal), self._device
        )
        self._groups[shape] = group
        return group

    def add(self, group: NormalGroup) -> None:
        """Makes a group the current one of its shape, for which there is none."""
        self._groups[group.shape] = group

    def clear(self) -> None:
        """Forgets all groups, without closing them."""
        self._groups.clear()
        self._replaced.clear()

    def existing(self, shape: GroupShape) -> NormalGroup | None:
        """The current group of ``shape``, or None; local."""
        return self._groups.get(shape)

    def __iter__(self):
        return iter([*self._groups.values(), *self._replaced])


def power_of_two(tokens: int) -> int:
    """``tokens`` rounded up to a power of two, at least 16."""
    return 1 << (max(tokens, 16) - 1).bit_length()
