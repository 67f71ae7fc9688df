#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a program gets from `deep_ep` in normal mode: pairs, parts of them, and the first pair; and
from the barrier, ring, gather and engram calls of `ElasticBuffer`.

Runs over whichever `deep_ep` Python finds: Shoal's (PYTHONPATH=build/release/python) or DeepEP's. A
pair is a layout (Buffer only), a dispatch and a combine with weights. Expert output lies in torch's
memory. GPU times are means over a chain without host synchronization, on the slowest rank; host
times are those of queueing the same calls. Results are checked before and after the chains.
Launches are counted by torch's profiler, which slows all later calls of its process down by a
factor of up to three; so processes of their own count them when all times are known. --parts
adds pairs of `HybridEPBuffer` and low-latency calls, where the library has them.
"""

import argparse
import json
import math
import os
import tempfile
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import deep_ep
from deep_ep_other_modes import low_latency_sizes, measure_hybrid, measure_low_latency
from deep_ep_timing import chain, host_time, queued, settle

PARTS = ("normal", "hybrid", "low-latency")


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

    def dispatch(self, fp8, handle=None, layout=None):
        case = self.case
        if handle is not None:
            return self.buffer.dispatch(case.rows(fp8), handle=handle)
        per_rank, per_node, per_expert, in_rank, _ = layout or self.layout()
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

    def steps(self, y):
        """A pair; yields the name of each part when its call has returned."""
        layout = self.layout()
        yield "layout"
        received, _, weights, _, handle, _ = self.dispatch(False, None, layout)
        yield "dispatch"
        self.buffer.combine(y[: received.shape[0]], handle, topk_weights=weights)
        yield "combine"

    def pair(self, fp8, y, handle=None):
        received, _, weights, _, new, _ = self.dispatch(fp8, handle)
        rows = (received[0] if fp8 else received).shape[0]
        return self.buffer.combine(y[:rows], handle or new, topk_weights=weights)

    def pair_of_events(self, y):
        """A pair on the comm stream, each call after the event of the one before, as Megatron-LM
        makes it."""
        case, after = self.case, deep_ep.utils.EventOverlap(deep_ep.utils.EventHandle())
        on_comm = {"async_finish": True, "allocate_on_comm_stream": True}
        per_rank, per_node, per_expert, in_rank, after = self.buffer.get_dispatch_layout(
            case.topk_idx, case.a.experts, previous_event=after, **on_comm
        )
        received, _, weights, _, handle, after = self.buffer.dispatch(
            case.x,
            topk_idx=case.topk_idx,
            topk_weights=case.weights,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            previous_event=after,
            num_worst_tokens=self.worst,
            **on_comm,
        )
        after.current_stream_wait()
        after = deep_ep.utils.EventOverlap(deep_ep.utils.EventHandle())
        sums, _, after = self.buffer.combine(
            y[: received.shape[0]], handle, topk_weights=weights, previous_event=after, **on_comm
        )
        after.current_stream_wait()
        return sums

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

    def steps(self, y):
        received, _, weights, handle, _ = self.dispatch(False)
        yield "dispatch"
        self.buffer.combine(y[: received.shape[0]], handle, topk_weights=weights)
        yield "combine"

    def pair(self, fp8, y, handle=None):
        received, _, weights, new, _ = self.dispatch(fp8)
        rows = (received[0] if fp8 else received).shape[0]
        return self.buffer.combine(y[:rows], new, topk_weights=weights)

    def exact(self, fp8):
        received, _, weights, handle, _ = self.dispatch(fp8)
        y = as_expert_output(received, None)
        return received, self.buffer.combine(y, handle, topk_weights=weights)[0]


class Others:
    """Calls of `ElasticBuffer` besides dispatch and combine, each with `size` bytes to or from
    another rank. Results are checked."""

    ENTRY = 7168  # bfloat16 channels

    def __init__(self, case, group, size):
        self.case, self.group = case, group
        self.rank, self.ranks = dist.get_rank(), case.ranks
        self.entries = max(1, size // (2 * self.ENTRY))
        self.size = 2 * self.ENTRY * self.entries
        page = 2 << 20
        table = -(-self.size // page) * page
        sizes = (
            deep_ep.ElasticBuffer.get_pp_buffer_size_hint(self.size, 2),
            case.ranks * table,
            table,
        )
        self.buffer = deep_ep.ElasticBuffer(
            group,
            num_bytes=max(sizes) + table,
            num_cpu_bytes=table,
            allow_hybrid_mode=False,
            explicitly_destroy=True,
        )
        self.rows = torch.full(
            (self.entries, self.ENTRY), self.rank, dtype=torch.bfloat16, device=case.device
        )

    def ring(self):
        """Sends to the next rank on one stream, receives from the one before on another."""
        self.buffer.pp_set_config(self.size, 2)
        got = torch.empty_like(self.rows)
        following, previous = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        sends = nullcontext()
        if self.case.device.type == "cuda":
            torch.cuda.synchronize()
            sends = torch.cuda.stream(torch.cuda.Stream())

        def call():
            with sends:
                self.buffer.pp_send(self.rows, following)
            self.buffer.pp_recv(got, previous)

        return call, lambda: bool((got == previous).all())

    def gather(self):
        """A session with one all-gather of `size` bytes of each rank."""
        self.buffer.agrs_set_config(self.ranks * self.size, 1)
        seen = []

        def call():
            with self.buffer.agrs_new_session():
                gathered, wait = self.buffer.all_gather(self.rows)
                wait()
            seen[:] = [gathered]

        return call, lambda: seen[0][:, 0, 0].tolist() == list(range(self.ranks))

    def engram(self):
        """Entries of the next rank in random order."""
        self.buffer.engram_write(self.rows)
        following = (self.rank + 1) % self.ranks
        order = torch.randperm(self.entries, device=self.case.device).int()[:, None]
        indices = order + following * self.entries
        seen = []

        def call():
            seen[:] = [self.buffer.engram_fetch(indices)()[0]]

        return call, lambda: bool((seen[0] == following).all())


def measure_others(case, figures):
    for size in (16 << 10, 64 << 20, 256 << 20):
        others = Others(case, dist.group.WORLD, size)
        for name in ("ring", "gather", "engram"):
            call, right = getattr(others, name)()
            device, host = chain(case, call, 48, 8)
            assert right(), name
            key = f"ElasticBuffer, {name}, {others.size} bytes"
            figures[f"{key}: us"] = device
            figures[f"{key}: GB/s on a link"] = (
                others.size * (case.ranks - 1 if name == "gather" else 1) / device / 1e3
            )
            figures[f"{key}: host time, us"] = host
            figures[f"{key}: launches"] = queued(case, call)[0]
        settle(case)
        others.buffer.destroy()


def measure_expanded(case, buffer, figures):
    """Expert-major dispatch, and the combine that sums a token's rows, beside the plain ones."""

    def dispatch(expand):
        return buffer.dispatch(
            case.x,
            topk_idx=case.topk_idx,
            topk_weights=case.weights,
            num_experts=case.a.experts,
            do_cpu_sync=True,
            do_handle_copy=False,
            do_expand=expand,
        )

    for expand in (False, True):
        key = f"ElasticBuffer, {'expert-major' if expand else 'rank-major'}"
        figures[f"{key}: dispatch, us"] = chain(case, lambda: dispatch(expand), 48, 8)[0]
        figures[f"{key}: launches of a dispatch"] = queued(case, lambda: dispatch(expand))[0]
        received, _, _, handle, _ = dispatch(expand)
        rows = received.clone()  # outside the heap
        figures[f"{key}: combine, us"] = chain(case, lambda: buffer.combine(rows, handle), 48, 8)[0]
        received = rows = None


