# SPDX-License-Identifier: Apache-2.0
"""The calls of ``ElasticBuffer`` beside dispatch and combine: ring, gather sessions, engram storage."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..utils.event import profiled
from ..utils.semantic import native_assert
from .checks import describe, expect
from .elastic_sizes import ElasticSizes
from .engram import Engram
from .gather import GatherSessions
from .ring import Ring
from .runtime import Runtime


class ElasticTransfers(ElasticSizes, abc.ABC):
    """Moves of whole tensors and of table entries through the symmetric heap."""

    num_bytes: int
    num_cpu_bytes: int
    _ring: Ring
    _gather: GatherSessions
    _engram: Engram

    @abc.abstractmethod
    def _open(self, call: str) -> Runtime:
        """The runtime, for a call of this name; raises where the buffer is destroyed."""

    def pp_set_config(self, num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> None:
        """Makes room for pp_send and pp_recv: so many tensors of at most so many bytes each way. Collective."""
        self._open("pp_set_config")
        needed = self.get_pp_buffer_size_hint(num_max_tensor_bytes, num_max_inflight_tensors)
        native_assert(
            needed <= self.num_bytes, f"pp_set_config: num_bytes is {self.num_bytes}; these sizes need {needed}"
        )
        self._ring.configure(num_max_tensor_bytes, num_max_inflight_tensors)

    def pp_send(self, t: torch.Tensor, dst_rank_idx: int, num_sms: int = 0) -> None:
        """Sends a contiguous tensor to the next or previous rank of the ring; waits while all slots there are taken."""
        self._open("pp_send")
        with profiled("pp_send_impl"):
            self._ring.send(t, dst_rank_idx)

    def pp_recv(self, t: torch.Tensor, src_rank_idx: int, num_sms: int = 0) -> None:
        """Receives the next tensor from the next or previous rank into ``t``, of as many bytes as were sent."""
        self._open("pp_recv")
        with profiled("pp_recv_impl"):
            self._ring.receive(t, src_rank_idx)

    def agrs_set_config(self, num_max_session_bytes: int, num_max_all_gathers_per_session: int) -> None:
        """Makes room for gather sessions. Collective."""
        self._open("agrs_set_config")
        native_assert(
            num_max_session_bytes <= self.num_bytes,
            f"agrs_set_config: num_bytes is {self.num_bytes}; a session needs {num_max_session_bytes}",
        )
        self._gather.configure(num_max_session_bytes, num_max_all_gathers_per_session)

    def create_agrs_session(self) -> None:
        """Starts a session: its gathers share the buffer. Collective. The results of the last session go."""
        self._open("create_agrs_session")
        self._gather.begin()

    def destroy_agrs_session(self) -> None:
        """Ends the session; all handles of its gathers have been called."""
        self._open("destroy_agrs_session")
        self._gather.end()

    @contextmanager
    def agrs_new_session(self, enabled: bool = True) -> Iterator[None]:
        """A session for the length of a block; nothing when not enabled."""
        if enabled:
            self.create_agrs_session()
        try:
            yield
        finally:
            if enabled:
                self.destroy_agrs_session()

    def agrs_get_inplace_tensor(self, shapes: Any, dtype: torch.dtype) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Where this rank's part of the next all_gather lies, one or several, so that it need not be copied."""
        self._open("agrs_get_inplace_tensor")
        return self._gather.inplace(shapes, dtype)

    def all_gather(self, t: torch.Tensor | Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Gathers one tensor or several of all ranks within a session. Collective.

        Returns (gathered [R, *shape] of each, handle); the data is there after handle(), until the next session.
        """
        self._open("all_gather")
        return self._gather.all_gather(t)

    def engram_write(self, storage: torch.Tensor, sf: torch.Tensor | None = None) -> None:
        """Makes this rank's entries readable by all. Collective.

        storage: bfloat16 or float8_e4m3fn [n, H], contiguous, at most num_cpu_bytes; entry i of rank r is number r * n
        + i. sf: with float8 only, the scales of all entries: four-byte elements [R * n, packs], the same on all ranks.
        """
        self._open("engram_write")
        native_assert(
            storage.numel() * storage.element_size() <= self.num_cpu_bytes,
            f"engram_write: storage is {describe(storage)}; num_cpu_bytes is {self.num_cpu_bytes}",
        )
        self._engram.write(storage, sf)

    def engram_fetch(
        self, indices: torch.Tensor, num_qps: int = 0, use_tma_aligned_col_major_sf: bool = False
    ) -> Callable[[], tuple[torch.Tensor, torch.Tensor | None]]:
        """Fetches entries of any rank; local. indices: int32 [T, n].

        The returned call waits and gives (data [T, n * H], scales [T, n * packs] or None).
        """
        self._open("engram_fetch")
        expect(num_qps <= self.num_allocated_qps, f"engram_fetch: num_qps is {num_qps} of {self.num_allocated_qps}")
        with profiled("engram_fetch_impl"):
            wait = self._engram.fetch(indices, use_tma_aligned_col_major_sf)

        def profiled_wait() -> tuple[torch.Tensor, torch.Tensor | None]:
            with profiled("engram_fetch_wait_impl"):
                return wait()

        return profiled_wait
