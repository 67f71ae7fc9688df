#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs shoal-bench rma over verbs, with both interfaces (SHOAL_VERBS_INTERFACE: verbs, devx), and
the bare write loops of shoal-bench-verbs on the same emulated NIC, in alternating rounds, and
compares them with the targets.

The bare loop of an interface uses it alone: libibverbs, or requests and completions in memory. The
targets are shares of the bare loop over libibverbs, whatever the interface. A ratio is the median
over the rounds of the ratios of two runs of one round, so that other load on the machine affects
both alike.
"""

import json
import os
import statistics
import sys

from run_bench import make_parser, run_once

BANDWIDTH_TARGET, LATENCY_TARGET = 0.85, 1.3  # of the bare loop: put of 1 MiB, 8 B
LARGE, SMALL = "put + quiet 1 MiB", "put + quiet 8 B"
INTERFACES = ["verbs", "devx"]
BARE = "bare"  # of libibverbs: what ratios are to


def parse_arguments():
    parser = make_parser(__doc__, rounds=15, timeout=120)
    parser.add_argument(
        "--library", help="the libibverbs of both; default: the emulator beside the programs"
    )
    parser.add_argument(
        "--interfaces", nargs="*", choices=INTERFACES, default=INTERFACES, help="default: both"
    )
    parser.add_argument("--sizes", nargs="*", default=["8", "1048576"], help="sizes, in bytes")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument(
        "--bind",
        choices=["none", "core"],
        default="none",
        help="core: bind the two processes of all programs to cores of their own",
    )
    parser.add_argument(
        "--require-targets", action="store_true", help="end with status 1 when a target is missed"
    )
    return parser.parse_args()


def rows_of(result):
    return {row["name"]: row["seconds"]["max"] for row in result["results"]}


def programs(arguments):
    """(name, interface, command): "bare", "verbs", "verbs private", "bare devx", ..."""
    options = ["--iterations", str(arguments.iterations), "--sizes", *arguments.sizes]
    bind = ["--bind", arguments.bind]
    launcher = [arguments.bin / "shoal-run", "--no-label", "-n", "2", *bind]
    rma = [*launcher, arguments.bin / "shoal-bench"]
    bare = [arguments.bin / "shoal-bench-verbs", *options, *bind, "--interface"]
    found = [(BARE, "verbs", [*bare, "verbs"])]
    for interface in arguments.interfaces:
        if interface != "verbs":
            found.append((f"{BARE} {interface}", interface, [*bare, interface]))
        found.append((interface, interface, [*rma, "rma", "--heap", *options]))
        found.append((f"{interface} private", interface, [*rma, "rma", *options]))
    return found


def run(interface, command, timeout):
    os.environ["SHOAL_VERBS_INTERFACE"] = interface
    return rows_of(run_once(list(map(str, command)), timeout))


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
                name: run(interface, command, arguments.timeout)
                for name, interface, command in programs(arguments)
            }
        )
    return rounds


def table(rounds):
    """One line per operation; of each program its median in us, and the ratio to the bare loop."""
    others = [name for name in rounds[0] if name != BARE]
    lines = [
        f"| operation | {BARE} us | " + " | ".join(f"{name} us | ratio" for name in others) + " |",
        "|---|" + "---:|" * (1 + 2 * len(others)),
    ]
    for row in rounds[0][BARE]:
        cells = [f"{median(rounds, BARE, row) * 1e6:.1f}"]
        for name in others:
            cells += [f"{median(rounds, name, row) * 1e6:.1f}", f"{ratio(rounds, name, row):.2f}"]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def median(rounds, name, row):
    return statistics.median(one[name][row] for one in rounds)


def ratio(rounds, name, row):
    return statistics.median(one[name][row] / one[BARE][row] for one in rounds)


def main():
    arguments = parse_arguments()
    rounds = measure(arguments)
    print(table(rounds))
    missed = False
    for name in arguments.interfaces:
        bandwidth, latency = 1 / ratio(rounds, name, LARGE), ratio(rounds, name, SMALL)
        print(
            f"{name}: put of 1 MiB: {bandwidth:.0%} of the bare loop's bandwidth (target "
            f"{BANDWIDTH_TARGET:.0%}); 8 B put + quiet: {latency:.2f} of its latency (target "
            f"{LATENCY_TARGET})"
        )
        missed |= bandwidth < BANDWIDTH_TARGET or latency > LATENCY_TARGET
    if arguments.json:
        arguments.json.write_text(json.dumps({"rounds": rounds}, indent=1) + "\n")
    return 1 if missed and arguments.require_targets else 0


if __name__ == "__main__":
    sys.exit(main())
