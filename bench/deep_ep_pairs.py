#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times of `deep_ep` as a program sees them: normal-mode pairs, their parts and the first pair, and
the barrier, ring, gather and engram calls of `ElasticBuffer`.

Runs over whichever `deep_ep` Python finds: Shoal's (PYTHONPATH=build/release/python) or DeepEP's,
then without what that version lacks. A pair is a layout (Buffer only), a dispatch and a combine
with weights. Expert output lies in torch's memory. GPU times are means over a chain without host
synchronization, on the slowest rank; host times are those of queueing the same calls. Results are
checked before and after the chains. Launches are counted by torch's profiler, which slows all later
calls of its process down by a factor of up to three; so processes of their own count them when all
times are known. --parts names what is measured: the rows above in pairs of one size ("normal"), the
forms of `ElasticBuffer` by size, beside an all-gather and a reduce-scatter ("forms"), a layer with
its products by size, other calls of `ElasticBuffer`, `HybridEPBuffer`, low-latency calls of
`--low-latency-tokens` by format ("low-latency") and from FP8 to BF16 by tokens
("low-latency-sizes").
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
from deep_ep_calls import Case, Elastic, Legacy, chain, host_time, in_a_graph, queued, settle
from deep_ep_low_latency import measure_low_latency, measure_low_latency_calls
from rounds import origin

PARTS = ("normal", "forms", "layer", "others", "hybrid", "low-latency", "low-latency-sizes")


