# SPDX-License-Identifier: Apache-2.0
"""``HybridEPBuffer``: dispatch and combine with routing maps."""

from __future__ import annotations

import os
import struct
import warnings
from typing import Any

import torch
import torch.distributed as dist

from ...config import topk_idx_t
from ...utils.semantic import native_assert, native_fail
from ..checks import describe, expect, require_alignment, require_experts
from ..elastic import ElasticBuffer, EPHandle
from ..ending import description
from . import routing
from .handle import Configurer, HybridConfig, HybridHandle

_MAX_TOP_K = 32
_MAX_ROWS = (1 << 31) - 1  # rows are numbered by int32
_SIZES = struct.Struct("<3q")  # tokens, experts per token, experts

# Rows [N, H], scales [N, n], weights [N, K]; by expert [P, H], [P, n], [P].
Received = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]


class HybridEPBuffer:
    """Dispatch and combine of expert-parallel tokens, optionally grouped by expert.

        buffer = HybridEPBuffer(group, hidden, max_tokens, num_local_experts)
        x, probs, _, tokens_per_expert, handle = buffer.dispatch_with_permute(
            hidden=hidden, routing_map=routing_map, probs=probs
        )
        combined, _ = buffer.combine_with_unpermute(hidden=expert_output, handle=handle)

    T tokens of this rank, E experts, R ranks; a token selects at most 32 experts. Tensors lie on
    the GPU, or on the CPU where there is no GPU or SHOAL_HEAP=host. Calls are collective.

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
        self._sms = (num_sms_dispatch_api or 0, num_sms_combine_api or 0)
        # Of blocking calls so far; a group of Shoal has a fixed top-k. On GPUs also the most of
        # this rank, as the kernel found it.
        self._top_k = 1
        device = self.runtime.device
        self._most = None if device.type == "cpu" else torch.zeros(1, dtype=torch.int32).to(device)

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
            num_local_experts or known.num_of_experts_per_rank,
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

        Returns (rows [N, H] ordered by source rank and token; float32 [N, E / R * ranks of the
        NVLink domain], which is zero outside the experts of this rank, or None; scales [N, n] or
        None; handle).
        """
        call = "dispatch"
        known = self._known(call, handle, permuted=False)
        if known is None:
            topk_idx, probs, experts = self._routing(
                call, hidden, routing_map, probs, topk_idx, topk_weights, num_of_experts
            )
            topk_idx, weights = self._agree(call, topk_idx, probs, experts, None)
            send = self._new_layout(topk_idx, experts, routing_map is None)
        else:
            experts, send = known.experts, known.layout
            weights = self._known_weights(known, hidden, probs, topk_weights, routing_map)
        (x, scales, weights), elastic = self._send(hidden, scaling_factor, weights, send)
        if known is None:
            known = HybridHandle(elastic, self._config(hidden, experts, None), experts)
        if weights is not None:
            local = experts // self.group_size
            columns = local * self.num_of_hybrid_ep_ranks_per_nvlink_domain
            shape, first = (x.shape[0], columns), self.local_rank * local
            weights = routing.by_expert(weights, known.local_idx, shape, first)
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
            local = known.experts // self.group_size
            first = self.local_rank * local
            local_probs = probs.float()[:, first : first + local]
            weights = routing.by_slot(local_probs, known.local_idx)
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
        With ``handle``, the result has the rows of the earlier dispatch. use_fp8 follows from the
        dtype of hidden; fuse_permute_dispatch changes the handle's form only.

        Returns (rows [P, H], float32 [P] or None, scales [P, n] or None, rows of each local expert
        with padding int64 [E / R], handle). In each group rows are ordered by source rank, then
        token.
        """
        call = "dispatch_with_permute"
        if use_host_meta is not None:
            warnings.warn("use_host_meta is deprecated: pass non_blocking", stacklevel=2)
            non_blocking = not use_host_meta
        self._warn_of_count(num_dispatched_tokens)
        multiple = pad_multiple or 1
        require_alignment(call, "pad_multiple", multiple)
        known = self._known(call, handle, permuted=True)
        if known is None:
            topk_idx, probs, experts = self._routing(
                call, hidden, routing_map, probs, topk_idx, topk_weights, num_of_experts
            )
            native_assert(
                not num_of_experts_per_rank or num_of_experts_per_rank * self.group_size == experts,
                f"{call}: num_of_experts_per_rank is {num_of_experts_per_rank}; the routing has "
                f"{experts} experts for {self.group_size} ranks",
            )
            limit = self._limit(call, non_blocking, num_permuted_tokens, multiple)
            topk_idx, weights = self._agree(call, topk_idx, probs, experts, limit)
            received, elastic = self._send_expert_major(
                hidden, scaling_factor, topk_idx, weights, experts, multiple, limit
            )
            config, fused = self._config(hidden, experts, pad_multiple), fuse_permute_dispatch
            known = HybridHandle(elastic, config, experts, permuted=True, limit=limit, fused=fused)
        else:
            weights = self._known_weights(known, hidden, probs, topk_weights, routing_map)
            received, _ = self._send(hidden, scaling_factor, weights, known.layout)
        x, scales, weights = received
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

    def _config(self, hidden: torch.Tensor, experts: int, pad_multiple: int | None) -> HybridConfig:
        return self.update_template_config(
            hidden.shape[1],
            hidden.shape[0],
            experts // self.group_size,
            pad_multiple,
            hidden.element_size() == 1,
        )

    def _routing(
        self,
        call: str,
        hidden: torch.Tensor,
        routing_map: Any,
        probs: Any,
        topk_idx: Any,
        topk_weights: Any,
        num_of_experts: int | None,
    ) -> tuple[Any, torch.Tensor | None, int]:
        """(top-k indices, or the routing map; probs float32 [T, E]; E) of a new dispatch."""
        if routing_map is not None:
            expect(
                routing_map.dtype == torch.bool and routing_map.dim() == 2,
                f"{call}: routing_map is {describe(routing_map)}; allowed: bool [T, E]",
            )
            chosen, experts = routing_map, routing_map.shape[1]
        else:
            expect(topk_idx is not None, f"{call}: routing_map, topk_idx or handle is needed")
            expect(num_of_experts is not None, f"{call}: topk_idx needs num_of_experts")
            chosen, experts = topk_idx.to(topk_idx_t).contiguous(), num_of_experts
        if hidden.dim() != 2 or chosen.shape[0] != hidden.shape[0]:
            native_fail(
                f"{call}: hidden is {describe(hidden)}, the routing has {chosen.shape[0]} tokens"
            )
        require_experts(call, experts, self.group_size, "number of experts")
        given = self._given_probs(hidden, probs, topk_weights, routing_map, topk_idx, experts)
        return chosen, given, experts

    @staticmethod
    def _given_probs(
        hidden: torch.Tensor,
        probs: Any,
        topk_weights: Any,
        routing_map: Any,
        topk_idx: Any,
        experts: int,
    ) -> torch.Tensor | None:
        """float32 [T, E] of ``probs`` or, without a routing map, of ``topk_weights``."""
        if probs is None and topk_weights is not None and routing_map is None:
            probs = routing.indices_to_map(topk_idx, topk_weights, hidden.shape[0], experts)[1]
        if probs is None:
            return None
        if tuple(probs.shape) != (hidden.shape[0], experts):
            native_fail(
                f"probs are {describe(probs)}; allowed: float32 [{hidden.shape[0]}, {experts}]"
            )
        return probs.detach().float()

    def _known_weights(
        self,
        known: HybridHandle,
        hidden: torch.Tensor,
        probs: Any,
        topk_weights: Any,
        routing_map: Any,
    ) -> torch.Tensor | None:
        """The weights of a dispatch along the layout of ``known``, by top-k slot."""
        topk_idx, experts = known.elastic.topk_idx, known.experts
        probs = self._given_probs(hidden, probs, topk_weights, routing_map, topk_idx, experts)
        return None if probs is None else routing.by_slot(probs, topk_idx)

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

    def _agree(
        self,
        call: str,
        chosen: torch.Tensor,
        probs: torch.Tensor | None,
        experts: int,
        limit: int | None,
    ) -> routing.Slots:
        """The routing, a map or top-k indices, with the same K on all ranks. Collective.

        Blocking calls use the largest numbers of tokens and of experts per token of all ranks, and
        make room for them. On GPUs a non-blocking call asks no other rank.
        """
        is_map, tokens = chosen.dtype == torch.bool, chosen.shape[0]
        if limit is not None and self._most is not None:
            known = max(1, self.configurer.buffer_config.max_num_of_tokens_per_rank)
            native_assert(
                tokens <= known, f"{call}: {tokens} tokens; at most {known} with non_blocking"
            )
            if is_map:
                return routing.slots_of_map(chosen, probs, min(experts, _MAX_TOP_K))
            weights = None if probs is None else routing.by_slot(probs, chosen)
            return routing.Slots(chosen.clone(), weights)  # the handle keeps it
        slots = None
        if is_map and self._most is not None:
            slots = routing.slots_of_map(chosen, probs, self._top_k, self._most)
            most = int(self._most)
        elif is_map:
            most = int(chosen.sum(1).amax()) if chosen.numel() > 0 else 0
        else:
            most = chosen.shape[1]
        self._agree_on_sizes(call, tokens, most, experts)
        if not is_map:
            missing = self._top_k - chosen.shape[1]
            topk_idx = torch.nn.functional.pad(chosen, (0, missing), value=-1)
            return routing.Slots(
                topk_idx, None if probs is None else routing.by_slot(probs, topk_idx)
            )
        if slots is None or slots.topk_idx.shape[1] < self._top_k:
            slots = routing.slots_of_map(chosen, probs, self._top_k)
        return slots

    def _agree_on_sizes(self, call: str, tokens: int, most: int, experts: int) -> None:
        """Raises top-k and the number of tokens to the most of all ranks. Collective."""
        records = [
            _SIZES.unpack(record)
            for record in self.runtime.team.exchange(_SIZES.pack(tokens, most, experts))
        ]
        native_assert(
            all(record[2] == experts for record in records),
            f"{call}: ranks differ in the number of experts: {[record[2] for record in records]}",
        )
        tokens, most = (max(record[i] for record in records) for i in range(2))
        if most > _MAX_TOP_K and self._most is not None:
            self._most.zero_()  # later calls may have fewer
        native_assert(
            most <= _MAX_TOP_K,
            f"{call}: a token has {most} experts; at most {_MAX_TOP_K} are allowed",
        )
        config = self.configurer.buffer_config
        config.max_num_of_tokens_per_rank = max(config.max_num_of_tokens_per_rank, tokens)
        self._top_k = max(self._top_k, most)

    def _most_tokens(self) -> int:
        return max(1, self.configurer.buffer_config.max_num_of_tokens_per_rank)

    def _new_layout(self, topk_idx: torch.Tensor, experts: int, copy: bool) -> dict[str, Any]:
        """The layout arguments of a dispatch of the elastic buffer. copy: the handle must not keep
        the tensor, which may be the caller's."""
        return {
            "topk_idx": topk_idx,
            "num_experts": experts,
            "num_max_tokens_per_rank": self._most_tokens(),
            "do_cpu_sync": True,
            "do_handle_copy": copy,
        }

    def _send_expert_major(
        self,
        hidden: torch.Tensor,
        scales: torch.Tensor | None,
        topk_idx: torch.Tensor,
        weights: torch.Tensor | None,
        experts: int,
        multiple: int,
        limit: int | None,
    ) -> tuple[Received, EPHandle]:
        """A new dispatch; the result has ``limit`` rows where it is given."""
        rows: Any = hidden.detach().contiguous()
        if scales is not None:
            rows = (rows.view(torch.float8_e4m3fn), scales)
        x, _, weights, handle, _ = self._elastic._dispatch_expert_major(
            rows,
            topk_idx,
            weights,
            experts,
            self._most_tokens(),
            multiple,
            limit is None or self._most is None,
            limit,
            self._sms[0],
        )
        x, scales = x if isinstance(x, tuple) else (x, None)
        return (x.view(hidden.dtype), scales, weights), handle

    def _send(
        self,
        hidden: torch.Tensor,
        scales: torch.Tensor | None,
        weights: torch.Tensor | None,
        layout: dict[str, Any],
    ) -> tuple[Received, EPHandle]:
        rows: Any = hidden.detach().contiguous()
        if scales is not None:
            rows = (rows.view(torch.float8_e4m3fn), scales)
        rows, _, weights, handle, _ = self._elastic.dispatch(
            rows, topk_weights=weights, num_sms=self._sms[0], **layout
        )
        x, scales = rows if isinstance(rows, tuple) else (rows, None)
        return (x.view(hidden.dtype), scales, weights), handle

    def _collect(
        self, rows: torch.Tensor, weights: torch.Tensor | None, known: HybridHandle
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sums rows and weights, in the form of the elastic dispatch, at the sources of the
        tokens."""
        sums, weights, _ = self._elastic.combine(
            rows.detach().contiguous(), known.elastic, topk_weights=weights, num_sms=self._sms[1]
        )
        if weights is None:
            return sums, None
        topk_idx = known.elastic.topk_idx
        return sums, routing.by_expert(weights, topk_idx, (topk_idx.shape[0], known.experts))
