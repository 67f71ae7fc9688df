# SPDX-License-Identifier: Apache-2.0
"""Mutations of work_queue.hpp and format.hpp in include/shoal/device/detail/mlx5, each must make
emulator/tests/unit/work_queue_test.cpp fail.

Usage: work_queue.py [NAME...]. Exits with 1 when a mutation survives or its place is not found. A
run takes about three minutes on two cores.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from emulator_engine import COMPILER, ROOT, compile_all, run_linked
from loop import NotRun, replace_in, run_mutations

# (what is wrong, file of include/shoal/device/detail/mlx5, text, replacement)
MUTATIONS = [
    (
        "doorbell before the record",
        "work_queue.hpp",
        "  bus.store_record(queue.record, big(last.next & 0xffff));\n  bus.order_record();\n"
        "  bus.ring(queue.doorbell, last.control);",
        "  bus.ring(queue.doorbell, last.control);\n"
        "  bus.store_record(queue.record, big(last.next & 0xffff));\n  bus.order_record();",
    ),
    ("no barrier before the doorbell", "work_queue.hpp", "  bus.order_record();\n", ""),
    (
        "stale doorbell record",
        "work_queue.hpp",
        "big(last.next & 0xffff)",
        "big((last.next - 1) & 0xffff)",
    ),
    (
        "end of a request taken as one block",
        "work_queue.hpp",
        "{index + blocks_of(segments),",
        "{index + 1,",
    ),
    (
        "size of a request off by one",
        "work_queue.hpp",
        "queue.number, segments,",
        "queue.number, segments + 1,",
    ),
    (
        "requests do not wrap at the end of the ring",
        "work_queue.hpp",
        "ring[(index * kBlockSegments + i) & (blocks * kBlockSegments - 1)]",
        "ring[(index & (blocks - 1)) * kBlockSegments + i]",
    ),
    (
        "indices are not those of the requests",
        "work_queue.hpp",
        "control_segment(opcode, static_cast<std::uint16_t>(index),",
        "control_segment(opcode, static_cast<std::uint16_t>(index & (queue.blocks - 1)),",
    ),
    (
        "completions of earlier requests count again",
        "work_queue.hpp",
        "  if (ahead >= posted - completed) return completed;\n",
        "",
    ),
    (
        "indices compared without wrap",
        "work_queue.hpp",
        "static_cast<std::uint16_t>(index - completed)",
        "index - completed",
    ),
    (
        "a completion frees one block",
        "work_queue.hpp",
        "completed + ahead + blocks_at(queue, completed + ahead)",
        "completed + ahead + 1",
    ),
    (
        "owner bit ignored",
        "work_queue.hpp",
        " || (state & 1) != (consumed >> queue.log_size & 1))",
        ")",
    ),
    (
        "owner bit of the wrong lap",
        "work_queue.hpp",
        "(consumed >> queue.log_size & 1)",
        "(consumed >> (queue.log_size + 1) & 1)",
    ),
    (
        "an unused entry taken as a completion",
        "work_queue.hpp",
        "  if ((state >> 4 & 0xf) == kCompletionInvalid) return false;\n",
        "",
    ),
    (
        "entries are not given back",
        "work_queue.hpp",
        "bus.store_record(queue.record, big(consumed & kConsumedMask));",
        "",
    ),
    ("errors taken as success", "format.hpp", "kCompletionError = 13", "kCompletionError = 12"),
    (
        "empty parts are written",
        "work_queue.hpp",
        "    if (parts[i].bytes != 0)  // a length of 0 means 2^31\n",
        "",
    ),
    ("inline bytes without their mark", "work_queue.hpp", "big(bytes | kInlineFlag)", "big(bytes)"),
    (
        "inline bytes shifted",
        "work_queue.hpp",
        "kSegmentBytes + at - kInlineHeader",
        "kSegmentBytes + at - kInlineHeader + 1",
    ),
    ("signal bit lost", "format.hpp", "signalled ? 0x08u : 0u", "signalled ? 0x04u : 0u"),
    ("fence bit lost", "format.hpp", "(fenced ? 0x80u : 0u)", "(fenced ? 0x00u : 0u)"),
    (
        "operands of an atomic exchanged",
        "work_queue.hpp",
        "atomic_segment(swap_or_add, compare)",
        "atomic_segment(compare, swap_or_add)",
    ),
    (
        "doorbell with its halves exchanged",
        "work_queue.hpp",
        "std::uint64_t{control.words[1]} << 32 | control.words[0]",
        "std::uint64_t{control.words[0]} << 32 | control.words[1]",
    ),
]


def path_of(file):
    return Path("include/shoal/device/detail/mlx5") / file


def compile_test(sources, output):
    """The test with the headers of the folder `sources`. False where it does not compile."""
    include = [sources, ROOT / "src", ROOT / "emulator"]
    test = ROOT / "emulator/tests/unit/work_queue_test.cpp"
    flags = [flag for folder in include for flag in ("-I", str(folder))]
    done = subprocess.run([*COMPILER, *flags, str(test), "-o", str(output)], check=False)
    return done.returncode == 0


def mutate(folder, file, text, replacement):
    """A copy of include/ with one change."""
    sources = folder / "include"
    shutil.rmtree(sources, ignore_errors=True)
    shutil.copytree(ROOT / "include", sources)
    replace_in(folder / path_of(file), text, replacement)
    return sources


def main(wanted):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        objects = {
            file: path
            for file, path in compile_all(folder).items()
            if not file.endswith("_test.cpp")
        }
        test = folder / "work_queue_test.o"
        objects[test.name] = test
        if not compile_test(ROOT / "include", test) or (failed := run_linked(objects, folder)):
            print(f"tests fail without a mutation: {failed}")
            return 1

        def notice(*change):
            if not compile_test(mutate(folder, *change), test):
                raise NotRun("does not compile")
            return run_linked(objects, folder)

        return run_mutations(MUTATIONS, wanted, notice)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
