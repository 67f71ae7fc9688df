#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs shoal-bench rma over verbs and the bare write loop of shoal-bench-verbs on the same emulated
NIC, in alternating rounds, and compares them with the targets.

A ratio is the median over the rounds of the ratios of two runs that follow each other, so that
other load on the machine affects both alike.
"""

import json
import os
import statistics
import sys

from run_bench import make_parser, run_once

BANDWIDTH_TARGET, LATENCY_TARGET = 0.85, 1.3  # of the bare loop: put of 1 MiB, 8 B
LARGE, SMALL = "put + quiet 1 MiB", "put + quiet 8 B"


def parse_arguments():
    parser = make_parser(__doc__, rounds=15, timeout=120)
    parser.add_argument(
        "--library", help="the libibverbs of both; default: the emulator beside the programs"
    )
    parser.add_argument("--sizes", nargs="*", default=["8", "1048576"], help="sizes, in bytes")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument(
        "--require-targets", action="store_true", help="end with status 1 when a target is missed"
    )
    return parser.parse_args()


def rows_of(result):
    return {row["name"]: row["seconds"]["max"] for row in result["results"]}


def programs(arguments):
    options = ["--iterations", str(arguments.iterations), "--sizes", *arguments.sizes]
    rma = [arguments.bin / "shoal-run", "--no-label", "-n", "2", arguments.bin / "shoal-bench"]
    return {
        "bare": [arguments.bin / "shoal-bench-verbs", *options],
        "heap": [*rma, "rma", "--heap", *options],
        "private": [*rma, "rma", *options],
    }


def measure(arguments):
    """The rows of every round, by program."""
    library = arguments.library or str(
        arguments.bin.parent / "lib" / "emulator" / "libibverbs.so.1"
    )
    os.environ.update(SHOAL_TRANSPORT_INSIDE="verbs", SHOAL_VERBS_LIBRARY=os.path.abspath(library))
    os.environ.setdefault("SHOAL_EMULATOR_JOB", f"bench-{os.getpid()}")
    rounds = []
    for number in range(arguments.rounds):
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
        rounds.append(
            {
                name: rows_of(run_once(list(map(str, command)), arguments.timeout))
                for name, command in programs(arguments).items()
            }
        )
    return rounds


def main():
    arguments = parse_arguments()
    rounds = measure(arguments)

    def median(name, row):
        return statistics.median(one[name][row] for one in rounds)

    def ratio(name, row):
        return statistics.median(one[name][row] / one["bare"][row] for one in rounds)

    print("| operation | bare us | verbs us | ratio | from private memory us | ratio |")
    print("|---|---:|---:|---:|---:|---:|")
    for row in rounds[0]["bare"]:
        cells = [f"{median('bare', row) * 1e6:.1f}"]
        for name in ("heap", "private"):
            cells += [f"{median(name, row) * 1e6:.1f}", f"{ratio(name, row):.2f}"]
        print(f"| {row} | " + " | ".join(cells) + " |")
    bandwidth, latency = 1 / ratio("heap", LARGE), ratio("heap", SMALL)
    print(
        f"put of 1 MiB: {bandwidth:.0%} of the bare loop's bandwidth (target "
        f"{BANDWIDTH_TARGET:.0%}); 8 B put + quiet: {latency:.2f} of its latency (target "
        f"{LATENCY_TARGET})"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rounds": rounds}, indent=1) + "\n")
    missed = bandwidth < BANDWIDTH_TARGET or latency > LATENCY_TARGET
    return 1 if missed and arguments.require_targets else 0


if __name__ == "__main__":
    sys.exit(main())
