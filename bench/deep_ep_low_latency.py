# SPDX-License-Identifier: Apache-2.0
"""Low-latency calls of `deep_ep`, Shoal's or DeepEP's, for deep_ep_pairs.py."""

import inspect
import time

import torch
import torch.distributed as dist

import deep_ep
from deep_ep_calls import chain, in_a_graph, queued, settle


def takes(call, *names):
    return set(names) <= set(inspect.signature(call).parameters)


def low_latency_buffer(case):
    a = case.a
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(
        case.tokens, a.hidden, case.ranks, a.experts
    )
    settle(case)
    return deep_ep.Buffer(
        dist.group.WORLD,
        0,
        size,
        low_latency_mode=True,
        num_qps_per_rank=a.experts // case.ranks,
        explicitly_destroy=True,
    )


def measure_low_latency(case, figures):
    """Dispatches by the form of their rows, and combines, also with hooks, and with signals of a
    GEMM that have their values: what the wait itself costs. The first pair is without warm-up."""
    a, local, tokens = case.a, case.a.experts // case.ranks, case.tokens
    start = time.perf_counter()
    buffer = low_latency_buffer(case)
    figures["low latency: construction, ms"] = 1e3 * (time.perf_counter() - start)
    forms = {"FP8": {"use_fp8": True}, "BF16": {"use_fp8": False}}
    if takes(buffer.low_latency_dispatch, "use_nvfp4", "x_global_scale"):
        largest = case.x.abs().max().float().cpu()
        dist.all_reduce(largest, dist.ReduceOp.MAX)  # all ranks have one global scale
        scale = torch.tensor([448 * 6 / float(largest)], device=case.device)
        forms["NVFP4"] = {"use_fp8": False, "use_nvfp4": True, "x_global_scale": scale}

    def dispatch(form, **options):
        options = forms[form] | options
        return buffer.low_latency_dispatch(case.x, case.topk_idx, tokens, a.experts, **options)

    def combine(rows, handle, **options):
        return buffer.low_latency_combine(rows, case.topk_idx, case.weights, handle, **options)

    def check():
        rows, _, handle, *_ = dispatch("BF16")
        want = case.x.float() * case.weights.sum(1, keepdim=True)
        error = (combine(rows, handle)[0].float() - want).norm() / want.norm()
        assert error < 0.01, f"low latency: relative error {error:.3f}"

    def with_hooks():
        rows, _, handle, _, receive = dispatch("BF16", return_recv_hook=True)
        receive()
        *_, receive = combine(rows, handle, return_recv_hook=True)
        receive()

    settle(case)
    start = time.perf_counter()
    rows, _, handle, *_ = dispatch("BF16")
    combine(rows, handle)
    if case.device.type == "cuda":
        torch.cuda.synchronize()
    figures["low latency: first pair, ms"] = 1e3 * (time.perf_counter() - start)
    check()
    key = "low latency, BF16: pair with hooks"
    figures[f"{key}, us"] = chain(case, with_hooks, a.chain, a.skipped)[0]
    figures[f"{key}, in a graph, us"] = in_a_graph(case, with_hooks, a.chain, a.skipped)
    for name, given in (("pair", {}), ("pair with LogFMT", {"use_logfmt": True})):

        def pair(given=given):
            rows, _, handle, *_ = dispatch("BF16")
            return combine(rows, handle, **given)[0]

        want = case.x.float() * case.weights.sum(1, keepdim=True)
        error = (pair().float() - want).norm() / want.norm()
        assert error < (0.05 if given else 0.01), f"low latency, {name}: relative error {error:.3f}"
        key = f"low latency, BF16: {name}"
        figures[f"{key}, us"] = chain(case, pair, a.chain, a.skipped)[0]
        figures[f"{key}, in a graph, us"] = in_a_graph(case, pair, a.chain, a.skipped)
    for form in forms:
        times = chain(case, lambda form=form: dispatch(form), a.chain, a.skipped)
        figures[f"low latency, {form}: dispatch, us"] = times[0]
        launched = queued(case, lambda form=form: dispatch(form))
        figures[f"low latency, {form}: launches of a dispatch"] = launched
    rows, counts, handle, *_ = dispatch("BF16")
    waits = {"combine": {}}
    if takes(buffer.low_latency_combine, "overlap", "comp_signal"):
        block = 64
        blocks = -(-rows.shape[1] // block)
        signals = torch.ones(local * blocks, dtype=torch.int32, device=case.device)
        waited = {"comp_signal": signals, "block_m": block, "threshold": 1}
        waits["combine after complete signals"] = {
            "overlap": True,
            "packed_recv_count": counts,
            **waited,
        }
    for name, given in waits.items():
        call = lambda given=given: combine(rows, handle, **given)  # noqa: E731
        device, host = chain(case, call, a.chain, a.skipped)
        figures[f"low latency, BF16: {name}, us"] = device
        figures[f"low latency, BF16: {name}, host time in the chain, us"] = host
    check()
    settle(case)
    buffer.destroy()


def measure_low_latency_calls(cases, figures):
    """Combines, and pairs with FP8 rows and bfloat16 sums, both also with hooks, launched by the
    host and replayed from a graph. One buffer, for the most tokens of a case, serves all. Expert
    output lies in torch's memory."""
    largest = max(cases, key=lambda case: case.tokens)
    buffer = low_latency_buffer(largest)
    for case in cases:
        time_low_latency_calls(case, buffer, largest.tokens, figures)
    buffer.destroy()


def time_low_latency_calls(case, buffer, most, figures):
    a = case.a

    def dispatch(**options):
        return buffer.low_latency_dispatch(case.x, case.topk_idx, most, a.experts, **options)

    def combine(handle, **options):
        return buffer.low_latency_combine(rows, case.topk_idx, case.weights, handle, **options)

    def pair():
        _, _, handle, *_ = dispatch()
        return combine(handle)

    def pair_with_hooks():
        _, _, handle, _, receive = dispatch(return_recv_hook=True)
        receive()
        return combine_with_hooks(handle)

    def combine_with_hooks(handle):
        *_, receive = combine(handle, return_recv_hook=True)
        receive()

    def check():
        want = case.x.float() * case.weights.sum(1, keepdim=True)
        error = (combine(handle)[0].float() - want).norm() / want.norm()
        assert error < 0.01, f"low latency: relative error {error:.3f}"

    received, _, handle, *_ = dispatch(use_fp8=False)
    rows = received.clone()
    check()
    calls = {
        "combine": lambda: combine(handle),
        "combine with hooks": lambda: combine_with_hooks(handle),
        "pair": pair,
        "pair with hooks": pair_with_hooks,
    }
    for name, call in calls.items():
        key = f"low latency, {case.tokens} tokens: {name}"
        figures[f"{key}, us"] = chain(case, call, a.chain, a.skipped)[0]
        figures[f"{key}, in a graph, us"] = in_a_graph(case, call, a.chain, a.skipped)
    *_, handle = dispatch(use_fp8=False)[:3]
    check()
    settle(case)
