#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a program gets from `deep_ep` in normal mode: pairs, parts of them, and the first pair.

Runs over whichever `deep_ep` Python finds: Shoal's (PYTHONPATH=build/release/python) or DeepEP's. A
pair is a layout (Buffer only), a dispatch and a combine with weights. Expert output lies in torch's
memory. GPU times are means over a chain without host synchronization, on the slowest rank; host
times are those of queueing the same calls. Results are checked before and after the chains.
"""

import argparse
import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import deep_ep


class Case:
    """The inputs of one rank, and the sums that a combine of the rows must give."""

    def __init__(self, rank, ranks, a):
        generator = torch.Generator().manual_seed(17 + rank)
        self.a, self.ranks = a, ranks
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        scores = torch.rand(a.tokens, a.experts, generator=generator)
        self.topk_idx = scores.topk(a.top_k, dim=1).indices.to(self.device)
        self.weights = torch.rand(a.tokens, a.top_k, generator=generator).to(self.device)
        self.x = torch.randn(a.tokens, a.hidden, generator=generator).bfloat16().to(self.device)
        groups = self.x.float().view(a.tokens, -1, 128)
        scales = groups.abs().amax(2).clamp(min=1e-4) / 448
        codes = (groups / scales[..., None]).view(a.tokens, a.hidden).to(torch.float8_e4m3fn)
        self.fp8 = (codes, scales)
        local = a.experts // ranks
        goes = torch.zeros(a.tokens, ranks, device=self.device)
        goes.scatter_(1, self.topk_idx // local, 1.0)
        self.copies = goes.sum(1)  # ranks of each token

    def rows(self, fp8):
        return self.fp8 if fp8 else self.x

    def check(self, fp8, received, sums):
        """Combine of the rows themselves: each token times its number of ranks."""
        got = sums.float()
        want = self.x.float() * self.copies[:, None]
        error = (got - want).norm() / want.norm()
        assert error < (0.05 if fp8 else 0.01), f"relative error {error:.3f}"


def as_expert_output(received, memory):
    """bfloat16 rows in torch's memory, or the received rows where they lie in place."""
    rows = received
    if isinstance(received, tuple):
        codes, scales = received
        rows = (codes.float().view(codes.shape[0], -1, 128) * scales[..., None]).view(codes.shape)
    if memory is None:
        return rows.bfloat16()
    return memory[: rows.shape[0]]


class V1:
    """`Buffer`: the layout, a new dispatch or one with a handle, and the combine."""

    def __init__(self, case, group, sync):
        a = case.a
        self.case, self.worst = case, 0 if sync else a.tokens * case.ranks
        self.buffer = deep_ep.Buffer(group, 2 << 30, 0, explicitly_destroy=True)
        deep_ep.Buffer.set_num_sms(a.sms)

    def warmup(self):
        a = self.case.a
        self.buffer.warmup(a.tokens, a.hidden, a.experts, a.top_k)

    def layout(self):
        return self.buffer.get_dispatch_layout(self.case.topk_idx, self.case.a.experts)

    def dispatch(self, fp8, handle=None):
        case = self.case
        if handle is not None:
            return self.buffer.dispatch(case.rows(fp8), handle=handle)
        per_rank, per_node, per_expert, in_rank, _ = self.layout()
        return self.buffer.dispatch(
            case.rows(fp8),
            None,
            per_rank,
            per_node,
            in_rank,
            per_expert,
            case.topk_idx,
            case.weights,
            num_worst_tokens=self.worst,
        )

    def pair(self, fp8, y, handle=None):
        received, _, weights, _, new, _ = self.dispatch(fp8, handle)
        rows = (received[0] if fp8 else received).shape[0]
        return self.buffer.combine(y[:rows], handle or new, topk_weights=weights)

    def exact(self, fp8):
        received, _, weights, _, handle, _ = self.dispatch(fp8)
        return received, self.buffer.combine(
            as_expert_output(received, None), handle, topk_weights=weights
        )[0]


class V2:
    """`ElasticBuffer`: a dispatch and the combine."""

    def __init__(self, case, group, sync):
        a = case.a
        self.case, self.sync = case, sync
        self.buffer = deep_ep.ElasticBuffer(
            group,
            num_max_tokens_per_rank=a.tokens,
            hidden=a.hidden,
            num_topk=a.top_k,
            explicitly_destroy=True,
        )

    def warmup(self):
        self.buffer.warmup(self.case.a.experts)

    def dispatch(self, fp8):
        case = self.case
        return self.buffer.dispatch(
            case.rows(fp8),
            topk_idx=case.topk_idx,
            topk_weights=case.weights,
            num_experts=case.a.experts,
            do_cpu_sync=self.sync,
            do_handle_copy=False,
            num_sms=case.a.elastic_sms,
        )

    def pair(self, fp8, y, handle=None):
        received, _, weights, new, _ = self.dispatch(fp8)
        rows = (received[0] if fp8 else received).shape[0]
        return self.buffer.combine(y[:rows], new, topk_weights=weights)

    def exact(self, fp8):
        received, _, weights, handle, _ = self.dispatch(fp8)
        y = as_expert_output(received, None)
        return received, self.buffer.combine(y, handle, topk_weights=weights)[0]


def settle(case):
    if case.device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


