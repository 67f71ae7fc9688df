# SPDX-License-Identifier: Apache-2.0
"""The interface of DeepEP over Shoal, on GPUs and on the CPU: ``Buffer`` (V1), ``ElasticBuffer``
(V2), ``HybridEPBuffer`` (branch hybrid-ep).

docs/guide/from-deepep.md lists what is compatible and what differs. Importing has no side effects.
"""

from . import _C
from .buffers import Buffer, ElasticBuffer, EPHandle, HybridEPBuffer
from .config import Config, topk_idx_t
from .utils.envs import get_logical_domain_size, get_physical_domain_size
from .utils.event import EventHandle, EventOverlap
from .utils.find_pkgs import find_cuda_home

__version__ = "2.1.0+shoal"


def check_nccl_so() -> None:
    """Has no effect: the package uses no NCCL of its own."""


def init_jit() -> None:
    """Has no effect: kernels are compiled with the package."""


__all__ = [
    "Buffer",
    "Config",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "HybridEPBuffer",
    "check_nccl_so",
    "find_cuda_home",
    "get_logical_domain_size",
    "get_physical_domain_size",
    "init_jit",
    "topk_idx_t",
]
