# SPDX-License-Identifier: Apache-2.0
"""The buffers of ``deep_ep``: ``Buffer`` in ``legacy/``, ``ElasticBuffer`` in ``elastic/``."""

from .elastic import ElasticBuffer, EPHandle
from .legacy import Buffer

__all__ = ["Buffer", "ElasticBuffer", "EPHandle"]
