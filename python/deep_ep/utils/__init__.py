# SPDX-License-Identifier: Apache-2.0
"""Helpers of `deep_ep`. Megatron-LM imports both event classes from here."""

from .envs import check_nvlink_connections
from .event import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap", "check_nvlink_connections"]
