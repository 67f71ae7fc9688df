# SPDX-License-Identifier: Apache-2.0
"""Mutations of the collectives in kernels, each of which must make
tests/threads/collective/device_test.cpp fail.

Usage: device_collectives.py [NAME...]. Needs CUDA's headers (CUDA_HOME, or beside nvcc). Exits with
1 when a mutation survives or its place is not found. A run takes about ten minutes on two cores.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from loop import NotRun, replace_in, run_mutations, run_tests

ROOT = Path(__file__).resolve().parents[2]
COMPILER = [os.environ.get("CXX", "c++"), "-std=c++20", "-O0", "-w", "-ffp-contract=off"]
LIBRARIES = ["-lgtest", "-lgtest_main", "-lpthread"]
SOURCES = [
    "tests/threads/collective/device_test.cpp",
    "tests/fake_gpu/fake_gpu.cpp",
    "src/collective/reduce_kernel.cpp",
]
TIMEOUT_S = 120
FOLDER = Path("include/shoal/device/detail/collective")

# (what is wrong, file, text, replacement)
MUTATIONS = [
    ("packets of all epochs share a half", "packets.cuh", "(epoch % 2)", "(epoch * 0)"),
    (
        "a packet is taken before it has come",
        "packets.cuh",
        "missing |= epochs[i] == epoch ? 0 : 1U << i",
        "missing |= 0",
    ),
    (
        "a broadcast waits for its root alone",
        "packets.cuh",
        "(sender < 0 || pe == sender || k == 0)",
        "(sender < 0 || pe == sender)",
    ),
    (
        "the end of unaligned data is left out",
        "packets.cuh",
        "    data |= bits << (8 * i);",
        "    if (i + 1 < left) data |= bits << (8 * i);",
    ),
    (
        "targets are written before all have entered",
        "arrival.cuh",
        "pe < team.size && ok;",
        "false;",
    ),
    (
        "a collective ends before all have finished",
        "arrival.cuh",
        "ok = await_all(crew, world, team, epoch) && ok;",
        "",
    ),
    (
        "epochs stand still",
        "arrival.cuh",
        "crew.count_last(team)) *team.epoch = epoch;",
        "crew.count_last(team)) return;",
    ),
    ("one shot in place", "plan.hpp", "!shape.in_place &&", ""),
    (
        "shares overlap",
        "plan.hpp",
        "count - begin < share ? count - begin : share",
        "count - begin",
    ),
    (
        "every group is the last",
        "crew.cuh",
        "if (atomicAdd(finished, 1ULL) != gridDim.x - 1) return false;",
        "",
    ),
    ("the first PE is added twice", "reduction.cuh", "first + j == 0)", "false)"),
    ("units at the end are left out", "reduction.cuh", "count - units * kWide)", "0)"),
    (
        "large broadcasts are read from the first PE",
        "movement.cuh",
        "on_pe(world, team, source, root)",
        "on_pe(world, team, source, 0)",
    ),
    ("a block too large is copied", "movement.cuh", "bytes = v.receive_room[pe];", ""),
]


def path_of(file):
    return FOLDER / file


def cuda_headers():
    """The folder of cuda_runtime.h."""
    home = os.environ.get("CUDA_HOME")
    places = [Path(home) / "include"] if home else []
    if compiler := shutil.which("nvcc"):
        places += (Path(compiler).resolve().parents[1]).glob("**/include")
    for place in places:
        if (place / "cuda_runtime.h").is_file():
            return place
    sys.exit("CUDA's headers are not found; set CUDA_HOME")


def compile_test(tree, output):
    folders = [ROOT / "tests/fake_gpu", tree / "include", ROOT / "include"]
    folders += [ROOT / "tests", ROOT / "src"]
    flags = [flag for folder in folders for flag in ("-I", str(folder))]
    flags += ["-isystem", str(cuda_headers()), "-DSHOAL_WITH_CUDA=1"]
    command = [*COMPILER, *flags, *(str(ROOT / source) for source in SOURCES)]
    return subprocess.run([*command, "-o", str(output), *LIBRARIES], check=False).returncode == 0


def main(wanted):
    with tempfile.TemporaryDirectory() as name:
        tree, program = Path(name) / "tree", Path(name) / "test"
        if not compile_test(ROOT, program) or (failed := run_tests([program], TIMEOUT_S)):
            print(f"tests fail without a mutation: {failed}")
            return 1

        def notice(file, text, replacement):
            shutil.rmtree(tree, ignore_errors=True)
            shutil.copytree(ROOT / "include/shoal", tree / "include/shoal")
            replace_in(tree / path_of(file), text, replacement)
            if not compile_test(tree, program):
                raise NotRun("does not compile")
            return run_tests([program], TIMEOUT_S)

        return run_mutations(MUTATIONS, wanted, notice)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
