# SPDX-License-Identifier: Apache-2.0
"""shoal.torch on CUDA: the layer and its gradients against float64 on the host, the current
stream, compiled code."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
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


def all_matrices():
    return torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(5))


def expert_output(x, idx, weights, matrices):
    """The weighted sum of each row's experts in `matrices` [experts, hidden, hidden]."""
    share = (F.one_hot(idx + 1, len(matrices) + 1)[..., 1:] * weights.unsqueeze(-1)).sum(dim=1)
    return torch.einsum("re,rh,ehk->rk", share.to(x.dtype), x.tanh(), matrices)


def loss_of(out):
    return (out.sin() + out.square()).sum()


class Reference:
    """The layer in float64 on the host, over the tokens of all ranks, with their losses added."""

    def __init__(self):
        parts = [tokens_of(pe) for pe in range(PES)]
        self.x = torch.cat([part[0] for part in parts]).double().requires_grad_()
        self.weights = torch.cat([part[2] for part in parts]).double().requires_grad_()
        self.matrices = all_matrices().double().requires_grad_()
        self.out = expert_output(
            self.x, torch.cat([part[1] for part in parts]), self.weights, self.matrices
        )
        loss_of(self.out).backward()

    @staticmethod
    def of(pe, rows):
        return rows.split(TOKENS)[pe]


def close(actual, expected):
    torch.testing.assert_close(fetch(actual), expected.float(), rtol=1e-4, atol=1e-4)


def check_layer(group, pe, reference, **options):
    x, idx, weights = (tensor.cuda() for tensor in tokens_of(pe))
    x.requires_grad_(), weights.requires_grad_()
    matrices = all_matrices().chunk(PES)[pe].cuda().requires_grad_()
    received = shoal.torch.dispatch(group, x, idx, weights, **options)
    assert received.x.is_cuda and received.topk_idx.is_cuda and not received.handle.is_cuda
    y = expert_output(received.x, received.topk_idx, received.topk_weights, matrices)
    out = shoal.torch.combine(group, y, received)
    loss = loss_of(out)
    # Torch runs backward on one thread per GPU, not per PE.
    with torch.autograd.set_multithreading_enabled(False):
        loss.backward()
    close(out.detach(), reference.of(pe, reference.out.detach()))
    close(x.grad, reference.of(pe, reference.x.grad))
    close(weights.grad, reference.of(pe, reference.weights.grad))
    close(matrices.grad, reference.matrices.grad.chunk(PES)[pe])


@pytest.mark.parametrize("options", [{}, {"worst_case_rows": PES * MAX_TOKENS}, {"copy_out": True}])
def test_layer_and_gradients(options):
    reference = Reference()

    def body(group, pe):
        for _ in range(2):
            check_layer(group, pe, reference, **options)
        return True

    assert all(with_group(PES, body, **OPTIONS))


@pytest.mark.parametrize("pes, worst_case_rows", [(PES, 0), (1, MAX_TOKENS)])
def test_moe_layer(pes, worst_case_rows):
    """Against the same layer with all experts in one process. With a fixed size there is one
    rank, because the layer waits for block sizes inside a copy, which threads that share a GPU
    must not do (docs/guide/gpus.md).
    """
    torch.manual_seed(3)
    alone = shoal.torch.MoE(HIDDEN, INNER, EXPERTS, TOP_K)
    inputs = [
        torch.randn(5 + pe, HIDDEN, generator=torch.Generator().manual_seed(pe))
        for pe in range(pes)
    ]
    expected = [alone(part) for part in inputs]
    sum(part.square().sum() for part in expected).backward()

    def body(group, pe):
        spread = shoal.torch.MoE(
            HIDDEN,
            INNER,
            EXPERTS,
            TOP_K,
            group=group,
            worst_case_rows=worst_case_rows,
            device="cuda",
        )
        with torch.no_grad():
            for name, mine in spread.named_parameters():
                whole = alone.get_parameter(name)
                mine.copy_(whole if name == "router.weight" else whole.chunk(pes)[pe])
        out = spread(inputs[pe].cuda())
        loss = out.square().sum()
        with torch.autograd.set_multithreading_enabled(False):
            loss.backward()
        close(out.detach(), expected[pe].detach())
        for name in ("w_in", "w_out"):
            close(spread.get_parameter(name).grad, alone.get_parameter(name).grad.chunk(pes)[pe])
        return True

    assert all(with_group(pes, body, **OPTIONS))


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


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("worst_case_rows", [0, MAX_TOKENS])
def test_compiled(backend, worst_case_rows):
    """One rank in this thread, because torch compiles in one thread at a time."""

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
        compiled = torch.compile(layer, backend=backend, fullgraph=True)
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
