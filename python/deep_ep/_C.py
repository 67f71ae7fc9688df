# SPDX-License-Identifier: Apache-2.0
"""The names of DeepEP's native module that programs import. Shoal's own native part is
``shoal._core``.

Functions about NCCL communicators and the native buffers exist only to say that they are absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from .buffers import Buffer as _Buffer
from .buffers.elastic.sizes import PAGE as _PAGE
from .config import Config, topk_idx_t
from .utils.event import EventHandle


def is_sm90_compiled() -> bool:
    """True if FP8 and low-latency calls exist, which is always the case."""
    return True


def init_jit(*_: Any) -> None:
    """Has no effect: kernels are compiled with the package."""


def get_low_latency_rdma_size_hint(
    num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
) -> int:
    """Same as ``Buffer.get_low_latency_rdma_size_hint``."""
    return _Buffer.get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts
    )


def get_elastic_buffer_alignment() -> int:
    """Bytes: sizes of elastic buffers are multiples of it."""
    return _PAGE


def _absent(name: str, instead: str) -> Callable[..., NoReturn]:
    def absent(*_: Any, **__: Any) -> NoReturn:
        """Absent; raises NotImplementedError."""
        raise NotImplementedError(
            f"deep_ep._C.{name} is not available: Shoal uses no NCCL and has no native buffer of "
            f"DeepEP. Use {instead}"
        )

    absent.__name__ = absent.__qualname__ = name
    return absent


class Buffer:
    """Absent: use ``deep_ep.Buffer``. Creating one raises NotImplementedError."""

    __init__ = _absent("Buffer", "deep_ep.Buffer")


class ElasticBuffer:
    """Absent: use ``deep_ep.ElasticBuffer``. Creating one raises NotImplementedError."""

    __init__ = _absent("ElasticBuffer", "deep_ep.ElasticBuffer")


create_cpu_handle = _absent("create_cpu_handle", "deep_ep.ElasticBuffer(num_cpu_bytes=)")
calculate_elastic_buffer_size = _absent(
    "calculate_elastic_buffer_size", "deep_ep.ElasticBuffer.get_buffer_size_hint"
)
get_local_nccl_unique_id = _absent("get_local_nccl_unique_id", "a torch.distributed group")
create_nccl_comm = _absent("create_nccl_comm", "a torch.distributed group")
destroy_nccl_comm = _absent("destroy_nccl_comm", "a torch.distributed group")
get_physical_domain_size = _absent(
    "get_physical_domain_size", "deep_ep.get_physical_domain_size with a group"
)
get_logical_domain_size = _absent(
    "get_logical_domain_size", "deep_ep.get_logical_domain_size with a group"
)

__all__ = [
    "Buffer",
    "Config",
    "ElasticBuffer",
    "EventHandle",
    "calculate_elastic_buffer_size",
    "create_cpu_handle",
    "create_nccl_comm",
    "destroy_nccl_comm",
    "get_elastic_buffer_alignment",
    "get_local_nccl_unique_id",
    "get_logical_domain_size",
    "get_low_latency_rdma_size_hint",
    "get_physical_domain_size",
    "init_jit",
    "is_sm90_compiled",
    "topk_idx_t",
]
