# SPDX-License-Identifier: Apache-2.0
"""The process group, seeds and hardware of a test or a buffer."""

import functools
import inspect
import os
import random
import re
import socket
import subprocess
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist

DEFAULT_RDMA_GBS = 50.0
"""Assumed speed of an unknown NIC in GB/s: one port of 400 Gb/s."""

_local_rank = 0
_global_seed = 0
_local_seed = 0


def is_set(name: str) -> bool:
    """Return true if an environment variable is set, and neither empty nor 0."""
    return os.environ.get(name, "0") not in ("", "0")


def default_device() -> torch.device:
    """The current GPU; the CPU where torch sees no GPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def init_seed(global_seed: int) -> None:
    """Seeds torch and `random` with a number that depends on `global_seed` and the rank."""
    global _global_seed, _local_seed
    rank, num_ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    _global_seed, _local_seed = global_seed, global_seed * num_ranks + rank
    random.seed(_local_seed)
    torch.manual_seed(_local_seed)


def get_global_seed() -> int:
    """The seed passed to `init_seed`, equal on all ranks; 0 before that call."""
    return _global_seed


def get_local_seed() -> int:
    """The seed of this rank; 0 before `init_seed`."""
    return _local_seed


def dist_print(s: str = "", once_in_node: bool = False) -> None:
    """Prints on every rank, or on the first rank of each node, then waits for all ranks."""
    if not once_in_node or _local_rank == 0:
        print(s, flush=True)
    if dist.is_initialized():
        dist.barrier()


def init_dist(
    local_rank: int, num_local_ranks: int, seed: int = 0
) -> tuple[int, int, dist.ProcessGroup]:
    """Joins the group of all ranks; returns (rank, number of ranks, group).

    Environment: MASTER_ADDR (default 127.0.0.1), MASTER_PORT (8361), WORLD_SIZE (number of nodes,
    1), RANK (index of this node, 0). The backend is NCCL where every local rank has a GPU, else
    gloo. NCCL is bound to the GPU of the rank at once (device_id). Sets the default dtype to
    bfloat16 and the default device to the GPU or the CPU, and seeds this rank.
    """
    global _local_rank
    address, port = os.getenv("MASTER_ADDR", "127.0.0.1"), int(os.getenv("MASTER_PORT", "8361"))
    num_nodes, node_rank = int(os.getenv("WORLD_SIZE", "1")), int(os.getenv("RANK", "0"))
    assert 0 <= local_rank < num_local_ranks, (
        f"local_rank: got {local_rank}, allowed 0 to {num_local_ranks - 1}"
    )
    assert 0 <= node_rank < num_nodes, (
        f"RANK: got {node_rank}, allowed 0 to {num_nodes - 1} (WORLD_SIZE - 1)"
    )

    num_gpus = torch.cuda.device_count()
    if num_gpus > 0:
        torch.cuda.set_device(local_rank % num_gpus)
    _local_rank = local_rank
    backend = "nccl" if num_gpus >= num_local_ranks else "gloo"
    bound = {}
    # torch before 2.3 has no device_id.
    if backend == "nccl" and "device_id" in inspect.signature(dist.init_process_group).parameters:
        bound["device_id"] = torch.device("cuda", local_rank % num_gpus)
    dist.init_process_group(
        backend=backend,
        init_method=f"tcp://{address}:{port}",
        world_size=num_nodes * num_local_ranks,
        rank=node_rank * num_local_ranks + local_rank,
        **bound,
    )
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device(default_device())
    init_seed(seed)
    return (
        dist.get_rank(),
        dist.get_world_size(),
        dist.new_group(list(range(dist.get_world_size()))),
    )


def _host_identity() -> str:
    if identity := os.environ.get("SHOAL_HOST_ID"):
        return identity
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return socket.gethostname() + (boot_id.read_text().strip() if boot_id.exists() else "")


def get_physical_domain_size(group: dist.ProcessGroup) -> tuple[int, int]:
    """(nodes, ranks per node) of `group`. Collective.

    SHOAL_NODE_SIZE splits a host into emulated nodes. Raises AssertionError where nodes have
    different numbers of ranks.
    """
    num_ranks = dist.get_world_size(group)
    hosts: list[str | None] = [None] * num_ranks
    dist.all_gather_object(hosts, _host_identity(), group=group)
    ranks_per_host = set(Counter(hosts).values())
    assert len(ranks_per_host) == 1, (
        f"hosts with different numbers of ranks: {sorted(ranks_per_host)}"
    )
    per_node = ranks_per_host.pop()
    if emulated := int(os.environ.get("SHOAL_NODE_SIZE") or 0):
        assert per_node <= emulated or per_node % emulated == 0, (
            f"SHOAL_NODE_SIZE: got {emulated}, which does not divide the {per_node} ranks of a host"
        )
        per_node = min(per_node, emulated)
    return num_ranks // per_node, per_node


def get_logical_domain_size(
    group: dist.ProcessGroup, allow_hybrid_mode: bool = True
) -> tuple[int, int]:
    """(scale-out ranks, scale-up ranks): the physical sizes in hybrid mode, else one domain.

    Collective.
    """
    return get_physical_domain_size(group) if allow_hybrid_mode else (1, dist.get_world_size(group))


def check_nvlink_connections(group: dist.ProcessGroup | None) -> None:
    """Raises AssertionError where `group` needs NVLink between PCIe GPUs that have none.

    PCIe variants of GPUs have NVLink in pairs only, so a group must be such a pair. No effect on
    other devices. Collective where it has an effect, and needs the package pynvml there.
    """
    if (
        group is None
        or not torch.cuda.is_available()
        or "PCIE" not in torch.cuda.get_device_name().upper()
    ):
        return
    num_ranks = dist.get_world_size(group)
    assert num_ranks <= 2, (
        f"PCIe GPUs have NVLink bridges between pairs only: got {num_ranks} ranks, allowed 2"
    )

    import pynvml

    uuids: list[str | None] = [None] * num_ranks
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    dist.all_gather_object(uuids, uuid if uuid.startswith("GPU-") else f"GPU-{uuid}", group=group)
    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByUUID(u) for u in uuids]
        for i, first in enumerate(handles):
            for second in handles[i + 1 :]:
                status = pynvml.nvmlDeviceGetP2PStatus(
                    first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK
                )
                assert status == pynvml.NVML_P2P_STATUS_OK, (
                    f"no NVLink between {uuids} (NVML status {status})"
                )
    finally:
        pynvml.nvmlShutdown()


# Half the time of torch.are_deterministic_algorithms_enabled, which returns the same.
_deterministic = torch._C._get_deterministic_algorithms


def fills_new_tensors() -> bool:
    """Return true if torch fills new tensors for determinism."""
    return _deterministic() and torch.utils.deterministic.fill_uninitialized_memory


def check_torch_deterministic() -> None:
    """Raises AssertionError where torch fills new tensors for determinism.

    The fill would overwrite receive buffers.
    """
    if not _deterministic():
        return
    assert not torch.utils.deterministic.fill_uninitialized_memory, (
        "torch.use_deterministic_algorithms fills uninitialised memory, on another stream: "
        "set torch.utils.deterministic.fill_uninitialized_memory = False"
    )


@functools.cache
def get_nvlink_gbs(factor: float = 0.9) -> float:
    """`factor` times the speed of all NVLinks of the first GPU, in GB/s in one direction.

    0 where nvidia-smi does not report it.
    """
    try:
        result = subprocess.run(
            ["nvidia-smi", "nvlink", "-s", "-i", "0"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return factor * sum(
        float(speed) for speed in re.findall(r"Link \d+: ([\d.]+) GB/s", result.stdout)
    )


def _nic_attribute(nic: str | None, attribute: str) -> str:
    path = Path("/sys/class/infiniband", nic or os.environ.get("EP_NIC_NAME", "mlx5_0"), attribute)
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def check_fast_rdma_atomic_support(nic_name: str | None = None) -> bool:
    """True if `nic_name` (default EP_NIC_NAME, else mlx5_0) is an MT4131: its atomics are fast."""
    return _nic_attribute(nic_name, "hca_type") == "MT4131"


def reported_rdma_gbs(nic_name: str | None = None) -> float:
    """Speed that the first port of `nic_name` reports, in GB/s; 0 where there is no such NIC."""
    rate = re.match(r"([\d.]+) Gb/sec", _nic_attribute(nic_name, "ports/1/rate"))
    return float(rate.group(1)) / 8 if rate else 0


def get_rdma_gbs(nic_name: str | None = None) -> float:
    """Speed of the first port of `nic_name` (default EP_NIC_NAME, else mlx5_0) in GB/s.

    DEFAULT_RDMA_GBS where the NIC does not exist or reports no speed, because programs divide by
    the result.
    """
    return reported_rdma_gbs(nic_name) or DEFAULT_RDMA_GBS
