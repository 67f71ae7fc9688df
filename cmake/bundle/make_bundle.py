#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a relocatable folder of a build: bin/, lib/ and the scripts that run the GPU tests and the
benchmark.

A program finds its libraries in ../lib (the build's own rpath), so the folder can be copied
anywhere. Every shared library that ldd names and that is not part of a base system comes along; a
library that cannot be found is an error, and so is a folder above the limit.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SIZE_LIMIT = 50 << 20
PROGRAMS = ["shoal-run", "shoal-info", "shoal-moe", "shoal-bench"]
# Besides all tests of tests/gpu and tests/nvshmem/gpu: examples, and one test of the host side of
# the GPU backend, which shows that the moved libraries work.
OTHERS = ["example_device_ring", "example_hello", "unit_ep_cuda_plan_test"]
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
SCRIPTS = ["run-gpu-tests", "run-gpu-bench", "gpu_machine.py", "gpu_results.py"]


def fail(message):
    sys.exit(f"bundle: {message}")


def libraries_of(path):
    """{name: file} of the shared libraries that `path` loads, those of the systems left out."""
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


def chosen_programs(bin_dir, partial):
    missing = [name for name in PROGRAMS if not (bin_dir / name).exists()]
    if missing and not partial:
        fail(f"{bin_dir} lacks {', '.join(missing)}; build first: ./run build")
    programs = [bin_dir / name for name in PROGRAMS if name not in missing]
    for pattern in [
        "shoal-bench-gpu",
        "shoal-bench-nvshmem",
        "gpu_*_test",
        "nvshmem_gpu_*",
        *OTHERS,
    ]:
        programs += sorted(path for path in bin_dir.glob(pattern) if os.access(path, os.X_OK))
    return programs


def check_relocatable(programs, output):
    """Every library that came along is the one that is loaded, wherever the folder lies."""
    for program in programs:
        for name, path in libraries_of(program).items():
            if not path.resolve().is_relative_to(output.resolve()):
                fail(
                    f"{program} would load {name} from {path}: its rpath is not relative; remove the build folder and build again"
                )


def versions_needed(files):
    """The newest symbol versions that these files want of the target: {"GLIBC": "2.36", "GLIBCXX":
    "3.4.30"}."""
    newest = {}
    for path in files:
        symbols = subprocess.run(
            ["objdump", "-T", str(path)], capture_output=True, text=True, check=True
        ).stdout
        for name, version in re.findall(r"\((GLIBC|GLIBCXX)_([\d.]+)\)", symbols):
            newest[name] = max(
                newest.get(name, "0"),
                version,
                key=lambda text: [int(part) for part in text.split(".")],
            )
    return newest


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--build",
        type=pathlib.Path,
        default=pathlib.Path("build/release"),
        help="the build to take (%(default)s)",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("bundle"),
        help="the folder to make anew (%(default)s)",
    )
    parser.add_argument(
        "--partial",
        action="store_true",
        help="take what is built; without it the programs that users start must be there",
    )
    arguments = parser.parse_args()
    output = arguments.output
    if output.exists():
        if any(output.iterdir()) and not (output / "manifest.json").exists():
            fail(f"{output} exists and is no bundle; name another folder with --output")
        shutil.rmtree(output)

    libraries, installed = {}, []
    for program in chosen_programs(arguments.build / "bin", arguments.partial):
        libraries.update(libraries_of(program))
        install(program, output / "bin" / program.name)
        installed.append(output / "bin" / program.name)
    for name, path in sorted(libraries.items()):
        install(path, output / "lib" / name)
        installed.append(output / "lib" / name)
    for name in LOADED:
        if (arguments.build / "lib" / name).exists():
            install(arguments.build / "lib" / name, output / "lib" / name)
    check_relocatable([path for path in installed if path.parent.name == "bin"], output)
    for name in SCRIPTS:
        shutil.copy(HERE / name, output / name)

    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    tests = [path.name for path in installed if path.name.startswith(("gpu_", "nvshmem_gpu_"))]
    manifest = {
        "bytes": size,
        "needs": versions_needed(installed),
        "libraries": sorted(libraries),
        "programs": [path.name for path in installed if path.parent.name == "bin"],
    }
    (output / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    if size > SIZE_LIMIT:
        fail(f"{output} has {size / (1 << 20):.1f} MiB; at most {SIZE_LIMIT >> 20} are allowed")
    print(
        f"{output}: {size / (1 << 20):.1f} MiB, {len(manifest['programs'])} programs ({len(tests)} of them GPU tests), "
        f"{len(libraries)} libraries; needs {', '.join(f'{name} {version}' for name, version in manifest['needs'].items())}"
    )
    if not tests:
        print(
            "bundle: this build has no GPU tests (no CUDA compiler, or SHOAL_CUDA=OFF)",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
