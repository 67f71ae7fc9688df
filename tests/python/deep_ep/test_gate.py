# SPDX-License-Identifier: Apache-2.0
"""Unbalanced gate scores: the tokens of each rank by their top-k choice."""

import math

import pytest
import torch
from deep_ep.utils import gate


def tokens_per_rank(topk_idx: torch.Tensor, experts: int, ranks: int) -> list[int]:
    rank_idx = topk_idx // (experts // ranks)
    return [int((rank_idx == r).any(dim=1).sum()) for r in range(ranks)]


def choose(scores: torch.Tensor, topk: int) -> torch.Tensor:
    return torch.topk(scores, topk, dim=-1, largest=True, sorted=False).indices


def feasible(experts: int, ranks: int, topk: int, ratio: float) -> bool:
    per_rank = experts // ranks
    return max(1, math.ceil(topk / per_rank)) <= min(topk, ranks, int((ranks - 1) / ratio) + 1)


@pytest.mark.parametrize("tokens", [1, 3, 1024])
@pytest.mark.parametrize("per_rank", [1, 4, 16])
@pytest.mark.parametrize("ranks", [1, 2, 8, 72])
def test_precise(tokens, per_rank, ranks):
    torch.manual_seed(0)
    experts, tried = per_rank * ranks, 0
    for topk in (1, 2, 4, 6, 9):
        for ratio in (1.0, 2.0, 4.0):
            if topk > experts:
                continue
            if not feasible(experts, ranks, topk, ratio):
                with pytest.raises(AssertionError, match=f"ratio: got {ratio}"):
                    gate.get_unbalanced_scores(tokens, experts, ranks, topk, ratio, 1)
                continue
            tried += 1
            scores = gate.get_unbalanced_scores(tokens, experts, ranks, topk, ratio, 1)
            assert (
                scores.shape == (tokens, experts)
                and scores.dtype == torch.float32
                and scores.min() >= 0
            )
            got = tokens_per_rank(choose(scores, topk).cpu(), experts, ranks)
            if ranks == 1:
                assert got == [tokens]
                continue
            assert max(got[1:]) - min(got[1:]) <= 1
            # Rounding moves rank 0 by half a token, and the mean of the others accordingly.
            mean = sum(got[1:]) / (ranks - 1)
            assert abs(got[0] - ratio * mean) <= 0.5 * (1 + ratio / (ranks - 1)) + 1e-9
            if tokens > 1000 and min(got[1:]) > 50:
                assert got[0] / min(got[1:]) == pytest.approx(ratio, rel=0.05)
    assert tried or (ranks == 1 and per_rank == 1) or ranks == 2 and per_rank == 1


def test_precise_totals_keep_the_ratio():
    """The check that callers make: the choices of all ranks together."""
    torch.manual_seed(1)
    tokens, experts, ranks, topk, ratio = 4096, 64, 8, 6, 2.0
    total = [0] * ranks
    for _ in range(ranks):
        scores = gate.get_unbalanced_scores(tokens, experts, ranks, topk, ratio, True)
        total = [
            a + b
            for a, b in zip(
                total, tokens_per_rank(choose(scores, topk).cpu(), experts, ranks), strict=True
            )
        ]
    assert abs(total[0] / min(total[1:]) - ratio) / ratio < 0.1
    assert max(total[1:]) / min(total[1:]) < 1.02


def test_precise_choices_are_distinct_and_varied():
    torch.manual_seed(2)
    counts = gate.generate_rank_count(500, 32, 4, 6, 2.0)
    assert counts.dtype == torch.int64 and counts.max() <= 500
    chosen = gate.generate_topk_idx(counts, 500, 32, 4, 6).cpu()
    assert tokens_per_rank(chosen, 32, 4) == counts.tolist()
    assert all(len(set(row)) == 6 for row in chosen.tolist())
    assert chosen.unique().numel() == 32  # no expert is missing
    assert len({tuple(sorted(row)) for row in chosen.tolist()}) > 450
    # A ratio of 1 sends as many tokens as an even choice of experts.
    even = gate.generate_rank_count(4096, 64, 8, 6, 1.0).float()
    drawn = torch.tensor(tokens_per_rank(choose(torch.rand(4096, 64), 6), 64, 8)).float()
    assert (
        even.mean() == pytest.approx(drawn.mean().item(), rel=0.01) and even.max() - even.min() <= 1
    )


@pytest.mark.parametrize(
    "experts, ranks, topk", [(16, 8, 4), (64, 8, 6), (8, 2, 1), (8, 8, 2), (144, 72, 9)]
)
@pytest.mark.parametrize("ratio", [1.0, 2.0, 4.0])
def test_random_ratio(experts, ranks, topk, ratio):
    torch.manual_seed(3)
    tokens = 20000
    scores = gate.get_unbalanced_scores(tokens, experts, ranks, topk, ratio, False)
    assert scores.shape == (tokens, experts) and scores.min() >= 0 and scores.max() <= 1
    got = tokens_per_rank(choose(scores, topk).cpu(), experts, ranks)
    # The limit: every token selects all experts of rank 0 and an even choice of the others.
    per_rank, rest = experts // ranks, max(topk - experts // ranks, 0)
    missed = math.comb(experts - 2 * per_rank, rest) / math.comb(experts - per_rank, rest)
    limit = 1 / (1 - missed) if rest else math.inf
    assert got[0] / (sum(got[1:]) / (ranks - 1)) == pytest.approx(min(ratio, limit), rel=0.05)


def test_factor():
    assert gate.map_unbalanced_ratio_to_factor(500, 64, 8, 6, 1.0) == 1.0
    assert gate.map_unbalanced_ratio_to_factor(500, 64, 1, 6, 4.0) == 1.0
    factors = [
        gate.map_unbalanced_ratio_to_factor(500, 64, 8, 6, ratio) for ratio in (1.5, 2.0, 4.0, 8.0)
    ]
    assert factors == sorted(factors) and factors[0] > 1
    # With one expert per token the ratio of the ranks is the ratio of the weights.
    assert gate.map_unbalanced_ratio_to_factor(500, 8, 4, 1, 3.0) == pytest.approx(3.0, rel=1e-6)
    # Two ranks with one expert each, both selected: no factor changes that.
    assert gate.map_unbalanced_ratio_to_factor(500, 2, 2, 2, 2.0) == pytest.approx(2**20)


def test_scores_by_factor_draw_by_weight():
    torch.manual_seed(4)
    first = choose(gate.get_scores_by_factor(40000, 4, 4, 5.0), 1).cpu()
    share = torch.bincount(first.flatten(), minlength=4) / 40000
    assert share.tolist() == pytest.approx([5 / 8, 1 / 8, 1 / 8, 1 / 8], abs=0.01)


def test_default_type_does_not_matter():
    torch.set_default_dtype(torch.bfloat16)
    try:
        for precise in (True, False):
            assert gate.get_unbalanced_scores(8, 16, 4, 2, 2.0, precise).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_bad_arguments():
    for experts, ranks, topk, ratio in (
        (10, 4, 2, 1.0),
        (8, 4, 0, 1.0),
        (8, 4, 9, 1.0),
        (8, 4, 2, 0.5),
    ):
        for precise in (True, False):
            with pytest.raises(AssertionError, match="got"):
                gate.get_unbalanced_scores(4, experts, ranks, topk, ratio, precise)
