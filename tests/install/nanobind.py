#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the extension module of a build with the oldest nanobind that pyproject.toml allows, and
runs tests with it. The build itself has the newest one.

Usage: nanobind.py BUILD, with the Python of the build. Objects go to BUILD/nanobind-VERSION; the
libraries are those of the build.
"""

import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ["tests/python/test_world.py", "tests/python/test_ep.py"]


def oldest():
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    (found,) = (re.match(r"nanobind>=([\d.]+),", one) for one in requires if "nanobind" in one)
    return found[1]


def run(command, folder):
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{shlex.join(command)}\n{result.stdout}{result.stderr}")


def commands_with(build, to):
    """(compilations, link) of the module in `build`, with the nanobind and the outputs in `to`."""
    listing = subprocess.run(
        ["ninja", "-C", build, "-t", "commands", "shoal_python"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    # Absolute paths, because the commands run in the build folder.
    listing = re.sub(r"(-I|\s)/\S*/site-packages/nanobind/", rf"\1{to}/site/nanobind/", listing)
    listing = listing.replace("python/bindings/CMakeFiles/shoal_python.dir", f"{to}/objects")
    lines = listing.splitlines()
    compilations = [
        [word for word in shlex.split(line) if word != "-Werror"]
        for line in lines
        if " -c " in line and f" -o {to}/objects/" in line
    ]
    own = shlex.split(next(line for line in lines if "-DNB_BUILD" in line))
    core = f"{to}/objects/nb_combined.cpp.o"
    own = own[: own.index("-MD")] + ["-o", core, "-c", f"{to}/site/nanobind/src/nb_combined.cpp"]
    (link,) = (line for line in lines if " -shared " in line and " -o python/shoal/_core." in line)
    link = link.replace("lib/libnanobind-static.a", core)
    # From the package the module's own path does not lead to the libraries of the build.
    link = link.replace(" -shared ", f" -shared -Wl,-rpath,{build}/lib ")
    link = link.replace(" -o python/shoal/", f" -o {to}/python/shoal/")
    return [own, *compilations], link


def main():
    build, version = pathlib.Path(sys.argv[1]).resolve(), oldest()
    to = build / f"nanobind-{version}"
    if not (to / f"site/nanobind-{version}.dist-info").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += ["--no-deps", "--target", to / "site", f"nanobind=={version}"]
        subprocess.run(pip, check=True)
    (to / "python/shoal").mkdir(parents=True, exist_ok=True)
    for entry in [*(ROOT / "python/shoal").iterdir(), ROOT / "python/deep_ep"]:
        link = to / entry.relative_to(ROOT)
        if not link.is_symlink() and entry.name != "__pycache__":
            link.symlink_to(entry)
    compilations, link = commands_with(build, to)
    for command in compilations:
        pathlib.Path(command[command.index("-o") + 1]).parent.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda command: run(command, build), compilations))
    run(["sh", "-c", link], build)
    environment = os.environ | {"PYTHONPATH": str(to / "python"), "SHOAL_BIN_DIR": f"{build}/bin"}
    check = "import shoal._core as c, sys; sys.exit(not c.__file__.startswith(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", check, str(to)], check=True, env=environment)
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *TESTS]
    subprocess.run(pytest, check=True, cwd=ROOT, env=environment)
    print(f"nanobind {version}: {len(compilations)} files compiled, the module works")


main()
