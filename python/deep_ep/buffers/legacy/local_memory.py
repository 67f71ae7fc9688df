# SPDX-License-Identifier: Apache-2.0
"""``LocalMemory``: the memory behind ``Buffer.get_local_buffer_tensor``."""

from __future__ import annotations

import torch

from ...utils.semantic import native_assert
from ..checks import expect


class LocalMemory:
    """Two areas of a fixed size, allocated at the first use. Shoal's traffic does not use them."""

    def __init__(self, num_nvl_bytes: int, num_rdma_bytes: int, device: torch.device):
        self._bytes = {False: num_nvl_bytes, True: num_rdma_bytes}
        self._device = device
        self._areas: dict[bool, torch.Tensor] = {}

    def tensor(
        self, dtype: torch.dtype, size: torch.Size | None, offset: int, rdma: bool
    ) -> torch.Tensor:
        """The area without its first ``offset`` bytes, in one dimension or in shape ``size``."""
        call, total = "get_local_buffer_tensor", self._bytes[rdma]
        native_assert(
            0 <= offset <= total and offset % dtype.itemsize == 0,
            f"{call}: offset is {offset}; allowed: multiples of {dtype.itemsize} up to {total}",
        )
        if rdma not in self._areas:
            self._areas[rdma] = torch.zeros(total, dtype=torch.uint8, device=self._device)
        end = total - (total - offset) % dtype.itemsize
        flat = self._areas[rdma][offset:end].view(dtype)
        if size is None:
            return flat
        numel = torch.Size(size).numel()
        expect(flat.numel() >= numel, f"{call}: {list(size)} of {dtype} in {flat.numel()} elements")
        return flat[:numel].view(size)
