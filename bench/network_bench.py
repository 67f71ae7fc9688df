#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs shoal-bench rma over ofi and ucx between two processes of one host, and libfabric and UCX
alone, in alternating rounds.

Baselines: shoal-bench-ofi (libfabric's RMA; its own rma tests are not packaged), fi_pingpong
(libfabric's messages) and ucx_perftest. The output names programs that are not installed.

With --hosts: ofi over TCP and verbs on the emulated NIC over UDP, between two hosts emulated by
namespaces. Needs root, as tests/hosts does.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "tests" / "hosts"))

from run_bench import make_parser, run_once  # noqa: E402

PUT, PING = "put + quiet", "put_signal round trip"
BANDWIDTH_TARGET, LATENCY_TARGET = 0.85, 1.3  # of raw libfabric: put of 1 MiB, 8 B


def parse_arguments():
    parser = make_parser(__doc__, rounds=3, timeout=200)
    parser.add_argument("--hosts", action="store_true", help="between two emulated hosts")
    parser.add_argument("--mtu", type=int, default=1500, help="of the network between hosts")
    return parser.parse_args()


def shoal(arguments, transport):
    os.environ.update(
        SHOAL_TRANSPORT_INSIDE=transport, SHOAL_OFI_PROVIDER="tcp;ofi_rxm", SHOAL_UCX_TLS="tcp,self"
    )
    command = [
        arguments.bin / "shoal-run",
        "--no-label",
        "-n",
        "2",
        arguments.bin / "shoal-bench",
        "rma",
    ]
    return rows_of(run_once(list(map(str, command)), arguments.timeout))


def raw_libfabric(arguments):
    return rows_of(run_once([str(arguments.bin / "shoal-bench-ofi")], arguments.timeout))


def rows_of(result):
    return {row["name"]: row["seconds"]["max"] for row in result["results"]}


def pair(server, client, timeout):
    """Runs a program as server and as client; returns the output of the client."""
    listening = subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(1)
        return subprocess.run(
            client, capture_output=True, text=True, timeout=timeout, check=True
        ).stdout
    finally:
        listening.kill()
        listening.wait()


def pingpong(arguments):
    command = ["fi_pingpong", "-p", "tcp;ofi_rxm", "-e", "rdm", "-I", "2000"]
    rows = {}
    for size, name in (
        (8, "message 8 B, half a round trip"),
        (1 << 20, "message 1 MiB, half a round trip"),
    ):
        out = pair(
            [*command, "-S", str(size)], [*command, "-S", str(size), "127.0.0.1"], arguments.timeout
        )
        rows[name] = float(out.splitlines()[-1].split()[6]) * 1e-6  # column usec/xfer
    return rows


def perftest(arguments):
    rows = {}
    for test, size, count, name in (
        ("ucp_put_lat", 8, 20000, "put 8 B, half a round trip"),
        ("ucp_put_bw", 1 << 20, 1000, "put 1 MiB, streamed"),
    ):
        command = [
            "env",
            "UCX_TLS=tcp",
            "ucx_perftest",
            "-p",
            "21071",
            "-f",
            "-t",
            test,
            "-s",
            str(size),
            "-n",
            str(count),
        ]
        out = pair(command, [*command, "127.0.0.1"], arguments.timeout)
        numbers = re.findall(r"[0-9.]+", out.splitlines()[-1])
        rows[name] = float(numbers[3]) * 1e-6  # overall average of a transfer
    return rows


def between(arguments, network, transport):
    """shoal-bench rma between two hosts, one PE on each."""
    from launchers import by_hand

    result = pathlib.Path("/run/shared/rma.json")
    environment = {
        "SHOAL_TRANSPORT_BETWEEN": transport,
        "SHOAL_OFI_PROVIDER": "tcp;ofi_rxm",
        "SHOAL_VERBS_LIBRARY": (arguments.bin / "../lib/emulator/libibverbs.so.1").resolve(),
        "SHOAL_EMULATOR_WIRE": "udp",
        "SHOAL_EMULATOR_UDP_INTERFACE": "rail0",
    }
    if transport == "ofi":
        environment["SHOAL_NIC_LIST"] = "rail0"
    command = [(arguments.bin / "shoal-bench").resolve(), "rma", "--json", result]
    results = by_hand(network, command, 1, environment).wait(arguments.timeout)
    if not all(program.ok for program in results):
        sys.exit("network_bench: " + "\n".join(map(str, results)))
    path = network.login.path(result)
    text = path.read_text()
    path.unlink()
    return rows_of(json.loads(text))


