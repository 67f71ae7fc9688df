#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""First pairs of warmed-up processes against steady pairs, through every interface.

Each start is a set of fresh processes, one per rank, which use one interface: they prepare it
(`preinitialize` or `warmup`), make the first pair at once, and more pairs. A time is that of the
slowest rank, from a barrier to the end of the pair, on GPUs with the work on the GPU. Steady: the
median of the second half of the pairs. The result is the median over the starts, and the range.
Inputs exist before the warm-up, as those of a model do.

--no-warmup shows what the warm-up saves. --trace shows, on GPUs, which calls of CUDA a first pair
makes more or less often than a steady one (torch's profiler). The last columns are a steady pair
after a pause of 2 ms, and the page faults of the first and of a steady pair.
"""

import argparse
import json
import os
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time

PAIRS = 40
PAUSE = 0.002  # seconds
BIN = os.environ.get("SHOAL_BIN_DIR", "build/release/bin")


class Case:
    """The inputs of a rank; `tokens` per rank."""

    def __init__(self, a, rank, ranks, tokens):
        import torch

        generator = torch.Generator().manual_seed(17 + rank)
        self.a, self.ranks, self.tokens = a, ranks, tokens
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        scores = torch.rand(tokens, a.experts, generator=generator)
        self.topk_idx = scores.topk(a.top_k, dim=1).indices.to(self.device)
        self.weights = torch.rand(tokens, a.top_k, generator=generator).to(self.device)
        self.x = torch.randn(tokens, a.hidden, generator=generator).bfloat16().to(self.device)

    def rows(self, *shape):
        import torch

        return torch.ones(shape, dtype=torch.bfloat16, device=self.device)

    def sizes(self):
        return {
            "num_max_tokens_per_rank": self.tokens,
            "hidden": self.a.hidden,
            "num_experts": self.a.experts,
            "num_topk": self.a.top_k,
        }


def buffer_normal(case, group, world):
    import deep_ep

    a, y = case.a, case.rows(case.tokens * case.ranks, case.a.hidden)
    buffer = deep_ep.Buffer(
        group, 2 << 30, 0, explicitly_destroy=True, **case.sizes(), preinitialize=a.warmup
    )

    def pair():
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(
            case.topk_idx, a.experts
        )
        received, _, weights, _, handle, _ = buffer.dispatch(
            case.x,
            None,
            per_rank,
            per_node,
            in_rank,
            per_expert,
            case.topk_idx,
            case.weights,
            num_worst_tokens=case.tokens * case.ranks,
        )
        buffer.combine(y[: received.shape[0]], handle, topk_weights=weights)

    return buffer.runtime.team, pair, buffer.destroy


def elastic_buffer(case, group, world):
    import deep_ep

    a, y = case.a, case.rows(case.tokens * case.ranks, case.a.hidden)
    buffer = deep_ep.ElasticBuffer(
        group, explicitly_destroy=True, **case.sizes(), preinitialize=a.warmup
    )

    def pair():
        received, _, weights, handle, _ = buffer.dispatch(
            case.x, case.topk_idx, case.weights, num_experts=a.experts, do_cpu_sync=False
        )
        buffer.combine(y[: received.shape[0]], handle, topk_weights=weights)

    return buffer.runtime.team, pair, buffer.destroy


def buffer_low_latency(case, group, world):
    import deep_ep

    a = case.a
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(
        case.tokens, a.hidden, case.ranks, a.experts
    )
    y = case.rows(a.experts // case.ranks, case.tokens * case.ranks, a.hidden)
    buffer = deep_ep.Buffer(
        group,
        0,
        size,
        low_latency_mode=True,
        explicitly_destroy=True,
        num_topk=a.top_k,
        preinitialize=a.warmup,
    )

    def pair():
        _, _, handle, *_ = buffer.low_latency_dispatch(
            case.x, case.topk_idx, case.tokens, a.experts
        )
        buffer.low_latency_combine(y, case.topk_idx, case.weights, handle)

    return buffer.runtime.team, pair, buffer.destroy


def make_group(case, world, **options):
    import shoal.ep

    a = case.a
    options |= {"hidden": a.hidden, "top_k": a.top_k, "experts": a.experts}
    return shoal.ep.Group(world.team, **options, preinitialize=a.warmup)


def group_normal(case, group, world):
    ep = make_group(case, world, max_tokens=case.tokens)

    def pair():
        received = ep.dispatch(case.x, ep.route(case.topk_idx), weights=case.weights)
        ep.combine(received.x, received.handle)

    return world.team, pair, ep.close


def group_low_latency(case, group, world):
    ep = make_group(case, world, low_latency_max_tokens=case.tokens)
    y = case.rows(case.a.experts // case.ranks, case.tokens * case.ranks, case.a.hidden)

    def pair():
        received = ep.low_latency_dispatch(case.x, case.topk_idx).receive()
        ep.low_latency_combine(y, case.topk_idx, case.weights, received.handle).receive()

    return world.team, pair, ep.close


# By name: what prepares an interface, and whether it has the tokens of low-latency mode.
INTERFACES = {
    "Buffer": (buffer_normal, False),
    "ElasticBuffer": (elastic_buffer, False),
    "Buffer, low latency": (buffer_low_latency, True),
    "shoal.ep.Group": (group_normal, False),
    "shoal.ep.Group, low latency": (group_low_latency, True),
}
CPP = {"C++": "normal", "C++, low latency": "low latency"}


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def cuda_calls(torch, pair):
    """By name: calls of CUDA in one pair."""
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
        pair()
        torch.cuda.synchronize()
    counts = {}
    for event in profile.events():
        if event.device_type != torch.profiler.DeviceType.CUDA and event.name.startswith("cu"):
            counts[event.name] = counts.get(event.name, 0) + 1
    return counts


def run_rank(a):
    """One rank of a start: writes its result to a file of rank 0."""
    import torch
    import torch.distributed as dist

    import deep_ep  # noqa: F401
    import shoal
    import shoal.ep

    if a.wait:  # the imports above overlap with the starts before
        print("ready", flush=True)
        sys.stdin.readline()
    on_gpu = torch.cuda.is_available()
    if a.trace and not on_gpu:
        sys.exit("--trace needs GPUs")
    if on_gpu:
        torch.cuda.set_device(a.rank % torch.cuda.device_count())
    # Ranks that start on one core spend a scheduler's tick in each wait until one is moved.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[a.rank :: a.ranks] or cores)
    if a.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{a.store}", rank=a.rank, world_size=a.ranks
    )
    make, low_latency = INTERFACES[a.interface]
    case = Case(a, a.rank, a.ranks, a.low_latency_tokens if low_latency else a.tokens)
    settings = {"heap": "cuda" if on_gpu else "host"}
    if on_gpu:
        settings["device"] = a.rank % torch.cuda.device_count()

    def timed(pair, team):
        if on_gpu:
            torch.cuda.synchronize()
        shoal.barrier(team)
        start, before = time.perf_counter(), faults()
        pair()
        if on_gpu:
            torch.cuda.synchronize()
        seconds, taken = time.perf_counter() - start, faults() - before
        return [
            max(values)
            for values in zip(
                *(
                    struct.unpack("<2d", b)
                    for b in team.exchange(struct.pack("<2d", seconds, taken))
                )
            )
        ]

    # The code of the measurement itself. The first pair then directly follows the warm-up.
    with shoal.World.from_torch(settings={"heap": "host"}) as other:
        for _ in range(20):
            timed(lambda: None, other.team)
    own = "Group" in a.interface
    world = shoal.World.from_torch(settings=settings) if own else None
    team, pair, close = make(case, dist.group.WORLD, world)
    if a.trace:
        cuda_calls(torch, lambda: None)  # the profiler's own first use
        first = cuda_calls(torch, pair)
        for _ in range(PAIRS):
            timed(pair, team)
        steady = cuda_calls(torch, pair)
        result = {"first": first, "steady": steady}
    else:
        pairs = [timed(pair, team) for _ in range(PAIRS)]
        steady = pairs[PAIRS // 2 :]
        paused = []
        for _ in range(5):
            time.sleep(PAUSE)
            paused.append(timed(pair, team)[0])
        result = {
            "first": pairs[0][0],
            "steady": statistics.median(seconds for seconds, _ in steady),
            "after a pause": statistics.median(paused),
            "start": [seconds for seconds, _ in pairs[:6]],
            "page faults": [pairs[0][1], statistics.median(taken for _, taken in steady)],
        }
    if a.rank == 0:
        with open(a.store + ".json", "w") as file:
            json.dump(result, file)
    close()
    if world is not None:
        world.close()
    dist.destroy_process_group()


class Start:
    """Processes of one start, which import what they need ahead of their turn."""

    def __init__(self, a, interface, wait):
        self.folder, self.interface = tempfile.TemporaryDirectory(), interface
        self.store = os.path.join(self.folder.name, "store")
        options = ["--interface", interface, "--store", self.store, "--ranks", str(a.ranks)]
        for name in ("tokens", "low_latency_tokens", "hidden", "top_k", "experts"):
            options += ["--" + name.replace("_", "-"), str(getattr(a, name))]
        options += ["--no-warmup"] * (not a.warmup) + ["--trace"] * a.trace + ["--wait"] * wait
        options += ["--realtime"] * a.realtime
        self.waiting = wait
        self.ranks = [
            subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), *options, "--rank", str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(a.ranks)
        ]

    def run(self, limit=300):
        """The result of the start."""
        try:
            if self.waiting:
                for rank in self.ranks:
                    assert rank.stdout.readline() == "ready\n", "a rank has ended early"
                for rank in self.ranks:
                    rank.stdin.write("go\n")
                    rank.stdin.flush()
            for rank in self.ranks:
                rank.wait(limit)
            with open(self.store + ".json") as file:
                return json.load(file)
        finally:
            for rank in self.ranks:
                rank.kill()
            self.folder.cleanup()


def run_cpp(a):
    """The report of a start of the C++ benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "start.json")
        if a.gpu:
            command = [f"{BIN}/shoal-bench-gpu", "start", "--pes", str(a.ranks)]
            command += ["--no-warmup"] * (not a.warmup)
        else:
            command = [f"{BIN}/shoal-run", "-n", str(a.ranks), f"{BIN}/shoal-bench", "start"]
            command += ["--preinitialize"] * a.warmup
            for name in ("tokens", "hidden", "top_k", "experts"):
                command += ["--" + name.replace("_", "-"), str(getattr(a, name))]
        command = ["chrt", "-r", "1"] * a.realtime + command
        subprocess.run(
            [*command, "--json", path], check=True, stdout=subprocess.DEVNULL, timeout=300
        )
        with open(path) as file:
            return json.load(file)


