# SPDX-License-Identifier: Apache-2.0
"""The names that programs import from this module of DeepEP's branch hybrid-ep."""

from .buffers.hybrid import HybridEPBuffer, indices_to_map

__all__ = ["HybridEPBuffer", "indices_to_map"]
