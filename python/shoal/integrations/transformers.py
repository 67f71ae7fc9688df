# SPDX-License-Identifier: Apache-2.0
"""Expert parallelism of Hugging Face transformers over Shoal.

    import shoal.integrations.transformers  # registers "shoal"
    model = AutoModelForCausalLM.from_pretrained(path, distributed_config=DistributedConfig(
        fsdp_size=4, ep_size=4, ep_implementation="shoal"))

`parallelize` does the same for a model that is loaded already, and for DistributedDataParallel.
`decode` lets models in bfloat16 generate in low-latency mode.
Needs transformers 5.24 or later.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel
from transformers.distributed.expert_parallel import EPImplementation, EPImplementationInterface

from .. import torch as shoal_torch
from ..errors import InvalidArgumentError
from ..torch.functions import outside_graphs
from ..torch.moe import refuse_replicated
from . import ranks as of_ranks
from .experts import SortedExperts
from .ranks import Ranks, ranks_of

__all__ = ["ShoalEP", "clip_grad_norm_", "decode", "gathered_state_dict", "parallelize"]


@contextlib.contextmanager
def decode(max_tokens: int) -> Iterator[None]:
    """Exchanges tokens in low-latency mode, for models in bfloat16 without gradients.

        with shoal.integrations.transformers.decode(max_tokens=8):
            model.generate(**inputs)

    max_tokens: the tokens of a rank in a step, at most; equal on all ranks. A step of generate()
    after the prompt has one token per sequence. The ranks exchange their numbers of tokens before
    each layer: where one of them has more, as in a prompt, all of them use normal mode. Models of
    another dtype and calls with gradients always do. It holds for all threads of the process. The
    first step takes the memory of low-latency mode, and the world keeps it.

    Raises InvalidArgumentError where max_tokens is less than 1. A layer raises MismatchError on all
    ranks where one of them is outside of decode or has another max_tokens.
    """
    if operator.index(max_tokens) < 1:
        raise InvalidArgumentError(f"decode: max_tokens is {max_tokens}; at least 1 is allowed")
    before, of_ranks.decode_tokens = of_ranks.decode_tokens, operator.index(max_tokens)
    try:
        yield
    finally:
        of_ranks.decode_tokens = before


def expert_output(experts: Callable[..., Tensor], received: Any, dtype: torch.dtype) -> Tensor:
    """The weighted output of the local experts for each received row, with weights of `dtype`."""
    rows, weights = received.x, received.topk_weights.to(dtype)
    if not received.tokens_per_expert:
        return rows  # none, on a rank without experts
    counts = torch.tensor(received.tokens_per_expert, device=rows.device)
    if rows.shape[0] > 0:
        return experts(rows, counts, weights)
    # A row of zeros: the parameters then have gradients on every rank, which FSDP reduces.
    counts[0] = 1
    return experts(rows.sum(dim=0, keepdim=True), counts, weights.sum(dim=0, keepdim=True))[:0]


def low_latency_output(experts: Callable[..., Tensor], rows: Tensor, counts: Tensor) -> Tensor:
    """Replaces the valid rows of low-latency mode by the local experts' output, without weights.

    rows: [experts, rows, hidden], at least as many as there are local experts. counts: the valid
    rows of each local expert.
    """
    valid = torch.arange(rows.shape[1], device=rows.device) < counts.unsqueeze(1)
    expert, row = valid.nonzero(as_tuple=True)
    if expert.shape[0] > 0:
        x = rows[expert, row]
        rows[expert, row] = experts(x, counts.long(), x.new_ones(x.shape[0])).to(x.dtype)
    return rows


class _Layer:
    """One module of experts: sends tokens to the ranks of their experts and sums the output."""

    def __init__(self, ranks: Ranks, local_experts: Callable[..., Tensor], experts: int) -> None:
        self.ranks, self.local_experts, self.experts = ranks, local_experts, experts
        self.number = ranks.add_layer()

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        group_for = outside_graphs(self.ranks.group_for)
        group, low_latency = group_for(hidden_states, top_k_index, self.experts, self.number)
        if low_latency:
            return outside_graphs(shoal_torch.low_latency)(
                group,
                hidden_states,
                top_k_index,
                top_k_weights,
                lambda rows, counts: low_latency_output(
                    self.local_experts, rows, counts[: group.local_experts]
                ),
            )
        received = shoal_torch.dispatch(
            group, hidden_states, top_k_index, top_k_weights, expert_major=True
        )
        y = expert_output(self.local_experts, received, top_k_weights.dtype)
        return shoal_torch.combine(group, y.to(hidden_states.dtype), received)


class ShoalEP(EPImplementation):
    """Sends tokens to their experts' ranks and sums the experts' output, in the order of ranks.

    The ranks of a tensor-parallel group hold the same batch: each sends its slice of it, and they
    gather the results.
    """

    def __init__(self, experts: nn.Module, ep_mesh: Any, tp_mesh: Any) -> None:
        super().__init__(experts, ep_mesh, tp_mesh)
        ranks = ranks_of(ep_mesh.get_group(), torch.device(ep_mesh.device_type))
        local_experts = SortedExperts(experts.forward)
        self.layer = _Layer(ranks, local_experts, self.num_local_experts * ep_mesh.size())

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        given = hidden_states, top_k_index, top_k_weights
        if self.tp_mesh.size() == 1:
            return self.layer(*given)
        return self._gather(
            self.layer(*(self._slice(tensor) for tensor in given)), hidden_states.shape
        )

    def _slice(self, tensor: Tensor) -> Tensor:
        whole = DTensor.from_local(tensor, self.tp_mesh, [Replicate()], run_check=False)
        return whole.redistribute(self.tp_mesh, [Shard(0)]).to_local()

    def _gather(self, rows: Tensor, shape: torch.Size) -> Tensor:
        sliced = DTensor.from_local(
            rows.contiguous(), self.tp_mesh, [Shard(0)], shape=shape, stride=(shape[1], 1)
        )
        return sliced.full_tensor()


_PARALLEL = "_shoal_experts"  # attribute of a model: its _Experts


class _Experts:
    """The experts of a model that parallelize has spread."""

    def __init__(self, group: dist.ProcessGroup, names: dict[str, int]) -> None:
        # The number of experts of all ranks by the name of a parameter, in the order of the model.
        self.group, self.names = group, names


class _Scaled(Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class _SpreadLayer(_Layer):
    """A module of experts of parallelize. The gradients inside of it are those of the mean of the
    ranks' losses, whatever parameters it has by then."""

    def __init__(self, ranks: Ranks, group: dist.ProcessGroup, module: nn.Module) -> None:
        self.size, self.group, self.module = dist.get_world_size(group), group, module
        self.sorted_experts = SortedExperts(module.forward)
        super().__init__(ranks, self._scaled, module.num_experts)
        self.checked: Any = None

    def _scaled(self, rows: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
        rows, weights = (_Scaled.apply(tensor, float(self.size)) for tensor in (rows, weights))
        return _Scaled.apply(self.sorted_experts(rows, counts, weights), 1 / self.size)

    def __call__(self, *given: Tensor) -> Tensor:
        wrapper = DistributedDataParallel._active_ddp_module
        if wrapper is not None and wrapper is not self.checked:
            self._check(wrapper)
            self.checked = wrapper
        return super().__call__(*given)

    def _check(self, wrapper: Any) -> None:
        refuse_replicated(self.module)
        ours, theirs = (
            dist.get_process_group_ranks(group) for group in (self.group, wrapper.process_group)
        )
        if ours != theirs:
            raise ValueError(
                f"parallelize: the experts are spread over ranks {ours}, DistributedDataParallel "
                f"averages over {theirs}; allowed: the same (process_group=)"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> _SpreadLayer:
        raise TypeError("parallelize: a spread model has no copies; copy it before")

    def __reduce__(self) -> Any:
        raise TypeError("parallelize: save gathered_state_dict(model), not the model")


def parallelize(model: nn.Module, process_group: dist.ProcessGroup | None = None) -> nn.Module:
    """Leaves each rank of a process group its share of a model's experts, and returns the model.

        model = shoal.integrations.transformers.parallelize(model)
        model = DistributedDataParallel(model)  # or average the gradients of other parameters

    model: loaded or initialised with equal parameters on all ranks. Its modules of experts are
    those with `num_experts` and three-dimensional parameters with that many matrices, as in
    transformers. Rank r keeps the r-th share: of E experts on R ranks, E // R, and one more on the
    first E % R ranks. Call it before an optimizer is made. Collective.

    The gradients of experts are those of the mean of the ranks' losses, as DistributedDataParallel
    makes those of other parameters, over the same ranks; it leaves experts alone. Every rank runs
    forward and backward equally often; generate() goes on until all ranks have finished
    (synced_gpus). Use `clip_grad_norm_` and `gathered_state_dict` of this module;
    model.save_pretrained needs `state_dict=gathered_state_dict(model)`. For FSDP use
    DistributedConfig.

    Raises ValueError where the model has no such module, where experts take other arguments than
    those of transformers, or where the model is spread already.
    """
    if hasattr(model, _PARALLEL):
        raise ValueError("parallelize: the experts of this model are spread over ranks already")
    group = process_group if process_group is not None else dist.group.WORLD
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    found = dict(_modules_of_experts(model))
    if not found:
        raise ValueError(
            f"parallelize: {type(model).__name__} has no experts: no module with num_experts and "
            "three-dimensional parameters of as many matrices"
        )
    for name, module in found.items():
        arguments = list(inspect.signature(module.forward).parameters)
        if len(arguments) != 3:
            raise ValueError(
                f"parallelize: {name}, a {type(module).__name__}, takes {arguments}; allowed: "
                "hidden_states, top_k_index, top_k_weights"
            )
    ranks = ranks_of(group, next(model.parameters()).device)
    names: dict[str, int] = {}
    for name, module in found.items():
        first = _first_experts(module.num_experts, size)
        layer = _SpreadLayer(ranks, group, module)
        for key, parameter in list(module.named_parameters(recurse=False)):
            part = parameter.detach()[first[rank] : first[rank + 1]].clone()
            setattr(module, key, nn.Parameter(part, requires_grad=parameter.requires_grad))
            names[f"{name}.{key}"] = module.num_experts
        module.num_experts, module.forward = first[rank + 1] - first[rank], layer
    setattr(model, _PARALLEL, _Experts(group, names))
    ignored = list(getattr(model, "_ddp_params_and_buffers_to_ignore", []))
    model._ddp_params_and_buffers_to_ignore = ignored + list(names)
    model.register_forward_pre_hook(_check_call, with_kwargs=True)
    if hasattr(model, "generate"):
        generate = model.generate
        model.generate = lambda *args, **kwargs: generate(*args, **{"synced_gpus": True, **kwargs})
    if hasattr(model, "save_pretrained"):
        model.save_pretrained = _saver(model.save_pretrained)
    return model


def _saver(save: Callable[..., Any]) -> Callable[..., Any]:
    def save_pretrained(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("state_dict") is None:
            raise ValueError(
                "save_pretrained: this rank has a part of the experts; pass "
                "state_dict=gathered_state_dict(model), which all ranks call"
            )
        return save(*args, **kwargs)

    return save_pretrained


def _first_experts(experts: int, ranks: int) -> list[int]:
    """[ranks + 1]: the first expert of each rank, and the end, as a group spreads them."""
    each, more = divmod(experts, ranks)
    return [rank * each + min(rank, more) for rank in range(ranks + 1)]


def _modules_of_experts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        experts = getattr(module, "num_experts", None)
        own = list(module.parameters(recurse=False))
        if any(one.dim() == 3 for one in own) and all(one.shape[0] == experts for one in own):
            yield name, module


def _check_call(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    if isinstance(model, FSDPModule):
        raise ValueError(
            "parallelize: fully_shard has taken the experts for replicas; use DistributedConfig("
            'fsdp_size=, ep_size=, ep_implementation="shoal") in place of parallelize'
        )
    given = [*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds")]
    if any(isinstance(one, Tensor) and one.shape[0] == 0 for one in given):
        raise ValueError(
            f"{type(model).__name__}: a batch of 0 sequences, which transformers does not accept; "
            "pad it with one sequence whose loss does not count"
        )


def _experts_of(call: str, model: nn.Module) -> tuple[nn.Module, _Experts]:
    for one in (model, getattr(model, "module", model)):
        if hasattr(one, _PARALLEL):
            return one, getattr(one, _PARALLEL)
    raise ValueError(f"{call}: parallelize has not spread the experts of this model")


@torch.no_grad()
def clip_grad_norm_(model: nn.Module, max_norm: float) -> Tensor:
    """Clips the gradients of all ranks of a parallelized model by their common 2-norm, and returns
    that norm. Collective.

    model: what parallelize returned, or DistributedDataParallel of it. Every expert counts once,
    and every other parameter once, so that all ranks clip by the same factor, as
    torch.nn.utils.clip_grad_norm_ does in one process.
    """
    model, experts = _experts_of("clip_grad_norm_", model)
    sums = {True: torch.zeros(()), False: torch.zeros(())}
    gradients = []
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients.append(parameter.grad)
            is_expert = name in experts.names
            square = torch.linalg.vector_norm(parameter.grad, dtype=torch.float32).square()
            sums[is_expert] = sums[is_expert].to(square.device) + square
    of_experts = sums[True].to(next(model.parameters()).device)
    dist.all_reduce(of_experts, group=experts.group)
    norm = (of_experts + sums[False].to(of_experts.device)).sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.device))  # a float32 scalar, also for narrower gradients
    return norm


@torch.no_grad()
def gathered_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state of the whole model, with the experts of all ranks. Collective; every rank gets it.

    model.state_dict() has the experts of this rank alone.
    """
    model, experts = _experts_of("gathered_state_dict", model)
    state = model.state_dict()
    ranks = dist.get_world_size(experts.group)
    for name, number in experts.names.items():
        first = _first_experts(number, ranks)
        # All ranks send as many matrices as the first one, which has the most.
        part, here = state[name], state[name].shape[0]
        part = torch.cat([part, part.new_zeros((first[1] - here, *part.shape[1:]))])
        parts = [torch.empty_like(part) for _ in range(ranks)]
        dist.all_gather(parts, part, group=experts.group)
        counts = (end - begin for begin, end in itertools.pairwise(first))
        state[name] = torch.cat([one[:count] for one, count in zip(parts, counts)])
    return state


EPImplementationInterface.register("shoal", ShoalEP)
