# SPDX-License-Identifier: Apache-2.0
"""Expert parallelism of Hugging Face transformers over Shoal.

    import shoal.integrations.transformers  # registers "shoal"
    model = AutoModelForCausalLM.from_pretrained(path, distributed_config=DistributedConfig(
        fsdp_size=4, ep_size=4, ep_implementation="shoal"))

Needs transformers 5.24 or later.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers.distributed.expert_parallel import EPImplementation, EPImplementationInterface

from .. import torch as shoal_torch
from .ranks import ranks_of

__all__ = ["ShoalEP"]


def expert_output(forward: Any, received: Any, dtype: torch.dtype) -> Tensor:
    """The weighted output of the local experts for each received row. `forward` takes rows, local
    expert ids [rows, 1] and weights [rows, 1] of `dtype`, as the experts of transformers do."""
    rows = received.x
    counts = torch.tensor(received.tokens_per_expert, device=rows.device)
    here = torch.arange(len(received.tokens_per_expert), device=rows.device)
    ids = here.repeat_interleave(counts, output_size=rows.shape[0]).unsqueeze(1)
    weights = received.topk_weights.to(dtype).unsqueeze(1)
    if rows.shape[0] > 0:
        return forward(rows, ids, weights)
    # A row of zeros: the parameters then have gradients on every rank, which FSDP reduces.
    zeros = rows.sum(dim=0, keepdim=True)
    return forward(zeros, ids.new_zeros((1, 1)), weights.sum(dim=0, keepdim=True))[:0]


class ShoalEP(EPImplementation):
    """Sends tokens to their experts' ranks and sums the experts' output, in the order of ranks.

    The ranks of a tensor-parallel group hold the same batch: each sends its slice of it, and they
    gather the results.
    """

    def __init__(self, experts: nn.Module, ep_mesh: Any, tp_mesh: Any) -> None:
        super().__init__(experts, ep_mesh, tp_mesh)
        self.ranks = ranks_of(ep_mesh.get_group(), torch.device(ep_mesh.device_type))
        self.layer = self.ranks.add_layer()
        self.experts = self.num_local_experts * ep_mesh.size()

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        shape = hidden_states.shape
        if self.tp_mesh.size() > 1:
            hidden_states, top_k_index, top_k_weights = (
                self._slice(tensor) for tensor in (hidden_states, top_k_index, top_k_weights)
            )
        group = self.ranks.group_for(hidden_states, top_k_index, self.experts, self.layer)
        received = shoal_torch.dispatch(
            group, hidden_states, top_k_index, top_k_weights, expert_major=True
        )
        y = expert_output(self.experts_forward, received, top_k_weights.dtype)
        out = shoal_torch.combine(group, y.to(hidden_states.dtype), received)
        return out if self.tp_mesh.size() == 1 else self._gather(out, shape)

    def _slice(self, tensor: Tensor) -> Tensor:
        whole = DTensor.from_local(tensor, self.tp_mesh, [Replicate()], run_check=False)
        return whole.redistribute(self.tp_mesh, [Shard(0)]).to_local()

    def _gather(self, rows: Tensor, shape: torch.Size) -> Tensor:
        sliced = DTensor.from_local(
            rows.contiguous(), self.tp_mesh, [Shard(0)], shape=shape, stride=(shape[1], 1)
        )
        return sliced.full_tensor()


EPImplementationInterface.register("shoal", ShoalEP)
