#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs shoal-bench ep between two hosts emulated by namespaces, and the MPI baseline over TCP
between the same hosts, in alternating rounds.

Needs root, as tests/hosts does. Both use one link (rail 0) and the same cores. MPI's ranks yield
while they wait, as Shoal's do.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "hosts"))
sys.path.insert(0, str(HERE))

from hosts import SHARED, Network, why_not  # noqa: E402
from launchers import by_hand, mpirun_options  # noqa: E402
from run_bench import PAIR, make_parser, print_table, summarise  # noqa: E402

TARGET = 2.0  # times as fast as MPI


def parse_arguments():
    parser = make_parser(__doc__, rounds=3, timeout=200)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--pes", type=int, default=2, help="PEs per host")
    parser.add_argument("--transport", default="ofi", help="SHOAL_TRANSPORT_BETWEEN")
    parser.add_argument(
        "shape",
        nargs="*",
        default=[
            "--tokens",
            "128",
            "--low-latency-tokens",
            "32",
            "--iterations",
            "8",
            "--experts",
            "64",
        ],
        help="after --: options for both programs",
    )
    return parser.parse_args()


def finished(job, network, result, timeout):
    results = job.wait(timeout)
    if not all(program.ok for program in results):
        sys.exit("hosts_bench: " + "\n".join(map(str, results)))
    for place in [*network.hosts, network.login]:
        path = place.path(result)
        if path.exists():
            text = path.read_text()
            path.unlink()
            return json.loads(text)
    sys.exit("hosts_bench: no result")


def shoal(arguments, network):
    result = SHARED / "shoal.json"
    command = [(arguments.bin / "shoal-bench").resolve(), "ep", *arguments.shape, "--json", result]
    environment = {
        "SHOAL_TRANSPORT_BETWEEN": arguments.transport,
        "SHOAL_NIC_LIST": "rail0",
        "SHOAL_SYMMETRIC_SIZE": "2G",
    }
    return finished(
        by_hand(network, command, arguments.pes, environment), network, result, arguments.timeout
    )


def mpi(arguments, network):
    result = SHARED / "mpi.json"
    hosts = ",".join(f"{host.name}:{arguments.pes}" for host in network.hosts)
    command = [
        "mpirun",
        *mpirun_options(network),
        "--mca",
        "mpi_yield_when_idle",
        "1",
        "--host",
        hosts,
        "-np",
        arguments.pes * arguments.hosts,
        (arguments.bin / "shoal-bench-mpi").resolve(),
        *arguments.shape,
        "--json",
        result,
    ]
    from launchers import Job

    return finished(Job([network.login.popen(command)]), network, result, arguments.timeout)


def main():
    arguments = parse_arguments()
    if reason := why_not():
        sys.exit(f"hosts_bench: {reason}")
    if not shutil.which("mpirun"):
        sys.exit("hosts_bench: no mpirun for the baseline")
    rounds = {"shoal": [], "mpi": []}
    with Network(hosts=arguments.hosts) as network:
        for number in range(arguments.rounds):
            for name, run in (("shoal", shoal), ("mpi", mpi)):
                print(f"round {number + 1} of {arguments.rounds}: {name}", file=sys.stderr)
                rounds[name].append(run(arguments, network))
    mine, theirs = summarise(rounds["shoal"]), summarise(rounds["mpi"])
    setup = rounds["shoal"][0]["setup"]
    print(
        f"\n{arguments.hosts} hosts of {arguments.pes} PEs, {arguments.transport}, "
        + ", ".join(f"{key} {value}" for key, value in setup.items())
    )
    print(
        f"medians of {arguments.rounds} alternating rounds, slowest PE; cpu: processor time per PE; {rounds['shoal'][0]['basis']}\n"
    )
    print_table(mine, theirs)
    ratios = {
        name: theirs[name]["seconds"] / mine[name]["seconds"]
        for name in mine
        if name in theirs and "memcpy" not in name
    }
    print(
        f"\n{PAIR}, times as fast as MPI: {ratios[PAIR]:.2f} (target {TARGET}: {'met' if ratios[PAIR] >= TARGET else 'missed'}); "
        f"median of all operations {statistics.median(ratios.values()):.2f}"
    )
    if arguments.json:
        everything = {
            "hosts": arguments.hosts,
            "pes_per_host": arguments.pes,
            "transport": arguments.transport,
            "rounds": arguments.rounds,
            "setup": setup,
            "shoal": mine,
            "mpi": theirs,
            "times_as_fast_as_mpi": ratios,
            "target": TARGET,
        }
        arguments.json.write_text(json.dumps(everything, indent=2) + "\n")


if __name__ == "__main__":
    main()