def chain(case, call, count, skipped):
    """(time of a call on the slowest rank, host time of queueing one), in us."""
    for _ in range(skipped):
        call()
    settle(case)
    on_gpu = case.device.type == "cuda"
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if on_gpu else None
    start = time.perf_counter()
    if on_gpu:
        events[0].record()
    for _ in range(count):
        call()
    if on_gpu:
        events[1].record()
    host = (time.perf_counter() - start) / count
    settle(case)
    device = events[0].elapsed_time(events[1]) * 1e-3 / count if on_gpu else host
    times = torch.tensor([device, host], dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return [1e6 * float(value) for value in times]


def host_time(case, call, calls=1):
    """Host time of a call behind an empty queue: the least mean of several tries, in us.

    One call alone follows a wait and finds cold caches; of eight in a row, as of a model's layers,
    most do not.
    """
    best = float("inf")
    for _ in range(12):
        settle(case)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    settle(case)
    return 1e6 * best


def queued(case, call):
    """(kernels and copies that one call queues, its calls of CUDA: name -> [number, us of each]);
    None without a GPU. The profiler lengthens the calls."""
    if case.device.type != "cuda":
        return None, None
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    settle(case)
    with torch.profiler.profile(activities=activities) as profile:
        call()
    settle(case)
    launched, calls = 0, {}
    for event in profile.events():
        if event.device_type == torch.profiler.DeviceType.CUDA:
            launched += 1
        elif event.name.startswith("cu"):
            number, total = calls.get(event.name, (0, 0.0))
            calls[event.name] = (number + 1, total + event.cpu_time)
    return launched, {name: [n, round(total / n, 2)] for name, (n, total) in calls.items()}


def measure(rank, ranks, a, path):
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)
    case = Case(rank, ranks, a)
    y = torch.randn(ranks * a.tokens, a.hidden, device=case.device).bfloat16()
    figures = {}
    for name, kind in (("Buffer", V1), ("ElasticBuffer", V2)):
        for sync in (True, False):
            key = f"{name}, {'with' if sync else 'without'} CPU sync"
            settle(case)
            start = time.perf_counter()
            one = kind(case, dist.group.WORLD, sync)
            made = time.perf_counter()
            figures[f"{key}: construction, ms"] = 1e3 * (made - start)
            if a.warmup:
                one.warmup()
                settle(case)
                figures[f"{key}: warmup, ms"] = 1e3 * (time.perf_counter() - made)
                made = time.perf_counter()
            one.pair(False, y)
            if case.device.type == "cuda":
                torch.cuda.synchronize()
            figures[f"{key}: first pair, ms"] = 1e3 * (time.perf_counter() - made)
            settle(case)
            for fp8 in (False, True):
                form = f"{key}, {'FP8' if fp8 else 'BF16'}"
                if sync:
                    case.check(fp8, *one.exact(fp8))
                device, host = chain(case, lambda: one.pair(fp8, y), a.chain, a.skipped)
                figures[f"{form}: new pair, us"] = device
                figures[f"{form}: host time in the chain, us"] = host
                figures[f"{form}: host time alone, us"] = host_time(case, lambda: one.pair(fp8, y))
                figures[f"{form}: host time, 8 in a row, us"] = host_time(
                    case, lambda: one.pair(fp8, y), 8
                )
                launched, calls = queued(case, lambda: one.pair(fp8, y))
                figures[f"{form}: launches"] = launched
                figures[f"{form}: calls of CUDA, [number, us]"] = calls
                if sync:
                    case.check(fp8, *one.exact(fp8))
            if kind is V1 and not sync:
                handle = one.dispatch(False)[4]
                for part, call in (
                    ("layout", one.layout),
                    ("layout and dispatch", lambda: one.dispatch(False)),
                    ("combine", lambda: one.buffer.combine(y, handle)),
                ):
                    figures[f"Buffer, host time of {part}, 8 in a row, us"] = host_time(
                        case, call, 8
                    )
                del handle
            if kind is V1 and sync:
                figures["get_dispatch_layout, us"] = chain(case, one.layout, a.chain, 4)[0]
                for fp8 in (False, True):
                    *_, handle, _ = one.dispatch(fp8)
                    figures[f"Buffer, cached handle, {'FP8' if fp8 else 'BF16'}: pair, us"] = chain(
                        case, lambda: one.pair(fp8, y, handle), a.chain, a.skipped
                    )[0]
                received, _, _, _, handle, _ = one.dispatch(False)
                torch_rows = y[: received.shape[0]]
                for place, rows in (("torch memory", torch_rows), ("received rows", received)):
                    figures[f"combine, expert output in {place}, us"] = chain(
                        case, lambda: one.buffer.combine(rows, handle), a.chain, 4
                    )[0]
                del received, rows
            if kind is V2 and sync:
                figures["ElasticBuffer.barrier, us"] = chain(case, one.buffer.barrier, 64, 8)[0]
            settle(case)
            one.buffer.destroy()
            del one
    if rank == 0:
        result = {"library": deep_ep.__file__, "ranks": ranks, **vars(a), "figures": figures}
        for key, value in figures.items():
            shown = round(value, 1) if isinstance(value, (int, float)) else value
            print(f"{key:<66} {shown}", flush=True)
        if a.json:
            result["library"] = os.path.basename(os.path.dirname(deep_ep.__file__))
            with open(a.json, "w") as file:
                json.dump(result, file, indent=1)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--tokens", type=int, default=4096, help="per rank")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--sms", type=int, default=24)
    parser.add_argument("--elastic-sms", type=int, default=0, help="0: the library chooses")
    parser.add_argument("--chain", type=int, default=112, help="calls that are timed")
    parser.add_argument("--skipped", type=int, default=16, help="calls before them")
    parser.add_argument("--warmup", action="store_true", help="warm buffers up; Shoal only")
    parser.add_argument("--json", help="write the figures to this file")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(measure, (a.ranks, a, os.path.join(folder, "store")), nprocs=a.ranks)


if __name__ == "__main__":
    main()
