# SPDX-License-Identifier: Apache-2.0
"""``Combiner``: the part of ``ElasticBuffer`` behind its combine.

Expert-major rows of a rank are summed before they are sent (allow_multiple_reduction), or sent one
by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ...utils.event import profiled
from ...utils.semantic import native_assert
from ..checks import require_tensor
from ..groups import detached
from ..runtime import Runtime
from . import layout
from .handle import EPHandle

_CALL = "combine"


class ExpertOutput(NamedTuple):
    """The arguments of NormalGroup.combine that depend on the form of the rows."""

    y: torch.Tensor
    weights: torch.Tensor | None
    topk_idx: torch.Tensor | None
    topk_rows: torch.Tensor | None


class Combiner:
    """Combines of one elastic buffer."""

    def __init__(self, runtime: Runtime, allow_multiple_reduction: bool):
        self._runtime = runtime
        self._allow_multiple_reduction = allow_multiple_reduction

    def sends_every_slot(self, handle: EPHandle) -> bool:
        """Whether each top-k slot is sent as a row of its own."""
        return handle.do_expand and not self._allow_multiple_reduction

    def check(
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: torch.Tensor | None,
        biases: tuple[torch.Tensor, ...],
    ) -> None:
        device, shape = self._runtime.device, handle.shoal.group.shape
        rows = handle.num_expanded_tokens if handle.do_expand else handle.num_recv_tokens
        require_tensor(_CALL, "x", x, (torch.bfloat16,), (rows, shape.hidden), device)
        for bias in biases:
            extents = (handle.topk_idx.shape[0], shape.hidden)
            require_tensor(_CALL, "bias", bias, (torch.bfloat16,), extents, device)
        if topk_weights is not None:
            native_assert(
                not self.sends_every_slot(handle),
                f"{_CALL}: topk_weights with do_expand need allow_multiple_reduction",
            )
            extents = (rows,) if handle.do_expand else (rows, shape.top_k)
            require_tensor(_CALL, "topk_weights", topk_weights, (torch.float32,), extents, device)

    def sum(
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: torch.Tensor | None,
        biases: tuple[torch.Tensor, ...],
        stream: int,
        num_sms: int,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The sums of checked arguments, and those of the weights where given."""
        with profiled("combine_reduce_epilogue_impl"):  # in the kernel, unlike in DeepEP
            output = self.prepare(x, handle, topk_weights)
        return handle.shoal.group.combine(
            output.y,
            self.target(handle, stream),
            output.weights,
            tuple(detached(one) for one in biases),
            stream,
            num_sms or handle.num_sms,
            output.topk_idx,
            output.topk_rows,
        )

    def prepare(
        self, x: torch.Tensor, handle: EPHandle, topk_weights: torch.Tensor | None
    ) -> ExpertOutput:
        """What to pass to combine. Expert-major rows of a rank are summed there."""
        known: layout.ShoalLayout = handle.shoal
        if handle.do_expand and self._allow_multiple_reduction:
            return ExpertOutput(x, topk_weights, None, known.topk_rows)
        # Weights of top-k slots with experts elsewhere came with the rows and must not be added.
        return ExpertOutput(x, topk_weights, None if topk_weights is None else known.topk_idx, None)

    def target(self, handle: EPHandle, stream: int) -> Any:
        """Shoal's handle of the layout in which rows are sent."""
        if not self.sends_every_slot(handle):
            return handle.shoal.handle
        return self._expert_major_handle(handle, stream)

    def _expert_major_handle(self, handle: EPHandle, stream: int) -> Any:
        """The handle of the layout in Shoal's expert-major form.

        The first combine creates it by a dispatch of rows of 16 bytes.
        """
        known: layout.ShoalLayout = handle.shoal
        if known.expert_major_handle:
            return known.expert_major_handle[0]
        captured = self._runtime.capturing()
        tokens, device = handle.topk_idx.shape[0], handle.topk_idx.device
        created = known.group.group.dispatch(
            torch.zeros((tokens, 16), dtype=torch.int8, device=device),
            known.group.group.route(handle.topk_idx, **stream_option(stream)),
            expert_alignment=handle.expert_alignment,
            expert_major=True,
            worst_case_rows=handle.num_expanded_tokens if known.worst_rows else 0,
            transient=True,
            **stream_option(stream),
        )
        if not captured:  # only replays of the graph fill the handle otherwise
            known.expert_major_handle.append(created.handle)
        return created.handle


def stream_option(stream: int) -> dict[str, int]:
    return {"stream": stream} if stream else {}
