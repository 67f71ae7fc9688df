# SPDX-License-Identifier: Apache-2.0
"""Mutations of the transport verbs and of the message core below it, each of which must make
tests/unit/transport/verbs_test.cpp or verbs_limits_test.cpp fail.

Usage: verbs_transport.py [NAME...]. SHOAL_BIN_DIR: where the two programs are that are built from
these files, build/release/bin without it. The programs load a module that is compiled here, with
its own message core. Exits with 1 when a mutation survives or its place is not found. A run takes
about five minutes on two cores.
"""

import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from loop import NotRun, replace_in, run_mutations, run_tests

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("SHOAL_BIN_DIR", ROOT / "build/release/bin")).resolve()
PROGRAMS = [BIN / "unit_transport_verbs_test", BIN / "unit_transport_verbs_limits_test"]
COMPILER = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden"]
DEFINED = ["-DFMT_SHARED"]
FOLDERS = ["src/transport/verbs", "src/transport/message"]
TIMEOUT_S = 120

# (what is wrong, file of src/transport, text, replacement)
MUTATIONS = [
    (
        "quiet returns early",
        "message/engine.cpp",
        "      if (!done || peer.reads != 0) all = false;\n",
        "      static_cast<void>(done);\n",
    ),
    (
        "quiet does not wait for reads",
        "message/engine.cpp",
        "if (!done || peer.reads != 0) all = false;",
        "if (!done) all = false;",
    ),
    (
        "fence ignored",
        "message/engine.cpp",
        "!not_before(peer.acknowledged, peer.counted)) peer.fenced = true;",
        "!not_before(peer.acknowledged, peer.counted)) peer.fenced = false;",
    ),
    (
        "messages overtake writes of other queue pairs",
        "verbs/network.cpp",
        "  if (after == After::writes && !handshake && !follows_writes(peer)) return "
        "settle(link), false;\n",
        "  static_cast<void>(after);\n",
    ),
    (
        "a slot is polled instead of the counter",
        "verbs/network.cpp",
        "  const std::uint64_t arrived = counter(connection, "
        "RingLayout::arrived(connection.index));\n"
        "  if (arrived == connection.read) return tell_freed(connection), false;\n",
        "  const std::byte* const next = connection.line.rings.get() +\n"
        "      connection.line.layout.incoming(connection.index) +\n"
        "      connection.read % kSlots * sizeof(RingSlot);\n"
        "  auto& size = *reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(next));\n"
        "  const std::uint64_t bytes = std::atomic_ref(size).load();\n"
        "  if (bytes == 0) return tell_freed(connection), false;\n"
        "  size = 0;\n"
        "  ++connection.read;\n"
        "  engine_.receive(next + sizeof bytes, bytes);\n"
        "  tell_freed(connection);\n"
        "  return true;\n"
        "  const std::uint64_t arrived = connection.read;\n",
    ),
    (
        "a slot is written before it is free",
        "verbs/network.cpp",
        "connection.sent - freed >= kSlots || ",
        "",
    ),
    (
        "no room check",
        "verbs/network.cpp",
        "  return connection.issued - connection.completed + requests <= "
        "connection.posted.size() &&\n"
        "         connection.line.in_flight + requests <= connection.line.port->completions();",
        "  return connection.issued - connection.completed + requests <=\n"
        "         connection.posted.size() + 1 + connection.line.in_flight;",
    ),
    (
        "a message and its atomic have a doorbell each",
        "verbs/network.cpp",
        "  if (!submit(connection, write, 2)) return false;\n",
        "  write.next = nullptr;\n"
        "  if (!submit(connection, write, 1) || !submit(connection, arrive, 1)) return false;\n",
    ),
    (
        "every message has a completion",
        "verbs/network.cpp",
        "      probe ? Completion::own : Completion::due);\n",
        "      Completion::own);\n",
    ),
    (
        "a buffer is reused before its write is complete",
        "verbs/network.cpp",
        "  peer.start(transfer.direction, posted.batch);\n",
        "  if (bounced && write) {\n"
        "    line.free_bounces.push_back(posted.bounce);\n"
        "    connection.posted[(connection.issued - 1) % connection.posted.size()].bounce = "
        "nullptr;\n"
        "  }\n"
        "  peer.start(transfer.direction, posted.batch);\n",
    ),
    (
        "calls that were given up get their data",
        "verbs/network.cpp",
        "        posted.target = nullptr;\n",
        "",
    ),
    (
        "the event of another port is the reason",
        "verbs/network.cpp",
        "  if (event.element.port_num != line.port->number()) return;\n",
        "",
    ),
    (
        "events are not read before a failure is reported",
        "verbs/network.cpp",
        "  read_events(connection.line);  // they may have the cause\n",
        "",
    ),
    (
        "queue pairs are created in the order 0 to n-1",
        "verbs/order.hpp",
        "rotated ? (i + 1 + me) % n : i;",
        "rotated && n == 0 ? (i + 1 + me) % n : i;",
    ),
    (
        "peers' queue pairs are created one peer after the other",
        "verbs/order.hpp",
        "  for (std::size_t index = 0; index < each; ++index)\n    for (Pe i = 0; i < n; ++i)\n",
        "  for (Pe i = 0; i < n; ++i)\n    for (std::size_t index = 0; index < each; ++index)\n",
    ),
    (
        "states: the limits of RTR are not named",
        "verbs/queue_pair.cpp",
        "SHOAL_VERBS_GID_INDEX, SHOAL_VERBS_SERVICE_LEVEL, SHOAL_NIC_LIST",
        "none",
    ),
    (
        "the depth of the device is not looked at",
        "verbs/queue_pair.cpp",
        "settings.verbs_depth <= device.max_qp_wr,",
        "true,",
    ),
]


