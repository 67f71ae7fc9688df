# SPDX-License-Identifier: Apache-2.0
"""Mutations of emulator/gpu/, each of which must make tests/threads/emulator/gpu_nic_test.cpp,
gpu_nic_dispatchers_test.cpp, gpu_nic_failures_test.cpp or gpu_nic_rate_test.cpp fail.

Usage: gpu_nic.py [NAME...]. Exits with 1 when a mutation survives or its place is not found. A run
takes about ten minutes on two cores.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from loop import NotRun, replace_in, run_mutations

from emulator_engine import COMPILER, ROOT
from shared_queue import compile_emulator, run_linked

TESTS = [
    ROOT / f"tests/threads/emulator/gpu_nic{part}_test.cpp"
    for part in ("", "_dispatchers", "_failures", "_rate")
]

# (what is wrong, file of emulator/gpu, text, replacement)
MUTATIONS = [
    (
        "strict writes overtake",
        "dispatcher.hpp",
        "(pair.config.ordering != Ordering::strict && request.opcode == Opcode::write)",
        "request.opcode == Opcode::write",
    ),
    (
        "atomics overtake",
        "dispatcher.hpp",
        "(pair.config.ordering != Ordering::strict && request.opcode == Opcode::write)",
        "pair.config.ordering != Ordering::strict",
    ),
    (
        "writes never overtake",
        "dispatcher.hpp",
        "(pair.config.ordering != Ordering::strict && request.opcode == Opcode::write)",
        "false",
    ),
    (
        "adaptive atomics do not wait for acknowledgements",
        "dispatcher.hpp",
        "(bits.at[1] & ~1U)",
        "0U",
    ),
    ("fences ignored", "dispatcher.hpp", "(request.fenced ? kFenced : 0)", "0U"),
    ("executed before it has arrived", "dispatcher.hpp", "request.time <= now_ && ", ""),
    ("acknowledged at once", "dispatcher.hpp", "now_ >= request.time + timing_.delay", "true"),
    (
        "jobs do not wait for the link",
        "worker.hpp",
        "platform_.now(); }) < job_.start)",
        "platform_.now(); }) < 1)",
    ),
    (
        "nothing is handed out ahead",
        "common.hpp",
        "common_.start + common_.timing.ahead) <<",
        "common_.start) <<",
    ),
    (
        "everything is handed out ahead",
        "common.hpp",
        "return (now - common_.start + common_.timing.ahead) << kShift;",
        "return ~std::uint64_t{0};",
    ),
    (
        "an idle link saves all its time",
        "common.hpp",
        "if (free < earliest(now)) (void)platform_",
        "if (false) (void)platform_",
    ),
    (
        "what one dispatcher hands out is free for the others",
        "common.hpp",
        "return platform_.add_shared(&common_.free_at, bytes * common_.timing.byte_cost);",
        "return platform_.load_shared(&common_.free_at);",
    ),
    (
        "small messages do not take the link",
        "dispatcher.hpp",
        "jobs_.link().take(bytes, now_);",
        "",
    ),
    (
        "slots that are claimed and not used are lost",
        "common.hpp",
        "if (used != claimed) platform_",
        "if (false) platform_",
    ),
    (
        "slots that are claimed in vain are lost",
        "common.hpp",
        "      platform_.add_shared(&common_.claimed, left - wanted);\n",
        "",
    ),
    (
        "slots are claimed twice",
        "common.hpp",
        "platform_.add_shared(&common_.claimed, wanted);",
        "platform_.load_shared(&common_.claimed);",
    ),
    (
        "each dispatcher serves all queue pairs",
        "dispatcher.hpp",
        "% count_ == index_;",
        "% count_ < count_;",
    ),
    (
        "queue pairs that no dispatcher has saved are restored",
        "dispatcher.hpp",
        "static_cast<std::uint32_t>(scratch_.n_pairs), true)",
        "static_cast<std::uint32_t>(common_.n_pairs), true)",
    ),
    (
        "the first dispatcher that closes ends the workers",
        "dispatcher.hpp",
        "if (platform_.add_shared(&common_.open, ~std::uint64_t{0}) != 1) return;",
        "platform_.add_shared(&common_.open, ~std::uint64_t{0});",
    ),
    ("strict jobs do not wait for each other", "worker.hpp", "job_.is_ordered == 0 ||", "true ||"),
    (
        "strict jobs wait for those before the request was started",
        "jobs.hpp",
        "request.before = request.jobs = pair.jobs + jobs;",
        "request.jobs = pair.jobs + jobs;",
    ),
    (
        "strict writes one by one",
        "dispatcher.hpp",
        "if (!is_strict(pair) || (first",
        "if (true || (first",
    ),
    (
        "strict atomics follow writes",
        "dispatcher.hpp",
        "(is_write && (is_handed_out || is_ready) ? kFollowed : 0)",
        "(is_handed_out || is_ready ? kFollowed : 0)",
    ),
    (
        "any number of strict jobs",
        "jobs.hpp",
        "if (under_way >= kStrictJobs) return 0;",
        "return kLanes;",
    ),
    (
        "stored before the gate",
        "copy.hpp",
        "          values[i] = platform.template load<Vector>(from + head + (at + i * lanes) * kUnit);\n"
        "      open();\n",
        "          values[i] = platform.template load<Vector>(from + head + (at + i * lanes) * kUnit);\n",
    ),
    (
        "complete while jobs run",
        "dispatcher.hpp",
        "!has_reached(counter, request.jobs)) return false;",
        "false) return false;",
    ),
    (
        "fails while jobs run",
        "dispatcher.hpp",
        "if (cause == Syndrome::none || !is_idle(pair, counters))",
        "if (cause == Syndrome::none)",
    ),
    (
        "a slot of the ring of jobs is written again too early",
        "common.hpp",
        "platform_.load_word(&done_[number & (size_ - 1)]) == number - size_ + 1",
        "true",
    ),
    (
        "a request waits for jobs that were planned before it",
        "jobs.hpp",
        " && request.offset == 0 && count != 0)",
        " && request.offset == 0)",
    ),
    (
        "the workers execute what has no effect",
        "dispatcher.hpp",
        "found.direct &= ~bits.at[5];",
        "found.direct &= first;",
    ),
    (
        "a request that lies in several blocks is read as one block",
        "dispatcher.hpp",
        "longer == 0 ? n : lowest(longer) + 1",
        "n",
    ),
    (
        "the window is too large",
        "dispatcher.hpp",
        "const auto room = kWindow - static_cast",
        "const auto room = 32 + kWindow - static_cast",
    ),
    (
        "a refused request stops those before it",
        "dispatcher.hpp",
        "pair.completed + i < pair.stop",
        "pair.stop == kNoStop",
    ),
    (
        "a refused request does not stop those after it",
        "dispatcher.hpp",
        "pair.completed + i < pair.stop",
        "true",
    ),
    (
        "the peer does not learn that it has refused",
        "dispatcher.hpp",
        "if (pair.config.peer_ended != nullptr)",
        "if (false)",
    ),
    ("silent peers are not given up", "dispatcher.hpp", "return silent && ", "return false && "),
    (
        "unsignalled requests complete",
        "dispatcher.hpp",
        "return failed || pair.at(pair.completed + i).signalled;",
        "return true;",
    ),
    ("owner bit constant", "execute.hpp", "(number >> queue.log_size) & 1", "0"),
    ("heartbeats ignored", "common.hpp", "timing.owner_timeout != 0 &&", "false &&"),
    ("endless life", "common.hpp", "now - common.start > timing.lifetime", "false"),
    ("key not checked", "keys.hpp", "region.key != key || ", ""),
    ("domain not checked", "keys.hpp", "region.domain != domain || ", ""),
    ("bounds not checked", "keys.hpp", "length > region.length - offset", "false"),
    ("access not checked", "keys.hpp", "(region.access & access) != access", "false"),
    (
        "changed keys stay as they were",
        "dispatcher.hpp",
        "if (scratch_.keys.seen_changes != scratch_.keys.changes) forget_keys();",
        "",
    ),
    (
        "changed keys are noticed by the first queue pairs only",
        "dispatcher.hpp",
        "if (i == 0) scratch_",
        "if (base + i == 0) scratch_",
    ),
    (
        "rights of the connection ignored",
        "execute.hpp",
        "(pair.config.peer_access & access) == 0",
        "false",
    ),
    ("unaligned atomics", "execute.hpp", "address % request.bytes != 0", "false"),
    (
        "inline bytes do not wrap",
        "request.hpp",
        "request.bytes < to_end ? request.bytes : static_cast<std::uint32_t>(to_end)",
        "request.bytes",
    ),
    ("parts are not counted", "request.hpp", "  request.moved += request.part_bytes;\n", ""),
    ("the end is not copied", "copy.hpp", "bytes - end);", "0);"),
    (
        "words in pieces",
        "copy.hpp",
        "(void)(copy_word<std::uint64_t>(platform, to, from, bytes) ||",
        "(void)(",
    ),
]


def path_of(file):
    return Path("emulator/gpu") / file


def compile_tests(emulator, outputs):
    """The tests with the headers of the folder `emulator`. False where one does not compile."""
    include = [emulator, ROOT / "include", ROOT / "src", ROOT / "tests"]
    flags = [flag for folder in include for flag in ("-I", str(folder))]
    compilers = [
        subprocess.Popen(
            [*COMPILER, *flags, str(test), "-o", str(output)], stderr=subprocess.DEVNULL
        )
        for test, output in zip(TESTS, outputs, strict=True)
    ]
    return not any([compiler.wait() for compiler in compilers])


def mutate(folder, file, text, replacement):
    """A copy of emulator/ with one change."""
    emulator = folder / "emulator"
    shutil.rmtree(emulator, ignore_errors=True)
    shutil.copytree(ROOT / "emulator", emulator)
    replace_in(folder / path_of(file), text, replacement)
    return emulator


def main(wanted):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tests = [folder / f"{test.stem}.o" for test in TESTS]
        objects = [*compile_emulator(folder), *tests]
        if not compile_tests(ROOT / "emulator", tests) or (failed := run_linked(objects, folder)):
            print(f"the test fails without a mutation: {failed}")
            return 1

        def notice(*change):
            if not compile_tests(mutate(folder, *change), tests):
                raise NotRun("does not compile")
            return run_linked(objects, folder)

        return run_mutations(MUTATIONS, wanted, notice)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
