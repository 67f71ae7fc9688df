# SPDX-License-Identifier: Apache-2.0
"""The sizes that ``ElasticBuffer`` recommends: bytes of buffers, SMs and queue pairs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ... import config as sizes
from ...utils.envs import get_nvlink_gbs, reported_rdma_gbs
from ...utils.math import align
from ..checks import expect

PAGE = 2 << 20
_SMS_WITHOUT_GPU = 132  # an H100: the CPU then gets the number that a GPU program gets


def buffer_size(
    physical: tuple[int, int],
    max_tokens: int,
    hidden: int,
    top_k: int,
    fp8: bool,
    hybrid: bool,
    multiple_reduction: bool,
) -> int:
    """``num_bytes`` of dispatch and combine. physical: (nodes, ranks per node)."""
    nodes, per_node = physical
    scaleout, scaleup = physical if hybrid else (1, nodes * per_node)
    return sizes.get_elastic_buffer_size(
        max_tokens,
        hidden,
        top_k,
        fp8,
        num_scaleout_ranks=scaleout,
        num_scaleup_ranks=scaleup,
        num_nvlink_ranks=per_node,
        allow_multiple_reduction=multiple_reduction,
    )


def required_size(
    physical: tuple[int, int],
    shape: tuple[int, int, int],
    use_fp8: bool,
    hybrid: bool,
    multiple_reduction: bool,
) -> int:
    """buffer_size for a buffer of this ``shape``: tokens per rank, hidden, top-k. The first two
    must be given."""
    tokens, hidden, top_k = shape
    expect(
        tokens > 0 and hidden > 0,
        "either num_bytes or num_max_tokens_per_rank and hidden are needed",
    )
    return buffer_size(physical, tokens, hidden, top_k, use_fp8, hybrid, multiple_reduction)


def engram_storage_size(
    entries: int, hidden: int, max_tokens: int, dtype: torch.dtype
) -> tuple[int, int]:
    """(bytes of fetched entries, bytes of the storage)."""
    entry = align(hidden * dtype.itemsize, 32)
    return align(entry * max_tokens, PAGE), align(entry * entries, PAGE)


def ring_buffer_size(max_tensor_bytes: int, max_inflight_tensors: int) -> int:
    """``num_bytes`` of pp_send and pp_recv."""
    return align(align(max_tensor_bytes, 32) * max_inflight_tensors * 4, PAGE)


def gather_session_bytes(ranks: int, shapes: Sequence[Sequence[int]], dtype: torch.dtype) -> int:
    """Bytes of a session that gathers tensors of these shapes."""
    return sum(align(ranks * torch.Size(shape).numel() * dtype.itemsize, 32) for shape in shapes)


def theoretical_num_sms(
    num_experts: int,
    num_topk: int,
    num_scaleout_topk: int,
    rdma_gbs: float,
    nvlink_gbs: float,
    sm_read_gbs: float,
    sm_write_gbs: float,
    *,
    num_scaleout_ranks: int,
    num_scaleup_ranks: int,
    num_nvlink_ranks: int,
    prefer_overlap_with_compute: bool,
) -> int:
    """``config.get_theoretical_num_sms`` for this machine; link speeds of 0 are looked up."""
    device_sms = _SMS_WITHOUT_GPU
    if torch.cuda.is_available():
        device_sms = torch.cuda.get_device_properties().multi_processor_count
    return sizes.get_theoretical_num_sms(
        num_experts,
        num_topk,
        num_scaleout_topk,
        rdma_gbs or reported_rdma_gbs(),
        nvlink_gbs or get_nvlink_gbs(),
        sm_read_gbs,
        sm_write_gbs,
        num_scaleout_ranks=num_scaleout_ranks,
        num_scaleup_ranks=num_scaleup_ranks,
        num_nvlink_ranks=num_nvlink_ranks,
        num_device_sms=device_sms,
        prefer_overlap_with_compute=prefer_overlap_with_compute,
    )
