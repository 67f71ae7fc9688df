# SPDX-License-Identifier: Apache-2.0
"""Settings of a World that follow from Buffer's arguments about the network."""

from collections.abc import Mapping
from typing import Any

# Queue pairs for kernels of one peer, at most (SHOAL_GDA_QUEUE_PAIRS).
MAX_QUEUE_PAIRS = 32
# Transports that pass the network, or the host, and not NVLink.
WITHOUT_NVLINK = "network,staged"


def network_settings(
    environment: Mapping[str, str],
    num_qps_per_rank: int,
    allow_nvlink: bool,
    allow_nvlink_for_normal_mode: bool,
    low_latency_mode: bool,
    has_rdma: bool,
    on_gpu: bool,
) -> dict[str, Any]:
    """Settings of the World; variables of the environment come before them.

    num_qps_per_rank: queue pairs for each peer that kernels drive, where SHOAL_GDA gives them any.
    Without allow_nvlink, which counts only in low-latency mode, or without
    allow_nvlink_for_normal_mode, GPUs of one node reach each other by the network. As in DeepEP,
    the other arguments count only where it would start NVSHMEM, and all come before NVSHMEM's
    variables. NVSHMEM_DISABLE_CUDA_VMM does not count: without virtual memory the heap of a
    buffer, which is address space, would be GPU memory.
    """
    settings: dict[str, Any] = {}
    allowed = allow_nvlink_for_normal_mode and (allow_nvlink or not low_latency_mode)
    without_nvlink = on_gpu and not allowed
    if without_nvlink and "SHOAL_TRANSPORT_INSIDE" not in environment:
        settings["transport_inside"] = WITHOUT_NVLINK
    if not (has_rdma or low_latency_mode):
        return settings
    if "SHOAL_GDA_QUEUE_PAIRS" not in environment:
        settings["gda_queue_pairs"] = min(num_qps_per_rank, MAX_QUEUE_PAIRS)
    if "NVSHMEM_DISABLE_CUDA_VMM" in environment and "SHOAL_CUDA_HANDLE" not in environment:
        settings["cuda_handle"] = "automatic"
    if "NVSHMEM_DISABLE_P2P" in environment and "SHOAL_TRANSPORT_INSIDE" not in environment:
        settings.setdefault("transport_inside", "automatic")
    return settings
