# SPDX-License-Identifier: Apache-2.0
"""Mutations of include/shoal/device/detail/gda/, each of which must make
tests/threads/transport/gda_queue_test.cpp fail.

Usage: shared_queue.py [NAME...]. Exits with 1 when a mutation survives or its place is not found. A
run takes about fifteen minutes on two cores.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from loop import NotRun, replace_in, run_mutations, run_tests

from emulator_engine import COMPILER, LIBRARIES, ROOT, compile_source

TIMEOUT_S = 90
TEST = ROOT / "tests/threads/transport/gda_queue_test.cpp"

# (what is wrong, file of include/shoal/device/detail/gda, text, replacement)
MUTATIONS = [
    (
        "published before it is written",
        "operations.hpp",
        "  detail::write_signal(queue, mine.first, n, signal);\n  ticket = mine.first + n;\n"
        "  return publish(queue, mine, {}, deadline, platform);\n",
        "  ticket = mine.first + n;\n"
        "  const Outcome done = publish(queue, mine, {}, deadline, platform);\n"
        "  detail::write_signal(queue, mine.first, n, signal);\n  return done;\n",
    ),
    (
        "published out of order",
        "queue.hpp",
        "while (platform.load(&shared.published) != first) {",
        "while (platform.load(&shared.published) > first) {",
    ),
    ("no wait for room", "queue.hpp", "if (has_room) return Outcome::ok;", "return Outcome::ok;"),
    (
        "room for one request too many",
        "queue.hpp",
        "!poll(queue, end - slots, platform)",
        "!poll(queue, end - slots - 1, platform)",
    ),
    (
        "who waits for room does not ring",
        "queue.hpp",
        "    if (platform.load(&shared.rung) < platform.load(&shared.published)) try_ring(queue, platform);\n",
        "",
    ),
    (
        "who waits for completion does not ring",
        "queue.hpp",
        "    if (platform.load(&queue.shared->rung) < target) try_ring(queue, platform);\n",
        "",
    ),
    ("the last one does not ring", "queue.hpp", "reserved == end;", "false;"),
    (
        "full batches do not ring",
        "queue.hpp",
        "!is_last && first / queue.batch == end / queue.batch",
        "!is_last",
    ),
    (
        "no lock around the doorbell",
        "queue.hpp",
        "if (!platform.try_lock(&shared.lock)) return false;",
        "platform.try_lock(&shared.lock);",
    ),
    (
        "record read before the lock",
        "queue.hpp",
        "  if (!platform.try_lock(&shared.lock)) return false;\n"
        "  // Loaded under the lock: records never go back. Both loads are under way together.\n"
        "  const std::uint64_t rung = platform.peek(&shared.rung);\n"
        "  const std::uint64_t published = platform.load(&shared.published);\n"
        "  if (published > rung) {",
        "  const std::uint64_t published = platform.load(&shared.published);\n"
        "  if (!platform.try_lock(&shared.lock)) return false;\n"
        "  if (published != platform.load(&shared.rung)) {",
    ),
    (
        "the lock stays taken",
        "queue.hpp",
        "  platform.store(&shared.lock, 0);\n  return true;",
        "  return true;",
    ),
    (
        "the lock stays taken after the only fence",
        "queue.hpp",
        "    platform.store_ordered(&shared.rung, end);\n    platform.store(&shared.lock, 0);\n",
        "    platform.store_ordered(&shared.rung, end);\n",
    ),
    (
        "a lock that was tried early stays taken",
        "queue.hpp",
        "    platform.add(&shared.lock, ~std::uint64_t{0});\n",
        "",
    ),
    ("published before its turn", "queue.hpp", "!has_room || published != first)", "!has_room)"),
    (
        "rung without the lock",
        "queue.hpp",
        "mine = {first, n, is_locked};",
        "mine = {first, n, has_room && published == first};",
    ),
    (
        "doorbell before the record",
        "queue.hpp",
        "  platform.store_record(queue.sends.record, mlx5::big(next));\n"
        "  platform.order_record();\n",
        "  struct Late {\n"
        "    const Queue& queue;\n    Platform& platform;\n    std::uint32_t next;\n"
        "    ~Late() { platform.store_record(queue.sends.record, mlx5::big(next)); }\n"
        "  } late{queue, platform, next};\n",
    ),
    (
        "the record is that of the last request",
        "queue.hpp",
        "static_cast<std::uint32_t>(end & 0xffff)",
        "static_cast<std::uint32_t>((end - 1) & 0xffff)",
    ),
    (
        "the doorbell is not rung",
        "queue.hpp",
        "  platform.ring(queue.sends.doorbell,",
        "  static_cast<void>(",
    ),
    (
        "completed counts the wrong request",
        "queue.hpp",
        "completed + ahead + 1)",
        "completed + ahead + 2)",
    ),
    (
        "the entry that counts already counts again",
        "queue.hpp",
        "  if (ahead < queue.sends.blocks) platform",
        "  platform",
    ),
    (
        "completions compared without wrap",
        "queue.hpp",
        "static_cast<std::uint16_t>((state >> 16) - completed)",
        "(state >> 16) - static_cast<std::uint32_t>(completed)",
    ),
    (
        "collapsed: completed read after the entry",
        "queue.hpp",
        "  if (is_unused(state)) return;\n  // 65535",
        "  if (is_unused(state)) return;\n"
        "  completed = platform.load(&queue.shared->completed);\n  // 65535",
    ),
    (
        "owner bit ignored",
        "queue.hpp",
        " || (state & 1) != (last >> queue.completions.log_size & 1)) return;",
        ") return;",
    ),
    (
        "owner bit of the wrong lap",
        "queue.hpp",
        "(last >> queue.completions.log_size & 1)",
        "(last >> (queue.completions.log_size + 1) & 1)",
    ),
    (
        "an entry of a later lap taken for one of this",
        "queue.hpp",
        "  if (target - completed > slots) return;\n",
        "",
    ),
    (
        "completed goes back",
        "queue.hpp",
        "    platform.raise(&queue.shared->completed, target);\n",
        "    platform.store(&queue.shared->completed, target);\n",
    ),
    (
        "an unused entry taken as a completion",
        "queue.hpp",
        "  if (is_unused(state)) return;\n  // 65535",
        "  // 65535",
    ),
    (
        "an unused entry of many taken as a completion",
        "queue.hpp",
        "if (is_unused(state) || ",
        "if (",
    ),
    (
        "errors taken as success",
        "queue.hpp",
        "  return (state >> 4 & 0xf) == mlx5::kCompletionError;",
        "  return (state >> 4 & 0xf) == mlx5::kCompletionError - 1;",
    ),
    (
        "the last cause counts",
        "queue.hpp",
        "while (seen == 0 || (is_cause && is_flushed(seen)))",
        "for (;;)",
    ),
    (
        "flushed requests as the cause",
        "queue.hpp",
        "for (std::uint64_t i = completed; i <= last; ++i) {",
        "for (std::uint64_t i = last; i <= last; ++i) {",
    ),
    (
        "waits do not look at failures",
        "queue.hpp",
        "  if (platform.load(&queue.shared->failure) != 0) return Outcome::failed;\n",
        "",
    ),
    (
        "waits do not look at the abort word",
        "queue.hpp",
        "  if (platform.aborted()) return Outcome::aborted;\n",
        "",
    ),
    (
        "waits have no deadline",
        "queue.hpp",
        "platform.now() < deadline ? Outcome::ok : Outcome::timeout",
        "Outcome::ok",
    ),
    (
        "a hole does not end the queue",
        "queue.hpp",
        "  if (outcome != Outcome::failed) end(queue, failure, platform);\n",
        "",
    ),
    (
        "quiet returns at once",
        "queue.hpp",
        "return wait(queue, platform.load(&queue.shared->published), deadline, platform);",
        "return Outcome::ok;",
    ),
    (
        "wait returns at once",
        "queue.hpp",
        "  while (!poll(queue, target, platform)) {\n    // Their",
        "  while (false) {\n    // Their",
    ),
    (
        "collapsed: the last request has no completion",
        "queue.hpp",
        "return !collapsed() || i + 1 == n;",
        "return !collapsed();",
    ),
    (
        "entries: only the last request has a completion",
        "queue.hpp",
        "return !collapsed() || i + 1 == n;",
        "return i + 1 == n;",
    ),
    (
        "lanes write at one index",
        "operations.hpp",
        "detail::write_put(queue, first + my_put,",
        "detail::write_put(queue, first,",
    ),
    (
        "idle lanes take slots",
        "operations.hpp",
        "group.count_before(mine.bytes != 0, puts);",
        "group.count_before(true, puts);",
    ),
    ("lanes are not waited for", "operations.hpp", "  group.sync();  //", "  //"),
    (
        "a set signal passes data",
        "operations.hpp",
        "signal.kind == SignalKind::set && queue.ordering != Ordering::strict ? 2 : 1",
        "1",
    ),
    (
        "a set signal does not wait for the atomic",
        "operations.hpp",
        ".fenced = !strict}",
        ".fenced = false}",
    ),
    (
        "a fence of an adaptive queue does nothing",
        "operations.hpp",
        "queue.ordering == Ordering::strict ? Outcome::ok",
        "true ? Outcome::ok",
    ),
    (
        "the last message before a signal is too long",
        "operations.hpp",
        "post_messages(queue, source, remote, bytes, 1, deadline",
        "post_messages(queue, source, remote, bytes, 100, deadline",
    ),
    ("messages are not moved on", "operations.hpp", "      remote = advance(remote, now);\n", ""),
    (
        "unreadable sources sent inline",
        "operations.hpp",
        "source.bytes != nullptr && bytes <= kInlineBytes",
        "bytes <= kInlineBytes",
    ),
    (
        "results read before they are there",
        "operations.hpp",
        "  if (outcome == Outcome::ok) outcome = wait(queue, first + 1, deadline, platform);\n",
        "",
    ),
    (
        "operands of compare-and-swap exchanged",
        "operations.hpp",
        "mlx5::Opcode::compare_swap, word, value, expected,",
        "mlx5::Opcode::compare_swap, word, expected, value,",
    ),
    (
        "words are not checked",
        "operations.hpp",
        "return word.address % sizeof(std::uint64_t) == 0;",
        "return true;",
    ),
    ("cause and step exchanged", "failure.hpp", "word >> 60)", "word >> 56 & 0xf)"),
]


def path_of(file):
    return Path("include/shoal/device/detail/gda") / file


def compile_emulator(folder):
    emulator = ROOT / "emulator"
    sources = [*(emulator / "engine").glob("*.cpp"), emulator / "wire/virtual_network.cpp"]
    return [compile_source(source, emulator, folder / f"{source.stem}.o") for source in sources]


def compile_test(sources, output):
    """The test with the headers of the folder `sources`. False where it does not compile."""
    include = [sources, ROOT / "src", ROOT / "emulator", ROOT / "tests"]
    flags = [flag for folder in include for flag in ("-I", str(folder))]
    done = subprocess.run(
        [*COMPILER, *flags, str(TEST), "-o", str(output)], capture_output=True, check=False
    )
    return done.returncode == 0


def mutate(folder, file, text, replacement):
    """A copy of include/ with one change."""
    sources = folder / "include"
    shutil.rmtree(sources, ignore_errors=True)
    shutil.copytree(ROOT / "include", sources)
    replace_in(folder / path_of(file), text, replacement)
    return sources


def run_linked(objects, folder):
    """What fails; an empty text where all tests pass."""
    program = folder / "tests"
    subprocess.run(["c++", *map(str, objects), "-o", str(program), *LIBRARIES], check=True)
    return run_tests([program, "--gtest_fail_fast"], TIMEOUT_S)


def main(wanted):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        test = folder / "shared_queue_test.o"
        objects = [*compile_emulator(folder), test]
        if not compile_test(ROOT / "include", test) or (failed := run_linked(objects, folder)):
            print(f"the test fails without a mutation: {failed}")
            return 1

        def notice(*change):
            if not compile_test(mutate(folder, *change), test):
                raise NotRun("does not compile")
            return run_linked(objects, folder)

        return run_mutations(MUTATIONS, wanted, notice)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
