# SPDX-License-Identifier: Apache-2.0
"""Makes mutations of the sources one by one and checks that the named test fails.

A mutation is a row of mutations.toml: what is wrong, file, test, text, replacement. An area of
mutations is built from a copy of the tree in build/mutations: either a list of sources that become
one program, or targets of the tree's own build.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("mutations.toml")
WORK = ROOT / "build/mutations"
TREE = WORK / "tree"
CCACHE = shutil.which("ccache") or ""
SECONDS = 60  # a test that takes longer has failed: mutations may hang

CXX = os.environ.get("CXX", "c++")
LIBRARIES = "-lgtest -lgtest_main -lfmt -lspdlog -lpthread"
LINKER = "-fuse-ld=mold" if shutil.which("mold") else ""
RULES = f"""\
rule compile
  command = {CCACHE} {CXX} -std=c++20 -w -MMD -MF $out.d $flags -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = {CXX} $flags {LINKER} $in -o $out {LIBRARIES}
"""


class NotRun(Exception):
    """A mutation could not be tried."""


@dataclass
class Mutation:
    what: str
    file: str
    test: str
    text: str
    replacement: str


def read_table():
    """Areas by name; `mutations` of each are Mutations with paths from the root of the tree."""
    areas = tomllib.loads(TABLE.read_text())
    for area in areas.values():
        area["mutations"] = [Mutation(*row) for row in area["mutations"]]
        for mutation in area["mutations"]:
            mutation.file = str(Path(area["folder"]) / mutation.file)
    return areas


def finish(command, **options):
    """The exit status of a command, and what it printed."""
    done = subprocess.run(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        **options,
    )
    return done.returncode, done.stdout


class Program:
    """An area whose sources become one program of GoogleTest."""

    def __init__(self, name, area):
        self.folder = WORK / name
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = " ".join([*area["flags"], *(f"-I{folder}" for folder in area["include"])])
        flags += "".join(f" -isystem {cuda_headers()}" for _ in range(area.get("cuda", False)))
        objects, lines = [], [RULES]
        for pattern in area["sources"]:
            for source in sorted(TREE.glob(pattern)):
                name = source.relative_to(TREE)
                objects.append(f"{self.folder / str(name).replace('/', '_')}.o")
                lines.append(f"build {objects[-1]}: compile {name}\n  flags = {flags}\n")
        lines.append(f"build {self.folder}/tests: link {' '.join(objects)}\n  flags = {flags}\n")
        (self.folder / "build.ninja").write_text("".join(lines))

    def build(self):
        status, said = finish(["ninja", "-C", TREE, "-f", self.folder / "build.ninja"])
        return said if status else ""

    def failed(self, test):
        command = [self.folder / "tests", "--gtest_brief=1", f"--gtest_filter={test}"]
        try:
            status, said = finish(command, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return "the test does not end"
        if "[==========] 0 tests" in said or "Running 0 tests" in said:
            raise NotRun(f"there is no test {test}")
        names = sorted(set(re.findall(r"^\[  FAILED  \] ([\w/.]+)", said, re.MULTILINE)))
        return ", ".join(names[:3]) or (f"the tests end with status {status}" if status else "")


class Targets:
    """An area whose tests are in the tree's own build, without CUDA."""

    OPTIONS = ("-DSHOAL_CUDA=OFF", "-DSHOAL_UNITY_BUILD=ON", "-DSHOAL_BUILD_BENCH=OFF")
    FOLDER = TREE / "build/release"

    def __init__(self, name, area):
        self.targets = area["targets"]
        launcher = [f"-DCMAKE_{of}_COMPILER_LAUNCHER=ccache" for of in ("C", "CXX") if CCACHE]
        status, said = finish(["cmake", "--preset", "release", *self.OPTIONS, *launcher], cwd=TREE)
        if status:
            sys.exit(f"{name}: cmake fails:\n{said[-2000:]}")

    def build(self):
        status, said = finish(["cmake", "--build", self.FOLDER, "--target", *self.targets])
        return said if status else ""

    def failed(self, test):
        status, said = finish(
            ["ctest", "--test-dir", self.FOLDER, "--timeout", SECONDS, "-R", f"^({test})$"]
        )
        if "No tests were found" in said:
            raise NotRun(f"there is no test {test}")
        return ", ".join(re.findall(r"\d+ - (\S+) \(", said)[:3]) if status else ""


def cuda_headers():
    """The folder of cuda_runtime.h."""
    homes = [Path(os.environ["CUDA_HOME"])] if "CUDA_HOME" in os.environ else []
    if compiler := shutil.which("nvcc"):
        homes.append(Path(compiler).resolve().parents[1])
    for home in homes:
        for header in home.glob("**/include/cuda_runtime.h"):
            return header.parent
    sys.exit("CUDA's headers are not found; set CUDA_HOME")


def copy_tree():
    """Files that are as before keep their time, so that they are not compiled again."""
    _, listed = finish(["git", "ls-files", "-z"], cwd=ROOT)
    names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for name in names:
        source, target = ROOT / name, TREE / name
        if target.is_file() and source.read_bytes() == target.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    for path in TREE.rglob("*"):
        name = path.relative_to(TREE)
        if path.is_file() and str(name) not in names and name.parts[0] != "build":
            path.unlink()


def notice(build, mutation):
    """Failures with the mutation; an empty text where its test passes."""
    path = TREE / mutation.file
    before = path.read_text()
    if (count := before.count(mutation.text)) != 1:
        raise NotRun(f"{mutation.file} has the text {count} times")
    try:
        path.write_text(before.replace(mutation.text, mutation.replacement))
        if said := build.build():
            raise NotRun(f"does not compile:\n{said[-2000:]}")
        return build.failed(mutation.test)
    finally:
        path.write_text(before)


def run_area(name, area, mutations):
    """Prints what notices each mutation. Returns how many survive or could not be tried."""
    build = (Targets if "targets" in area else Program)(name, area)
    if said := build.build():
        print(f"{name}: does not compile without a mutation:\n{said[-2000:]}")
        return 1
    joint = "|" if "targets" in area else ":"
    if failed := build.failed(joint.join(sorted({one.test for one in mutations}))):
        print(f"{name}: without a mutation fails {failed}")
        return 1
    bad = 0
    for mutation in mutations:
        try:
            noticed = notice(build, mutation)
        except NotRun as reason:
            noticed = f"NOT RUN: {reason}"
        bad += noticed == "" or noticed.startswith("NOT RUN")
        print(f"{name}: {mutation.what}: {noticed or 'SURVIVES'}", flush=True)
    return bad


def main():
    parser = argparse.ArgumentParser(prog="run mutations", description=__doc__.splitlines()[0])
    parser.add_argument("wanted", nargs="*", help="areas or names of mutations; none: all")
    parser.add_argument("--list", action="store_true", help="print areas and names")
    arguments = parser.parse_args()
    areas, wanted = read_table(), set(arguments.wanted)
    chosen = {
        name: [one for one in area["mutations"] if not wanted or wanted & {name, one.what}]
        for name, area in areas.items()
    }
    known = set(areas) | {one.what for area in areas.values() for one in area["mutations"]}
    if wanted - known:
        parser.error(f"neither an area nor a mutation: {', '.join(sorted(wanted - known))}")
    if arguments.list:
        for name, mutations in chosen.items():
            print(f"{name}:", *(f"  {one.what}" for one in mutations), sep="\n")
        return 0
    copy_tree()
    bad = sum(run_area(name, areas[name], rows) for name, rows in chosen.items() if rows)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
