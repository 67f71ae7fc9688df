"""The interface of DeepEP over Shoal: ``Buffer`` (V1) and ``ElasticBuffer`` (V2), on GPUs and on the CPU.

docs/deep_ep.md says what is compatible and what differs. Importing has no side effects.
"""

from .buffers import Buffer, ElasticBuffer, EPHandle
from .config import Config, topk_idx_t
from .utils.envs import get_logical_domain_size, get_physical_domain_size
from .utils.event import EventHandle, EventOverlap

__version__ = "2.1.0+shoal"

__all__ = [
    "Buffer",
    "Config",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "get_logical_domain_size",
    "get_physical_domain_size",
    "topk_idx_t",
]
