#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy (.clang-tidy says which checks) over the library, the programs and the bindings.

Usage: lint.py BUILD [--deep]. BUILD is configured with the preset "lint", several sources to a
unit, so that headers are read once. --deep also runs clang's static analyzer, which takes nine
tenths of the time and looks at the main file of a unit only: then BUILD has to be configured
without SHOAL_UNITY_BUILD. Prints the findings and exits with 1 where there is any.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLANG_TIDY = "clang-tidy-22"
FOLDERS = ("src", "tools", "python")
# FMT_CONSTEVAL: compilers check format strings; the analyzer would reach its limits in that code
# before it sees ours.
COMPILER = ["-Wno-unknown-warning-option", "-Wno-deprecated-declarations", "-DFMT_CONSTEVAL="]
# What templates and the standard library do inside is not ours: without them the analyzer takes a
# third of the time.
ANALYZER = ["c++-template-inlining=false", "c++-stdlib-inlining=false"]
QUICK_CHECKS = "-clang-analyzer-*,-bugprone-suspicious-include"  # units include sources
NOISE = re.compile(r"^\d+ warnings? |Suppressed|Use -header-filter|Use -system-headers|^\s*$")


def units(build):
    """The sources of FOLDERS, or the units that hold them, each once; without what the build
    generates."""
    files = set()
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = Path(entry["file"])
        for base in (build, ROOT):
            if file.is_relative_to(base):
                parts = file.relative_to(base).parts
                if (
                    parts[0] in FOLDERS
                    and file.suffix in (".cpp", ".cxx")
                    and file.exists()
                    and (base == ROOT or "Unity" in parts)
                ):
                    files.add(file)
                break
    return sorted(files)


def check(build, file, deep):
    extra = list(COMPILER)
    if deep:
        for option in ANALYZER:
            extra += ["-Xclang", "-analyzer-config", "-Xclang", option]
    command = [
        CLANG_TIDY,
        "-p",
        build,
        "--quiet",
        *([] if deep else [f"--checks={QUICK_CHECKS}"]),
        *(f"--extra-arg={argument}" for argument in extra),
        file,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    said = "\n".join(
        line for line in (done.stdout + done.stderr).splitlines() if not NOISE.search(line)
    )
    return done.returncode, said


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=lambda text: Path(text).resolve())
    parser.add_argument("--deep", action="store_true")
    options = parser.parse_args()
    files = units(options.build)
    if not files:
        sys.exit(f"lint: no sources in {options.build}/compile_commands.json")
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, (status, said) in zip(
            files,
            pool.map(lambda file: check(options.build, file, options.deep), files),
            strict=True,
        ):
            if status != 0:
                failed += 1
                print(f"{os.path.relpath(file, ROOT)}:\n{said}", flush=True)
    print(f"{len(files)} units, {failed} with findings")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
