# SPDX-License-Identifier: Apache-2.0
"""``EarlyShapes``: low-latency sizes that are known when a ``Buffer`` is created.

Programs call the size hint before they create a buffer, and pass its result. The hint therefore
tells tokens, hidden size and experts; the number of bytes identifies the call. Top-k is no argument
of the hint: it comes from the caller, the environment, or a default.
"""

from __future__ import annotations

import os
import struct

from ... import config as sizes
from ..runtime import Runtime

_DEFAULT_TOPK = 8


class EarlyShapes:
    """The latest size hint of this process."""

    _RECORD = struct.Struct("<4q")
    _latest: tuple[int, int, int, int, int] | None = None  # bytes, ranks, tokens, hidden, experts

    @classmethod
    def note(cls, max_tokens: int, hidden: int, ranks: int, experts: int) -> int:
        """The size hint, in bytes; remembers its arguments."""
        size = sizes.get_low_latency_rdma_size_hint(max_tokens, hidden, ranks, experts)
        cls._latest = (size, ranks, max_tokens, hidden, experts)
        return size

    @classmethod
    def agree(
        cls, runtime: Runtime, num_bytes: int, top_k: int, enable_shrink: bool
    ) -> tuple[tuple[int, int, int, int] | None, bool]:
        """(tokens, hidden, experts, top-k) that all ranks know, else None; whether top-k is a
        default. Collective."""
        top_k = top_k or int(os.environ.get("EP_LOW_LATENCY_TOPK") or 0)
        is_default = top_k == 0 and enable_shrink
        if is_default:
            top_k = _DEFAULT_TOPK
        known = (0, 0, 0, 0)
        if cls._latest is not None and top_k > 0:
            size, ranks, max_tokens, hidden, experts = cls._latest
            fits = hidden % 128 == 0 and experts % ranks == 0
            if (size, ranks) == (num_bytes, runtime.num_ranks) and fits:
                known = (max_tokens, hidden, experts, min(top_k, experts))
        records = runtime.team.exchange(cls._RECORD.pack(*known))
        same = all(record == records[0] for record in records)
        return known if same and known[0] > 0 else None, is_default
