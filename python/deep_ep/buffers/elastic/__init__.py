# SPDX-License-Identifier: Apache-2.0
"""``ElasticBuffer``, the V2 interface of DeepEP, and ``EPHandle``."""

from .buffer import ElasticBuffer
from .handle import EPHandle

__all__ = ["ElasticBuffer", "EPHandle"]
