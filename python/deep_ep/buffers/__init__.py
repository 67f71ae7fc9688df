# SPDX-License-Identifier: Apache-2.0
"""The buffers of ``deep_ep``: ``Buffer`` in ``legacy/``, ``ElasticBuffer`` in ``elastic/``,
``HybridEPBuffer`` in ``hybrid/``."""

from .elastic import ElasticBuffer, EPHandle
from .hybrid import HybridEPBuffer
from .legacy import Buffer

__all__ = ["Buffer", "EPHandle", "ElasticBuffer", "HybridEPBuffer"]
