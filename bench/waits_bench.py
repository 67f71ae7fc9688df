#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs shoal-bench waits with more and more PEs on the cores of this machine, as threads and as
processes, and shoal-moe with 256 threads. With --base BIN also another build, in alternating
rounds, so that other load on the machine affects both alike. Figures are medians over the rounds;
processor time, of all PEs together, is the steadier figure on a shared machine.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from run_bench import make_parser

MOE = ["--tokens-per-pe", "16", "--iterations", "5", "--no-check"]
GROWTH_TARGET = 3.0  # time of 64 PEs over that of 32
GROWTH_OF = ["barrier", "dispatch bf16", "low-latency pair bf16"]


def parse_arguments():
    parser = make_parser(__doc__, rounds=3, timeout=300)
    parser.add_argument("--base", type=Path, help="folder of the programs of another build")
    parser.add_argument("--pes", type=int, nargs="*", default=[2, 32, 64, 96])
    parser.add_argument("--kinds", nargs="*", default=["threads", "processes"])
    parser.add_argument("--iterations", type=int, default=32)
    parser.add_argument(
        "--moe", type=int, default=256, help="threads of the run of shoal-moe; 0: none"
    )
    return parser.parse_args()


def timed(command, timeout):
    """Runs the command. Returns wall and processor seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if result.returncode != 0:
        sys.exit(f"waits_bench: exit status {result.returncode}: {command}\n{result.stderr}")
    return {
        "seconds": wall,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


def run_waits(folder, kind, pes, arguments):
    """{operation: seconds of the slowest PE and processor seconds of all}."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "result.json"
        command = [folder / "shoal-bench", "waits", "--iterations", str(arguments.iterations)]
        command += ["--json", path]
        if kind == "threads":
            command += ["--threads", str(pes)]
        else:
            command = [folder / "shoal-run", "-n", str(pes), *command]
        timed(list(map(str, command)), arguments.timeout)
        return {
            row["name"]: {
                "seconds": row["seconds"]["max"],
                "cpu_seconds": row["cpu_seconds_per_pe"] * pes,
            }
            for row in json.loads(path.read_text())["results"]
        }


def run_moe(folder, threads, timeout):
    command = [folder / "shoal-moe", "--pes", str(threads), *MOE]
    return {f"shoal-moe with {threads} threads": timed(list(map(str, command)), timeout)}


def measure(arguments):
    """{"64 threads": {"base": [rows of round 1, ...], "new": [...]}}"""
    builds = {"base": arguments.base} if arguments.base else {}
    builds["new"] = arguments.bin
    points = {
        f"{pes} {kind}": lambda folder, kind=kind, pes=pes: run_waits(folder, kind, pes, arguments)
        for kind in arguments.kinds
        for pes in arguments.pes
    }
    if arguments.moe:
        points["moe"] = lambda folder: run_moe(folder, arguments.moe, arguments.timeout)
    found = {point: {name: [] for name in builds} for point in points}
    for number in range(arguments.rounds):
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
        for point, run in points.items():
            for name, folder in builds.items():
                found[point][name].append(run(folder))
    return found


def median(rounds, row, field="seconds"):
    return statistics.median(one[row][field] for one in rounds)


def table(found):
    names = list(next(iter(found.values())))
    lines = [
        "| PEs | operation | " + " | ".join(f"{name} ms | cpu ms" for name in names) + " |",
        "|---|---|" + "---:|" * (2 * len(names)),
    ]
    for point, builds in found.items():
        for row in builds[names[0]][0]:
            cells = [
                f"{median(builds[name], row, field) * 1e3:.3g}"
                for name in names
                for field in ("seconds", "cpu_seconds")
            ]
            lines.append(f"| {point} | {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    arguments = parse_arguments()
    found = measure(arguments)
    print(table(found))
    for kind in arguments.kinds:
        few, many = found.get(f"32 {kind}"), found.get(f"64 {kind}")
        if not few or not many:
            continue
        for row in GROWTH_OF:
            for field in ("seconds", "cpu_seconds"):
                growth = median(many["new"], row, field) / median(few["new"], row, field)
                print(
                    f"{row}, {kind}, {field}: 64 PEs take {growth:.1f} times as long as 32 "
                    f"(target {GROWTH_TARGET})"
                )
    if arguments.json:
        document = {"cores": len(os.sched_getaffinity(0)), "points": found}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