def cpp_pairs(report, mode, gpu):
    """First and steady pair of the first group of the process, in seconds."""
    rows = {row["operation" if gpu else "name"]: row["seconds"]["max"] for row in report["results"]}
    first, steady = "first pair of the process", "steady pair"
    if gpu:
        return {
            kind.split()[0]: rows[f"{mode}, group 1: {kind}"] for kind in ("first pair", steady)
        }
    return {kind.split()[0]: rows[f"{mode}: {kind}"] for kind in (first, steady)}


def summary(starts):
    ratios = sorted(one["first"] / one["steady"] for one in starts)
    row = {
        "starts": len(starts),
        "first, us": 1e6 * statistics.median(one["first"] for one in starts),
        "steady, us": 1e6 * statistics.median(one["steady"] for one in starts),
        "first / steady": statistics.median(ratios),
        "range": [ratios[0], ratios[-1]],
    }
    if "after a pause" in starts[0]:
        row["after a pause, us"] = 1e6 * statistics.median(one["after a pause"] for one in starts)
    if "page faults" in starts[0]:
        for which, name in enumerate(("first", "steady")):
            found = statistics.median(one["page faults"][which] for one in starts)
            row[f"page faults, {name}"] = found
    return row


def show(name, row):
    print(
        f"{name:<28} {row['first, us']:9.1f} {row['steady, us']:9.1f} {row['first / steady']:8.2f} "
        f"({row['range'][0]:.2f} to {row['range'][1]:.2f})  {row.get('after a pause, us', 0):9.1f} "
        f"{row.get('page faults, first', '')} {row.get('page faults, steady', '')}",
        flush=True,
    )


