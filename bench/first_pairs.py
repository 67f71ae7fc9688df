#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""First pairs of warmed-up processes against steady pairs, through every interface.

Each start is a set of fresh processes, one per rank, which use one interface: they prepare it
(`preinitialize` or `warmup`), make the first pair at once, and more pairs. A time is that of the
slowest rank, from a barrier to the end of the pair, on GPUs with the work on the GPU. Steady: the
median of the second half of the pairs. The result is the median over the starts, and the range; the
last column is a steady pair after a pause of 2 ms. Inputs exist before the warm-up, as those of a
model do. --no-warmup shows what the warm-up saves.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time

PAIRS = 40
PAUSE = 0.002  # seconds
BIN = os.environ.get("SHOAL_BIN_DIR", "build/release/bin")


def rows(case, *shape):
    import torch

    return torch.ones(shape, dtype=torch.bfloat16, device=case.device)


def normal_buffer(case, group, kind):
    """A warmed-up `Buffer` or `ElasticBuffer`, whose pairs wait for no number of rows."""
    import deep_ep
    from deep_ep_calls import Elastic, Legacy

    a, most = case.a, case.tokens * case.ranks
    sizes = {"num_max_tokens_per_rank": case.tokens, "hidden": a.hidden, "num_topk": a.top_k}
    sizes |= {"num_experts": a.experts, "preinitialize": a.warmup, "explicitly_destroy": True}
    if kind == "Buffer":
        one = Legacy(case, deep_ep.Buffer(group, 2 << 30, 0, **sizes), most)
    else:
        one = Elastic(case, deep_ep.ElasticBuffer(group, **sizes), do_cpu_sync=False)
    y = rows(case, most, a.hidden)
    return one.buffer.runtime.team, lambda: one.pair(False, y), one.buffer.destroy


