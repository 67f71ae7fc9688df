# SPDX-License-Identifier: Apache-2.0
"""The calls of ``Buffer`` that mask ranks in low-latency mode, for buffers with enable_shrink."""

from __future__ import annotations

import torch


class MaskCalls:
    """``low_latency_update_mask_buffer`` and the two others of ``Buffer``."""

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks a rank in low-latency calls, or unmasks it. Local; all other ranks do the same."""
        self._open("low_latency_update_mask_buffer")
        self._groups.update_mask(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes 1 for masked ranks and 0 for the others to ``mask_status``, int32 [R]."""
        self._open("low_latency_query_mask_buffer")
        self._groups.query_mask(mask_status)

    def low_latency_clean_mask_buffer(self) -> None:
        """Unmasks all ranks."""
        self._open("low_latency_clean_mask_buffer")
        self._groups.clean_masks()
