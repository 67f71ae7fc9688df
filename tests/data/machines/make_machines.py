#!/usr/bin/env python3
"""Writes the machines of this folder: what hwloc would say of them, cut down to what a NIC plan asks.

The shapes are public knowledge, the addresses made up. `cd tests/data/machines && ./make_machines.py` writes all of them again.
"""

GPU, NIC = "0302 [10de:2330] [10de:16c1] a1", "0207 [15b3:1021] [15b3:0041] 00"
BRIDGE = "0604 [15b3:1979] [0000:0000] 00"


class Writer:
    def __init__(self):
        self.lines, self.depth, self.number = [], 0, 0

    def open(self, kind, **attributes):
        self.number += 1
        text = "".join(f' {name}="{value}"' for name, value in attributes.items())
        self.lines.append(
            f'{" " * self.depth}<object type="{kind}" gp_index="{self.number}"{text}>'
        )
        self.depth += 1

    def close(self, count=1):
        for _ in range(count):
            self.depth -= 1
            self.lines.append(f"{' ' * self.depth}</object>")

    def info(self, name, value):
        self.lines.append(f'{" " * self.depth}<info name="{name}" value="{value}"/>')

    def bridge(self, bus, secondary, last, depth):
        self.open(
            "Bridge",
            bridge_type="1-1",
            depth=depth,
            bridge_pci=f"0000:[{secondary:02x}-{last:02x}]",
            pci_busid=f"0000:{bus}",
            pci_type=BRIDGE,
            pci_link_speed="63.0",
        )

    def device(self, address, pci_type):
        self.open("PCIDev", pci_busid=f"0000:{address}", pci_type=pci_type, pci_link_speed="63.0")

    def nic(self, address, name, ports=1, rate=400, plane=0, interface=None):
        self.device(address, NIC)
        self.open("OSDev", name=name, osdev_type=3)
        for port in range(1, ports + 1):
            for key, value in (("State", 4), ("Rate", rate), ("Plane", plane)):
                self.info(f"Port{port}{key}", value)
        self.close()
        if interface:
            self.open("OSDev", name=interface, osdev_type=2)
            self.close()
        self.close()

    def gpu(self, address):
        self.device(address, GPU)
        self.close()


def host_bridge(writer, bus, switches):
    """One root port and switch on a host bridge. switches: functions that write a device given its bus, each below a port of its own."""
    writer.open("Bridge", bridge_type="0-1", depth=0, bridge_pci=f"0000:[{bus:02x}-{bus + 15:02x}]")
    writer.bridge(f"{bus:02x}:01.0", bus + 1, bus + 15, 1)
    writer.bridge(f"{bus + 1:02x}:00.0", bus + 2, bus + 15, 2)
    for i, device in enumerate(switches):
        writer.bridge(f"{bus + 2:02x}:{i:02x}.0", bus + 3 + i, bus + 3 + i, 3)
        device(writer, f"{bus + 3 + i:02x}:00.")
        writer.close()
    writer.close(3)


def write(file, packages):
    """packages: for each a list of (bus, devices)."""
    writer, everything = Writer(), (1 << len(packages)) - 1
    sets = lambda cpus: {
        key: f"0x{cpus:08x}" for key in ("cpuset", "complete_cpuset", "nodeset", "complete_nodeset")
    }
    writer.open(
        "Machine",
        os_index=0,
        **sets(everything),
        allowed_cpuset=f"0x{everything:08x}",
        allowed_nodeset=f"0x{everything:08x}",
    )
    for i, bridges in enumerate(packages):
        writer.open("Package", os_index=i, **sets(1 << i))
        writer.open("NUMANode", os_index=i, local_memory=1 << 40, **sets(1 << i))
        writer.close()
        writer.open("PU", os_index=i, **sets(1 << i))
        writer.close()
        for bus, devices in bridges:
            host_bridge(writer, bus, devices)
        writer.close()
    writer.close()
    with open(file, "w", encoding="utf-8") as out:
        out.write(
            '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">\n'
        )
        out.write("\n".join(writer.lines) + "\n</topology>\n")


def gpu():
    return lambda writer, address: writer.gpu(address + "0")


def nic(name, **options):
    return lambda writer, address: writer.nic(address + "0", name, **options)


def two_functions(first, second, **options):
    def device(writer, address):
        writer.nic(address + "0", first, **options)
        writer.nic(address + "1", second, **options)

    return device


def halves(bridges):
    return [bridges[: len(bridges) // 2], bridges[len(bridges) // 2 :]]


def buses(count):
    return [0x10 + 0x10 * i for i in range(count)]


# Eight switches, each with a GPU and a ConnectX-7; a slower card for storage on one of them.
write(
    "dgx_h100.xml",
    halves(
        [
            (
                bus,
                [gpu(), nic(f"mlx5_{i}")]
                + ([nic("mlx5_8", rate=100, interface="ens6")] if i == 0 else []),
            )
            for i, bus in enumerate(buses(8))
        ]
    ),
)
# Four switches, each with two GPUs and one NIC.
write(
    "hgx_4_nics.xml",
    halves([(bus, [gpu(), gpu(), nic(f"mlx5_{i}")]) for i, bus in enumerate(buses(4))]),
)
# Two switches, each with four GPUs, a card of one device with two ports and a card of two devices.
write(
    "dual_port.xml",
    halves(
        [
            (
                bus,
                [gpu()] * 4
                + [
                    nic(f"mlx5_{3 * i}", ports=2, rate=200),
                    two_functions(f"mlx5_{3 * i + 1}", f"mlx5_{3 * i + 2}", rate=200),
                ],
            )
            for i, bus in enumerate(buses(2))
        ]
    ),
)
# Four switches, each with two GPUs and one NIC on either of two planes.
write(
    "two_planes.xml",
    halves(
        [
            (bus, [gpu(), gpu(), nic(f"mlx5_{2 * i}", plane=0), nic(f"mlx5_{2 * i + 1}", plane=1)])
            for i, bus in enumerate(buses(4))
        ]
    ),
)