def measure_first_pair(case, one, y, key, figures):
    start = last = time.perf_counter()
    parts = []
    for name in one.steps(y):
        now = time.perf_counter()
        parts.append((name, now - last))
        last = now
    if case.device.type == "cuda":
        torch.cuda.synchronize()
    figures[f"{key}: first pair, ms"] = 1e3 * (time.perf_counter() - start)
    for name, seconds in parts:
        figures[f"{key}: first {name}, host time, ms"] = 1e3 * seconds


def make_buffer(case, kind, key, sync, figures):
    """A buffer, warmed up with --warmup."""
    settle(case)
    start = time.perf_counter()
    one = kind(case, dist.group.WORLD, sync)
    made = time.perf_counter()
    figures[f"{key}: construction, ms"] = 1e3 * (made - start)
    if case.a.warmup:
        one.warmup()
        settle(case)
        figures[f"{key}: warmup, ms"] = 1e3 * (time.perf_counter() - made)
    return one


def measure_pairs(case, one, fp8, sync, y, form, figures):
    """New pairs of one form of rows; their results before and after where sizes are exact."""
    a = case.a
    if sync:
        case.check(fp8, *one.exact(fp8))
    device, host = chain(case, lambda: one.pair(fp8, y), a.chain, a.skipped)
    figures[f"{form}: new pair, us"] = device
    figures[f"{form}: host time in the chain, us"] = host
    figures[f"{form}: host time alone, us"] = host_time(case, lambda: one.pair(fp8, y))
    in_a_row = host_time(case, lambda: one.pair(fp8, y), 8)
    figures[f"{form}: host time, 8 in a row, us"] = in_a_row
    launched, calls = queued(case, lambda: one.pair(fp8, y))
    figures[f"{form}: launches"] = launched
    figures[f"{form}: calls of CUDA, [number, us]"] = calls
    if sync:
        case.check(fp8, *one.exact(fp8))


