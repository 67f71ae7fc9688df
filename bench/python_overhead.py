#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the host time of a low-latency call from Python without a graph: deep_ep.Buffer and
shoal.ep alternate on one rank.

With few tokens the time is mostly the overhead of Python: argument checks, arrays, events. On the
host backend the figure includes the (small) work. Calls with CUDA tensors return when their kernels
are queued, so the figure is the time of queueing. A figure is the best of the rounds' means, which
excludes other load on the machine.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist

import deep_ep
import shoal

HIDDEN, EXPERTS, TOP_K, MAX_TOKENS = 512, 8, 2, 4
TARGET_US = 15.0


def seconds_per_call(function, calls, device):
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    taken = (time.perf_counter() - start) / calls
    if device.type == "cuda":
        torch.cuda.synchronize()
    return taken


def subjects(device):
    """name -> a function with two calls: a dispatch and a combine, each with its receive."""
    x = torch.randn(2, HIDDEN, device=device).bfloat16()
    topk_idx = torch.tensor([[0, 3], [5, 1]], device=device)
    weights = torch.rand(2, TOP_K, device=device)

    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(MAX_TOKENS, HIDDEN, 1, EXPERTS)
    buffer = deep_ep.Buffer(
        dist.group.WORLD, 0, size, low_latency_mode=True, explicitly_destroy=True
    )

    def without_hooks():
        rows, _, handle, _, _ = buffer.low_latency_dispatch(
            x, topk_idx, MAX_TOKENS, EXPERTS, use_fp8=False
        )
        buffer.low_latency_combine(rows, topk_idx, weights, handle)

    def drop_in():
        rows, _, handle, _, hook = buffer.low_latency_dispatch(
            x, topk_idx, MAX_TOKENS, EXPERTS, use_fp8=False, return_recv_hook=True
        )
        hook()
        _, _, hook = buffer.low_latency_combine(
            rows, topk_idx, weights, handle, return_recv_hook=True
        )
        hook()

    world = shoal.World.from_torch(
        settings={"heap": "cuda" if device.type == "cuda" else "host", "symmetric_size": "256M"}
    )
    group = shoal.ep.Group(
        world.team, hidden=HIDDEN, top_k=TOP_K, experts=EXPERTS, low_latency_max_tokens=MAX_TOKENS
    )
    stream = torch.cuda.current_stream().cuda_stream if device.type == "cuda" else None

    def core():
        received = group.low_latency_dispatch(x, topk_idx, quantize="none", stream=stream).receive()
        group.low_latency_combine(
            received.x, topk_idx, weights, received.handle, stream=stream
        ).receive()

    def end():
        group.close()
        world.close()
        buffer.destroy()

    return {"deep_ep.Buffer": drop_in, "without hooks": without_hooks, "shoal.ep.Group": core}, end


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=500, help="pairs per round")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    functions, end = subjects(device)
    rounds = {name: [] for name in functions}
    for _ in range(arguments.rounds + 1):  # the first one warms up
        for name, function in functions.items():
            rounds[name].append(1e6 / 2 * seconds_per_call(function, arguments.calls, device))
    figures = {
        name: {"best_us": min(all_[1:]), "median_us": statistics.median(all_[1:])}
        for name, all_ in rounds.items()
    }
    for name, figure in figures.items():
        print(
            f"{name:<16} {figure['best_us']:6.1f} us per low-latency call (median of rounds {figure['median_us']:.1f}), {device.type}"
        )
    print(f"target: {TARGET_US:g} us for deep_ep.Buffer")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(
                {
                    "device": device.type,
                    "rounds": arguments.rounds,
                    "calls": arguments.calls,
                    "figures": figures,
                },
                file,
                indent=1,
            )
    end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
