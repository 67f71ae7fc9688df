#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a folder of a build that can be copied anywhere: programs, GPU tests, the benchmark and
run-gpu, which runs them. Programs find their libraries in ../lib (the build's own rpath). Every
library that ldd names and that is not part of a base system comes along; a library that cannot be
found is an error, and so is a folder above the limit."""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SIZE_LIMIT = 56 << 20
PROGRAMS = ["shoal-run", "shoal-info", "shoal-moe", "shoal-bench"]
# The last one is of the host side of the GPU backend: it shows that the moved libraries work.
PATTERNS = ["shoal-bench-gpu", "shoal-bench-nvshmem", "gpu_*_test", "nvshmem_gpu_*"]
PATTERNS += ["example_device_ring", "example_hello", "unit_ep_cuda_plan_test"]
# Loaded while programs run; the emulated NICs and the transport over one need no other library.
LOADED = ["shoal/libshoal_transport_verbs.so", "emulator/libibverbs.so.1", "emulator/libmlx5.so.1"]
# In every glibc system (libudev: with util-linux): taken from the target, which has to be no older
# than this machine.
BASE_SYSTEM = re.compile(
    r"^(linux-vdso|ld-linux[-\w]*|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libudev)\.so(\.|$)"
)
# Come with the driver or the CUDA toolkit of the target, and are larger than all of this.
GPU_SYSTEM = re.compile(
    r"^(libcuda|libnvidia-[\w-]+|libnvrtc[\w-]*|libcublas(Lt)?|libnccl)\.so(\.|$)"
)
# pytest imports these. They are copied from the packages of the interpreter of the build.
PYTEST = ["pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"]


def fail(message):
    sys.exit(f"bundle: {message}")


def libraries_of(path):
    """{name: file} of the shared libraries that `path` loads, except those of the systems."""
    # vdso and the loader have no "=>"; a static program has no libraries at all.
    listing = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
    found = {}
    for name, target in re.findall(r"^\s*(\S+) => (not found|\S+)", listing, re.MULTILINE):
        if BASE_SYSTEM.match(name) or GPU_SYSTEM.match(name):
            continue
        if target == "not found":
            fail(f"{path} needs {name}, which ldd does not find")
        found[name] = pathlib.Path(target)
    return found


def install(source, target):
    """A stripped copy with the same rights."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    target.chmod(target.stat().st_mode | stat.S_IWUSR)
    subprocess.run(["strip", "--strip-unneeded", str(target)], check=True)


def copy_python(build, output):
    """Python's packages and pytest, the tests of tests/python and the drivers of the benchmark."""
    # Names of functions that pygments colours are the largest part of pytest.
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "bindings", "*-info", "*_builtins.py")
    shutil.copytree(build / "python", output / "python", ignore=ignored)
    for module in (build / "python/shoal").glob("_core.*.so"):
        install(module, output / "python/shoal" / module.name)
    cache = (build / "CMakeCache.txt").read_text()
    python = re.search(r"^_?Python_EXECUTABLE:\w+=(.+)$", cache, re.MULTILINE)[1]
    command = [python, "-c", "import pytest; print(pytest.__file__)"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    for name in PYTEST if found.returncode == 0 else []:
        folder = pathlib.Path(found.stdout.strip()).parents[1] / name
        shutil.copytree(folder, output / "python" / name, ignore=ignored)
    shutil.copytree(ROOT / "tests/python", output / "tests/python", ignore=ignored)
    shutil.copy(ROOT / "tests/conftest.py", output / "tests/conftest.py")
    sources = shutil.ignore_patterns("*.[ch]*", "*.md", "*.txt", "gpu", "nic", "__pycache__")
    shutil.copytree(ROOT / "bench", output / "bench", ignore=sources)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = {"type": pathlib.Path, "metavar": "FOLDER"}
    parser.add_argument("--build", default="build/release", help="%(default)s", **folder)
    parser.add_argument("--output", default="bundle", help="made anew (%(default)s)", **folder)
    parser.add_argument("--partial", action="store_true", help="without the programs not yet built")
    arguments = parser.parse_args()
    build, output = arguments.build, arguments.output
    if output.exists():
        if any(output.iterdir()) and not (output / "manifest.json").exists():
            fail(f"{output} exists and is no bundle; name another folder with --output")
        shutil.rmtree(output)
    missing = [name for name in PROGRAMS if not (build / "bin" / name).exists()]
    if missing and not arguments.partial:
        fail(f"{build / 'bin'} lacks {', '.join(missing)}; build first: ./run build")

    found = [path for name in [*PROGRAMS, *PATTERNS] for path in (build / "bin").glob(name)]
    programs = sorted(path for path in found if os.access(path, os.X_OK))
    libraries = {}
    for program in programs:
        libraries |= libraries_of(program)
        install(program, output / "bin" / program.name)
    for name, path in libraries.items():
        install(path, output / "lib" / name)
    for name in LOADED:
        if (build / "lib" / name).exists():
            install(build / "lib" / name, output / "lib" / name)
    for program in (output / "bin").iterdir():
        for name, path in libraries_of(program).items():
            if not path.resolve().is_relative_to(output.resolve()):
                fail(f"{program} would load {name} from {path}; remove the build and build again")
    if (build / "python/shoal").exists():
        copy_python(build, output)
    for name in ("run-gpu", "gpu_programs.py"):
        shutil.copy(HERE / name, output / name)

    files = sorted(path for path in output.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    size = sum(path.stat().st_size for path in files)
    names = [path.name for path in programs]
    tests = [name for name in names if name.startswith(("gpu_", "nvshmem_gpu_"))]
    manifest = {"digest": digest, "bytes": size, "libc": os.confstr("CS_GNU_LIBC_VERSION")}
    manifest |= {"libraries": sorted(libraries), "programs": names}
    (output / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    if size > SIZE_LIMIT:
        fail(f"{output} has {size / (1 << 20):.1f} MiB; at most {SIZE_LIMIT >> 20} are allowed")
    print(
        f"{output}: {size / (1 << 20):.1f} MiB, {len(names)} programs ({len(tests)} of them GPU "
        f"tests), {len(libraries)} libraries; made with {manifest['libc']}"
    )


if __name__ == "__main__":
    main()
