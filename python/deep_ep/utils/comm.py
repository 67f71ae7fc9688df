# SPDX-License-Identifier: Apache-2.0
"""Handles of NCCL communicators, for callers that request one. Shoal's transport needs none."""

import ctypes
import os
import weakref

import torch
import torch.distributed as dist


def _abort(nccl_comm: int) -> None:
    ctypes.CDLL("libnccl.so.2").ncclCommAbort(ctypes.c_void_p(nccl_comm))


class NCCLCommHandle:
    """An ncclComm_t as an integer; 0 for none. A managed one is aborted with the handle."""

    def __init__(self, nccl_comm: int, managed: bool) -> None:
        self.nccl_comm = nccl_comm
        self.managed = managed
        if managed:
            _managed_handles.add(self)

    def get(self) -> int:
        """The ncclComm_t."""
        return self.nccl_comm

    def destroy(self) -> None:
        """Aborts a managed communicator, once; resets any other handle to 0."""
        nccl_comm, self.nccl_comm = self.nccl_comm, 0
        if self.managed and nccl_comm:
            _abort(nccl_comm)

    def __del__(self) -> None:
        self.destroy()


_managed_handles: "weakref.WeakSet[NCCLCommHandle]" = weakref.WeakSet()
_handles: "weakref.WeakKeyDictionary[dist.ProcessGroup, NCCLCommHandle]" = (
    weakref.WeakKeyDictionary()
)


def get_nccl_comm_handle(group: dist.ProcessGroup, force_new_comm: bool = False) -> NCCLCommHandle:
    """The NCCL communicator that torch uses for `group`; every call returns the same handle.

    Its value is 0 for a group without NCCL, for a torch that does not expose the communicator, with
    EP_REUSE_NCCL_COMM=0, and with `force_new_comm`. This function never creates a communicator,
    because Shoal would not use it.
    """
    if force_new_comm:
        return NCCLCommHandle(0, managed=False)
    if group not in _handles:
        _handles[group] = NCCLCommHandle(_nccl_comm_of(group), managed=False)
    return _handles[group]


def _nccl_comm_of(group: dist.ProcessGroup) -> int:
    if os.environ.get("EP_REUSE_NCCL_COMM", "1") == "0" or not torch.cuda.is_available():
        return 0
    try:
        backend = group._get_backend(torch.device("cuda"))
    except RuntimeError:  # the group has no backend for CUDA
        return 0
    return backend._comm_ptr() if hasattr(backend, "_comm_ptr") else 0


def destroy_all_managed_nccl_comm() -> None:
    """Aborts every remaining managed communicator, before the process groups are destroyed."""
    for handle in list(_managed_handles):
        handle.destroy()
