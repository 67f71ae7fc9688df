# SPDX-License-Identifier: Apache-2.0
"""Inputs, pairs and times of `deep_ep` that the drivers share. Works with Shoal's `deep_ep` and
with DeepEP's; options of constructors that DeepEP lacks come from the callers."""

import math
import time

import torch
import torch.distributed as dist

import deep_ep

ON_COMM = {"async_finish": True, "allocate_on_comm_stream": True}


class Case:
    """The inputs of one rank, and the sums that a combine of the rows must give. `a` has the shape:
    hidden, top_k and experts."""

    def __init__(self, a, rank, ranks, tokens):
        generator = torch.Generator().manual_seed(17 + rank)
        self.a, self.ranks, self.tokens = a, ranks, tokens
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        scores = torch.rand(tokens, a.experts, generator=generator)
        self.topk_idx = scores.topk(a.top_k, dim=1).indices.to(self.device)
        self.weights = torch.rand(tokens, a.top_k, generator=generator).to(self.device)
        self.x = torch.randn(tokens, a.hidden, generator=generator).bfloat16().to(self.device)
        groups = self.x.float().view(tokens, -1, 128)
        scales = groups.abs().amax(2).clamp(min=1e-4) / 448
        codes = (groups / scales[..., None]).view(tokens, a.hidden).to(torch.float8_e4m3fn)
        self.fp8 = (codes, scales)
        goes = torch.zeros(tokens, ranks, device=self.device)
        goes.scatter_(1, self.topk_idx // (a.experts // ranks), 1.0)
        self.copies = goes.sum(1)  # ranks of each token

    def rows(self, fp8):
        return self.fp8 if fp8 else self.x

    def check(self, fp8, sums):
        """Combine of the rows themselves: each token times its number of ranks."""
        want = self.x.float() * self.copies[:, None]
        error = (sums.float() - want).norm() / want.norm()
        assert error < (0.05 if fp8 else 0.01), f"relative error {error:.3f}"


def as_expert_output(received):
    """The received rows, which lie in place if they are bfloat16."""
    if not isinstance(received, tuple):
        return received.bfloat16()
    codes, scales = received
    rows = codes.float().view(codes.shape[0], -1, 128) * scales[..., None]
    return rows.view(codes.shape).bfloat16()


class Pairs:
    """Pairs of dispatch and combine on `self.buffer`; `y` is the expert output."""

    def pair(self, fp8, y, handle=None):
        received, weights, new = self.dispatch(fp8, handle)
        rows = (received[0] if fp8 else received).shape[0]
        return self.buffer.combine(y[:rows], handle or new, topk_weights=weights)

    def exact(self, fp8):
        received, weights, handle = self.dispatch(fp8)
        return self.buffer.combine(as_expert_output(received), handle, topk_weights=weights)[0]


class Legacy(Pairs):
    """`Buffer`: the layout, a new dispatch or one with a handle, and the combine. `worst`: number
    of rows for which no host waits; 0: the host waits for the number."""

    def __init__(self, case, buffer, worst):
        self.case, self.buffer, self.worst = case, buffer, worst

    def warmup(self):
        case = self.case
        self.buffer.warmup(case.tokens, case.a.hidden, case.a.experts, case.a.top_k)

    def layout(self):
        return self.buffer.get_dispatch_layout(self.case.topk_idx, self.case.a.experts)

    def dispatch(self, fp8, handle=None):
        """(rows, weights, handle)."""
        case, rows = self.case, self.case.rows(fp8)
        if handle is not None:
            found = self.buffer.dispatch(rows, handle=handle)
        else:
            per_rank, per_node, per_expert, in_rank, _ = self.layout()
            layout = (per_rank, per_node, in_rank, per_expert)
            found = self.buffer.dispatch(
                rows, None, *layout, case.topk_idx, case.weights, num_worst_tokens=self.worst
            )
        return found[0], found[2], found[4]

    def pair_of_events(self, y):
        """A pair on the comm stream, each call after the event of the one before, as Megatron-LM
        makes it."""
        case, after = self.case, deep_ep.EventOverlap(deep_ep.EventHandle())
        per_rank, per_node, per_expert, in_rank, after = self.buffer.get_dispatch_layout(
            case.topk_idx, case.a.experts, previous_event=after, **ON_COMM
        )
        layout = (per_rank, per_node, in_rank, per_expert)
        on_comm = {**ON_COMM, "num_worst_tokens": self.worst, "previous_event": after}
        received, _, weights, _, handle, after = self.buffer.dispatch(
            case.x, None, *layout, case.topk_idx, case.weights, **on_comm
        )
        after.current_stream_wait()
        after = deep_ep.EventOverlap(deep_ep.EventHandle())
        sums, _, after = self.buffer.combine(
            y[: received.shape[0]], handle, topk_weights=weights, previous_event=after, **ON_COMM
        )
        after.current_stream_wait()
        return sums


class Elastic(Pairs):
    """`ElasticBuffer`: a dispatch with these options and the combine."""

    def __init__(self, case, buffer, **options):
        self.case, self.buffer = case, buffer
        self.options = {"num_experts": case.a.experts, **options}

    def warmup(self):
        self.buffer.warmup(self.case.a.experts)

    def dispatch(self, fp8, handle=None, **options):
        """(rows, weights, handle). Every dispatch is a new one."""
        case, options = self.case, {**self.options, **options}
        received, _, weights, new, _ = self.buffer.dispatch(
            case.rows(fp8), topk_idx=case.topk_idx, topk_weights=case.weights, **options
        )
        return received, weights, new


def settle(case):
    if case.device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


def chain(case, call, count, skipped):
    """(time of a call on the slowest rank, host time of queueing one), in us."""
    if case.a.counts:
        call()
        return [math.nan, math.nan]
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


def in_a_graph(case, call, count, skipped):
    """Time of a replay of the captured call, in us."""
    if case.device.type != "cuda":
        return math.nan
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        settle(case)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call()
        settle(case)
        return chain(case, graph.replay, count, skipped)[0]


def host_time(case, call, calls=1):
    """Host time of a call on an empty queue: the least mean of several tries, in us.

    One call alone follows a wait and finds cold caches; of eight in a row, as of a model's layers,
    most do not.
    """
    if case.a.counts:
        return math.nan
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
    """Kernels and copies that one call queues; None in the processes that measure times."""
    if not case.a.counts:
        return None
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    settle(case)
    with torch.profiler.profile(activities=activities) as profile:
        call()
    settle(case)
    on_gpu = torch.profiler.DeviceType.CUDA
    return sum(event.device_type == on_gpu for event in profile.events())
