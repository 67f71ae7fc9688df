# SPDX-License-Identifier: Apache-2.0
"""``HybridEPBuffer``, the interface of DeepEP's branch hybrid-ep."""

from .buffer import HybridEPBuffer
from .routing import indices_to_map

__all__ = ["HybridEPBuffer", "indices_to_map"]
