#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Shoal's OpenSHMEM with another one, such as Open MPI's.

Compiles shmem_bench.c with both compilers and runs both programs in alternating rounds. Prints the
median time of each row, and the median of the ratios other / Shoal of the rounds: above 1, Shoal is
faster.
"""

import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rounds import alternate, make_parser, medians, output_of, write

SOURCE = Path(__file__).with_name("shmem_bench.c")
HEAP = {"SHMEM_SYMMETRIC_SIZE": "64M"}


def rows_of(command, environment, timeout):
    """{(operation, bytes): microseconds} of one run."""
    status, output = output_of(command, timeout, {**HEAP, **environment})
    # Open MPI 4.1 may crash in shmem_finalize, after the last row.
    if "end" not in output.split():
        sys.exit(f"exit status {status}: {shlex.join(map(str, command))}\n{output}")
    found = re.findall(r"^(\S+) (\d+) (\d+\.\d+)$", output, re.MULTILINE)
    return {(name, int(size)): float(time) for name, size, time in found}


def main():
    parser = make_parser(__doc__, rounds=3, timeout=600)
    parser.add_argument("--pes", type=int, default=2)
    parser.add_argument("--other-cc", default="/usr/bin/oshcc")
    parser.add_argument("--other-run", default="/usr/bin/oshrun --oversubscribe")
    parser.add_argument(
        "--network", action="store_true", help="the network in place of shared memory"
    )
    parser.add_argument("--rows", nargs="+", default=[], help="such as put barrier; default: all")
    parser.add_argument("--bind", action="store_true", help="each PE has a core of its own")
    options = parser.parse_args()

    folder = Path(tempfile.mkdtemp())
    for name, compiler in (("shoal", options.bin / "oshcc"), ("other", options.other_cc)):
        subprocess.run([compiler, "-O2", "-w", SOURCE, "-o", folder / name], check=True)
    pes = ["-np", options.pes]
    nodes = ["--nodes", options.pes] if options.network else []
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    bind = "core" if options.bind else "none"
    shoal = [options.bin / "oshrun", *pes, *nodes, "--bind", bind, folder / "shoal"]
    other = [*shlex.split(options.other_run), *root, *pes, "--bind-to", bind, folder / "other"]
    between = {"SHOAL_TRANSPORT_BETWEEN": "ofi,ucx"} if options.network else {}
    tcp = {"UCX_TLS": "tcp,self", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
    tcp = tcp if options.network else {}
    runs = {
        "shoal": lambda: rows_of([*shoal, *options.rows], between, options.timeout),
        "other": lambda: rows_of([*other, *options.rows], tcp, options.timeout),
    }
    times = alternate(options.rounds, runs)
    ours, theirs = medians(times["shoal"]), medians(times["other"])
    rows = []
    print(f"{'operation':28}{'bytes':>9}{'Shoal us':>12}{'other us':>12}{'ratio':>8}")
    for row, time in ours.items():
        name, size = row
        ratio = statistics.median(
            other[row] / one[row] for one, other in zip(times["shoal"], times["other"])
        )
        print(f"{name:28}{size:9}{time:12.3f}{theirs[row]:12.3f}{ratio:8.2f}")
        rows.append([name, size, time, theirs[row], round(ratio, 3)])
    result = {
        "pes": options.pes,
        "network": options.network,
        "bound": options.bind,
        "rounds": options.rounds,
        "columns": ["operation", "bytes", "Shoal us", "other us", "ratio"],
        "rows": rows,
    }
    write(options.json, result)


if __name__ == "__main__":
    main()
