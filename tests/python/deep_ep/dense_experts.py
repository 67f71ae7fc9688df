# SPDX-License-Identifier: Apache-2.0
"""A mixture-of-experts layer with one matrix per expert, and its results in plain torch."""

import torch
import torch.distributed as dist
from torch_ranks import seeded

HIDDEN, EXPERTS, TOP_K = 64, 8, 2


class Case:
    """Inputs of a rank: rows, routing, gates, gradients of the output, and all matrices.

    x: bfloat16 [T, H]; topk_idx int64 and gates float32 [T, K]; matrices float32 [E, H, H], the
    same on all ranks.
    """

    def __init__(self, seed, tokens=None):
        self.rank, ranks = dist.get_rank(), dist.get_world_size()
        generator = seeded(100 * seed + self.rank)
        self.tokens = (12, 7, 16, 9)[self.rank] if tokens is None else tokens
        self.x = torch.randn((self.tokens, HIDDEN), generator=generator).bfloat16()
        scores = torch.rand((self.tokens, EXPERTS), generator=generator)
        self.gates, self.topk_idx = scores.softmax(1).topk(TOP_K, dim=1)
        self.grad = torch.randn((self.tokens, HIDDEN), generator=generator).bfloat16()
        self.local = range(self.rank * EXPERTS // ranks, (self.rank + 1) * EXPERTS // ranks)
        shape = (EXPERTS, HIDDEN, HIDDEN)
        self.matrices = torch.randn(shape, generator=seeded(seed)) / HIDDEN**0.5

    def routing(self):
        """(routing map bool [T, E], probabilities float32 [T, E])."""
        shape = (self.tokens, EXPERTS)
        probs = torch.zeros(shape).scatter(1, self.topk_idx, self.gates)
        return torch.zeros(shape, dtype=torch.bool).scatter(1, self.topk_idx, True), probs

    def local_matrices(self):
        """The matrices of this rank's experts, with gradients."""
        return self.matrices[self.local.start : self.local.stop].clone().requires_grad_()

    def expected(self):
        """(output [T, H], gradients of x, of the probabilities [T, E] and of the local matrices)
        of the dense layer."""
        x = self.x.float().requires_grad_()
        probs = self.routing()[1].requires_grad_()
        matrices = self.matrices.clone().requires_grad_()
        gates = probs * self.routing()[0]
        out = torch.einsum("te,eho,th->to", gates, matrices, x)
        out.backward(self.grad.float())
        dist.all_reduce(matrices.grad)  # the tokens of all ranks
        return out, x.grad, probs.grad, matrices.grad[self.local.start : self.local.stop]


def run_experts(rows, counts, matrices, gates=None):
    """Expert output of rows grouped by expert, in bfloat16, times a gate per row."""
    parts = rows.split([int(count) for count in counts])
    out = torch.cat([part.float() @ matrix for part, matrix in zip(parts, matrices)])
    return (out if gates is None else out * gates.reshape(-1, 1)).bfloat16()


def close(got, want):
    """Return true if results agree within the rounding of bfloat16 rows."""
    scale = want.float().abs().max().clamp(min=1e-3)
    return bool(((got.float() - want.float()).abs() <= 0.03 * scale).all())
