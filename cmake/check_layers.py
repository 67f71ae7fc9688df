#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the structure of the source tree: which layer includes which, length of files, and that
device code has no state outside its parameters. cmake/check_prose.py checks the prose.

Usage: check_layers.py [ROOT]. Prints each fault as "file:line: what is wrong" and exits with 1 when
there is any, else 0.
"""

import re
import sys
from pathlib import Path

# A layer may include itself and those before it (docs/internals/architecture.md).
LAYERS = [
    "base",
    "bootstrap",
    "topology",
    "memory",
    "transport",
    "record",
    "pe",
    "world",
    "fabric",
    "team",
    "heap",
    "device",
    "rma",
    "startup",
    "collective",
    "ep",
    "capi",
    "shmem",
    "nvshmem",
]
# The file that knows all transports; any other outside transport/<x>/ must not include a header of
# it.
TRANSPORT_REGISTRY = "src/transport/factories.cpp"
# The message core, and the transports on top of it.
MESSAGE_CORE = "message"
NETWORK_TRANSPORTS = {"ofi", "ucx", "verbs"}
MAX_LINES = 600
SOURCE_FOLDERS = ["include", "src", "emulator", "tools", "tests", "bench", "python"]
SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".h"}
# Bindings, tools and benchmarks use the public headers, and of src/ only what is listed here: a
# header, or a folder with a slash at its end, for the files whose names begin so.
PUBLIC_ONLY = ("python/", "tools/", "bench/")
INTERNALS = {
    # Header-only: rounding up; the message of a public Error; files at predictable names.
    ("tools/", "bench/"): ("base/align.hpp", "base/check.hpp", "base/files.hpp"),
    # A ring that a thread posts to.
    ("bench/proxy_bench.cpp",): (
        "transport/proxy.hpp",
        "transport/proxy/thread_platform.hpp",
        "fabric/fabric.hpp",
        "world/state.hpp",
    ),
    # The trial of first operations, made again.
    ("bench/start_bench.cpp",): ("fabric/fabric.hpp", "fabric/trial.hpp", "world/state.hpp"),
    # The text of an errno.
    ("bench/verbs_raw_bench.cpp",): ("base/system_error.hpp",),
    # Header-only: the formats of mlx5 queues.
    ("bench/verbs_raw_direct.hpp",): ("base/mlx5/",),
    # Header-only: how programs are started.
    ("tools/command_line/",): ("base/nearest.hpp",),
    ("tools/run/job.cpp",): ("base/process_environment.hpp",),
    # shoal-run writes its own messages to the log.
    ("tools/run/main.cpp",): ("base/log.hpp",),
    # shoal-info reports the parts of a build and of a machine that programs never see.
    ("tools/info/",): (
        "base/plugin.hpp",
        "bootstrap/launcher/",
        "ep/host/loads.hpp",
        "memory/device.hpp",
        "topology/",
        "transport/module.hpp",
        "transport/verbs/requirements.hpp",
    ),
    # Header-only: the bound of the error of a combined value.
    ("tools/moe/", "bench/"): ("ep/plan/combine_error.hpp",),
    # shoal-moe computes the sums and roundings of its reference as the library does, bit by bit.
    ("tools/moe/",): ("ep/numeric/", "memory/device.hpp"),
    # The baselines over MPI move rows with the library's own row operations; one benchmark measures
    # these operations, and the report names their instruction set.
    (
        "bench/ep_bench.cpp",
        "bench/report.cpp",
        "bench/row_ops_bench.cpp",
        "bench/shoal_bench_mpi.cpp",
    ): ("ep/host/rows/row_ops.hpp",),
    # deep_ep's combine holds a stream until a GEMM has signalled; C++ programs use events.
    ("python/bindings/ep/signals.cpp",): ("ep/cuda/low_latency/wait_signals.hpp",),
    # deep_ep's low-latency dispatch quantizes received rows; C++ programs have no such call.
    ("python/bindings/ep/nvfp4.cpp",): ("ep/cuda/low_latency/quantize_nvfp4.hpp",),
    # deep_ep has forms of a routing that C++ programs do not.
    ("python/bindings/ep/routing_maps.cpp",): ("ep/cuda/normal/routing_maps.hpp",),
    # Header-only: queues whose rate a study measures.
    ("bench/nic/",): ("base/mlx5/", "transport/gda/"),
    # Kernels that measure the copies of the library's kernels; experts that quantize as they do.
    ("bench/gpu/",): ("ep/cuda/device/", "ep/numeric/"),
    # The memory map that tools/figures draws is that of the layout code.
    ("tools/figures/",): ("ep/cuda/layout.hpp", "ep/host/layout.hpp"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
# The emulated NIC uses src/base alone, and its engine nothing but itself. Tests and benchmarks use
# it; the library and its programs do not.
EMULATOR, EMULATOR_USES, ENGINE = "emulator/", "base", "emulator/engine/"
WITHOUT_EMULATOR = ("include/", "src/", "python/", "tools/")
# Kernels receive their world as a parameter: a process holds several worlds, and several libraries
# that contain Shoal's kernels. They would share a variable of device code, or need device linking.
DEVICE_FOLDERS = ("include/", "src/")
# Programs of this interface take no world as parameter: each of their translation units has one.
DEVICE_STATE = "include/shoal/nvshmem/device/state.cuh"
# And directives.
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE | re.DOTALL)
# Of a declaration, though it looks like one.
NO_END = re.compile(
    r"\b(?:__align__|__launch_bounds__|alignas)\s*\([^()]*\)|\boperator\s*[^\w\s(]+"
)
DEVICE_VARIABLE = re.compile(r"\b(?:__constant__|__managed__|__device__(?=[^;{}()=]*[;{=]))")
# Without tests/: programs of users link device code.
CMAKE_FOLDERS = [*(name for name in SOURCE_FOLDERS if name != "tests"), "cmake", "examples"]
DEVICE_LINKING = re.compile(
    r"-rdc\b|-relocatable-device-code\b|(?<=[\s\"';:=])-dc\b|CUDA_(?:SEPARABLE_COMPILATION|RESOLVE_DEVICE_SYMBOLS)\b"
)


def layer_of(path):
    """The layer that a path below src/ belongs to, or None. "memory" alone is a standard header."""
    first, slash, _ = path.partition("/")
    return first if slash and first in LAYERS else None


def transport_of(path):
    """x for a path transport/x/..., or None."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "transport" else None


