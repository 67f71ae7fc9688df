# SPDX-License-Identifier: Apache-2.0
"""Mutations of the proxy's ring and executor, each of which must make a test of
tests/unit/transport/proxy_ring_test.cpp fail. Those of memory order must be seen by the thread
sanitizer in the test of threads.

Usage: proxy_ring.py [NAME...]. Exits with 1 when a mutation survives or its place is not found. A
run takes about ten minutes on two cores.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from loop import NotRun, replace_in, run_mutations, run_tests

ROOT = Path(__file__).resolve().parents[2]
COMPILER = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-DFMT_SHARED"]
LIBRARIES = ["-lgtest", "-lgtest_main", "-lfmt", "-lpthread"]
# Beside the mutated sources: what they use of Shoal.
OTHERS = ["src/transport/transport.cpp", "src/base/error.cpp", "tests/support/expect_error.cpp"]
RING = "include/shoal/device/detail/proxy_ring.hpp"
EXECUTOR = "src/transport/proxy/executor.cpp"
REQUESTS = "src/transport/proxy/requests.cpp"
PLATFORM = "src/transport/proxy/thread_platform.hpp"
SOURCES = [EXECUTOR, REQUESTS, "src/transport/proxy/proxy.cpp"]
THREADS = "ProxyRingThreads.*"
TIMEOUT_S = 120

# (what is wrong, file, text, replacement, whether only the thread sanitizer can see it)
MUTATIONS = [
    (
        "lap ignored",
        REQUESTS,
        "if (tag >> 32 != device::proxy::lap_of(position, ring.n_slots)) return std::nullopt;",
        "if (tag == 0) return std::nullopt;",
        False,
    ),
    ("lap starts at zero", RING, "position / n_slots + 1)", "position / n_slots)", False),
    (
        "tag stored without release",
        RING,
        "Platform::store_release_system(words + kTagWord,",
        "Platform::store_relaxed_system(words + kTagWord,",
        True,
    ),
    (
        "tag stored before the request",
        RING,
        "    Platform::store_relaxed_system(words + 0, request.offset);",
        "    Platform::store_release_system(words + kTagWord,\n"
        "                                   tag_of(request, lap_of(ticket, ring.n_slots)));\n"
        "    Platform::pause();\n"
        "    Platform::store_relaxed_system(words + 0, request.offset);",
        True,
    ),
    (
        "tag read without acquire",
        REQUESTS,
        "ThreadPlatform::load_acquire_system(words + device::proxy::kTagWord)",
        "ThreadPlatform::load_relaxed_system(words + device::proxy::kTagWord)",
        True,
    ),
    (
        "completion stored without release",
        EXECUTOR,
        "ThreadPlatform::store_release_system(&response(position).done, position + 1);",
        "ThreadPlatform::store_relaxed_system(&response(position).done, position + 1);",
        True,
    ),
    (
        "position published before the request is complete",
        EXECUTOR,
        "    if (!oldest.complete) break;\n",
        "",
        False,
    ),
    (
        "requests complete when they start",
        EXECUTOR,
        "if (!queue.route->transport.reached(queue.pe, queue.point)) return false;",
        "(void)queue.route->transport.reached(queue.pe, queue.point);",
        False,
    ),
    (
        "no back-pressure",
        RING,
        "return position - completed < ring.n_slots;",
        "return true;",
        False,
    ),
    (
        "a slot too many",
        RING,
        "return position - completed < ring.n_slots;",
        "return position - completed <= ring.n_slots;",
        False,
    ),
    (
        "the copy of the completed position runs ahead",
        RING,
        "Platform::raise_local(ring.completed_copy, completed);\n    return",
        "Platform::raise_local(ring.completed_copy, completed + 1);\n    return",
        False,
    ),
    (
        "positions reserved by a store",
        RING,
        "Platform::compare_exchange_local(ring.head, position, position + 1) &&",
        "(Platform::pause(), Platform::store_relaxed_system(ring.head, position + 1), true) &&",
        False,
    ),
    (
        "a post that gives up keeps its position",
        RING,
        "return has_room(ring, position) &&\n             "
        "Platform::compare_exchange_local(ring.head, position, position + 1) &&",
        "return Platform::compare_exchange_local(ring.head, position, position + 1) &&\n"
        "             has_room(ring, position) &&",
        False,
    ),
    (
        "waits never look at the state",
        RING,
        "if (state != Outcome::ok) return",
        "if (false) return",
        False,
    ),
    ("a ticket covers the request before it", RING, ">= ticket + 1; });", ">= ticket; });", False),
    (
        "quiet ends a request early",
        RING,
        "if (completed < ticket) return false;",
        "if (completed + 1 < ticket) return false;",
        False,
    ),
    (
        "results are not kept",
        EXECUTOR,
        "if ((oldest.request.flags & kResult) != 0 &&",
        "if (false &&",
        False,
    ),
    (
        "one slow peer stops all",
        EXECUTOR,
        "    if (!queue.empty()) {\n      ++i;",
        "    if (!queue.empty()) {\n      if (queue.started.empty()) break;\n      ++i;",
        False,
    ),
    (
        "room is not asked for",
        EXECUTOR,
        "  if (!transport.has_room(queue.pe)) return false;\n",
        "",
        False,
    ),
    ("fence ignored", EXECUTOR, "if (!queue.started.empty()) break;", "", False),
    (
        "signal before the data",
        EXECUTOR,
        "      if (!start_transfer(queue, next)) return false;\n      break;",
        "      transport.signal(queue.pe, queue.route->start + request.signal_offset, SignalOp::set,\n"
        "                       request.signal_value);\n      return start_transfer(queue, next);",
        False,
    ),
    (
        "requests are not checked",
        EXECUTOR,
        "if (auto fault = fault_of(*request, context_.n_pes, context_.heap_bytes)) {",
        "if (auto fault = fault_of(*request, 1 << 20, ~std::uint64_t{0} >> 1); false) {",
        False,
    ),
    (
        "length added before it is compared",
        REQUESTS,
        "return offset > heap_bytes || bytes > heap_bytes - offset;",
        "return offset + bytes > heap_bytes;",
        False,
    ),
    ("no deadline", EXECUTOR, "if (queue.deadline.passed(Clock::now()))", "if (false)", False),
    (
        "health of the peer not asked",
        EXECUTOR,
        "if (health && context_.failure) {",
        "if (false) {",
        False,
    ),
]


def path_of(file):
    return Path(file)


def compile_test(tree, output, sanitize):
    include = [tree / "include", tree / "src", ROOT / "src", ROOT / "include", ROOT / "tests"]
    flags = [flag for folder in include for flag in ("-I", str(folder))]
    sources = [tree / source for source in SOURCES]
    sources += [ROOT / source for source in [*OTHERS, "tests/unit/transport/proxy_ring_test.cpp"]]
    flags += ["-fsanitize=thread"] if sanitize else []
    flags += [str(ROOT / "src/base/log.cpp"), "-DSPDLOG_FMT_EXTERNAL", "-DSPDLOG_SHARED_LIB"]
    command = [*COMPILER, *flags, *map(str, sources), "-o", str(output), *LIBRARIES, "-lspdlog"]
    return subprocess.run(command, check=False).returncode == 0


def failed_tests(program, sanitize):
    """What fails; an empty text where all tests pass."""
    only = [f"--gtest_filter={THREADS}"] if sanitize else []
    return run_tests([program, *only], TIMEOUT_S)


def mutate(tree, file, text, replacement):
    """A copy of the mutated folders with one change."""
    shutil.rmtree(tree, ignore_errors=True)
    for folder in ("src/transport/proxy", "include/shoal"):
        shutil.copytree(ROOT / folder, tree / folder)
    replace_in(tree / path_of(file), text, replacement)


def main(wanted):
    with tempfile.TemporaryDirectory() as name:
        tree, program = Path(name) / "tree", Path(name) / "test"
        for sanitize in (False, True):
            if not compile_test(ROOT, program, sanitize) or (
                failed := failed_tests(program, sanitize)
            ):
                print(f"tests fail without a mutation: {failed}")
                return 1

        def notice(file, text, replacement, sanitize):
            mutate(tree, file, text, replacement)
            if not compile_test(tree, program, sanitize):
                raise NotRun("does not compile")
            return failed_tests(program, sanitize)

        return run_mutations(MUTATIONS, wanted, notice)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
