#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Completes a torch wheel that was installed without its GPU libraries (`pip install --no-deps`).

PyPI's Linux wheels of torch are linked against cuBLAS, cuDNN, NCCL and others: 2.4 GB that tests
on the CPU never call, but without which `import torch` fails. This script puts an empty library in
place of each one that is absent. Every function of it reports the failure status 1. The functions
are those that the wheel's own libraries refer to, so the script needs no list of them.

Usage: torch_without_gpu.py PYTHON   (the interpreter of the environment that has the wheel)
Needs: a C compiler and readelf. Running it again changes nothing.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Symbols without a version are attributed to a library by their prefix.
PREFIXES = {
    "libnccl.so": "nccl",
    "libcusparseLt.so": "cusparseLt",
    "libcurand.so": "curand",
    "libnvshmem_host.so": "nvshmem",
    "libcufile.so": "cuFile",
    "libcupti.so": "cupti",
}


def prefix_of(library):
    return PREFIXES.get(library.partition(".so")[0] + ".so", "\0")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(library):
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", output_of("readelf", "-dW", library))


def versions(library):
    """{symbol version: library that defines it}, from the version requirements of `library`."""
    result, file = {}, None
    for line in output_of("readelf", "-VW", library).splitlines():
        if match := re.search(r"File: (\S+)", line):
            file = match[1]
        elif file and (match := re.search(r"Name: (\S+)", line)):
            result[match[1]] = file
    return result


def undefined_functions(library):
    """(name, version or None) of each symbol that `library` takes from others."""
    for line in output_of("readelf", "-W", "--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[6] == "UND":
            name, _, version = fields[7].partition("@")
            yield name, version.lstrip("@") or None


def loaded_at_import(folder):
    """The wheel's libraries that `import torch` loads. Others, such as the one that needs the GPU
    driver, are opened when a GPU is used."""
    reached, open_ = set(), ["libtorch_python.so", "libtorch_global_deps.so"]
    while open_:
        library = folder / open_.pop()
        if library.is_file() and library not in reached:
            reached.add(library)
            open_ += needed(library)
    return sorted(reached)


def missing_libraries(folder):
    """{absent library: {(function, version)}}. Looks where the wheel's run path looks."""
    libraries = loaded_at_import(folder)
    present = {path.name for path in folder.glob("*.so*")}
    present |= {path.name for path in (folder.parents[1] / "nvidia").rglob("*.so*")}
    system = output_of("/sbin/ldconfig", "-p")
    result = {}
    for library in libraries:
        absent = [
            name
            for name in needed(library)
            if name not in present and f"\t{name} " not in system and "ld-linux" not in name
        ]
        if not absent:
            continue
        for name in absent:
            result.setdefault(name, set())
        by_version = versions(library)
        for function, version in undefined_functions(library):
            owner = by_version.get(version)
            if owner is None:
                owner = next(
                    (name for name in absent if function.startswith(prefix_of(name))), None
                )
            if owner in result:
                result[owner].add((function, version))
    return result


def build(target, functions):
    """Compiles the empty library `target`; its functions have the versions that are asked for."""
    by_version = {}
    for function, version in sorted(functions, key=str):
        by_version.setdefault(version, set()).add(function)
    with tempfile.TemporaryDirectory() as temporary:
        source, script = Path(temporary, "empty.c"), Path(temporary, "versions.map")
        names = sorted({function for function, _ in functions})
        source.write_text(
            "".join(f"int {name}(void) {{ return 1; }}\n" for name in names)
            or "typedef int empty;\n"
        )
        script.write_text(
            "".join(
                f"{version} {{ global: {' '.join(f'{name};' for name in sorted(group))} }};\n"
                for version, group in by_version.items()
                if version
            )
        )
        partial = target.with_suffix(".partial")
        subprocess.run(
            [
                "cc",
                "-shared",
                "-fPIC",
                "-w",
                f"-Wl,-soname,{target.name}",
                *([f"-Wl,--version-script={script}"] if script.stat().st_size else []),
                "-o",
                partial,
                source,
            ],
            check=True,
        )
        os.replace(partial, target)


def main(python):
    found = output_of(
        python, "-c", "import importlib.util as u; print(u.find_spec('torch').origin)"
    )
    folder = Path(found.strip()).parent / "lib"
    for name, functions in sorted(missing_libraries(folder).items()):
        build(folder / name, functions)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
