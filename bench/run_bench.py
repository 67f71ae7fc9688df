#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs shoal-bench ep and the MPI baseline, and compares their medians with the targets of the host
backend.

The two alternate (Shoal, MPI, Shoal, MPI, ...), so other load on the machine affects both alike. A
figure is the median over the rounds of the slowest PE's time. Needs only the standard library.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

PAIR = "dispatch + combine bf16"
MEMCPY = "memcpy of the dispatch bytes"
LOW_LATENCY_PAIRS = ["low-latency pair bf16 per rank", "low-latency pair fp8 per rank"]
SPEEDUP_TARGET = 3.0  # over MPI
MEMCPY_TARGET = 0.5  # of memcpy's bandwidth


def make_parser(description, rounds, timeout):
    """A parser with the options that all scripts of this folder have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--bin",
        type=pathlib.Path,
        default=pathlib.Path("build/release/bin"),
        help="folder of the programs",
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument(
        "--timeout", type=float, default=timeout, help="seconds that one program may take"
    )
    parser.add_argument(
        "--json", type=pathlib.Path, help="also write everything measured to this file"
    )
    return parser


def parse_arguments():
    parser = make_parser(__doc__, rounds=5, timeout=300)
    parser.add_argument("--pes", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=16, help="timed pairs per round")
    parser.add_argument("--quick", action="store_true", help="one short round, for a rough figure")
    parser.add_argument("--no-rma", action="store_true", help="leave out the one-sided operations")
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
    if arguments.quick:
        arguments.rounds, arguments.iterations = 1, 4
    return arguments


def commands(arguments):
    """The command lines by name, without --json; with MPI's if it was built."""
    options = ["--iterations", str(arguments.iterations), *arguments.shape]
    pes = str(arguments.pes)
    result = {
        "shoal": [
            str(arguments.bin / "shoal-run"),
            "-n",
            pes,
            str(arguments.bin / "shoal-bench"),
            "ep",
            *options,
        ]
    }
    baseline, mpirun = arguments.bin / "shoal-bench-mpi", shutil.which("mpirun")
    if baseline.exists() and mpirun:
        # With more ranks than cores, waiting ranks must yield to the others.
        launcher = [mpirun, "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-n", pes]
        if os.geteuid() == 0:
            launcher.insert(1, "--allow-run-as-root")
        result["mpi"] = [*launcher, str(baseline), *options]
    return result


def run_once(command, timeout):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "result.json"
        process = subprocess.Popen(
            [*command, "--json", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            sys.exit(f"run_bench: no result after {timeout:.0f} s (--timeout): {' '.join(command)}")
        if process.returncode != 0 or not path.exists():
            sys.exit(f"run_bench: exit status {process.returncode}: {' '.join(command)}\n{output}")
        return json.loads(path.read_text())


def run_rma(arguments):
    """shoal-bench rma between two PEs: put, get, atomics, signals; a table of its own."""
    command = [
        str(arguments.bin / "shoal-run"),
        "--no-label",
        "-n",
        "2",
        str(arguments.bin / "shoal-bench"),
        "rma",
    ]
    print("shoal-bench rma, 2 PEs", file=sys.stderr)
    return run_once(command, arguments.timeout)


def measure(arguments):
    """{program: [result of round 1, ...]}, alternating."""
    lines = commands(arguments)
    rounds = {name: [] for name in lines}
    for number in range(arguments.rounds):
        for name, command in lines.items():
            print(f"round {number + 1} of {arguments.rounds}: {name}", file=sys.stderr)
            rounds[name].append(run_once(command, arguments.timeout))
    return lines, rounds


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


def ratios(shoal, mpi, copy_seconds):
    """The figures that have targets."""
    result = [
        {
            "what": f"{PAIR}, bandwidth as a share of memcpy's",
            "value": 2 * copy_seconds / shoal[PAIR]["seconds"],
            "target": MEMCPY_TARGET,
        }
    ]
    if mpi:
        for name in [PAIR, *LOW_LATENCY_PAIRS]:
            result.append(
                {
                    "what": f"{name}, times as fast as MPI",
                    "value": mpi[name]["seconds"] / shoal[name]["seconds"],
                    "target": SPEEDUP_TARGET,
                }
            )
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
    if base:
        return [
            *cells,
            f"{entry['seconds'] / base['seconds']:.2f} ({entry['cpu_seconds_per_pe'] / base['cpu_seconds_per_pe']:.2f})",
        ]
    return [*cells, f"{entry['bytes_per_pe'] / entry['seconds'] / 1e9:.2f}"]


def print_table(shoal, mpi):
    """Times in microseconds; ratios of clock times, in brackets those of processor times."""
    print(
        "| operation | Shoal, us | range | cpu | GB/s per PE | MPI, us | range | cpu | MPI / Shoal |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, mine in shoal.items():
        print(
            "| " + " | ".join([name, *cells_of(mine), *cells_of(mpi.get(name), base=mine)]) + " |"
        )


def print_rma(result):
    print(
        f"\none-sided operations, {result['pes']} PEs; they reuse one buffer, so small sizes stay in the cache\n"
    )
    print("| operation | us | GB/s |\n|---|---|---|")
    for entry in result["results"]:
        speed = f"{entry['gb_per_s_per_pe']:.2f}" if entry.get("bytes_per_pe") else ""
        print(f"| {entry['name']} | {entry['seconds']['mean'] * 1e6:.2f} | {speed} |")


def main():
    arguments = parse_arguments()
    lines, rounds = measure(arguments)
    shoal = summarise(rounds["shoal"])
    mpi = summarise(rounds["mpi"]) if "mpi" in rounds else {}
    # Both programs run the same loop: the rounds of both count.
    copies = [
        r["seconds"]["max"]
        for results in rounds.values()
        for result in results
        for r in result["results"]
        if r["name"] == MEMCPY
    ]
    found = ratios(shoal, mpi, statistics.median(copies))
    setup = rounds["shoal"][0]["setup"]
    print(f"\n{arguments.pes} PEs, " + ", ".join(f"{key} {value}" for key, value in setup.items()))
    print(
        f"medians of {arguments.rounds} alternating rounds, slowest PE; cpu: processor time per PE; {rounds['shoal'][0]['basis']}\n"
    )
    print_table(shoal, mpi)
    print()
    for entry in found:
        print(
            f"{entry['what']}: {entry['value']:.2f} (target {entry['target']}: {'met' if entry['met'] else 'missed'})"
        )
    if not mpi:
        print("no MPI: shoal-bench-mpi was not built or mpirun is not installed")
    rma = None if arguments.no_rma else run_rma(arguments)
    if rma:
        print_rma(rma)
    if arguments.json:
        names = {
            name: " ".join(pathlib.Path(word).name if "/" in word else word for word in line)
            for name, line in lines.items()
        }
        everything = {
            "commands": names,
            "rounds": arguments.rounds,
            "pes": arguments.pes,
            "setup": setup,
            "shoal": shoal,
            "mpi": mpi,
            "ratios": found,
            "rma": rma,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(everything, indent=2) + "\n")
    if arguments.require_targets and not (mpi and all(entry["met"] for entry in found)):
        sys.exit(1)


if __name__ == "__main__":
    main()