def resolve(root, file, target):
    """The path of an included file below src/, or None when it is not one of ours. Handles "x.hpp"
    beside the file and "../x.hpp"."""
    for base in (file.parent, root / "src"):
        candidate = (base / target).resolve()
        if candidate.is_file() and candidate.is_relative_to(root / "src"):
            return candidate.relative_to(root / "src").as_posix()
    # Bindings and programs have folders named as layers: their own headers are none of src/.
    if any((folder / target).is_file() for folder in file.parents if root in folder.parents):
        return None
    return target if layer_of(target) else None


def is_allowed_internal(name, included):
    """Whether a file of PUBLIC_ONLY may include a header of src/."""
    for files, headers in INTERNALS.items():
        if name.startswith(files):
            for header in headers:
                if included == header or (header.endswith("/") and included.startswith(header)):
                    return True
    return False


def include_fault(root, file, target):
    """What is wrong with `file` including `target`, or None."""
    name = file.relative_to(root).as_posix()
    if name.startswith(ENGINE) and "/" in target and (root / EMULATOR / target).is_file():
        if not (EMULATOR + target).startswith(ENGINE):
            return f'the engine includes "{target}"; allowed: {ENGINE}'
        return None
    included = resolve(root, file, target)
    if included is None:
        if name.startswith(WITHOUT_EMULATOR) and (root / EMULATOR / target).is_file():
            return f'"{target}" belongs to {EMULATOR}; only tests and benchmarks may include it'
        return None
    if name.startswith("include/"):
        return f'public header includes the internal "{target}"'
    if name.startswith(PUBLIC_ONLY):
        if is_allowed_internal(name, included):
            return None
        return f'"{target}" is internal; {name.split("/")[0]}/ uses public headers (INTERNALS lists the exceptions)'
    if name.startswith(EMULATOR) and layer_of(included) != EMULATOR_USES:
        return f'the emulator includes "{target}"; allowed: layer {EMULATOR_USES}'
    if not name.startswith("src/"):
        return None
    own, other = layer_of(name.removeprefix("src/")), layer_of(included)
    if own and other and LAYERS.index(other) > LAYERS.index(own):
        return f'layer {own} includes "{target}" of layer {other}; allowed: {", ".join(LAYERS[: LAYERS.index(own) + 1])}'
    transport = transport_of(included)
    includer = transport_of(name.removeprefix("src/"))
    if (
        transport
        and transport != includer
        and not (transport == MESSAGE_CORE and includer in NETWORK_TRANSPORTS)
        and name != TRANSPORT_REGISTRY
    ):
        return (
            f'"{target}" belongs to transport {transport}; only {TRANSPORT_REGISTRY} may include it'
        )
    return None


def blanked(pattern, text):
    """`text` with what matches as blanks: places stay where they were."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def device_faults(name, text):
    """Variables of device code: what begins like one and does not go on like a function."""
    code = blanked(NO_END, blanked(COMMENT, text))
    for match in DEVICE_VARIABLE.finditer(code):
        yield f"{name}:{code.count(chr(10), 0, match.start()) + 1}: a {match.group()} variable; kernels get what they need as parameters"


def cmake_faults(root):
    folders = [file for folder in CMAKE_FOLDERS for file in (root / folder).rglob("*")]
    for file in sorted([*root.glob("*"), *folders]):
        if not file.is_file() or not (
            file.name in ("CMakeLists.txt", "CMakePresets.json") or file.suffix in (".cmake", ".in")
        ):
            continue
        for number, line in enumerate(
            file.read_text(encoding="utf-8", errors="replace").splitlines(), 1
        ):
            match = DEVICE_LINKING.search(" " + line.partition("#")[0])
            if match:
                yield f"{file.relative_to(root).as_posix()}:{number}: {match.group().strip()}: device code is not linked; each kernel is whole"


def file_faults(root, file):
    name = file.relative_to(root).as_posix()
    text = file.read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    if name.startswith(DEVICE_FOLDERS) and name != DEVICE_STATE:
        yield from device_faults(name, text)
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        fault = include_fault(root, file, match.group(1)) if match else None
        if fault:
            yield f"{name}:{number}: {fault}"
    if len(lines) > MAX_LINES:
        yield f"{name}:{MAX_LINES + 1}: {len(lines)} lines; allowed: {MAX_LINES}"


def faults(root):
    root = Path(root).resolve()
    for folder in SOURCE_FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                yield from file_faults(root, file)
    yield from cmake_faults(root)


def main(arguments):
    root = arguments[0] if arguments else Path(__file__).parents[1]
    found = list(faults(root))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
