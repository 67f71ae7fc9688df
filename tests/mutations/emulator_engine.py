# SPDX-License-Identifier: Apache-2.0
"""Mutations of the emulated NIC, each of which must make a test fail.

Usage: emulator_engine.py [NAME...]. Compiles emulator/ with its unit tests once, then each
mutated source, runs the tests and prints which test notices it. Exits with 1 when a mutation
survives or its place is not found. A run takes about a minute on two cores.
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
COMPILER = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-c"]
LIBRARIES = ["-lgtest", "-lgtest_main", "-lpthread"]
TIMEOUT_S = 60
TESTS = ["early_resend", "errors", "ordering", "reliable_connection", "udp_wire", "virtual_network"]
WIRES = [
    "virtual_network",
    "udp_wire",
    "datagram",
    "packet_format",
    "shared_memory_wire",
    "wire_file",
]

# (what is wrong, file of emulator/engine or another folder of emulator, text, replacement)
MUTATIONS = [
    (
        "reads and atomics in flight outnumber those kept for replay",
        "requester.cpp",
        "return kept < qp_.connection().reads_and_atomics;",
        "return responses_due_ < qp_.connection().reads_and_atomics;",
    ),
    (
        "relaxed ordering ignored",
        "responder.cpp",
        "return services.options.relaxed_delay.count() > 0 &&",
        "return false &&",
    ),
    (
        "signals do not flush relaxed writes",
        "responder.cpp",
        "if (!is_relaxed(packet.remote_key)) qp_.services().relaxed.flush();",
        "",
    ),
    (
        "duplicate atomic runs again",
        "responder.cpp",
        "if (replay.atomic)\n      replies_.push_back",
        "if (replay.atomic && execute_atomic(packet))\n      replies_.push_back",
    ),
    (
        "adaptive: atomic not held",
        "requester.cpp",
        "return !held || psn_distance",
        "return true || psn_distance",
    ),
    (
        "adaptive: write with an immediate not held",
        "requester.cpp",
        "message.request.opcode != Opcode::write;",
        "message.request.opcode != Opcode::write && message.request.opcode != Opcode::write_immediate;",
    ),
    (
        "a write with an immediate is executed before its turn",
        "responder.cpp",
        "if (distance > 0) return receive_early(std::move(packet));",
        "if (distance > 0 && !packet.has_immediate) return receive_early(std::move(packet));",
    ),
    (
        "unordered: atomic not held at the responder",
        "responder.cpp",
        "if (distance > 0) return receive_early(std::move(packet));",
        "if (distance > 0 && packet.kind != PacketKind::atomic_request) return receive_early(std::move(packet));",
    ),
    (
        "writes are placed in order in every tier",
        "responder.cpp",
        "early.placed = check(packet) == AckCode::ack;",
        "early.placed = false;",
    ),
    (
        "a full completion queue overwrites entries",
        "completion_queue.cpp",
        ">= attributes_.size;",
        "> kPsnMask;",
    ),
    ("requests are not flushed after an error", "queue_pair.cpp", "  requester_.flush();\n", ""),
    (
        "a destroyed queue pair still uses its queues",
        "nic.cpp",
        "add_users(at->second->attributes(), -1);",
        "",
    ),
    (
        "a quota counts one too many",
        "nic.cpp",
        "pairs_.size() >= std::min(",
        "pairs_.size() > std::min(",
    ),
    (
        "fence ignored",
        "requester.cpp",
        "if (message.request.fenced && responses_due_ != 0) return false;",
        "",
    ),
    (
        "no limit of reads and atomics",
        "requester.cpp",
        "if (message.expects_response() && !has_replay_room()) return false;",
        "",
    ),
    (
        "rnr count not reset",
        "requester.cpp",
        "  rnr_retries_ = qp_.connection().rnr_retry;\n  resend",
        "  resend",
    ),
    (
        "PSN compared without wrap",
        "types.hpp",
        "return static_cast<std::int32_t>((to - from) << 8) >> 8;",
        "return static_cast<std::int32_t>((to & kPsnMask) - (from & kPsnMask));",
    ),
    ("owner bit constant", "completion_queue.cpp", "(number / attributes_.size) & 1", "0U"),
    ("wrong MAC address ignored", "queue_pair.cpp", "if (connection_.misaddressed) return;", ""),
    (
        "no CQE for unsignalled errors",
        "queue_pair.cpp",
        "if (!failed && !request.signalled) return;",
        "if (!request.signalled) return;",
    ),
    (
        "links have twice their rate",
        "wire/virtual_network.cpp",
        "static_cast<double>(bytes) / options_.bytes_per_ns)",
        "static_cast<double>(bytes) / options_.bytes_per_ns / 2)",
    ),
    (
        "full ports drop nothing",
        "wire/virtual_network.cpp",
        "options_.port_bytes != 0 && queued + bytes",
        "options_.port_bytes == 1 && queued + bytes",
    ),
    (
        "drops are not counted",
        "wire/virtual_network.cpp",
        "        ++statistics_.overflowed;\n",
        "",
    ),
    ("domain not checked", "memory_keys.cpp", "|| region->domain != domain", ""),
    (
        "key not checked",
        "memory_keys.cpp",
        " || at->second.variant != (key & 0xff)) return nullptr;",
        ") return nullptr;",
    ),
    ("rights not checked", "memory_keys.cpp", " || (region->access & access) != access)", ")"),
    ("bounds not checked", "memory_keys.cpp", "length > region->length - offset", "false"),
    (
        "alignment not checked",
        "responder.cpp",
        "if (packet.address % bytes != 0) return AckCode::invalid_request;",
        "",
    ),
    ("index not checked", "work_request.cpp", "(first >> 8 & 0xffff) == index &&", ""),
    ("queue pair not checked", "work_request.cpp", "second >> 8 == qp_number &&", ""),
    (
        "shared receives taken in ring order",
        "receive_queue.cpp",
        "head_ = load_be<std::uint16_t>(at + 2);",
        "head_ = static_cast<std::uint16_t>(head_ + 1);",
    ),
    (
        "resend never happens",
        "requester.cpp",
        "if (number >= message->sent) return false;",
        "return false;",
    ),
    (
        "no timer",
        "requester.cpp",
        "  if (timeout_ == kNever) restart_timer();\n  return true;",
        "  return true;",
    ),
    (
        "replay depth 1",
        "responder.cpp",
        "if (replays_.size() >= qp_.connection().remote_reads_and_atomics) replays_.pop_front();",
        "if (replays_.size() >= 1) replays_.pop_front();",
    ),
    (
        "timeout halved",
        "requester.cpp",
        "static_cast<std::int64_t>(4096) <<",
        "static_cast<std::int64_t>(2048) <<",
    ),
    (
        "no early resend",
        "requester.cpp",
        "resend_at_ = resend_after_ > Time(0) &&",
        "resend_at_ = resend_after_ < Time(0) &&",
    ),
    ("early resends do not become rarer", "requester.cpp", "    resend_after_ *= 2;\n", ""),
    (
        "after an early resend, further losses wait for the next",
        "requester.cpp",
        "if (qp_.connection().ordering != Ordering::strict) return resend_oldest();",
        "if (qp_.connection().ordering != Ordering::strict) return;",
    ),
    (
        "strict: nothing follows an early resend",
        "requester.cpp",
        "  if (one) go_back(acked_);\n",
        "  (void)one;\n",
    ),
    (
        "an early resend repeats no read or atomic",
        "requester.cpp",
        "  if (front.expects_response()) resend_.push_back(front.first_psn);\n",
        "",
    ),
    (
        "an early resend takes a retry",
        "requester.cpp",
        "    doubted_until_ = highest_;\n",
        "    doubted_until_ = highest_;\n    if (!use_retry()) return;\n",
    ),
    (
        "no round robin",
        "nic.cpp",
        "next = ready_.upper_bound({0, current_});",
        "next = ready_.begin();",
    ),
    (
        "boundary ignored",
        "responder.cpp",
        "  const AtomicOperands& operands = packet.atomic;\n",
        "  AtomicOperands operands = packet.atomic;\n"
        "  if (operands.opcode == Opcode::masked_fetch_add) operands.compare_mask_or_boundary = 0;\n",
    ),
    ("duplicate early", "responder.cpp", "early_.contains(position)", "false"),
    (
        "rnr: packets behind are nak-ed",
        "responder.cpp",
        "nak_sent_ = true;  // packets",
        "// packets",
    ),
    ("queue-pair numbers collide", "nic.cpp", "if (!pairs_.contains(number)) return", "return"),
    ("UDP: a full receiver holds up nothing", "wire/udp_wire.cpp", "  held_.push_back(index);", ""),
    (
        "UDP: a silent peer holds up for ever",
        "wire/udp_wire.cpp",
        "time - peer.held_since < kSilence",
        "true",
    ),
    (
        "UDP: a receiver that reads much says nothing",
        "wire/udp_wire.cpp",
        "if (flow.owes_head(window())) send_head(peers_[sender_]);",
        "",
    ),
    (
        "UDP: datagrams of any size travel together",
        "wire/udp_wire.cpp",
        "bytes <= peer.segment",
        "true",
    ),
    (
        "UDP: a wake is lost",
        "wire/udp_wire.cpp",
        "(void)!write(wake_.number",
        "(void)(wake_.number",
    ),
    ("UDP: strangers are heard", "wire/udp_wire.cpp", "|| sender_ == kNoPeer", ""),
    ("UDP: room is not given back", "wire/datagram.cpp", "  read_by_peer_ = head.seen;", ""),
    (
        "UDP: a new process goes on with the numbers of the old one",
        "wire/datagram.cpp",
        "if (head.session != peer_session_) {",
        "if (peer_session_ == 0) {",
    ),
    (
        "UDP: costs compared without wrap",
        "wire/datagram.cpp",
        "static_cast<std::int32_t>(head.sequence - seen_) > 0",
        "head.sequence > seen_",
    ),
    (
        "UDP: heads for an earlier process are believed",
        "wire/datagram.cpp",
        "if (head.of_session != session) return true;",
        "",
    ),
    (
        "UDP: copies of datagrams are delivered",
        "wire/datagram.cpp",
        "&& !is_first(head.sequence)) return false;",
        "&& !is_first(head.sequence)) return true;",
    ),
    (
        "copies of a report of a missing packet take retries",
        "requester.cpp",
        "if (!progress && reported_missing_ == psn) return;",
        "",
    ),
    (
        "copies of a receiver that is not ready take retries",
        "requester.cpp",
        "if (!progress && paused_until_ != kNever) return;",
        "",
    ),
    ("a completion has two events", "completion_queue.cpp", " && produced_ != notified_)", ")"),
    (
        "a completion before the notification request has no event",
        "completion_queue.cpp",
        "!= (command_and_counter & kPsnMask) &&",
        "!= (command_and_counter & kPsnMask) && false &&",
    ),
]


def path_of(file):
    return Path("emulator") / (file if "/" in file else f"engine/{file}")


def compile_source(source, emulator, output):
    include = ["-I", str(emulator)]
    done = subprocess.run(
        [*COMPILER, *include, str(source), "-o", str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NotRun(f"{source} does not compile: {done.stderr[:500]}")
    return output


def compile_all(folder):
    """Object files by source name, of the unchanged tree."""
    emulator = ROOT / "emulator"
    sources = [
        *(emulator / "engine").glob("*.cpp"),
        *(emulator / "wire" / f"{name}.cpp" for name in WIRES),
        *(emulator / "tests/unit" / f"{name}_test.cpp" for name in TESTS),
    ]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = pool.map(
            lambda source: compile_source(source, emulator, folder / f"{source.stem}.o"), sources
        )
        return dict(zip((source.name for source in sources), objects, strict=True))


def run_linked(objects, folder):
    """What fails in the tests of these object files; an empty text where all pass."""
    program = folder / "tests"
    subprocess.run(["c++", *map(str, objects.values()), "-o", str(program), *LIBRARIES], check=True)
    return run_tests([program], TIMEOUT_S)


def mutated(objects, folder, file, text, replacement):
    """Object files with one source changed; with a header changed, all sources of the engine."""
    tree = folder / "emulator"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT / "emulator", tree)
    path = folder / path_of(file)
    replace_in(path, text, replacement)
    changed = [path] if path.suffix == ".cpp" else list((tree / "engine").glob("*.cpp"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(
            lambda one: compile_source(one, tree, folder / f"mutated_{one.stem}.o"), changed
        )
        return {**objects, **dict(zip((one.name for one in changed), made, strict=True))}


def main(wanted):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        objects = compile_all(folder)
        if failed := run_linked(objects, folder):
            print(f"tests fail without a mutation: {failed}")
            return 1
        return run_mutations(
            MUTATIONS, wanted, lambda *change: run_linked(mutated(objects, folder, *change), folder)
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
