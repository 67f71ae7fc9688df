#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the structure of the source tree: that includes resolve, which room includes which, that
no files and no folders include each other, length of files, and that device code has no state
outside its parameters. cmake/check_prose.py checks the prose.

Usage: check_layers.py [ROOT]. Prints each fault as "file:line: what is wrong" and exits with 1 when
there is any, else 0.
"""

import re
import sys
from pathlib import Path, PurePosixPath

# Rooms that the files of a room may include in addition to their own, by the last word of their
# names. A room is a folder with its subfolders, except those that are rooms themselves.
ROOMS = {
    "include": "",
    "src/base": "include",
    "src/bootstrap": "include base",
    "src/topology": "include base",
    "src/memory": "include base",
    "src/transport": "include base memory",
    "src/record": "include base memory",
    "src/pe": "include base topology memory transport record",
    "src/fabric": "include base topology memory transport pe",
    "src/world": "include record pe",
    "src/team": "include base record pe fabric world",
    "src/heap": "include base memory pe fabric world team",
    "src/device": "include base memory transport pe fabric world team",
    "src/rma": "include base transport pe fabric world team device",
    "src/startup": "include base bootstrap topology memory transport record pe fabric world team heap device rma",
    "src/collective": "include base memory pe fabric world team device",
    "src/ep": "include base memory transport record pe fabric world team heap device collective",
    "src/capi": "include base",
    "src/shmem": "include base transport pe fabric world team rma collective",
    "src/nvshmem": "include base memory pe world team rma collective shmem",
    # The core never names a transport. Networks share the message core.
    "src/transport/registry": "include base memory transport self shm cuda_p2p staged",
    "src/transport/message": "include base memory transport",
    "src/transport/proxy": "include base memory transport",
    "src/transport/self": "include base memory transport",
    "src/transport/shm": "include base memory transport",
    "src/transport/cuda_p2p": "include base memory transport",
    "src/transport/staged": "include base memory transport",
    "src/transport/ofi": "include base memory transport message",
    "src/transport/ucx": "include base memory transport message",
    "src/transport/verbs": "include base memory transport message",
    "emulator": "include base engine",
    "emulator/engine": "",
    "emulator/tests": "include base emulator engine tests",
    # INTERNALS lists the headers of src/ that these may include.
    "python": "include",
    "tools": "include",
    "bench": "include tools emulator engine",
    "tests": None,  # everything
}
# Their folders may include each other.
WITH_CYCLES = ("tests/", "emulator/tests/")
# Programs name the paths of the headers in these folders, so layers cannot be folders there: each
# header counts as a folder of its own.
PUBLIC_FOLDERS = ("include", "include/shoal", "include/shoal/device")
MAX_LINES = 600
SOURCE_FOLDERS = ["include", "src", "emulator", "tools", "tests", "bench", "python"]
# Folders in which an include is searched for, after the folder of its file; CMake gives these.
INCLUDE_FOLDERS = ["src", "include", "emulator", "tools", "bench", "tests", "tests/fake_gpu"]
SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".h"}
# Headers of src/ that bindings, tools and benchmarks include in addition to the public ones: a
# header, or a folder with a slash at its end, for the files whose names begin so.
INTERNALS = {
    # Header-only: rounding up; the message of a public Error; files at predictable names.
    ("tools/", "bench/"): ("base/align.hpp", "base/check.hpp", "base/files.hpp"),
    # Header-only: how programs are started.
    ("tools/command_line/",): ("base/nearest.hpp",),
    ("tools/run/job.cpp",): ("base/process_environment.hpp",),
    # shoal-run writes its own messages to the log.
    ("tools/run/main.cpp",): ("base/log.hpp",),
    # shoal-info reports the parts of a build and of a machine that programs never see.
    ("tools/info/",): (
        "base/messages/table.hpp",
        "base/plugin.hpp",
        "bootstrap/launcher/",
        "ep/host/group/loads.hpp",
        "memory/device.hpp",
        "topology/",
        "transport/heap_transport.hpp",
        "transport/module.hpp",
        "transport/verbs/requirements.hpp",
    ),
    # Header-only: the bound of the error of a combined value.
    ("tools/moe/", "bench/"): ("ep/plan/combine_error.hpp",),
    # The experts of each PE, as a group spreads them.
    ("bench/",): ("ep/plan/partition.hpp",),
    # shoal-moe computes the sums and roundings of its reference as the library does, bit by bit.
    ("tools/moe/",): ("ep/numeric/", "memory/device.hpp"),
    # The baseline over MPI moves rows with the library's own row operations, and the report names
    # their instruction set.
    ("bench/ep_bench.cpp", "bench/report.cpp", "bench/shoal_bench_mpi.cpp"): (
        "ep/host/rows/row_ops.hpp",
    ),
    # deep_ep's combine holds a stream until a GEMM has signalled; C++ programs use events.
    ("python/bindings/ep/signals.cpp",): ("ep/cuda/low_latency/send/wait_signals.hpp",),
    # deep_ep's low-latency dispatch quantizes received rows; C++ programs have no such call.
    # deep_ep has forms of a routing that C++ programs do not.
    ("python/bindings/ep/routing_maps.cpp",): ("ep/cuda/normal/routing_maps.hpp",),
    # Experts that quantize as the library's kernels do.
    ("bench/gpu/",): ("ep/numeric/",),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<(shoal/[^>]+)>)')
# Kernels receive their world as a parameter: a process holds several worlds, and several libraries
# that contain Shoal's kernels. They would share a variable of device code, or need device linking.
DEVICE_FOLDERS = ("include/", "src/")
# Programs of this interface take no world as parameter: each of their translation units has one.
DEVICE_STATE = "include/shoal/nvshmem/device/state.cuh"
# Matches comments and directives.
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE | re.DOTALL)
# These look like the end of a declaration, but are a part of it.
NO_END = re.compile(
    r"\b(?:__align__|__launch_bounds__|alignas)\s*\([^()]*\)|\boperator\s*[^\w\s(]+"
)
DEVICE_VARIABLE = re.compile(r"\b(?:__constant__|__managed__|__device__(?=[^;{}()=]*[;{=]))")
# Without tests/: programs of users link device code.
CMAKE_FOLDERS = [*(name for name in SOURCE_FOLDERS if name != "tests"), "cmake", "examples"]
DEVICE_LINKING = re.compile(
    r"-rdc\b|-relocatable-device-code\b|(?<=[\s\"';:=])-dc\b|CUDA_(?:SEPARABLE_COMPILATION|RESOLVE_DEVICE_SYMBOLS)\b"
)


def room_of(path):
    """The room of a path below the root."""
    return next((str(up) for up in PurePosixPath(path).parents if str(up) in ROOMS), "")


def resolve(root, file, target):
    """The path below the root of a file that `file` includes, or None. A file that CMake writes has
    the place of its template."""
    for base in (file.parent, *(root / folder for folder in INCLUDE_FOLDERS)):
        candidate = (base / target).resolve()
        generated = candidate.with_name(candidate.name + ".in").is_file()
        if (generated or candidate.is_file()) and candidate.is_relative_to(root):
            return candidate.relative_to(root).as_posix()
    return None


def is_allowed_internal(name, included):
    """Return true if a file outside of src/ may include a header of src/."""
    header = included.removeprefix("src/")
    return included != header and any(
        name.startswith(files)
        and any(header == one or (one.endswith("/") and header.startswith(one)) for one in headers)
        for files, headers in INTERNALS.items()
    )


def include_fault(root, file, target):
    """Fault of `file` including `target`, or None; and the path of the included file."""
    name = file.relative_to(root).as_posix()
    included = resolve(root, file, target)
    if included is None:
        return f'no file is "{target}"', None
    room, other = room_of(name), room_of(included)
    allowed = ROOMS.get(room)
    if allowed is None or other == room or is_allowed_internal(name, included):
        return None, included
    if other and PurePosixPath(other).name in allowed.split():
        return None, included
    return f'{room} includes "{target}" of {other}; allowed: {allowed or "nothing"}', included


def folder_of(name):
    """Folder of a file, or the file itself in a folder of public headers."""
    folder = str(PurePosixPath(name).parent)
    return name if folder in PUBLIC_FOLDERS else folder


def between_folders(includes):
    edges = {}
    for (before, after), place in includes.items():
        folders = folder_of(before), folder_of(after)
        if folders[0] != folders[1] and not before.startswith(WITH_CYCLES):
            edges.setdefault(folders, place)
    return edges


def cycle_faults(kind, includes):
    """`includes`: the two files, or folders, of an include, and where it stands."""
    graph = {}
    for before, after in includes:
        graph.setdefault(before, []).append(after)
    finished = set()
    for start in graph:
        way = [] if start in finished else [start]
        steps = [iter(graph[start])]
        while way:
            after = next(steps[-1], None)
            if after is None:
                finished.add(way.pop())
                steps.pop()
            elif after in way:
                cycle = [*way[way.index(after) :], after]
                place = includes[way[-1], after]
                yield f"{place}: {kind} include each other: {' -> '.join(cycle)}"
            elif after not in finished:
                way.append(after)
                steps.append(iter(graph.get(after, ())))


def blanked(pattern, text):
    """`text` with what matches as blanks: places stay where they were."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def device_faults(name, text):
    """Variables of device code: text that begins like one and does not continue like a function."""
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


def file_faults(root, file, includes):
    name = file.relative_to(root).as_posix()
    text = file.read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    if name.startswith(DEVICE_FOLDERS) and name != DEVICE_STATE:
        yield from device_faults(name, text)
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        fault, included = include_fault(root, file, match.group(1) or match.group(2))
        if fault:
            yield f"{name}:{number}: {fault}"
        if included:
            includes.setdefault((name, included), f"{name}:{number}")
    if len(lines) > MAX_LINES:
        yield f"{name}:{MAX_LINES + 1}: {len(lines)} lines; allowed: {MAX_LINES}"


def faults(root):
    root = Path(root).resolve()
    includes = {}
    for folder in SOURCE_FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                yield from file_faults(root, file, includes)
    yield from cycle_faults("files", includes)
    yield from cycle_faults("folders", between_folders(includes))
    yield from cmake_faults(root)


def main(arguments):
    root = arguments[0] if arguments else Path(__file__).parents[1]
    found = list(faults(root))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
