#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares shoal-bench ep with the MPI baseline, on this host or, with --hosts, between hosts
emulated by namespaces.

A figure is the median over the rounds of the slowest PE's time. MPI's ranks yield while they wait,
as Shoal's do. Between hosts (needs root, as tests/hosts does) both use one link (rail 0) and TCP.
"""

import json
import os
import pathlib
import shutil
import statistics
import sys

from rounds import alternate, make_parser, report_of, write

PAIR = "dispatch + combine bf16"
MEMCPY = "memcpy of the dispatch bytes"
LOW_LATENCY_PAIRS = ["low-latency pair bf16 per rank", "low-latency pair fp8 per rank"]
SPEEDUP_TARGET = 3.0  # over MPI on one host
HOSTS_TARGET = 2.0  # over MPI between hosts
MEMCPY_TARGET = 0.5  # of memcpy's bandwidth
HOSTS_SHAPE = "--tokens 128 --low-latency-tokens 32 --iterations 8 --experts 64".split()
YIELDS = ["--mca", "mpi_yield_when_idle", "1"]


def parse_arguments():
    parser = make_parser(__doc__, rounds=5, timeout=300)
    parser.add_argument("--pes", type=int, help="default: 8; with --hosts 2, on each host")
    parser.add_argument("--hosts", type=int, help="between so many emulated hosts")
    parser.add_argument("--transport", default="ofi", help="with --hosts: SHOAL_TRANSPORT_BETWEEN")
    parser.add_argument("--iterations", type=int, default=16, help="timed pairs per round")
    parser.add_argument("--quick", action="store_true", help="one short round, for a rough figure")
    parser.add_argument("--no-rma", action="store_true", help="skip the one-sided operations")
    parser.add_argument(
        "--require-targets",
        action="store_true",
        help="end with status 1 when a target is missed or MPI is absent",
    )
    parser.add_argument(
        "shape",
        nargs="*",
        help="after --: options for both programs, such as -- --tokens 512 --hidden 4096",
    )
    arguments = parser.parse_args()
    arguments.pes = arguments.pes or (2 if arguments.hosts else 8)
    if arguments.quick:
        arguments.rounds, arguments.iterations = 1, 4
    if arguments.hosts:
        arguments.shape = arguments.shape or HOSTS_SHAPE
    else:
        arguments.shape = ["--iterations", str(arguments.iterations), *arguments.shape]
    return arguments


def local_runs(arguments):
    """The runs on this host; that of MPI if it was built."""
    pes, timeout = str(arguments.pes), arguments.timeout
    run = [arguments.bin / "shoal-run", "-n", pes, arguments.bin / "shoal-bench", "ep"]
    runs = {"shoal": lambda: report_of([*run, *arguments.shape], timeout)}
    baseline, mpirun = arguments.bin / "shoal-bench-mpi", shutil.which("mpirun")
    if baseline.exists() and mpirun:
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = [mpirun, *root, "--oversubscribe", *YIELDS, "-n", pes, baseline]
        runs["mpi"] = lambda: report_of([*command, *arguments.shape], timeout)
    return runs


def measure_between_hosts(arguments):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "hosts"))
    from hosts import SHARED, Network, why_not
    from launchers import Job, by_hand, mpirun_options

    if reason := why_not() or (None if shutil.which("mpirun") else "no mpirun for the baseline"):
        sys.exit(f"run_bench: {reason}")
    programs, path = arguments.bin.resolve(), SHARED / "result.json"
    options = [*arguments.shape, "--json", path]

    def finished(job, network):
        results = job.wait(arguments.timeout)
        if not all(program.ok for program in results):
            sys.exit("run_bench: " + "\n".join(map(str, results)))
        for place in [*network.hosts, network.login]:
            result = place.path(path)
            if result.exists():
                text = result.read_text()
                result.unlink()
                return json.loads(text)
        sys.exit("run_bench: no result")

    with Network(hosts=arguments.hosts) as network:

        def shoal():
            environment = {
                "SHOAL_TRANSPORT_BETWEEN": arguments.transport,
                "SHOAL_NIC_LIST": "rail0",
                "SHOAL_SYMMETRIC_SIZE": "2G",
            }
            command = [programs / "shoal-bench", "ep", *options]
            return finished(by_hand(network, command, arguments.pes, environment), network)

        def mpi():
            places = ",".join(f"{host.name}:{arguments.pes}" for host in network.hosts)
            count = arguments.pes * arguments.hosts
            launcher = ["mpirun", *mpirun_options(network), *YIELDS, "--host", places, "-np", count]
            command = [*launcher, programs / "shoal-bench-mpi", *options]
            return finished(Job([network.login.popen(command)]), network)

        return alternate(arguments.rounds, {"shoal": shoal, "mpi": mpi})


def summarise(results):
    """{operation: median over the rounds of the slowest PE's seconds, their range, processor
    seconds and bytes per PE}."""
    summary = {}
    for position, entry in enumerate(results[0]["results"]):
        seconds = [result["results"][position]["seconds"]["max"] for result in results]
        summary.setdefault(
            entry["name"],
            {
                "seconds": statistics.median(seconds),
                "min": min(seconds),
                "max": max(seconds),
                "cpu_seconds_per_pe": statistics.median(
                    result["results"][position]["cpu_seconds_per_pe"] for result in results
                ),
                "bytes_per_pe": entry.get("bytes_per_pe", 0),
            },
        )
    return summary


def ratios(arguments, shoal, mpi, copy_seconds):
    """The figures that have targets."""
    result = []
    if not arguments.hosts:
        share = 2 * copy_seconds / shoal[PAIR]["seconds"]
        what = f"{PAIR}, bandwidth as a share of memcpy's"
        result.append({"what": what, "value": share, "target": MEMCPY_TARGET})
    names = [PAIR] if arguments.hosts else [PAIR, *LOW_LATENCY_PAIRS]
    target = HOSTS_TARGET if arguments.hosts else SPEEDUP_TARGET
    for name in names if mpi else []:
        value = mpi[name]["seconds"] / shoal[name]["seconds"]
        what = f"{name}, times as fast as MPI"
        result.append({"what": what, "value": value, "target": target})
    for entry in result:
        entry["met"] = entry["value"] >= entry["target"]
    return result


def cells_of(entry, base=None):
    """Time, range, processor time; with `base`, the ratios of both times to those of `base`."""
    if not entry:
        return [""] * 4
    cells = [
        f"{entry['seconds'] * 1e6:.0f}",
        f"{entry['min'] * 1e6:.0f}-{entry['max'] * 1e6:.0f}",
        f"{entry['cpu_seconds_per_pe'] * 1e6:.0f}",
    ]
    if not base:
        return [*cells, f"{entry['bytes_per_pe'] / entry['seconds'] / 1e9:.2f}"]
    wall, cpu = (entry[name] / base[name] for name in ("seconds", "cpu_seconds_per_pe"))
    return [*cells, f"{wall:.2f} ({cpu:.2f})"]


def print_table(shoal, mpi):
    """Times in microseconds; ratios of clock times, in brackets those of processor times."""
    print(
        "| operation | Shoal, us | range | cpu | GB/s per PE | MPI, us | range | cpu | MPI / Shoal |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, mine in shoal.items():
        cells = [name, *cells_of(mine), *cells_of(mpi.get(name), base=mine)]
        print("| " + " | ".join(cells) + " |")


def run_rma(arguments):
    """shoal-bench rma between two PEs: put, get, atomics, signals; a table of its own."""
    print("shoal-bench rma, 2 PEs", file=sys.stderr)
    launcher = [arguments.bin / "shoal-run", "--no-label", "-n", "2"]
    result = report_of([*launcher, arguments.bin / "shoal-bench", "rma"], arguments.timeout)
    print(
        f"\none-sided operations, {result['pes']} PEs; they reuse one buffer, so small sizes stay "
        "in the cache\n"
    )
    print("| operation | us | GB/s |\n|---|---|---|")
    for entry in result["results"]:
        speed = f"{entry['gb_per_s_per_pe']:.2f}" if entry.get("bytes_per_pe") else ""
        print(f"| {entry['name']} | {entry['seconds']['mean'] * 1e6:.2f} | {speed} |")
    return result


def main():
    arguments = parse_arguments()
    if arguments.hosts:
        rounds = measure_between_hosts(arguments)
    else:
        rounds = alternate(arguments.rounds, local_runs(arguments))
    shoal, mpi = summarise(rounds["shoal"]), summarise(rounds["mpi"]) if "mpi" in rounds else {}
    # Both programs run the same loop: the rounds of both count.
    copies = [
        row["seconds"]["max"]
        for results in rounds.values()
        for result in results
        for row in result["results"]
        if row["name"] == MEMCPY
    ]
    found = ratios(arguments, shoal, mpi, statistics.median(copies))
    first = rounds["shoal"][0]
    place = f"{arguments.hosts} hosts of " if arguments.hosts else ""
    setup = ", ".join(f"{key} {value}" for key, value in first["setup"].items())
    print(f"\n{place}{arguments.pes} PEs, {setup}")
    print(
        f"medians of {arguments.rounds} alternating rounds, slowest PE; cpu: processor time per "
        f"PE; {first['basis']}\n"
    )
    print_table(shoal, mpi)
    print()
    for entry in found:
        met = "met" if entry["met"] else "missed"
        print(f"{entry['what']}: {entry['value']:.2f} (target {entry['target']}: {met})")
    if not mpi:
        print("no MPI: shoal-bench-mpi was not built or mpirun is not installed")
    without_rma = arguments.no_rma or arguments.hosts
    everything = {
        "hosts": arguments.hosts,
        "transport": arguments.transport if arguments.hosts else None,
        "pes": arguments.pes,
        "shape": arguments.shape,
        "rounds": arguments.rounds,
        "setup": first["setup"],
        "shoal": shoal,
        "mpi": mpi,
        "ratios": found,
        "rma": None if without_rma else run_rma(arguments),
    }
    write(arguments.json, everything)
    if arguments.require_targets and not (mpi and all(entry["met"] for entry in found)):
        sys.exit(1)


if __name__ == "__main__":
    main()
