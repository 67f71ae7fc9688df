# SPDX-License-Identifier: Apache-2.0
"""Connects dispatch and combine of ``ElasticBuffer`` with ``ElasticCalls``, which has their one
path in C++."""

from __future__ import annotations

from functools import partial

import torch

from shoal._core.ep import ElasticCalls

from ..calls import setup
from ..runtime import Runtime
from . import layout
from .handle import EPHandle, LateHandle

_EPILOGUES = {"dispatch": "dispatch_copy_epilogue_impl", "combine": "combine_reduce_epilogue_impl"}


def elastic_calls(
    runtime: Runtime, allow_multiple_reduction: bool, max_tokens: int
) -> ElasticCalls:
    """The calls of an elastic buffer. max_tokens: per rank, of calls that do not name it."""
    return ElasticCalls(
        runtime.num_ranks,
        runtime.rank,
        max_tokens,
        allow_multiple_reduction,
        **setup(runtime, _EPILOGUES),
        handle_type=EPHandle,
        make_handle=partial(LateHandle, runtime.num_ranks, runtime.rank),
        column_major=layout.column_major,
        empty_column_major=layout.empty_column_major,
        zeros=lambda *shape: torch.zeros(shape, dtype=torch.int8, device=runtime.device),
    )
