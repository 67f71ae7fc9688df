# SPDX-License-Identifier: Apache-2.0
"""shoal.torch on CUDA: the current stream, graphs, compiled code. test_gpu_like_the_host.py has the
layer and its gradients."""

import pytest

torch = pytest.importorskip("torch")

from gpu_worlds import SETTINGS, capture, delay, fetch, settle, with_group

import shoal
import shoal.ep
import shoal.torch
from shoal.torch import ops

PES, HIDDEN, INNER, EXPERTS, TOP_K, MAX_TOKENS = 4, 16, 8, 8, 3, 12
TOKENS = (12, 5, 0, 9)  # by rank; one has none
OPTIONS = {
    "hidden": HIDDEN,
    "experts": EXPERTS,
    "top_k": TOP_K,
    "max_tokens": MAX_TOKENS,
    "dtype": "float32",
}


def tokens_of(pe):
    generator = torch.Generator().manual_seed(pe)
    idx = torch.rand(TOKENS[pe], EXPERTS, generator=generator).argsort(dim=1)[:, :TOP_K]
    idx[torch.rand(TOKENS[pe], TOP_K, generator=generator) < 0.2] = -1
    idx[:1] = -1
    x = torch.randn(TOKENS[pe], HIDDEN, generator=generator)
    return x, idx, torch.rand(TOKENS[pe], TOP_K, generator=generator)


def close(actual, expected):
    torch.testing.assert_close(fetch(actual), expected.float(), rtol=1e-4, atol=1e-4)


def test_operators_run_on_the_current_stream():
    def body(group, pe):
        x, idx, weights = (tensor.cuda() for tensor in tokens_of(pe))
        late, side = torch.full_like(x, 7), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            delay()
            late.copy_(x)
            received = shoal.torch.dispatch(
                group, late, idx, weights, worst_case_rows=PES * MAX_TOKENS
            )
            assert not received.handle.is_cuda
            out = shoal.torch.combine(group, received.x.clone(), received)
            result = out.clone()
            settle()
            ranks_of_token = torch.stack(
                [(idx // (EXPERTS // PES) == pe).any(1) for pe in range(PES)]
            ).sum(0)
            close(result, fetch(x * ranks_of_token[:, None]))
            del received, out
        torch.cuda.current_stream().wait_stream(side)
        return True

    assert all(with_group(PES, body, **OPTIONS))


def test_the_operators_in_a_graph():
    """A fixed size, without gradients, replayed with other tokens while the result of dispatch
    is held."""

    def body(group, pe):
        x = torch.zeros(MAX_TOKENS, HIDDEN, device="cuda")
        idx = torch.full((MAX_TOKENS, TOP_K), -1, dtype=torch.int64, device="cuda")
        weights, out = torch.zeros(MAX_TOKENS, TOP_K, device="cuda"), torch.empty_like(x)

        @torch.no_grad()
        def layer():
            received = shoal.torch.dispatch(
                group, x, idx, weights, worst_case_rows=PES * MAX_TOKENS
            )
            y = received.x * received.topk_weights.sum(dim=1, keepdim=True)
            out.copy_(shoal.torch.combine(group, y, received))
            return received

        for _ in range(2):
            layer()
        settle()
        shoal.barrier(group.team)  # no other work runs during captures
        graph, kept = capture(layer)
        shoal.barrier(group.team)
        for factor in (1, 2, 3):
            rows, indices, topk_weights = tokens_of(pe)
            (
                x[: len(rows)].copy_(factor * rows),
                idx[: len(rows)].copy_(indices),
                weights[: len(rows)].copy_(topk_weights),
            )
            out.fill_(float("nan"))
            graph.replay()
            close(
                out[: len(rows)],
                factor * rows * torch.where(indices < 0, 0, topk_weights).sum(1, keepdim=True),
            )
        settle()
        shoal.barrier(group.team)
        del graph, kept
        return True

    assert all(with_group(PES, body, **OPTIONS))


@pytest.mark.parametrize("worst_case_rows", [0, MAX_TOKENS])
def test_compiled(worst_case_rows):
    """Runs compiled. One rank in this thread, because torch compiles in one thread at a time."""

    def layer(group, x, idx, weights):
        received = shoal.torch.dispatch(
            group, x, idx, weights, worst_case_rows=worst_case_rows, copy_out=True
        )
        y = received.x.tanh() * received.topk_weights.sum(dim=1, keepdim=True)
        return shoal.torch.combine(group, y, received)

    with shoal.World.open(SETTINGS) as world:
        group = shoal.ep.Group(world.team, **OPTIONS)
        ops.register(group)
        torch._dynamo.reset()
        compiled = torch.compile(layer, fullgraph=True)
        x, idx, weights = (tensor.cuda() for tensor in tokens_of(0))
        results = []
        for function in (compiled, layer):
            leaves = x.clone().requires_grad_(), weights.clone().requires_grad_()
            out = function(group, leaves[0], idx, leaves[1])
            out.square().sum().backward()
            results.append([out.detach(), *(leaf.grad for leaf in leaves)])
        torch._dynamo.reset()
        for actual, expected in zip(*results):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        torch.cuda.synchronize()
        del out, results, actual, expected


@pytest.mark.parametrize("score", ["sigmoid", "softmax"])
def test_gate_has_the_bits_of_the_host(score):
    generator = torch.Generator().manual_seed(2)
    logits = 3 * torch.randn(700, 96, generator=generator)
    bias = 0.1 * torch.randn(96, generator=generator)
    options = {"top_k": 6, "groups": 8, "groups_kept": 3, "score": score, "routed_scaling": 2.5}
    wanted = shoal.torch.gate(logits, bias, **options)
    got = shoal.torch.gate(logits.cuda(), bias.cuda(), **options)
    assert all(torch.equal(fetch(a), b) for a, b in zip(got, wanted))
