#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the host time of calls from Python without a graph on one rank: deep_ep.Buffer,
shoal.ep.Group and shoal.torch, in normal and low-latency mode, and deep_ep.ElasticBuffer, in turn.

With few tokens the time is mostly the overhead of Python: argument checks, arrays, events. On the
host backend the figure includes the (small) work. Calls with CUDA tensors return when their kernels
are queued, so the figure is the time of queueing. A figure is the best of the rounds' means, which
excludes other load on the machine.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

import deep_ep
import shoal
import shoal.torch
from rounds import origin

HIDDEN, EXPERTS, TOP_K, MAX_TOKENS = 512, 8, 2, 4


class Subject(NamedTuple):
    """A function that makes `calls` calls, and the most microseconds that each may take."""

    function: Callable[[], object]
    calls: int
    target_us: float | None = None


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


class Inputs:
    """Tokens of one rank, and the groups and buffers of all subjects.

    A group makes low-latency calls of few tokens in one launch only while it is alone on its GPU,
    so the group of ``shoal.ep`` comes after that of the buffer has gone.
    """

    def __init__(self, device):
        self.x = torch.randn(2, HIDDEN, device=device).bfloat16()
        self.topk_idx = torch.tensor([[0, 3], [5, 1]], device=device)
        self.weights = torch.rand(2, TOP_K, device=device)
        self.world = shoal.World.from_torch(
            settings={"heap": "cuda" if device.type == "cuda" else "host", "symmetric_size": "256M"}
        )
        self.buffer = make_buffer()
        sizes = {"num_max_tokens_per_rank": MAX_TOKENS, "hidden": HIDDEN, "num_topk": TOP_K}
        self.elastic = deep_ep.ElasticBuffer(dist.group.WORLD, **sizes, explicitly_destroy=True)
        on_gpu = device.type == "cuda"
        self.stream = torch.cuda.current_stream().cuda_stream or 1 if on_gpu else None

    def make_group(self):
        self.buffer.destroy()
        self.buffer = make_buffer()
        most = {"max_tokens": MAX_TOKENS, "low_latency_max_tokens": MAX_TOKENS}
        self.group = shoal.ep.Group(
            self.world.team, hidden=HIDDEN, top_k=TOP_K, experts=EXPERTS, **most
        )

    def close(self):
        self.group.close()
        self.world.close()
        self.buffer.destroy()
        self.elastic.destroy()


def make_buffer():
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(MAX_TOKENS, HIDDEN, 1, EXPERTS)
    return deep_ep.Buffer(dist.group.WORLD, 0, size, low_latency_mode=True, explicitly_destroy=True)


def low_latency_of_buffer(i):
    """Dispatches and combines, each with its receive."""

    def without_hooks():
        rows, _, handle, _, _ = i.buffer.low_latency_dispatch(
            i.x, i.topk_idx, MAX_TOKENS, EXPERTS, use_fp8=False
        )
        i.buffer.low_latency_combine(rows, i.topk_idx, i.weights, handle)

    def drop_in():
        rows, _, handle, _, hook = i.buffer.low_latency_dispatch(
            i.x, i.topk_idx, MAX_TOKENS, EXPERTS, use_fp8=False, return_recv_hook=True
        )
        hook()
        _, _, hook = i.buffer.low_latency_combine(
            rows, i.topk_idx, i.weights, handle, return_recv_hook=True
        )
        hook()

    return {
        "deep_ep.Buffer": Subject(drop_in, 2, 15),
        "without hooks": Subject(without_hooks, 2, 15),
    }


def low_latency_of_group(i):
    """The same of ``shoal.ep``."""

    def pair(**options):
        received = i.group.low_latency_dispatch(
            i.x, i.topk_idx, quantize="none", stream=i.stream, **options
        ).receive()
        i.group.low_latency_combine(
            received.x, i.topk_idx, i.weights, received.handle, stream=i.stream, **options
        ).receive()

    return {
        "shoal.ep.Group": Subject(pair, 2, 8),
        "shoal.ep.Group, not deferred": Subject(lambda: pair(defer_receive=False), 2, 8),
        "shoal.torch, low latency": Subject(
            lambda: shoal.torch.low_latency(
                i.group, i.x, i.topk_idx, i.weights, lambda rows, counts: rows
            ),
            2,
        ),
    }


