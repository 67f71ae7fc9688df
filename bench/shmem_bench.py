#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Shoal's OpenSHMEM with another one, such as Open MPI's.

Usage: shmem_bench.py --bin build/release/bin [--other-cc oshcc --other-run "oshrun -np 2"]
[--network] [--repeat N] [--json FILE]. Compiles shmem_bench.c with both compilers and runs both
programs in turn, so that both see the same machine. Prints the median time of each row, and the
median of the ratios other / Shoal of the single runs: above 1, Shoal is faster. --network: the PEs
use the network instead of shared memory. --bind: each PE gets a core of its own, in both programs.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("shmem_bench.c")


def run(command, environment):
    """{(operation, bytes): microseconds} of one run."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**os.environ, **environment}
    )
    # Open MPI 4.1 may crash in shmem_finalize, after the last row.
    if "end" not in done.stdout.split():
        sys.exit(f"{shlex.join(map(str, command))}: status {done.returncode}\n{done.stderr}")
    rows = {}
    for line in done.stdout.split("end")[0].splitlines():
        name, size, time = line.split()
        rows[name, int(size)] = float(time)
    return rows


def medians(runs):
    return {row: statistics.median(one[row] for one in runs) for row in runs[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--pes", type=int, default=2)
    parser.add_argument("--other-cc", default="/usr/bin/oshcc")
    parser.add_argument("--other-run", default="/usr/bin/oshrun --oversubscribe")
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--rows", nargs="+", default=[], help="such as put barrier; default: all")
    parser.add_argument("--bind", action="store_true")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    folder = Path(tempfile.mkdtemp())
    for name, compiler in (("shoal", options.bin / "oshcc"), ("other", options.other_cc)):
        subprocess.run([compiler, "-O2", "-w", SOURCE, "-o", folder / name], check=True)
    pes = ["-np", str(options.pes)]
    nodes = ["--nodes", str(options.pes)] if options.network else []
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    bind = "core" if options.bind else "none"
    shoal = [options.bin / "oshrun", *pes, *nodes, "--bind", bind, folder / "shoal", *options.rows]
    other = [
        *shlex.split(options.other_run),
        *root,
        *pes,
        "--bind-to",
        bind,
        folder / "other",
        *options.rows,
    ]
    between = {"SHOAL_TRANSPORT_BETWEEN": "ofi,ucx"} if options.network else {}
    tcp = {"UCX_TLS": "tcp,self", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
    tcp = tcp if options.network else {}
    times = {"shoal": [], "other": []}
    for _ in range(options.repeat):
        times["shoal"].append(run(shoal, {"SHMEM_SYMMETRIC_SIZE": "64M", **between}))
        times["other"].append(run(other, {"SHMEM_SYMMETRIC_SIZE": "64M", **tcp}))
    middle = {name: medians(runs) for name, runs in times.items()}
    rows = []
    print(f"{'operation':28}{'bytes':>9}{'Shoal us':>12}{'other us':>12}{'ratio':>8}")
    for row, ours in middle["shoal"].items():
        name, size = row
        theirs = middle["other"].get(row)
        if theirs is None:  # of contexts: the other library may lack them
            print(f"{name:28}{size:9}{ours:12.3f}")
            rows.append([name, size, ours, None, None])
            continue
        ratio = statistics.median(
            other[row] / shoal[row] for shoal, other in zip(times["shoal"], times["other"])
        )
        print(f"{name:28}{size:9}{ours:12.3f}{theirs:12.3f}{ratio:8.2f}")
        rows.append([name, size, ours, theirs, round(ratio, 3)])
    if options.json:
        result = {
            "pes": options.pes,
            "network": options.network,
            "bound": options.bind,
            "repeat": options.repeat,
            "columns": ["operation", "bytes", "Shoal us", "other us", "ratio"],
            "rows": rows,
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
