# SPDX-License-Identifier: Apache-2.0
"""``HybridEPBuffer``: dispatch and combine with routing maps."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
import torch.distributed as dist

from ...utils.envs import check_torch_deterministic
from ...utils.semantic import native_assert, native_fail
from ..checks import describe, expect, require_alignment
from ..elastic import ElasticBuffer
from ..ending import description
from ..spread import first_experts
from . import routing
from .calls import hybrid_calls
from .handle import Configurer, HybridConfig, HybridHandle

_MAX_ROWS = (1 << 31) - 1  # rows are numbered by int32


class HybridEPBuffer:
    """Dispatch and combine of expert-parallel tokens, optionally grouped by expert.

        buffer = HybridEPBuffer(group, hidden, max_tokens, num_local_experts)
        x, probs, _, tokens_per_expert, handle = buffer.dispatch_with_permute(
            hidden=hidden, routing_map=routing_map, probs=probs
        )
        combined, _ = buffer.combine_with_unpermute(hidden=expert_output, handle=handle)

    T tokens of this rank, E experts, R ranks; a token selects at most 32 experts. L experts are on
    this rank: E // R, and one more on the first E % R ranks. Tensors lie on the GPU, or on the CPU
    where there is no GPU or SHOAL_HEAP=host. Calls are collective.

    Attributes: group, rank, group_size, local_rank, node_rank, num_of_nodes,
    num_of_hybrid_ep_ranks_per_nvlink_domain, configurer, runtime.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        hidden_dim: int,
        max_num_of_tokens_per_rank: int,
        num_local_experts: int,
        use_fp8: bool = False,
        num_sms_dispatch_api: int | None = None,
        num_sms_combine_api: int | None = None,
        num_sms_preprocessing_api: int | None = None,
        num_blocks_permute: int | None = None,
        num_blocks_unpermute: int | None = None,
        load_cached_kernels: bool = False,
        use_shared_buffer: bool = True,
        enable_custom_allgather: bool = False,
        num_of_hybrid_ep_ranks_per_nvlink_domain: int | None = None,
        use_mnnvl: bool | None = None,
    ) -> None:
        """max_num_of_tokens_per_rank: the most tokens of a rank; a blocking call with more makes
        room. num_sms_dispatch_api, num_sms_combine_api: SMs on GPUs; default: automatic.

        The other arguments are accepted without effect. Collective.
        """
        self.group, self.rank, self.group_size = group, dist.get_rank(group), group.size()
        self._elastic = ElasticBuffer(
            group,
            num_max_tokens_per_rank=max(1, max_num_of_tokens_per_rank),
            hidden=hidden_dim,
            use_fp8_dispatch=use_fp8,
        )
        self.runtime = self._elastic.runtime
        domain = int(os.environ.get("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN") or 0)
        domain = domain or self._elastic.num_nvlink_ranks
        expect(
            self.group_size % domain == 0,
            f"HybridEPBuffer: NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN is {domain}; "
            f"allowed: divisors of the {self.group_size} ranks",
        )
        self.num_of_hybrid_ep_ranks_per_nvlink_domain = domain
        self.node_rank, self.local_rank = divmod(self.rank, domain)
        self.num_of_nodes = self.group_size // domain
        config = HybridConfig(
            hidden_dim,
            max_num_of_tokens_per_rank,
            num_local_experts,
            domain,
            self.num_of_nodes,
            use_fp8,
        )
        self.configurer = Configurer(config)
        self._calls = hybrid_calls(
            self._elastic, config, num_sms_dispatch_api or 0, num_sms_combine_api or 0
        )

    def __repr__(self) -> str:
        return description(self, "configurer")

    def empty_jit_cache(self) -> None:
        """Has no effect: nothing is compiled at run time."""

    def update_template_config(
        self,
        hidden_dim: int | None = None,
        num_of_tokens_per_rank: int | None = None,
        num_local_experts: int | None = None,
        pad_multiple: int | None = None,
        use_fp8: bool | None = None,
        fuse_permute_dispatch: bool = False,
        **kwargs: Any,
    ) -> HybridConfig:
        """The sizes of a call; ``kwargs``, which tune DeepEP's kernels, are ignored."""
        known = self.configurer.buffer_config
        tokens = max(num_of_tokens_per_rank or 0, known.max_num_of_tokens_per_rank)
        return HybridConfig(
            hidden_dim or known.hidden_dim,
            tokens,
            known.num_of_experts_per_rank if num_local_experts is None else num_local_experts,
            known.num_of_ranks_per_node,
            known.num_of_nodes,
            known.use_fp8 if use_fp8 is None else use_fp8,
            pad_multiple or 1,
        )

    def dispatch(
        self,
        hidden: torch.Tensor,
        scaling_factor: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        num_of_experts: int | None = None,
        probs: torch.Tensor | None = None,
        routing_map: torch.Tensor | None = None,
        num_dispatched_tokens_tensor: torch.Tensor | None = None,
        num_dispatched_tokens: int | None = None,
        handle: tuple | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, HybridHandle]:
        """Sends each token once to each rank that holds one of its experts.

        hidden: bfloat16 [T, H], or float8_e4m3fn or uint8 [T, H] with scaling_factor float32
        [T, n]. Routing: routing_map bool [T, E] with probs float32 [T, E], or topk_idx [T, K] with
        topk_weights and num_of_experts, or the handle of an earlier dispatch.
        num_dispatched_tokens and its tensor have no effect.

        Returns (rows [N, H] ordered by source rank and token; float32 [N, experts of the NVLink
        domain], which is zero outside the experts of this rank, or None; scales [N, n] or None;
        handle).
        """
        check_torch_deterministic()
        known = self._known("dispatch", handle, permuted=False)
        given = (routing_map, probs, topk_idx, topk_weights, num_of_experts)
        if known is None:
            x, scales, weights, sent, experts = self._calls.dispatch(hidden, scaling_factor, given)
            known = HybridHandle(sent, self._config(hidden, experts, None), experts)
        else:
            x, scales, weights, _ = self._calls.repeat(hidden, scaling_factor, given, known.elastic)
        if weights is not None:
            first, _, columns = self._columns(known.experts)
            weights = routing.by_expert(weights, known.local_idx, (x.shape[0], columns), first)
        return x, weights, scales, known

    def combine(
        self, hidden: torch.Tensor, probs: torch.Tensor | None = None, handle: tuple | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sums expert output, one row per received row, at the sources of the tokens.

        hidden: bfloat16 [N, H]. probs: as ``dispatch`` returns them. Returns (bfloat16 [T, H],
        float32 [T, E] or None).
        """
        call = "combine"
        expect(handle is not None, f"{call}: handle is needed")
        known = self._known(call, handle, permuted=False)
        weights = None
        if probs is not None:
            first, end, _ = self._columns(known.experts)
            weights = routing.by_slot(probs.float()[:, first:end], known.local_idx)
        return self._collect(hidden, weights, known)

    def dispatch_with_permute(
        self,
        *,
        hidden: torch.Tensor,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        num_of_experts_per_rank: int | None = None,
        num_of_experts: int | None = None,
        use_fp8: bool | None = None,
        routing_map: torch.Tensor | None = None,
        probs: torch.Tensor | None = None,
        scaling_factor: torch.Tensor | None = None,
        num_permuted_tokens: Any = None,
        pad_multiple: int | None = None,
        handle: tuple | None = None,
        non_blocking: bool = False,
        fuse_permute_dispatch: bool = False,
        num_dispatched_tokens: int | None = None,
        use_host_meta: bool | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor, HybridHandle]:
        """``dispatch``, then one row per (token, local expert), grouped by expert.

        pad_multiple: each group is padded with zeros to a multiple. non_blocking: no size reaches
        the host of a GPU; the result has num_permuted_tokens rows, further rows are dropped, and
        the overflow flag in the handle tells so. Blocking calls return as many rows as there are.
        With ``handle``, the result has the rows of the earlier dispatch. num_of_experts_per_rank:
        L, or that of rank 0. use_fp8 follows from the dtype of hidden; fuse_permute_dispatch
        changes the handle's form only.

        Returns (rows [P, H], float32 [P] or None, scales [P, n] or None, rows of each local expert
        with padding int64 [L], handle). In each group rows are ordered by source rank, then
        token.
        """
        call = "dispatch_with_permute"
        if use_host_meta is not None:
            warnings.warn("use_host_meta is deprecated: pass non_blocking", stacklevel=2)
            non_blocking = not use_host_meta
        self._warn_of_count(num_dispatched_tokens)
        check_torch_deterministic()
        multiple = pad_multiple or 1
        require_alignment(call, "pad_multiple", multiple)
        known = self._known(call, handle, permuted=True)
        given = (routing_map, probs, topk_idx, topk_weights, num_of_experts)
        if known is None:
            limit = self._limit(call, non_blocking, num_permuted_tokens, multiple)
            x, scales, weights, sent, experts = self._calls.dispatch_with_permute(
                hidden, scaling_factor, given, multiple, limit, num_of_experts_per_rank
            )
            config, fused = self._config(hidden, experts, pad_multiple), fuse_permute_dispatch
            known = HybridHandle(sent, config, experts, permuted=True, limit=limit, fused=fused)
        else:
            x, scales, weights, _ = self._calls.repeat(hidden, scaling_factor, given, known.elastic)
        return x, weights, scales, known.tokens_per_expert, known

    def combine_with_unpermute(
        self,
        *,
        hidden: torch.Tensor,
        probs: torch.Tensor | None = None,
        handle: tuple | None = None,
        pad_multiple: int | None = None,
        fuse_unpermute_combine: bool = False,
        num_dispatched_tokens: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sums expert-major expert output at the sources of the tokens.

        hidden: bfloat16 [P, H]; rows of a rank are summed in float32 and rounded before they are
        sent. probs: float32 [P]. pad_multiple, which the handle knows, and fuse_unpermute_combine
        have no effect. Returns (bfloat16 [T, H], float32 [T, E] or None).
        """
        call = "combine_with_unpermute"
        self._warn_of_count(num_dispatched_tokens)
        expect(handle is not None, f"{call}: handle is needed")
        known = self._known(call, handle, permuted=True)
        if hidden.dim() != 2 or hidden.shape[0] != known.rows:
            native_fail(
                f"{call}: hidden is {describe(hidden)}; the dispatch returned {known.rows} rows"
            )
        weights = None
        if probs is not None:
            if probs.numel() != known.rows:
                native_fail(
                    f"{call}: probs are {describe(probs)}; the dispatch returned {known.rows} rows"
                )
            weights = probs.detach().float().flatten()
        return self._collect(hidden, weights, known)

    @staticmethod
    def _warn_of_count(num_dispatched_tokens: int | None) -> None:
        if num_dispatched_tokens is not None:
            warnings.warn("num_dispatched_tokens is deprecated and ignored", stacklevel=3)

    @staticmethod
    def _known(call: str, handle: Any, permuted: bool) -> HybridHandle | None:
        if handle is None:
            return None
        native_assert(
            isinstance(handle, HybridHandle) and handle.permuted == permuted,
            f"{call}: handle is a {type(handle).__name__}; allowed: the handle of dispatch"
            f"{'_with_permute' if permuted else ''}, unchanged",
        )
        return handle

    def _columns(self, experts: int) -> tuple[int, int, int]:
        """The first and the end of this rank's experts among those of its NVLink domain, and their
        number."""
        first = first_experts(experts, self.group_size)
        start = self.rank - self.local_rank
        end = start + self.num_of_hybrid_ep_ranks_per_nvlink_domain
        return (
            first[self.rank] - first[start],
            first[self.rank + 1] - first[start],
            first[end] - first[start],
        )

    def _config(self, hidden: torch.Tensor, experts: int, pad_multiple: int | None) -> HybridConfig:
        first, end, _ = self._columns(experts)
        return self.update_template_config(
            hidden.shape[1], hidden.shape[0], end - first, pad_multiple, hidden.element_size() == 1
        )

    @staticmethod
    def _limit(call: str, non_blocking: bool, rows: Any, multiple: int) -> int | None:
        """The rows of a result whose size does not reach the host; None: blocking."""
        if not non_blocking:
            return None
        expect(
            rows is not None and 0 <= int(rows) <= _MAX_ROWS and int(rows) % multiple == 0,
            f"{call}: num_permuted_tokens is {rows}; non_blocking needs a multiple of "
            f"pad_multiple = {multiple}, up to {_MAX_ROWS}",
        )
        return int(rows)

    def _collect(
        self, rows: torch.Tensor, weights: torch.Tensor | None, known: HybridHandle
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sums rows and weights, in the form of the dispatch, at the sources of the tokens."""
        check_torch_deterministic()
        sums, weights, _ = self._calls.combine(rows, weights, known.elastic)
        if weights is None:
            return sums, None
        topk_idx = known.elastic.topk_idx
        return sums, routing.by_expert(weights, topk_idx, (topk_idx.shape[0], known.experts))
