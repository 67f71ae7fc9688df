# SPDX-License-Identifier: Apache-2.0
"""Gate scores with an unbalanced top-k choice: rank 0 gets `ratio` times the tokens of other ranks.

A token counts once for each rank that it goes to. Results are on the GPU where torch sees one, else
on the CPU. Experts lie on ranks in blocks of num_experts / num_ranks.
"""

import functools
import math

import torch

from .envs import default_device
from .math import ceil_div

_MAX_FACTOR = 2.0**20


def generate_rank_count(
    num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float
) -> torch.Tensor:
    """Tokens for each rank, int64 [num_ranks]; the ranks after 0 differ by at most 1.

    Each count is at most num_tokens. The sum is the expectation of an even choice of experts,
    within the limits of `ratio`. Raises AssertionError where no choice of `num_topk` experts per
    token has that ratio.
    """
    experts_per_rank = num_experts // num_ranks
    lower = max(1, ceil_div(num_topk, experts_per_rank))
    upper = min(num_topk, num_ranks, int((num_ranks - 1) / ratio) + 1)
    assert lower <= upper, (
        f"ratio: got {ratio}, which {num_ranks} ranks of {experts_per_rank} experts and "
        f"top-{num_topk} cannot have: a token goes to at least {lower} ranks, and may go to {upper}"
    )
    untouched = math.comb(num_experts - experts_per_rank, num_topk) / math.comb(
        num_experts, num_topk
    )
    total = round(num_tokens * min(max(num_ranks * (1 - untouched), lower), upper))

    if num_ranks == 1:
        return torch.tensor([total], device=default_device())
    first = min(num_tokens, round(total * ratio / (ratio + num_ranks - 1)))
    each, more = divmod(total - first, num_ranks - 1)
    counts = torch.full((num_ranks - 1,), each, dtype=torch.int64, device=default_device())
    counts[torch.randperm(num_ranks - 1, device=counts.device)[:more]] += 1
    return torch.cat([counts.new_tensor([first]), counts])


def generate_topk_idx(
    rank_count: torch.Tensor, num_tokens: int, num_experts: int, num_ranks: int, num_topk: int
) -> torch.Tensor:
    """Distinct experts, int64 [num_tokens, num_topk], with rank_count[r] tokens for each rank r.

    The counts, [num_ranks], are at most num_tokens, and their sum satisfies the check of
    `generate_rank_count`.
    """
    device = rank_count.device
    experts_per_rank = num_experts // num_ranks

    # Deal the ranks, each rank_count times, to the tokens in turn. No token gets a rank twice, and
    # the numbers of ranks per token differ by at most 1. The random orders of ranks and tokens
    # determine which ranks share tokens.
    order = torch.randperm(num_ranks, device=device)
    dealt = order.repeat_interleave(rank_count[order])
    to_token = torch.randperm(num_tokens, device=device)[
        torch.arange(dealt.numel(), device=device) % num_tokens
    ]
    chosen = torch.zeros((num_tokens, num_ranks), dtype=torch.bool, device=device)
    chosen[to_token, dealt] = True

    # Selects one expert of every chosen rank first, then any other expert of the chosen ranks.
    keys = torch.rand((num_tokens, num_ranks, experts_per_rank), dtype=torch.float32, device=device)
    best = keys.argmax(dim=-1, keepdim=True)
    keys = (keys + 1).scatter_add_(-1, best, torch.ones_like(keys[..., :1]))
    return (
        keys.masked_fill_(~chosen.unsqueeze(-1), 0)
        .flatten(1)
        .topk(num_topk, dim=-1, sorted=False)
        .indices
    )


def get_precise_unbalanced_scores(
    num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float
) -> torch.Tensor:
    """Positive scores, float32 [num_tokens, num_experts], with the ratio in their top-k choice.

    Raises AssertionError where that is impossible (`generate_rank_count`).
    """
    rank_count = generate_rank_count(num_tokens, num_experts, num_ranks, num_topk, ratio)
    topk_idx = generate_topk_idx(rank_count, num_tokens, num_experts, num_ranks, num_topk)
    scores = torch.rand((num_tokens, num_experts), dtype=torch.float32, device=topk_idx.device)
    return scores.scatter_add_(1, topk_idx, torch.ones_like(topk_idx, dtype=torch.float32))


