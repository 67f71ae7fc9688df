# SPDX-License-Identifier: Apache-2.0
"""The communicating part of ``deep_ep``: buffers over ``shoal`` worlds and groups.

A file imports only from those before it: checks; groups (normal-mode groups by shape); runtime (World and streams).
``Buffer``: layout and handles (what it tells of a dispatch), low_latency (groups), low_latency_calls, legacy.
``ElasticBuffer``: elastic_layout and ep_handle (what it tells), ring, gather, engram, elastic_sizes, elastic_transfers,
elastic.
"""

from .elastic import ElasticBuffer
from .ep_handle import EPHandle
from .legacy import Buffer

__all__ = ["Buffer", "ElasticBuffer", "EPHandle"]