def measure(a):
    names = [name for name in INTERFACES if not a.only or name in a.only]
    order = [name for _ in range(a.starts) for name in names]
    found, ahead = {}, []
    end = time.monotonic() + a.seconds if a.seconds else None
    for i, name in enumerate(order):
        while len(ahead) <= a.ahead and i + len(ahead) < len(order):
            ahead.append(Start(a, order[i + len(ahead)], a.ahead > 0))
        start = ahead.pop(0)
        found.setdefault(name, []).append(start.run())
        if end is not None and time.monotonic() > end:
            break
    for start in ahead:
        for rank in start.ranks:
            rank.kill()
        start.folder.cleanup()
    modes = {name: mode for name, mode in CPP.items() if not a.only or name in a.only}
    if modes and not a.trace:
        reports = [run_cpp(a) for _ in range(a.starts)]
        for name, mode in modes.items():
            found[name] = [cpp_pairs(report, mode, a.gpu) for report in reports]
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=20, help="of each interface")
    parser.add_argument(
        "--seconds", type=float, default=0, help="start no more after these; 0: all"
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128, help="per rank; on GPUs 4096 is usual")
    parser.add_argument("--low-latency-tokens", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--only", nargs="+", choices=[*INTERFACES, *CPP])
    parser.add_argument("--no-warmup", dest="warmup", action="store_false")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--ahead", type=int, default=0, help="starts that import ahead of time")
    parser.add_argument("--realtime", action="store_true", help="keep other programs off the cores")
    parser.add_argument("--gpu", action="store_true", help="GPUs also for C++")
    parser.add_argument("--json", help="write the results to this file")
    for name in ("--interface", "--store"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.interface:
        return run_rank(a)
    found, results = measure(a), {}
    for name, starts in found.items():
        if a.trace:
            first, steady = starts[0]["first"], starts[0]["steady"]
            differ = {
                call: (first.get(call, 0), steady.get(call, 0))
                for call in {**first, **steady}
                if first.get(call) != steady.get(call)
            }
            print(
                f"{name}: calls of CUDA in the first and in a steady pair: {differ or 'the same'}"
            )
        else:
            results[name] = summary(starts)
            show(name, results[name])
    if a.json:
        with open(a.json, "w") as file:
            json.dump({"options": vars(a), "results": results, "starts": found}, file)


if __name__ == "__main__":
    main()
