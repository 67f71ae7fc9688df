# SPDX-License-Identifier: Apache-2.0
"""Expert-parallel dispatch and combine: `Group`, size hints and the gate."""

from ._core.ep import (
    Combined,
    Dispatched,
    Future,
    Group,
    Handle,
    HostEvent,
    LowLatencyHandle,
    LowLatencyReceived,
    PendingCombine,
    PendingDispatch,
    Routing,
    gate,
    low_latency_size_hint,
    size_hint,
)

__all__ = [
    "Combined",
    "Dispatched",
    "Future",
    "Group",
    "Handle",
    "HostEvent",
    "LowLatencyHandle",
    "LowLatencyReceived",
    "PendingCombine",
    "PendingDispatch",
    "Routing",
    "gate",
    "low_latency_size_hint",
    "size_hint",
]
