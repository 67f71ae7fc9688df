# SPDX-License-Identifier: Apache-2.0
"""``EarlyShapes``: low-latency sizes that are known when a ``Buffer`` is created.

Programs call the size hint before they create a buffer, and pass its result. The hint therefore
tells tokens, hidden size and experts; the number of bytes identifies the call. Top-k is no argument
of the hint: it comes from the caller or the environment, else it is guessed.
"""

from __future__ import annotations

import os
import struct

from ... import config as sizes
from ..runtime import Runtime

_USUAL_TOPK = 8


class EarlyShapes:
    """The size hints of this process."""

    _RECORD = struct.Struct("<4q")
    # (bytes, ranks) to (tokens, hidden, experts) of the latest call with this result
    _hints: dict[tuple[int, int], tuple[int, int, int]] = {}

    @classmethod
    def note(cls, max_tokens: int, hidden: int, ranks: int, experts: int) -> int:
        """The size hint, in bytes; remembers its arguments."""
        size = sizes.get_low_latency_rdma_size_hint(max_tokens, hidden, ranks, experts)
        cls._hints[size, ranks] = (max_tokens, hidden, experts)
        return size

    @classmethod
    def of_hint(cls, num_bytes: int, ranks: int, top_k: int) -> tuple[int, int, int, int] | None:
        """(tokens, hidden, experts, top-k) of the hint of this size; None where this process
        computed none, or where neither ``top_k`` nor the environment has the top-k."""
        top_k = top_k or int(os.environ.get("EP_LOW_LATENCY_TOPK") or 0)
        max_tokens, hidden, experts = cls._hints.get((num_bytes, ranks), (0, 0, 0))
        if top_k <= 0 or hidden % 128 != 0 or max_tokens <= 0:
            return None
        return max_tokens, hidden, experts, min(top_k, experts)

    @classmethod
    def guess(
        cls, runtime: Runtime, num_bytes: int, top_k: int
    ) -> tuple[bool, tuple[int, int, int, int] | None]:
        """Like agree, with the usual top-k where none is known; and whether it is guessed."""
        guessed = top_k == 0 and cls.of_hint(num_bytes, runtime.num_ranks, 0) is None
        top_k = _USUAL_TOPK if guessed else top_k
        return guessed, cls.agree(runtime, num_bytes, top_k)

    @classmethod
    def agree(
        cls, runtime: Runtime, num_bytes: int, top_k: int
    ) -> tuple[int, int, int, int] | None:
        """(tokens, hidden, experts, top-k) that all ranks know, else None. Collective."""
        known = cls.of_hint(num_bytes, runtime.num_ranks, top_k)
        records = runtime.team.exchange(cls._RECORD.pack(*(known or (0, 0, 0, 0))))
        return known if all(record == records[0] for record in records) else None