def path_of(file):
    return Path("src/transport") / file


def compile_source(source, tree, output):
    folders = [tree / "src", ROOT / "src", ROOT / "include"]
    include = [flag for folder in folders for flag in ("-I", str(folder))]
    done = subprocess.run(
        [*COMPILER, *DEFINED, *include, "-c", str(source), "-o", str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NotRun(f"{source} does not compile: {done.stderr[:500]}")
    return output


def compile_sources(sources, tree, folder):
    """Object files by the source's path in `tree`."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        names = [str(source.relative_to(tree)) for source in sources]
        made = pool.map(
            lambda source, name: compile_source(source, tree, folder / name.replace("/", "_")),
            sources,
            (f"{name}.o" for name in names),
        )
        return dict(zip(names, made, strict=True))


def copy_tree(tree):
    shutil.rmtree(tree, ignore_errors=True)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder)


def sources_of(tree):
    return [source for folder in FOLDERS for source in sorted((tree / folder).rglob("*.cpp"))]


def mutated(objects, folder, file, text, replacement):
    """Object files with one change; a header's is in all sources of its folder."""
    tree = folder / "tree"
    copy_tree(tree)
    path = tree / path_of(file)
    replace_in(path, text, replacement)
    changed = [path] if path.suffix == ".cpp" else list(path.parent.glob("*.cpp"))
    (folder / "mutated").mkdir(exist_ok=True)
    return {**objects, **compile_sources(changed, tree, folder / "mutated")}


def run_linked(objects, folder):
    """What fails with a module of these object files; an empty text where all tests pass.

    Shoal looks for modules beside libshoal.so: the programs get a copy of it.
    """
    module = folder / "shoal" / "libshoal_transport_verbs.so"
    module.parent.mkdir(exist_ok=True)
    link = ["c++", "-shared", "-Wl,-Bsymbolic", *map(str, objects.values()), "-o", str(module)]
    subprocess.run([*link, f"-L{folder}", "-lshoal", "-lfmt", "-ldl", "-pthread"], check=True)
    where = ["env", f"LD_LIBRARY_PATH={folder}"]
    for program in PROGRAMS:
        failed = run_tests([*where, program, "--gtest_fail_fast"], TIMEOUT_S)
        if failed:
            return failed
    return ""


def main(wanted):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for library in (BIN.parent / "lib").glob("libshoal.so*"):
            shutil.copy2(library, folder, follow_symlinks=False)
        copy_tree(folder / "tree")
        objects = compile_sources(sources_of(folder / "tree"), folder / "tree", folder)
        if failed := run_linked(objects, folder):
            print(f"tests fail without a mutation: {failed}")
            return 1
        return run_mutations(
            MUTATIONS, wanted, lambda *change: run_linked(mutated(objects, folder, *change), folder)
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