def low_latency_buffer(case, group):
    import deep_ep

    a, tokens, ranks = case.a, case.tokens, case.ranks
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(tokens, a.hidden, ranks, a.experts)
    options = {"low_latency_mode": True, "explicitly_destroy": True, "num_topk": a.top_k}
    buffer = deep_ep.Buffer(group, 0, size, **options, preinitialize=a.warmup)
    y = rows(case, a.experts // ranks, tokens * ranks, a.hidden)

    def pair():
        _, _, handle, *_ = buffer.low_latency_dispatch(case.x, case.topk_idx, tokens, a.experts)
        buffer.low_latency_combine(y, case.topk_idx, case.weights, handle)

    return buffer.runtime.team, pair, buffer.destroy


def shoal_group(case, world, low_latency):
    import shoal.ep

    a = case.a
    most = {"low_latency_max_tokens" if low_latency else "max_tokens": case.tokens}
    sizes = {"hidden": a.hidden, "top_k": a.top_k, "experts": a.experts, **most}
    ep = shoal.ep.Group(world.team, **sizes, preinitialize=a.warmup)
    y = rows(case, a.experts // case.ranks, case.tokens * case.ranks, a.hidden)

    def normal_pair():
        received = ep.dispatch(case.x, ep.route(case.topk_idx), weights=case.weights)
        ep.combine(received.x, received.handle)

    def low_latency_pair():
        received = ep.low_latency_dispatch(case.x, case.topk_idx).receive()
        ep.low_latency_combine(y, case.topk_idx, case.weights, received.handle).receive()

    return world.team, low_latency_pair if low_latency else normal_pair, ep.close


# The function that prepares each interface. The words "low latency" in a name select the tokens of
# that mode.
INTERFACES = {
    "Buffer": lambda case, group, world: normal_buffer(case, group, "Buffer"),
    "ElasticBuffer": lambda case, group, world: normal_buffer(case, group, "ElasticBuffer"),
    "Buffer, low latency": lambda case, group, world: low_latency_buffer(case, group),
    "shoal.ep.Group": lambda case, group, world: shoal_group(case, world, False),
    "shoal.ep.Group, low latency": lambda case, group, world: shoal_group(case, world, True),
}
CPP = {"C++": "normal", "C++, low latency": "low latency"}


def run_rank(a):
    """One rank of a start. Rank 0 writes the result to a file."""
    import torch
    import torch.distributed as dist

    import shoal
    import shoal.ep
    from deep_ep_calls import Case

    if a.wait:  # the imports above overlap with the starts before
        print("ready", flush=True)
        sys.stdin.readline()
    on_gpu = torch.cuda.is_available()
    settings = {"heap": "cuda" if on_gpu else "host"}
    if on_gpu:
        settings["device"] = a.rank % torch.cuda.device_count()
        torch.cuda.set_device(settings["device"])
    # Ranks that start on one core spend a scheduler's tick in each wait until one is moved.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[a.rank :: a.ranks] or cores)
    if a.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    torch.set_num_threads(1)
    store = {"init_method": f"file://{a.store}", "rank": a.rank, "world_size": a.ranks}
    dist.init_process_group("gloo", **store)
    tokens = a.low_latency_tokens if "low latency" in a.interface else a.tokens
    case = Case(a, a.rank, a.ranks, tokens)

    def timed(pair, team):
        """Seconds of the slowest rank."""
        if on_gpu:
            torch.cuda.synchronize()
        shoal.barrier(team)
        start = time.perf_counter()
        pair()
        if on_gpu:
            torch.cuda.synchronize()
        seconds = struct.pack("<d", time.perf_counter() - start)
        return max(struct.unpack("<d", of_rank)[0] for of_rank in team.exchange(seconds))

    # The code of the measurement itself. The first pair then directly follows the warm-up.
    with shoal.World.from_torch(settings={"heap": "host"}) as other:
        for _ in range(20):
            timed(lambda: None, other.team)
    world = shoal.World.from_torch(settings=settings) if "Group" in a.interface else None
    team, pair, close = INTERFACES[a.interface](case, dist.group.WORLD, world)
    pairs = [timed(pair, team) for _ in range(PAIRS)]
    paused = []
    for _ in range(5):
        time.sleep(PAUSE)
        paused.append(timed(pair, team))
    if a.rank == 0:
        result = {
            "first": pairs[0],
            "steady": statistics.median(pairs[PAIRS // 2 :]),
            "after a pause": statistics.median(paused),
        }
        with open(a.store + ".json", "w") as file:
            json.dump(result, file)
    close()
    if world is not None:
        world.close()
    dist.destroy_process_group()


def shape_options(a, *names):
    return [word for name in names for word in (f"--{name}", getattr(a, name.replace("-", "_")))]


class Start:
    """Processes of one start, which import what they need ahead of their turn."""

    def __init__(self, a, interface):
        self.folder, self.waiting = tempfile.TemporaryDirectory(), a.ahead > 0
        self.store = os.path.join(self.folder.name, "store")
        options = ["--interface", interface, "--store", self.store]
        options += shape_options(
            a, "ranks", "tokens", "low-latency-tokens", "hidden", "top-k", "experts"
        )
        options += ["--no-warmup"] * (not a.warmup) + ["--wait"] * self.waiting
        options += ["--realtime"] * a.realtime
        command = [sys.executable, os.path.abspath(__file__), *map(str, options)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.ranks = [
            subprocess.Popen([*command, "--rank", str(rank)], **pipes) for rank in range(a.ranks)
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
            self.end()

    def end(self):
        for rank in self.ranks:
            rank.kill()
        self.folder.cleanup()


def run_cpp(a):
    """{mode: first and steady pair of the first group of the process} of shoal-bench-gpu."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "start.json")
        command = [f"{BIN}/shoal-bench-gpu", "start", "--pes", a.ranks]
        command += ["--no-warmup"] * (not a.warmup) + ["--json", path]
        command = ["chrt", "-r", "1"] * a.realtime + command
        quiet = {"check": True, "stdout": subprocess.DEVNULL, "timeout": 300}
        subprocess.run(list(map(str, command)), **quiet)
        with open(path) as file:
            results = json.load(file)["results"]
    times = {row.get("name") or row["operation"]: row["seconds"]["max"] for row in results}
    return {
        mode: {which: times[f"{mode}, group 1: {which} pair"] for which in ("first", "steady")}
        for mode in CPP.values()
    }


def summary(starts):
    ratios = sorted(one["first"] / one["steady"] for one in starts)
    row = {"starts": len(starts)}
    for name in ("first", "steady", "after a pause"):
        if name in starts[0]:
            row[f"{name}, us"] = 1e6 * statistics.median(one[name] for one in starts)
    return {**row, "first / steady": statistics.median(ratios), "range": [ratios[0], ratios[-1]]}


def measure(a):
    names = [name for name in INTERFACES if not a.only or name in a.only]
    order = [name for _ in range(a.starts) for name in names]
    found, ahead = {}, []
    for i, name in enumerate(order):
        while len(ahead) <= a.ahead and i + len(ahead) < len(order):
            ahead.append(Start(a, order[i + len(ahead)]))
        found.setdefault(name, []).append(ahead.pop(0).run())
    wanted = a.only or (CPP if a.gpu else ())
    modes = {name: mode for name, mode in CPP.items() if name in wanted}
    reports = [run_cpp(a) for _ in range(a.starts)] if modes else []
    return found | {name: [report[mode] for report in reports] for name, mode in modes.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=20, help="of each interface")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128, help="per rank; on GPUs 4096 is usual")
    parser.add_argument("--low-latency-tokens", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--only", nargs="+", choices=[*INTERFACES, *CPP])
    parser.add_argument("--no-warmup", dest="warmup", action="store_false")
    parser.add_argument("--ahead", type=int, default=0, help="starts that import ahead of time")
    parser.add_argument("--realtime", action="store_true", help="keep other programs off the cores")
    parser.add_argument("--gpu", action="store_true", help="C++ too, which needs GPUs")
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
        row = results[name] = summary(starts)
        print(
            f"{name:<28} {row['first, us']:9.1f} {row['steady, us']:9.1f} "
            f"{row['first / steady']:8.2f} ({row['range'][0]:.2f} to {row['range'][1]:.2f})  "
            f"{row.get('after a pause, us', 0):9.1f}",
            flush=True,
        )
    if a.json:
        with open(a.json, "w") as file:
            json.dump({"options": vars(a), "results": results, "starts": found}, file)


if __name__ == "__main__":
    main()
