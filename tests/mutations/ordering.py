# SPDX-License-Identifier: Apache-2.0
"""Mutations of fence and quiet, each of which must make a test over the emulated NIC fail,
which lets writes become visible in any order: threads/transport/verbs_test.cpp, or
tests/shmem/order.c by the test shmem/verbs/order.

Usage: ordering.py [NAME...]. Exits with 1 when a mutation survives or its place is not found. Works
on a copy of the tree in build/mutations. A run takes about twenty minutes on two cores, half of it
for the first build.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from loop import NotRun, replace_in, run_mutations, run_tests

ROOT = Path(__file__).parents[2]
COPY = ROOT / "build/mutations/tree"
BUILD = COPY / "build/release"
TARGETS = ["threads_transport_verbs_test", "tests_shmem"]
TIMEOUT_S = 300

# (what is wrong, file, text, replacement)
MUTATIONS = [
    (
        "fences of networks do nothing",
        "src/transport/message/engine.cpp",
        "  if (network_->writing(peer) || !not_before(peer.acknowledged, peer.counted)) peer.fenced = true;",
        "  (void)peer;",
    ),
    (
        "World::fence does nothing",
        "src/rma/operations.cpp",
        "  state().fabric().fence();",
        "  (void)state();",
    ),
    ("shmem_fence does nothing", "src/shmem/program.cpp", "return world.fence();", "return;"),
    (
        "fence of a private context does nothing",
        "src/shmem/program.cpp",
        "    routes_[static_cast<std::size_t>(pe)]->fence(pe);",
        "    (void)pe;",
    ),
    (
        "private contexts do not record where their operations go",
        "src/shmem/program.hpp",
        "if (found.records && !peer.mapped && !peer.in_use) {",
        "if (found.records && peer.mapped && !peer.in_use) {",
    ),
    (
        "quiet of a private context does not wait",
        "src/shmem/program.cpp",
        "    wait_for_used(found);",
        "    if (found.destroyed) wait_for_used(found);",
    ),
    (
        "quiet of a private context leaves out gets",
        "src/shmem/rma.cpp",
        "context.fetches |= !program.is_mapped(from.pe);",
        "context.fetches |= program.is_mapped(from.pe);",
    ),
    (
        "quiet of a private context waits for no get",
        "src/shmem/program.cpp",
        "    world.quiet();\n    found.fetches = false;",
        "    found.fetches = false;",
    ),
    (
        "quiet towards some PEs does nothing",
        "src/shmem/order.cpp",
        "    if (count != 0) program.quiet(ctx);",
        "    if (count == 0) program.quiet(ctx);",
    ),
    (
        "World::quiet does nothing",
        "src/rma/operations.cpp",
        "  state().quiet();",
        "  (void)state();",
    ),
    (
        "quiet of networks does not wait",
        "src/transport/message/engine.cpp",
        "      if (!done || peer.reads != 0) all = false;",
        "      if (!done && peer.lost) all = false;",
    ),
]


def path_of(file):
    return Path(file)


def copy_tree():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.split("\0"):
        source, target = ROOT / name, COPY / name
        if not name or not source.is_file():
            continue
        # Files that are as before keep their time, so that they are not compiled again.
        if target.is_file() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def build():
    done = subprocess.run(
        ["cmake", "--build", BUILD, "--target", *TARGETS, "shoal-run", "shoal_modules"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout[-2000:]


def run_all():
    """What fails."""
    noticed = run_tests(
        [
            BUILD / "bin/threads_transport_verbs_test",
            "--gtest_filter=*VerbsTier.FenceOrdersPuts/unordered",
        ],
        TIMEOUT_S,
    )
    done = subprocess.run(
        ["ctest", "--test-dir", BUILD, "-R", "^shmem/verbs/order$"],
        capture_output=True,
        text=True,
        check=False,
    )
    if "No tests were found" in done.stdout + done.stderr:
        raise NotRun("the build has no tests over verbs")
    failed = re.findall(r"\d+ - (shmem/\S+) \(", done.stdout)
    return ", ".join([*filter(None, [noticed]), *failed])


def main(wanted):
    copy_tree()
    options = ["-DSHOAL_UNITY_BUILD=ON", "-DSHOAL_BUILD_BENCH=OFF"]
    if shutil.which("ccache"):  # finds what the tree itself has compiled, as ./run
        os.environ.update(
            CCACHE_SLOPPINESS="pch_defines,time_macros",
            CCACHE_BASEDIR=str(COPY),
            CCACHE_NOHASHDIR="1",
            CCACHE_PCH_EXTSUM="1",
        )
        options += [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("CXX", "CUDA")]
    subprocess.run(
        ["cmake", "--preset", "release", *options], cwd=COPY, check=True, stdout=subprocess.DEVNULL
    )
    failed = build() or run_all()
    if failed:
        print(f"tests fail without a mutation: {failed}")
        return 1

    def notice(file, text, replacement):
        path = COPY / path_of(file)
        before = path.read_text()
        try:
            replace_in(path, text, replacement)
            if build():
                raise NotRun("does not compile")
            return run_all()
        finally:
            path.write_text(before)

    return run_mutations(MUTATIONS, wanted, notice)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