def get_scores_by_factor(
    num_tokens: int, num_experts: int, num_ranks: int, factor: float
) -> torch.Tensor:
    """Scores in [0, 1), float32 [num_tokens, num_experts], with weight `factor` for experts of rank
    0.

    The top-k choice is k draws without replacement, where the experts of rank 0 are `factor` times
    as likely as others.
    """
    scores = torch.rand((num_tokens, num_experts), dtype=torch.float32, device=default_device())
    # The largest of u^(1 / w) is a draw with weights w.
    scores[:, : num_experts // num_ranks] **= 1 / factor
    return scores


def _expected_ratio(num_experts: int, num_ranks: int, num_topk: int, factor: float) -> float:
    """Expected tokens of rank 0 over those of another rank under `get_scores_by_factor`."""
    per_rank = num_experts // num_ranks
    others = num_experts - 2 * per_rank
    # missed[j]: probability of no expert of rank 1 and j experts of rank 0 in the draws so far.
    missed = [1.0]
    for drawn in range(num_topk):
        following = [0.0] * (len(missed) + 1)
        for j, probability in enumerate(missed):
            first, other = factor * max(per_rank - j, 0), max(others - (drawn - j), 0)
            following[j + 1] += probability * first / (first + other + per_rank)
            following[j] += probability * other / (first + other + per_rank)
        missed = following
    # Probability of draws without rank 0: the other experts decrease by one per draw.
    missed_first = math.prod(
        max(num_experts - per_rank - i, 0) / (num_experts - per_rank - i + factor * per_rank)
        for i in range(min(num_topk, num_experts - per_rank + 1))
    )
    return (1 - missed_first) / (1 - sum(missed))


@functools.cache
def map_unbalanced_ratio_to_factor(
    num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float
) -> float:
    """The factor of `get_scores_by_factor` for an expected ratio of `ratio`, at most 2^20.

    It does not depend on num_tokens. Raises AssertionError unless ratio >= 1.
    """
    assert ratio >= 1, f"ratio: got {ratio}, need at least 1"
    if num_ranks == 1 or ratio == 1:
        return 1.0
    low, high = 1.0, _MAX_FACTOR
    for _ in range(60):
        middle = math.sqrt(low * high)
        if _expected_ratio(num_experts, num_ranks, num_topk, middle) < ratio:
            low = middle
        else:
            high = middle
    return high


def get_random_unbalanced_scores(
    num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float
) -> torch.Tensor:
    """Scores, float32 [num_tokens, num_experts], with the ratio on average over many tokens."""
    factor = map_unbalanced_ratio_to_factor(num_tokens, num_experts, num_ranks, num_topk, ratio)
    return get_scores_by_factor(num_tokens, num_experts, num_ranks, factor)


def get_unbalanced_scores(
    num_tokens: int,
    num_experts: int,
    num_ranks: int,
    num_topk: int,
    ratio: float,
    precise: bool = False,
) -> torch.Tensor:
    """Scores, float32 [num_tokens, num_experts], that give rank 0 `ratio` times other ranks'
    tokens.

    `precise`: in this choice, up to rounding; otherwise on average. Raises AssertionError where
    num_ranks does not divide num_experts, num_topk is not in 1..num_experts, or ratio is below 1.
    """
    assert num_experts % num_ranks == 0, (
        f"num_experts: got {num_experts}, need a multiple of {num_ranks} ranks"
    )
    assert 1 <= num_topk <= num_experts, f"num_topk: got {num_topk}, need 1 to {num_experts}"
    assert ratio >= 1, f"ratio: got {ratio}, need at least 1"
    generate = get_precise_unbalanced_scores if precise else get_random_unbalanced_scores
    return generate(num_tokens, num_experts, num_ranks, num_topk, ratio)
