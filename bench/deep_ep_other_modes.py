# SPDX-License-Identifier: Apache-2.0
"""Calls of `HybridEPBuffer` and of low-latency mode for deep_ep_pairs.py."""

import argparse
import inspect

import torch
import torch.distributed as dist

import deep_ep
from deep_ep_timing import chain, queued, settle


def measure_hybrid(case, a, figures):
    """Pairs with routing maps, rows grouped by expert: each token returns times its top-k."""
    buffer = deep_ep.HybridEPBuffer(dist.group.WORLD, a.hidden, a.tokens, a.experts // case.ranks)
    routing_map = torch.zeros(a.tokens, a.experts, dtype=torch.bool, device=case.device)
    routing_map.scatter_(1, case.topk_idx, True)
    probs = torch.zeros(a.tokens, a.experts, device=case.device)
    probs.scatter_(1, case.topk_idx, case.weights)

    def dispatch(**options):
        return buffer.dispatch_with_permute(
            hidden=case.x,
            routing_map=routing_map,
            probs=probs,
            num_of_experts_per_rank=a.experts // case.ranks,
            **options,
        )

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
    fixed = {"num_permuted_tokens": int(most), "non_blocking": True}
    for name, call in (
        ("new pair", pair),
        ("new pair, non-blocking", lambda: pair(**fixed)),
        ("dispatch_with_permute", dispatch),
        ("combine_with_unpermute", lambda: combine(rows, gates, handle)),
    ):
        device, host = chain(case, call, a.chain, a.skipped)
        figures[f"HybridEPBuffer, BF16: {name}, us"] = device
        figures[f"HybridEPBuffer, BF16: {name}, host time in the chain, us"] = host
        figures[f"HybridEPBuffer, BF16: {name}, launches"] = queued(case, call)[0]
    check()


def low_latency_sizes(a):
    return argparse.Namespace(**{**vars(a), "tokens": a.low_latency_tokens})


def takes(call, *names):
    return set(names) <= set(inspect.signature(call).parameters)


def measure_low_latency(case, figures):
    """Dispatches by the form of their rows, and combines, also with signals of a GEMM that have
    their values: what the wait itself costs."""
    a, local = case.a, case.a.experts // case.ranks
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(a.tokens, a.hidden, case.ranks, a.experts)
    buffer = deep_ep.Buffer(
        dist.group.WORLD,
        0,
        size,
        low_latency_mode=True,
        num_qps_per_rank=local,
        explicitly_destroy=True,
    )
    forms = {"FP8": {"use_fp8": True}, "BF16": {"use_fp8": False}}
    if takes(buffer.low_latency_dispatch, "use_nvfp4", "x_global_scale"):
        scale = torch.tensor([448 * 6 / float(case.x.abs().max())], device=case.device)
        forms["NVFP4"] = {"use_fp8": False, "use_nvfp4": True, "x_global_scale": scale}

    def dispatch(form):
        return buffer.low_latency_dispatch(
            case.x, case.topk_idx, a.tokens, a.experts, **forms[form]
        )

    def combine(rows, handle, **options):
        return buffer.low_latency_combine(rows, case.topk_idx, case.weights, handle, **options)

    def check():
        rows, _, handle, *_ = dispatch("BF16")
        want = case.x.float() * case.weights.sum(1, keepdim=True)
        error = (combine(rows, handle)[0].float() - want).norm() / want.norm()
        assert error < 0.01, f"low latency: relative error {error:.3f}"

    check()
    for form in forms:
        figures[f"low latency, {form}: dispatch, us"] = chain(
            case, lambda form=form: dispatch(form), a.chain, a.skipped
        )[0]
        launched = queued(case, lambda form=form: dispatch(form))[0]
        figures[f"low latency, {form}: launches of a dispatch"] = launched
    rows, counts, handle, *_ = dispatch("BF16")
    waits = {"combine": {}}
    if takes(buffer.low_latency_combine, "overlap", "comp_signal"):
        block = 64
        blocks = -(-rows.shape[1] // block)
        signals = torch.ones(local * blocks, dtype=torch.int32, device=case.device)
        waits["combine after complete signals"] = {
            "overlap": True,
            "packed_recv_count": counts,
            "comp_signal": signals,
            "block_m": block,
            "threshold": 1,
        }
    for name, options in waits.items():
        device, host = chain(
            case, lambda options=options: combine(rows, handle, **options), a.chain, a.skipped
        )
        figures[f"low latency, BF16: {name}, us"] = device
        figures[f"low latency, BF16: {name}, host time in the chain, us"] = host
    check()
    settle(case)
    buffer.destroy()