class Others:
    """Calls of `ElasticBuffer` other than dispatch and combine, each with `size` bytes to or from
    another rank: (call, check of its result)."""

    ENTRY = 7168  # bfloat16 channels

    def __init__(self, case, size):
        self.case, self.rank, self.ranks = case, dist.get_rank(), case.ranks
        self.entries = max(1, size // (2 * self.ENTRY))
        self.size = 2 * self.ENTRY * self.entries
        page = 2 << 20
        table = -(-self.size // page) * page
        ring = deep_ep.ElasticBuffer.get_pp_buffer_size_hint(self.size, 2)
        sizes = {"num_bytes": max(ring, case.ranks * table) + table, "num_cpu_bytes": table}
        self.buffer = deep_ep.ElasticBuffer(
            dist.group.WORLD, **sizes, allow_hybrid_mode=False, explicitly_destroy=True
        )
        shape = (self.entries, self.ENTRY)
        self.rows = torch.full(shape, self.rank, dtype=torch.bfloat16, device=case.device)

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
        others = Others(case, size)
        for name in ("ring", "gather", "engram"):
            call, right = getattr(others, name)()
            device, host = chain(case, call, 48, 8)
            assert right(), name
            key = f"ElasticBuffer, {name}, {others.size} bytes"
            links = case.ranks - 1 if name == "gather" else 1
            figures[f"{key}: us"] = device
            figures[f"{key}: GB/s on a link"] = others.size * links / device / 1e3
            figures[f"{key}: host time, us"] = host
            figures[f"{key}: launches"] = queued(case, call)
        settle(case)
        others.buffer.destroy()


def measure_forms(case, figures):
    """Both forms of `ElasticBuffer` for `case.tokens` tokens: rank-major, and expert-major
    (do_expand), whose combine sums a token's rows. Expert output is a copy outside the heap."""
    a = case.a
    for sync in (True, False):
        one = elastic(case, sync)
        for expand in (False, True):
            form = (
                f"{'expert' if expand else 'rank'}-major, {'with' if sync else 'without'} CPU sync"
            )
            key = f"ElasticBuffer, {case.tokens} tokens, {form}"

            def dispatch(expand=expand):
                return one.dispatch(False, do_expand=expand)

            received, _, handle = dispatch()
            rows = received.clone()

            def combine():
                return one.buffer.combine(rows, handle)

            def pair():
                return one.buffer.combine(rows, dispatch()[2])

            want = case.x.float() * (a.top_k if expand else case.copies[:, None])
            error = (combine()[0].float() - want).norm() / want.norm()
            assert error < 0.01, f"{key}: relative error {error:.3f}"
            received = None
            figures[f"{key}: dispatch, us"] = chain(case, dispatch, a.chain, a.skipped)[0]
            figures[f"{key}: combine, us"] = chain(case, combine, a.chain, a.skipped)[0]
            figures[f"{key}: new pair, us"] = chain(case, pair, a.chain, a.skipped)[0]
            figures[f"{key}: host time, 8 in a row, us"] = host_time(case, pair, 8)
            figures[f"{key}: launches"] = queued(case, pair)
            if not sync and not a.counts:
                figures[f"{key}: in a graph, us"] = in_a_graph(case, pair, a.chain, a.skipped)
            rows = handle = None
        settle(case)
        one.buffer.destroy()


def make_experts(case):
    """The products of a layer's experts on rows grouped by expert."""
    a, local = case.a, case.a.experts // case.ranks
    shapes = (a.hidden, 2 * a.intermediate), (a.intermediate, a.hidden)
    up, down = (torch.empty(local, *s, device=case.device, dtype=torch.bfloat16) for s in shapes)
    for weights in (up, down):
        weights.normal_(std=0.02)

    def experts(rows, ends):
        gate, up_rows = torch._grouped_mm(rows, up, offs=ends).chunk(2, dim=-1)
        return torch._grouped_mm(torch.nn.functional.silu(gate) * up_rows, down, offs=ends)

    return experts


def measure_layer(case, experts, figures):
    """A layer in the expert-major form: dispatch, products, combine; and the products alone."""
    a = case.a
    for sync in (True, False):
        one = elastic(case, sync)
        received, _, handle = one.dispatch(False, do_expand=True)
        rows, ends = received.clone(), handle.psum_num_recv_tokens_per_expert.clone()
        received = handle = None

        def products():
            return experts(rows, ends)

        def layer():
            received, _, handle = one.dispatch(False, do_expand=True)
            y = experts(received, handle.psum_num_recv_tokens_per_expert)
            return one.buffer.combine(y, handle)

        key = f"layer, {case.tokens} tokens, {'with' if sync else 'without'} CPU sync"
        for name, call in (("", layer), (", products alone", products)):
            figures[f"{key}{name}, us"] = chain(case, call, a.chain, a.skipped)[0]
            if not sync:
                figures[f"{key}{name}, in a graph, us"] = in_a_graph(case, call, a.chain, a.skipped)
        settle(case)
        one.buffer.destroy()


def measure_all_gather(case, figures):
    """What a layer without `deep_ep` does, over NCCL, in a graph: an all-gather of the tokens and a
    reduce-scatter of their sums; and with a permutation by expert and its inverse between them."""
    a, ranks, tokens = case.a, case.ranks, case.tokens
    group = dist.new_group(backend="nccl")
    local = a.experts // ranks
    everyone = case.x.new_empty(ranks * tokens, a.hidden)
    indices = case.topk_idx.new_empty(ranks * tokens, a.top_k)
    sums = torch.empty_like(case.x)

    def gather():
        dist.all_gather_into_tensor(everyone, case.x, group=group)
        dist.all_gather_into_tensor(indices, case.topk_idx, group=group)

    def exchange():
        gather()
        dist.reduce_scatter_tensor(sums, everyone, group=group)

    gather()
    first = dist.get_rank() * local
    count = int(((indices >= first) & (indices < first + local)).sum())

    def permuted():
        gather()
        experts = indices.flatten() - first
        experts = torch.where((experts >= 0) & (experts < local), experts, local)
        tokens_of_rows = experts.argsort(stable=True)[:count] // a.top_k
        rows = everyone[tokens_of_rows]
        back = torch.zeros_like(everyone).index_add_(0, tokens_of_rows, rows)
        dist.reduce_scatter_tensor(sums, back, group=group)

    for name, call in (("", exchange), (", with permutation", permuted)):
        key = f"all-gather, {case.tokens} tokens{name}: pair in a graph, us"
        figures[key] = in_a_graph(case, call, a.chain, a.skipped)
    settle(case)
    dist.destroy_process_group(group)


def legacy(case, sync):
    buffer = deep_ep.Buffer(dist.group.WORLD, 2 << 30, 0, explicitly_destroy=True)
    deep_ep.Buffer.set_num_sms(case.a.sms)
    return Legacy(case, buffer, 0 if sync else case.tokens * case.ranks)


def elastic(case, sync):
    a = case.a
    sizes = {"num_max_tokens_per_rank": case.tokens, "hidden": a.hidden, "num_topk": a.top_k}
    buffer = deep_ep.ElasticBuffer(dist.group.WORLD, **sizes, explicitly_destroy=True)
    options = {"do_cpu_sync": sync, "do_handle_copy": False, "num_sms": a.elastic_sms}
    return Elastic(case, buffer, **options)


def make_buffer(case, kind, key, sync, figures):
    """A buffer, warmed up with --warmup."""
    settle(case)
    start = time.perf_counter()
    one = kind(case, sync)
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
        case.check(fp8, one.exact(fp8))

    def pair():
        return one.pair(fp8, y)

    figures[f"{form}: new pair, us"], host = chain(case, pair, a.chain, a.skipped)
    figures[f"{form}: host time in the chain, us"] = host
    figures[f"{form}: host time alone, us"] = host_time(case, pair)
    figures[f"{form}: host time, 8 in a row, us"] = host_time(case, pair, 8)
    figures[f"{form}: launches"] = queued(case, pair)
    if sync:
        case.check(fp8, one.exact(fp8))


def measure_pairs_of_events(case, one, y, key, figures):
    def pair():
        return one.pair_of_events(y)

    form = f"{key}, BF16, with events on the comm stream"
    figures[f"{form}: new pair, us"], host = chain(case, pair, case.a.chain, case.a.skipped)
    figures[f"{form}: host time in the chain, us"] = host
    figures[f"{form}: host time, 8 in a row, us"] = host_time(case, pair, 8)


def measure_cached_pairs(case, one, y, figures):
    """The layout, pairs with a handle, and combines of `Buffer`."""
    a = case.a
    figures["get_dispatch_layout, us"] = chain(case, one.layout, a.chain, 4)[0]
    for fp8 in (False, True):
        handle = one.dispatch(fp8)[2]

        def pair(fp8=fp8, handle=handle):
            return one.pair(fp8, y, handle)

        form = "FP8" if fp8 else "BF16"
        times = chain(case, pair, a.chain, a.skipped)
        figures[f"Buffer, cached handle, {form}: pair, us"] = times[0]
    received, _, handle = one.dispatch(False)
    for place, rows in (("torch memory", y[: received.shape[0]]), ("received rows", received)):
        times = chain(case, lambda rows=rows: one.buffer.combine(rows, handle), a.chain, 4)
        figures[f"combine, expert output in {place}, us"] = times[0]


def measure_barrier(case, buffer, figures):
    device, host = chain(case, buffer.barrier, 64, 8)
    figures["ElasticBuffer.barrier, us"] = device
    figures["ElasticBuffer.barrier: host time, us"] = host
    figures["ElasticBuffer.barrier: launches"] = queued(case, buffer.barrier)


def measure_buffer(case, name, kind, sync, y, figures):
    """All figures of one buffer in normal mode."""
    key = f"{name}, {'with' if sync else 'without'} CPU sync"
    one = make_buffer(case, kind, key, sync, figures)
    start = time.perf_counter()
    one.pair(False, y)
    if case.device.type == "cuda":
        torch.cuda.synchronize()
    figures[f"{key}: first pair, ms"] = 1e3 * (time.perf_counter() - start)
    settle(case)
    for fp8 in (False, True):
        form = f"{key}, {'FP8' if fp8 else 'BF16'}"
        measure_pairs(case, one, fp8, sync, y, form, figures)
    if kind is legacy:
        measure_pairs_of_events(case, one, y, key, figures)
        if sync:
            measure_cached_pairs(case, one, y, figures)
    elif sync:
        measure_barrier(case, one.buffer, figures)
    settle(case)
    one.buffer.destroy()


def measure_hybrid(case, figures):
    """Pairs with routing maps, rows grouped by expert: each token returns times its top-k."""
    a, local = case.a, case.a.experts // case.ranks
    buffer = deep_ep.HybridEPBuffer(dist.group.WORLD, a.hidden, case.tokens, local)
    routing_map = torch.zeros(case.tokens, a.experts, dtype=torch.bool, device=case.device)
    routing_map.scatter_(1, case.topk_idx, True)
    probs = torch.zeros(case.tokens, a.experts, device=case.device)
    probs.scatter_(1, case.topk_idx, case.weights)
    inputs = {"hidden": case.x, "routing_map": routing_map, "probs": probs}

    def dispatch(**options):
        return buffer.dispatch_with_permute(**inputs, num_of_experts_per_rank=local, **options)

    def combine(rows, gates, handle):
        return buffer.combine_with_unpermute(hidden=rows, probs=gates, handle=handle)

    def pair(**options):
        rows, gates, _, _, handle = dispatch(**options)
        return combine(rows, gates, handle)

    def check():
        sums, gates = pair()
        want = case.x.float() * a.top_k
        error = (sums.float() - want).norm() / want.norm()
        assert error < 0.01, f"HybridEPBuffer: relative error {error:.3f}"
        assert torch.equal(gates, probs), "HybridEPBuffer: other probabilities came back"

    check()
    rows, gates, _, _, handle = dispatch()
    # Enough rows for every rank, whatever the others have received.
    most = torch.tensor([rows.shape[0]])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    calls = {
        "new pair": pair,
        "new pair, non-blocking": lambda: pair(num_permuted_tokens=int(most), non_blocking=True),
        "dispatch_with_permute": dispatch,
        "combine_with_unpermute": lambda: combine(rows, gates, handle),
    }
    for name, call in calls.items():
        device, host = chain(case, call, a.chain, a.skipped)
        figures[f"HybridEPBuffer, BF16: {name}, us"] = device
        figures[f"HybridEPBuffer, BF16: {name}, host time in the chain, us"] = host
        figures[f"HybridEPBuffer, BF16: {name}, launches"] = queued(case, call)
    check()


def measure(rank, ranks, a, path):
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)
    case = Case(a, rank, ranks, a.tokens)
    y = torch.randn(ranks * a.tokens, a.hidden, device=case.device).bfloat16()
    figures = {}
    if "hybrid" in a.parts and hasattr(deep_ep, "HybridEPBuffer"):
        measure_hybrid(case, figures)
    if "low-latency" in a.parts:
        measure_low_latency(Case(a, rank, ranks, a.low_latency_tokens), figures)
    if "low-latency-sizes" in a.parts and not a.counts:
        cases = [Case(a, rank, ranks, tokens) for tokens in a.low_latency_sizes]
        measure_low_latency_calls(cases, figures)
    kinds = (("Buffer", legacy), ("ElasticBuffer", elastic)) if "normal" in a.parts else ()
    for name, kind in kinds:
        for sync in (True, False):
            measure_buffer(case, name, kind, sync, y, figures)
    for tokens in a.sizes if "forms" in a.parts else ():
        sized = Case(a, rank, ranks, tokens)
        measure_forms(sized, figures)
        if torch.cuda.is_available() and not a.counts:
            measure_all_gather(sized, figures)
    if "layer" in a.parts and not a.counts:
        experts = make_experts(case)
        for tokens in a.sizes:
            measure_layer(Case(a, rank, ranks, tokens), experts, figures)
    if "others" in a.parts:
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
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[8, 128, 1024, 4096], help="of forms and layers"
    )
    parser.add_argument("--low-latency-tokens", type=int, default=128, help="per rank")
    parser.add_argument(
        "--low-latency-sizes", type=int, nargs="+", default=[8, 64, 128], help="tokens per rank"
    )
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--intermediate", type=int, default=2048, help="of layers")
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
    counts = torch.cuda.is_available() and a.parts != ["low-latency-sizes"]
    launches = measured(a, counts=True) if counts else {}
    figures = {
        key: value if is_figure(value) else launches.get(key) for key, value in figures.items()
    }
    figures = {key: value for key, value in figures.items() if is_figure(value)}
    for key, value in figures.items():
        print(f"{key:<66} {value:.1f}")
    if a.json:
        library = os.path.basename(os.path.dirname(deep_ep.__file__))
        options = {name: value for name, value in vars(a).items() if name != "json"}
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "host"
        options = {**origin(f"{a.ranks} x {device}"), "library": library, **options}
        with open(a.json, "w") as file:
            json.dump({**options, "figures": figures}, file, indent=1)


if __name__ == "__main__":
    main()
