#!/usr/bin/env python3
"""Writes the systems of this folder: the files that shoal-info --doctor reads, for made-up hosts.

`cd tests/data/doctor && ./make_systems.py` writes all of them again, into folders next to this script. The machines' devices are those of
../machines; a healthy DGX, one where all that can be wrong is, and a laptop.
"""

import pathlib
import struct
import sys

MACHINES = pathlib.Path(__file__).resolve().parents[1] / "machines"
GPUS = [f"0000:{bus:02x}:00.0" for bus in (0x13, 0x23, 0x33, 0x43, 0x53, 0x63, 0x73, 0x83)]
BRIDGES = ["0000:10:01.0", "0000:11:00.0", "0000:12:00.0"]  # above the first GPU


def limits(locked, files):
    rows = [
        ("Limit", "Soft Limit", "Hard Limit", "Units"),
        ("Max locked memory", locked, locked, "bytes"),
        ("Max open files", files, files, "files"),
    ]
    return "".join(
        f"{name:<26}{soft:<21}{hard:<21}{units:<10}\n" for name, soft, hard, units in rows
    )


def meminfo(gib, huge=0):
    return (
        f"MemTotal:       {gib << 20} kB\nHugePages_Free:    {huge}\nHugepagesize:       2048 kB\n"
    )


def params(stream, dwords):
    return f'EnableStreamMemOPs: {stream}\nEnableMSI: 1\nRegistryDwords: "{dwords}"\n'


def config(acs):
    """PCI configuration space of a bridge: 256 bytes, then a serial number and the access control services."""
    return (
        b"\0" * 256
        + struct.pack("<HHII", 0x0003, 0x10C << 4 | 1, 0, 0)
        + struct.pack("<HHHH", 0x000D, 1, 0x5F, acs)
    )


def gpus(addresses):
    files = {}
    for address in addresses:
        files[f"sys/bus/pci/devices/{address}/vendor"] = "0x10de\n"
        files[f"sys/bus/pci/devices/{address}/class"] = "0x030200\n"
    return files


def nic(name, state="4: ACTIVE", layer="InfiniBand", gids=("IB/RoCE v1",), firmware="28.43.2026"):
    port = f"sys/class/infiniband/{name}/ports/1"
    files = {f"{port}/state": state + "\n", f"{port}/link_layer": layer + "\n"}
    files[f"sys/class/infiniband/{name}/fw_ver"] = firmware + "\n"
    files |= {f"{port}/gid_attrs/types/{i}": gid + "\n" for i, gid in enumerate(gids)}
    return files


def dgx():
    files = {
        "machine.xml": (MACHINES / "dgx_h100.xml").read_text(),
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 13\n",
        "proc/driver/nvidia/params": params(1, "PeerMappingOverride=1;"),
        "etc/modprobe.d/nvidia.conf": '# for NICs\noptions nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords="PeerMappingOverride=1;"\n',
        "proc/modules": "nvidia_peermem 16384 0 - Live 0x0\ngdrdrv 24576 0 - Live 0x0\nnvidia 9000000 100 - Live 0x0\n",
        "dev/gdrdrv": "",
        "proc/4242/comm": "nv-fabricmanage\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 intel_iommu=on iommu=pt\n",
        "sys/class/iommu/dmar0/uevent": "",
        "proc/self/limits": limits("unlimited", 1048576),
        "proc/self/status": "Name:\tshoal-info\nCpus_allowed_list:\t0-111\n",
        "proc/self/cgroup": "0::/system.slice/job\n",
        "sys/fs/cgroup/system.slice/job/memory.max": "max\n",
        "proc/meminfo": meminfo(2048),
        "proc/mounts": "tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0\n",
        "proc/sys/kernel/osrelease": "6.8.0-60-generic\n",
        "proc/sys/kernel/random/boot_id": "11111111-2222-3333-4444-555555555555\n",
        "etc/machine-id": "00112233445566778899aabbccddeeff\n",
    }
    files |= gpus(GPUS)
    for i in range(8):
        files |= nic(f"mlx5_{i}")
        files[f"dev/infiniband/uverbs{i}"] = ""
    files |= nic("mlx5_8", layer="Ethernet", gids=("IB/RoCE v1", "RoCE v2"))
    files |= {f"proc/driver/nvidia-nvswitch/devices/0000:0{i}:00.0": "" for i in range(4)}
    files |= {f"sys/bus/pci/devices/{bridge}/config": config(0) for bridge in BRIDGES}
    return files


def faulty():
    """The same DGX after an unlucky installation."""
    files = dgx()
    files |= {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.00\n",
        "proc/driver/nvidia/params": params(0, ""),
        "proc/modules": "nvidia 9000000 100 - Live 0x0\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 intel_iommu=on\n",
        "proc/self/limits": limits(65536, 64),
        "proc/self/status": "Name:\tshoal-info\nCpus_allowed_list:\t3\n",
        "sys/fs/cgroup/system.slice/job/memory.max": f"{32 << 30}\n",
        "proc/meminfo": meminfo(2048, huge=1 << 19),
        "proc/mounts": "shm /dev/shm tmpfs rw,size=65536k 0 0\n",
        "proc/sys/kernel/osrelease": "4.18.0-553.el8\n",
        "machine.xml": (MACHINES / "hgx_4_nics.xml").read_text(),
    }
    for i in range(4):
        files |= nic(
            f"mlx5_{i}",
            state="1: DOWN" if i == 0 else "4: ACTIVE",
            layer="Ethernet" if i == 1 else "InfiniBand",
            firmware="28.33.2028" if i == 2 else "28.43.2026",
        )
    for bridge in BRIDGES:
        files[f"sys/bus/pci/devices/{bridge}/config"] = config(0x1D)
    gone = ["proc/4242", "dev/", "etc/machine-id", "proc/sys/kernel/random"] + [
        f"sys/class/infiniband/mlx5_{i}/" for i in range(4, 9)
    ]
    return {path: content for path, content in files.items() if not path.startswith(tuple(gone))}


def laptop():
    return {
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/nvme0n1p2 quiet\n",
        "proc/self/limits": limits(8388608, 1024),
        "proc/self/status": "Name:\tshoal-info\nCpus_allowed_list:\t0-7\n",
        "proc/self/cgroup": "0::/user.slice\n",
        "proc/meminfo": meminfo(16),
        "proc/mounts": "tmpfs /dev/shm tmpfs rw 0 0\n",
        "proc/sys/kernel/osrelease": "6.1.0-13-amd64\n",
        "proc/sys/kernel/random/boot_id": "66666666-7777-8888-9999-000000000000\n",
        "etc/machine-id": "ffeeddccbbaa99887766554433221100\n",
    }


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    for system in (dgx, faulty, laptop):
        for path, content in system().items():
            file = target / system.__name__ / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