def normal(i):
    """Dispatches whose sizes no host waits for, and combines."""
    rows = len(i.x)

    buffer, layout_of = i.buffer, i.buffer.get_dispatch_layout

    def pair():
        per_rank, per_node, per_expert, in_rank, _ = layout_of(i.topk_idx, EXPERTS)
        layout = (per_rank, per_node, in_rank, per_expert, i.topk_idx, i.weights)
        recv_x, _, weights, _, handle, _ = buffer.dispatch(
            i.x, None, *layout, num_worst_tokens=rows
        )
        buffer.combine(recv_x, handle, topk_weights=weights)

    def pair_with_events():
        on_comm = {"async_finish": True, "allocate_on_comm_stream": True}
        per_rank, per_node, per_expert, in_rank, event = layout_of(
            i.topk_idx, EXPERTS, previous_event=deep_ep.Buffer.capture(), **on_comm
        )
        layout = (per_rank, per_node, in_rank, per_expert, i.topk_idx, i.weights)
        recv_x, _, weights, _, handle, event = buffer.dispatch(
            i.x, None, *layout, num_worst_tokens=rows, previous_event=event, **on_comm
        )
        event.current_stream_wait()
        after = deep_ep.Buffer.capture()
        *_, event = buffer.combine(
            recv_x, handle, topk_weights=weights, previous_event=after, **on_comm
        )
        event.current_stream_wait()

    def core():
        routing = i.group.route(i.topk_idx, stream=i.stream)
        received = i.group.dispatch(
            i.x, routing, weights=i.weights, worst_case_rows=rows, stream=i.stream
        )
        i.group.combine(received.x, received.handle, stream=i.stream)

    def in_torch(x, weights):
        received = shoal.torch.dispatch(i.group, x, i.topk_idx, weights, worst_case_rows=rows)
        shoal.torch.combine(i.group, received.x, received)

    x, weights = i.x.clone().requires_grad_(), i.weights.clone().requires_grad_()
    return {
        "deep_ep.Buffer, normal: pair": Subject(pair, 1, 60),
        "deep_ep.Buffer: pair with events": Subject(pair_with_events, 1),
        "shoal.ep.Group, normal": Subject(core, 3, 15),
        "shoal.torch": Subject(lambda: in_torch(i.x, i.weights), 2, 15),
        "shoal.torch, with gradients": Subject(lambda: in_torch(x, weights), 2, 15),
    }


def elastic(i):
    """Pairs without and with events."""
    buffer = i.elastic
    without_sync = {"num_experts": EXPERTS, "do_cpu_sync": False, "do_handle_copy": False}

    def pair(expand=False, **options):
        def after():
            return {"previous_event": deep_ep.Buffer.capture(), **options} if options else {}

        recv_x, _, weights, handle, event = buffer.dispatch(
            i.x, i.topk_idx, i.weights, do_expand=expand, **without_sync, **after()
        )
        if options:
            event.current_stream_wait()
        *_, event = buffer.combine(recv_x, handle, topk_weights=weights, **after())
        if options:
            event.current_stream_wait()

    on_comm = {"async_with_compute_stream": True, "allocate_on_comm_stream": True}
    return {
        "deep_ep.ElasticBuffer: pair": Subject(pair, 1, 60),
        "ElasticBuffer: expanded pair": Subject(lambda: pair(expand=True), 1),
        "ElasticBuffer: pair with events": Subject(lambda: pair(**on_comm), 1),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=300, help="runs of each function per round")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    inputs = Inputs(device)
    subjects, rounds = {}, {}

    def measure(some):
        subjects.update(some)
        for _ in range(arguments.rounds + 1):  # the first one warms up
            for name, one in some.items():
                taken = seconds_per_call(one.function, arguments.calls, device)
                rounds.setdefault(name, []).append(1e6 / one.calls * taken)

    measure(low_latency_of_buffer(inputs))
    inputs.make_group()
    measure({**low_latency_of_group(inputs), **normal(inputs), **elastic(inputs)})
    figures = {
        name: {
            "best_us": min(all_[1:]),
            "median_us": statistics.median(all_[1:]),
            "target_us": subjects[name].target_us,
        }
        for name, all_ in rounds.items()
    }
    for name, figure in figures.items():
        target = "" if figure["target_us"] is None else f", target {figure['target_us']:g}"
        print(
            f"{name:<32} {figure['best_us']:6.1f} us (median of rounds {figure['median_us']:.1f}"
            f"{target}), {device.type}"
        )
    if arguments.json:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "host"
        counts = {"rounds": arguments.rounds, "calls": arguments.calls, "figures": figures}
        with open(arguments.json, "w") as file:
            json.dump(
                {**origin(f"one rank, {name}"), "device": device.type, **counts}, file, indent=1
            )
    inputs.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
