# SPDX-License-Identifier: Apache-2.0
"""``Buffer``, the V1 interface of DeepEP."""

from .buffer import Buffer

__all__ = ["Buffer"]