def measure_pairs_of_events(case, one, y, key, figures):
    form = f"{key}, BF16, with events on the comm stream"
    device, host = chain(case, lambda: one.pair_of_events(y), case.a.chain, case.a.skipped)
    figures[f"{form}: new pair, us"] = device
    figures[f"{form}: host time in the chain, us"] = host
    in_a_row = host_time(case, lambda: one.pair_of_events(y), 8)
    figures[f"{form}: host time, 8 in a row, us"] = in_a_row


def measure_host_parts(case, one, y, figures):
    """Host time of the calls of a pair of `Buffer`."""
    handle = one.dispatch(False)[4]
    for part, call in (
        ("layout", one.layout),
        ("layout and dispatch", lambda: one.dispatch(False)),
        ("combine", lambda: one.buffer.combine(y, handle)),
    ):
        figures[f"Buffer, host time of {part}, 8 in a row, us"] = host_time(case, call, 8)


def measure_cached_pairs(case, one, y, figures):
    """The layout, pairs with a handle, and combines of `Buffer`."""
    a = case.a
    figures["get_dispatch_layout, us"] = chain(case, one.layout, a.chain, 4)[0]
    for fp8 in (False, True):
        *_, handle, _ = one.dispatch(fp8)
        figures[f"Buffer, cached handle, {'FP8' if fp8 else 'BF16'}: pair, us"] = chain(
            case, lambda fp8=fp8, handle=handle: one.pair(fp8, y, handle), a.chain, a.skipped
        )[0]
    received, _, _, _, handle, _ = one.dispatch(False)
    torch_rows = y[: received.shape[0]]
    for place, rows in (("torch memory", torch_rows), ("received rows", received)):
        figures[f"combine, expert output in {place}, us"] = chain(
            case, lambda rows=rows: one.buffer.combine(rows, handle), a.chain, 4
        )[0]


def measure_barrier(case, buffer, figures):
    device, host = chain(case, buffer.barrier, 64, 8)
    figures["ElasticBuffer.barrier, us"] = device
    figures["ElasticBuffer.barrier: host time, us"] = host
    figures["ElasticBuffer.barrier: launches"] = queued(case, buffer.barrier)[0]


def measure_buffer(case, name, kind, sync, y, figures):
    """All figures of one buffer in normal mode."""
    key = f"{name}, {'with' if sync else 'without'} CPU sync"
    one = make_buffer(case, kind, key, sync, figures)
    measure_first_pair(case, one, y, key, figures)
    settle(case)
    for fp8 in (False, True):
        form = f"{key}, {'FP8' if fp8 else 'BF16'}"
        measure_pairs(case, one, fp8, sync, y, form, figures)
    if kind is V1:
        measure_pairs_of_events(case, one, y, key, figures)
        (measure_cached_pairs if sync else measure_host_parts)(case, one, y, figures)
    elif sync:
        measure_barrier(case, one.buffer, figures)
        measure_expanded(case, one.buffer, figures)
    settle(case)
    one.buffer.destroy()


def measure(rank, ranks, a, path):
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)
    case = Case(rank, ranks, a)
    y = torch.randn(ranks * a.tokens, a.hidden, device=case.device).bfloat16()
    figures = {}
    if "hybrid" in a.parts and hasattr(deep_ep, "HybridEPBuffer"):
        measure_hybrid(case, a, figures)
    if "low-latency" in a.parts:
        measure_low_latency(Case(rank, ranks, low_latency_sizes(a)), figures)
    kinds = (("Buffer", V1), ("ElasticBuffer", V2)) if "normal" in a.parts else ()
    for name, kind in kinds:
        for sync in (True, False):
            measure_buffer(case, name, kind, sync, y, figures)
    measure_others(case, figures)
    if rank == 0:
        with open(f"{path}.json", "w") as file:
            json.dump(figures, file)
    dist.destroy_process_group()


def measured(a, counts):
    """The figures of processes that count launches, or of those that measure everything else."""
    a = argparse.Namespace(**{**vars(a), "counts": counts})
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        mp.spawn(measure, (a.ranks, a, path), nprocs=a.ranks)
        with open(f"{path}.json") as file:
            return json.load(file)


def is_figure(value):
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--tokens", type=int, default=4096, help="per rank")
    parser.add_argument("--low-latency-tokens", type=int, default=128, help="per rank")
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
    figures = measured(a, counts=False)
    launches = measured(a, counts=True) if torch.cuda.is_available() else {}
    for key, value in figures.items():
        figures[key] = value if is_figure(value) else launches.get(key)
        if is_figure(figures[key]):
            value = figures[key]
            shown = round(value, 1) if isinstance(value, (int, float)) else value
            print(f"{key:<66} {shown}")
    if a.json:
        result = {
            "library": os.path.basename(os.path.dirname(deep_ep.__file__)),
            **{name: value for name, value in vars(a).items() if name != "json"},
            "figures": {key: value for key, value in figures.items() if is_figure(value)},
        }
        with open(a.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
