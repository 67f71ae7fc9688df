# SPDX-License-Identifier: Apache-2.0
"""Gate scores whose top-k choice loads ranks unevenly: rank 0 gets `ratio` times the tokens of any other rank.

A token counts once for each rank that it goes to. All results are on the GPU where there is one, else on the CPU;
experts lie on ranks in blocks of num_experts / num_ranks.
"""

import functools
import math

import torch

from .envs import default_device
from .math import ceil_div

_MAX_FACTOR = 2.0**20


def generate_rank_count(num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float) -> torch.Tensor:
    """Tokens for each rank, int64 [num_ranks]: rank 0 has `ratio` times the others, which differ by at most 1.

    Each count is at most num_tokens; the sum is what evenly chosen experts would give, within what `ratio` permits.
    AssertionError where no choice of `num_topk` experts a token can have that ratio.
    """
    experts_per_rank = num_experts // num_ranks
    lower = max(1, ceil_div(num_topk, experts_per_rank))
    upper = min(num_topk, num_ranks, int((num_ranks - 1) / ratio) + 1)
    assert lower <= upper, (
        f"ratio: got {ratio}, which {num_ranks} ranks of {experts_per_rank} experts and top-{num_topk} cannot have: "
        f"a token goes to at least {lower} ranks, and may go to {upper}"
    )
    untouched = math.comb(num_experts - experts_per_rank, num_topk) / math.comb(num_experts, num_topk)
    total = round(num_tokens * min(max(num_ranks * (1 - untouched), lower), upper))

    if num_ranks == 1:
        return torch.tensor([total], device=default_device())
    first = min(num_tokens, round(total * ratio / (ratio + num_ranks - 1)))
    each, more = divmod(total - first, num_ranks - 1)
    counts = torch.full((num_ranks - 1,), each, dtype=torch.int64, device=default_device())
    counts[torch.randperm(num_ranks - 1, device=counts.device)[:more]] += 1
    return torch.cat([counts.new_tensor([first]), counts])


def generate_topk_idx(rank_count: torch.Tensor, num_tokens: int, num_experts: int, num_topk: int) -> torch.Tensor:
    """Distinct experts, int64 [num_tokens, num_topk], that send rank_count[r] tokens to each rank r.

    The counts must be at most num_tokens, and their sum must permit what `generate_rank_count` checks.
    """
    num_ranks, device = rank_count.numel(), rank_count.device
    experts_per_rank = num_experts // num_ranks

    # Deal the ranks, each as often as it counts, to the tokens in turn: no rank meets a token twice, and tokens get
    # numbers of ranks that differ by at most 1. The orders of ranks and tokens decide which ranks share tokens.
    order = torch.randperm(num_ranks, device=device)
    dealt = order.repeat_interleave(rank_count[order])
    to_token = torch.randperm(num_tokens, device=device)[torch.arange(dealt.numel(), device=device) % num_tokens]
    chosen = torch.zeros((num_tokens, num_ranks), dtype=torch.bool, device=device)
    chosen[to_token, dealt] = True

    # One expert of every chosen rank first, then any other of the chosen ranks.
    keys = torch.rand((num_tokens, num_ranks, experts_per_rank), dtype=torch.float32, device=device)
    best = keys.argmax(dim=-1, keepdim=True)
    keys = (keys + 1).scatter_add_(-1, best, torch.ones_like(keys[..., :1]))
    return keys.masked_fill_(~chosen.unsqueeze(-1), 0).flatten(1).topk(num_topk, dim=-1, sorted=False).indices


def get_precise_unbalanced_scores(
    num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float
) -> torch.Tensor:
    """Positive scores, float32 [num_tokens, num_experts], whose top-k choice has the ratio up to rounding.

    AssertionError where that is impossible (`generate_rank_count`).
    """
    rank_count = generate_rank_count(num_tokens, num_experts, num_ranks, num_topk, ratio)
    topk_idx = generate_topk_idx(rank_count, num_tokens, num_experts, num_topk)
    scores = torch.rand((num_tokens, num_experts), dtype=torch.float32, device=topk_idx.device)
    return scores.scatter_add_(1, topk_idx, torch.ones_like(topk_idx, dtype=torch.float32))


def get_scores_by_factor(num_tokens: int, num_experts: int, num_ranks: int, factor: float) -> torch.Tensor:
    """Scores in [0, 1), float32 [num_tokens, num_experts]; experts of rank 0 are `factor` times as likely to come next.

    The top-k choice is then k draws without replacement with those weights.
    """
    scores = torch.rand((num_tokens, num_experts), dtype=torch.float32, device=default_device())
    scores[:, : num_experts // num_ranks] **= 1 / factor  # u^(1 / w): the largest of them is a draw with weights w
    return scores


def _expected_ratio(num_experts: int, num_ranks: int, num_topk: int, factor: float) -> float:
    """Expected tokens of rank 0 over those of another rank under `get_scores_by_factor`."""
    per_rank = num_experts // num_ranks
    others = num_experts - 2 * per_rank
    # missed[j]: no expert of rank 1 among the draws so far, j of them from rank 0.
    missed = [1.0]
    for drawn in range(num_topk):
        following = [0.0] * (len(missed) + 1)
        for j, probability in enumerate(missed):
            own, other = factor * max(per_rank - j, 0), max(others - (drawn - j), 0)
            following[j + 1] += probability * own / (own + other + per_rank)
            following[j] += probability * other / (own + other + per_rank)
        missed = following
    # Draws that all passed over rank 0: the others shrink one by one.
    missed_first = math.prod(
        max(num_experts - per_rank - i, 0) / (num_experts - per_rank - i + factor * per_rank)
        for i in range(min(num_topk, num_experts - per_rank + 1))
    )
    return (1 - missed_first) / (1 - sum(missed))


@functools.cache
def map_unbalanced_ratio_to_factor(num_experts: int, num_ranks: int, num_topk: int, ratio: float) -> float:
    """The factor of `get_scores_by_factor` whose expected ratio is `ratio`; at most 2^20, where that is too little too.

    ratio >= 1, or AssertionError.
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
    """Scores, float32 [num_tokens, num_experts], that have the ratio on average over many tokens."""
    factor = map_unbalanced_ratio_to_factor(num_experts, num_ranks, num_topk, ratio)
    return get_scores_by_factor(num_tokens, num_experts, num_ranks, factor)


def get_unbalanced_scores(
    num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float, precise: bool = False
) -> torch.Tensor:
    """Scores, float32 [num_tokens, num_experts], whose top-k choice gives rank 0 `ratio` times what another rank gets.

    `precise`: in this very choice, up to rounding; otherwise on average. AssertionError where num_ranks does not divide
    num_experts, num_topk is not in 1..num_experts, or ratio is below 1.
    """
    assert num_experts % num_ranks == 0, f"num_experts: got {num_experts}, need a multiple of {num_ranks} ranks"
    assert 1 <= num_topk <= num_experts, f"num_topk: got {num_topk}, need 1 to {num_experts}"
    assert ratio >= 1, f"ratio: got {ratio}, need at least 1"
    generate = get_precise_unbalanced_scores if precise else get_random_unbalanced_scores
    return generate(num_tokens, num_experts, num_ranks, num_topk, ratio)