def compare_hosts(arguments):
    from hosts import Network, why_not

    if reason := why_not():
        sys.exit(f"network_bench: {reason}")
    rounds = {"ofi": [], "verbs": []}
    with Network(hosts=2, rails=1) as network:
        network.set_mtu(arguments.mtu)
        for number in range(arguments.rounds):
            for transport, rows in rounds.items():
                print(f"round {number + 1} of {arguments.rounds}: {transport}", file=sys.stderr)
                rows.append(between(arguments, network, transport))
    medians = medians_of(rounds)
    print(
        f"two hosts, MTU {arguments.mtu}\n\n"
        "| operation | ofi us | verbs us | verbs / ofi |\n|---|---:|---:|---:|"
    )
    for row, seconds in medians["ofi"].items():
        other = medians["verbs"][row]
        print(f"| {row} | {seconds * 1e6:.1f} | {other * 1e6:.1f} | {other / seconds:.2f} |")
    write(arguments, {"mtu": arguments.mtu, "rounds": arguments.rounds, "seconds": medians})


def medians_of(rounds):
    return {
        name: {row: statistics.median(one[row] for one in of) for row in of[0]}
        for name, of in rounds.items()
    }


def write(arguments, everything):
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=2) + "\n")


def main():
    arguments = parse_arguments()
    if arguments.hosts:
        return compare_hosts(arguments)
    runs = {
        "shoal ofi": lambda: shoal(arguments, "ofi"),
        "libfabric": lambda: raw_libfabric(arguments),
        "shoal ucx": lambda: shoal(arguments, "ucx"),
    }
    for program, name, run in (
        ("fi_pingpong", "fi_pingpong", pingpong),
        ("ucx_perftest", "ucx_perftest", perftest),
    ):
        if shutil.which(program):
            runs[name] = lambda run=run: run(arguments)
        else:
            print(f"{program} is not installed: left out")
    rounds = {name: [] for name in runs}
    for number in range(arguments.rounds):
        for name, run in runs.items():
            print(f"round {number + 1} of {arguments.rounds}: {name}", file=sys.stderr)
            rounds[name].append(run())
    medians = medians_of(rounds)

    mine, raw, ucx = medians["shoal ofi"], medians["libfabric"], medians["shoal ucx"]
    print(
        "| operation | ofi us | libfabric us | ofi / libfabric | ucx us |\n|---|---:|---:|---:|---:|"
    )
    for row, seconds in mine.items():
        base = f"{raw[row] * 1e6:.1f} | {seconds / raw[row]:.2f}" if row in raw else " | "
        print(f"| {row} | {seconds * 1e6:.1f} | {base} | {ucx[row] * 1e6:.1f} |")
    for name in ("fi_pingpong", "ucx_perftest"):
        for row, seconds in medians.get(name, {}).items():
            print(f"{name}: {row}: {seconds * 1e6:.1f} us")
    bandwidth = raw[f"{PUT} 1 MiB"] / mine[f"{PUT} 1 MiB"]
    latency = mine[f"{PING} 8 B"] / raw[f"{PING} 8 B"]
    print(
        f"put of 1 MiB: {bandwidth:.0%} of libfabric's bandwidth (target {BANDWIDTH_TARGET:.0%}); "
        f"8 B: {latency:.2f} of its latency (target {LATENCY_TARGET})"
    )
    write(
        arguments,
        {
            "rounds": arguments.rounds,
            "seconds": medians,
            "put_1MiB_bandwidth_of_libfabric": bandwidth,
            "latency_8B_of_libfabric": latency,
        },
    )


if __name__ == "__main__":
    main()
