# SPDX-License-Identifier: Apache-2.0
"""Adaptors for frameworks that have an interface of their own for expert parallelism."""
