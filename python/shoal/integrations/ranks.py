# SPDX-License-Identifier: Apache-2.0
"""The world over a process group and its groups, one for each shape of layers."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import struct
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _unwinding, ep
from .._core import World
from ..errors import Error, InvalidArgumentError, MismatchError, TimeoutError

_HEAP_BYTES = 64 << 30  # of address space; memory is taken on use
_FEWEST_TOKENS = 128  # capacity of a group, so that few calls make a larger one
_SPREAD = 1.5  # rows of a rank in units of the mean, for which a group in host memory has room
_CLOSE_S = 30.0  # of the other ranks, at the end of the program
_CALL = struct.Struct("<7q")
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

# The max_tokens of decode(), 0 outside of it. One for the process: a model may generate in a thread
# that streams its text.
decode_tokens = 0


class Call(NamedTuple):
    """What one rank is about to send."""

    tokens: int
    hidden: int
    top_k: int
    experts: int
    dtype: int
    layer: int
    decode: int  # tokens that low-latency mode may have on any rank; 0: normal mode

    def shape(self) -> tuple[int, ...]:
        """What must be equal on all ranks."""
        return self[1:]

    def __str__(self) -> str:
        mode = f"decode(max_tokens={self.decode})" if self.decode else "normal mode"
        return (
            f"layer {self.layer} with hidden {self.hidden}, top-k {self.top_k}, {self.experts} "
            f"experts, {_DTYPES[self.dtype]}, {mode}"
        )


class Agreed(NamedTuple):
    """What all ranks use for a call: the same on each of them."""

    group: Any
    low_latency: bool


class Ranks:
    """A world over a process group. Its groups grow with the calls that they serve."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        settings: dict[str, Any] = {"heap": "cuda" if self.on_gpu else "host"}
        if self.on_gpu:
            settings["device"] = torch.cuda.current_device()
        if "SHOAL_SYMMETRIC_SIZE" not in os.environ:
            settings["symmetric_size"] = _HEAP_BYTES
        self.world = World.from_torch(group, settings)
        self.team = self.world.team
        self._groups: dict[tuple[int, ...], tuple[int, Any]] = {}  # by shape and mode, with tokens
        self._layers = 0

    def add_layer(self) -> int:
        """The number of a new layer; layers are made in the same order on all ranks."""
        self._layers += 1
        return self._layers - 1

    def group_for(self, x: Tensor, topk_idx: Tensor, experts: int, layer: int) -> Agreed:
        """A group with room for the tokens of every rank. Collective, before anything is sent.

        Low-latency mode in decode(), unless a rank has more tokens than its max_tokens.
        Raises MismatchError on all ranks where they run different layers.
        """
        if x.dtype not in _DTYPES:
            raise Error(
                f"shoal: rows of {x.dtype}; allowed: {', '.join(str(dtype) for dtype in _DTYPES)}"
            )
        # Rows of low-latency mode are bfloat16 and have no gradients.
        fits = x.dtype is torch.bfloat16 and not torch.is_grad_enabled()
        decode = decode_tokens if fits else 0
        dtype = _DTYPES.index(x.dtype)
        mine = Call(*x.shape, topk_idx.shape[1], experts, dtype, layer, decode)
        try:
            parts = self.team.exchange(_CALL.pack(*mine))
        except TimeoutError as error:
            raise error.also(
                f"{error.late_pe()} has called no layer in this time (has its loop ended? did it "
                "run another forward or backward? generate() needs synced_gpus=True)"
            ) from None
        calls = [Call(*_CALL.unpack(one)) for one in parts]
        for rank, call in enumerate(calls):
            if call.shape() != mine.shape():
                raise MismatchError(
                    f"shoal: rank {self.world.my_pe} runs {mine}, rank {rank} {call}; all ranks "
                    "run the same layers in the same order (generate() needs synced_gpus=True), "
                    "with gradients or without, in the same decode() or in none"
                )
        tokens = max(call.tokens for call in calls)
        low_latency = decode > 0 and tokens <= decode
        group = self._group(mine, decode if low_latency else tokens, low_latency)
        return Agreed(group, low_latency)

    def _group(self, call: Call, tokens: int, low_latency: bool) -> Any:
        limit = "low_latency_max_tokens" if low_latency else "max_tokens"
        key = call.hidden, call.top_k, call.experts, call.dtype, low_latency
        capacity, group = self._groups.get(key, (0, None))
        if capacity >= tokens:
            return group
        if low_latency:
            capacity = tokens
        else:
            capacity = capacity or _FEWEST_TOKENS
            while capacity < tokens:
                capacity *= 2
        # Layers that wait for backward keep the old group, whose memory returns after them.
        options = {
            "hidden": call.hidden,
            "top_k": call.top_k,
            "experts": call.experts,
            "dtype": str(_DTYPES[call.dtype]).removeprefix("torch."),
            limit: capacity,
        }
        if not low_latency and not self.on_gpu and self.world.pes_per_node == self.world.n_pes:
            options |= self._room_by_expert(call, capacity)
        group = ep.Group(self.team, **options)
        self._groups[key] = capacity, group
        return group

    def _room_by_expert(self, call: Call, tokens: int) -> dict[str, int]:
        """Room for the rows of every layer until backward, one for each expert of a token.

        Rows then stay where they arrive. They are memory of the heap, which is taken on use, up to
        a quarter of the addresses that are free; what does not fit is copied to torch's memory.
        """
        ranks = self.world.n_pes
        experts_here = -(-call.experts // ranks)
        mean = tokens * min(call.top_k, experts_here * ranks) / ranks
        room = {"max_tokens": max(tokens, int(_SPREAD * mean))}
        result = room["max_tokens"] * ranks * call.hidden * _DTYPES[call.dtype].itemsize
        free = self.world.heap_size - self.world.heap_used
        most = free // (4 * result) // 2  # n results take 2 n - 1 times one, staging one more
        room["live_results"] = min(self._layers + 2, most)
        return room if most > 2 else {}

    def close(self) -> None:
        self._groups.clear()
        self.world.close()


_open: weakref.WeakKeyDictionary[Any, Ranks] = weakref.WeakKeyDictionary()


def ranks_of(group: dist.ProcessGroup, device: torch.device) -> Ranks:
    """The Ranks of a process group; the first call for a group is collective."""
    if dist.get_rank(group) < 0:
        raise InvalidArgumentError("shoal: this process is no rank of the given process group")
    ranks = _open.get(group)
    if ranks is None or not ranks.world.is_open:
        ranks = _open[group] = Ranks(group, device)
    return ranks


@atexit.register
def _close_all() -> None:
    """Closes with the other ranks. A program that ends by an exception fails them instead, and one
    whose peers do not end ends without them."""
    error = _unwinding.unwinding_exception()
    for ranks in list(_open.values()):
        if error is not None:
            _unwinding.fail_world(ranks.world, error)
            continue
        late = Error(f"the other ranks have not ended their programs within {_CLOSE_S:.0f} s")
        with contextlib.suppress(Error):  # a rank that has failed has said so
            with _limited(_CLOSE_S, late):
                ranks.close()


@contextlib.contextmanager
def _limited(seconds: float, error: Error) -> Iterator[None]:
    """Raises `error` after this time, in the main thread, whose waits run handlers of signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(_number: int, _frame: Any) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
