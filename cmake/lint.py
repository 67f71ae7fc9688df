#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy (.clang-tidy says which checks) over the library, the programs and the bindings.

Usage: lint.py BUILD [--deep]. BUILD is configured with the preset "lint", several sources to a
unit, so that headers are read once. --deep also runs clang's static analyzer, which takes nine
tenths of the time and looks at the main file of a unit only: then BUILD has to be configured
without SHOAL_UNITY_BUILD. Prints the findings and exits with 1 where there is any.

Units without findings are remembered in ~/.cache/shoal/lint, by all that the result depends on, and
are not checked again. --anew checks all.
"""

import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLANG_TIDY = "clang-tidy-22"
FOLDERS = ("src", "tools", "python")
# FMT_CONSTEVAL: compilers check format strings; the analyzer would reach its limits in that code
# before it sees ours.
COMPILER = ["-Wno-unknown-warning-option", "-Wno-deprecated-declarations", "-DFMT_CONSTEVAL="]
# The insides of templates and of the standard library are not ours: without them the analyzer takes
# a third of the time.
ANALYZER = ["c++-template-inlining=false", "c++-stdlib-inlining=false"]
QUICK_CHECKS = "-clang-analyzer-*,-bugprone-suspicious-include"  # units include sources
NOISE = re.compile(r"^\d+ warnings? |Suppressed|Use -header-filter|Use -system-headers|^\s*$")


CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "shoal" / "lint"
KEPT_SECONDS = 30 * 24 * 3600


def units(build):
    """{file: its compile command} of the sources of FOLDERS, or of the units that hold them;
    without what the build generates."""
    files = {}
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
                    files[file] = entry
                break
    return dict(sorted(files.items()))


@functools.cache
def general_state(deep):
    """Digest of the common input of all results: the tool, its options and the checks."""
    state = hashlib.sha256(Path(__file__).read_bytes() + str(deep).encode())
    state.update(subprocess.run([CLANG_TIDY, "--version"], capture_output=True).stdout)
    for path in sorted([ROOT / ".clang-tidy", *ROOT.glob("*/**/.clang-tidy")]):
        if "build" not in path.relative_to(ROOT).parts:
            state.update(path.read_bytes())
    return state.hexdigest()


@functools.cache
def state_of(path):
    """The content of a file of ours; of others, which come with packages, path and size."""
    if path.is_relative_to(ROOT):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{path} {path.stat().st_size}"


def key_of(entry, deep):
    """Names all that the result depends on; the same in every clone. None: not known."""
    words = [word for word in shlex.split(entry["command"]) if Path(word).name != "ccache"]
    words = words[: words.index("-o")] + words[words.index("-o") + 2 :]
    done = subprocess.run([*words, "-M"], capture_output=True, text=True, cwd=entry["directory"])
    if done.returncode != 0:
        return None
    key = hashlib.sha256(general_state(deep).encode())
    key.update(" ".join(words).replace(str(ROOT), "").encode())
    for name in done.stdout.replace("\\\n", " ").split()[1:]:
        path = Path(os.path.normpath(Path(entry["directory"], name)))
        if "Unity" in path.parts:
            key.update(path.read_text().replace(str(ROOT), "").encode())
        else:
            key.update(state_of(path).encode())
    return key.hexdigest()


def forget_old():
    CACHE.mkdir(parents=True, exist_ok=True)
    for path in CACHE.iterdir():
        if time.time() - path.stat().st_mtime > KEPT_SECONDS:
            path.unlink(missing_ok=True)


def check(build, file, entry, options):
    """(status, findings, whether an earlier result was taken)"""
    key = key_of(entry, options.deep)
    known = CACHE / key if key else None
    if known and known.exists() and not options.anew:
        known.touch()
        return 0, "", True
    status, said = run_tool(build, file, options.deep)
    if status == 0 and known:
        known.touch()
    return status, said, False


def run_tool(build, file, deep):
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
    parser.add_argument("--anew", action="store_true", help="forget earlier results")
    options = parser.parse_args()
    files = units(options.build)
    if not files:
        sys.exit(f"lint: no sources in {options.build}/compile_commands.json")
    forget_old()
    failed = known = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda item: check(options.build, *item, options), files.items())
        for file, (status, said, remembered) in zip(files, results, strict=True):
            known += remembered
            if status != 0:
                failed += 1
                print(f"{os.path.relpath(file, ROOT)}:\n{said}", flush=True)
    print(f"{len(files)} units, {failed} with findings, {known} as in an earlier run")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
