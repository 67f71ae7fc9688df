# SPDX-License-Identifier: Apache-2.0
"""Sizes and tuning numbers: pure functions of shapes, equal on every machine.

Shoal's kernels choose their own chunks, so a `Config` affects only the number of SMs. The buffer
sizes equal those of DeepEP to the byte, because callers allocate by them.
"""

import math
import operator
import os
from collections.abc import Mapping

import torch

from .utils.math import align, ceil_div
from .utils.semantic import native_assert

# Limits of shoal.ep.Group, for arguments that size memory before one is created.
MAX_TOKENS, MAX_HIDDEN = 1 << 24, 1 << 20
MAX_EXPERTS = MAX_EXPERT_ALIGNMENT = 1 << 16
NUM_MAX_NVL_PEERS = 8
NUM_DEFAULT_SMS = 20

_INDEX_TYPES = {"0": torch.int64, "32": torch.int32, "64": torch.int64}
_index_bits = os.environ.get("EP_NUM_TOPK_IDX_BITS") or os.environ.get("TOPK_IDX_BITS") or "0"
native_assert(
    _index_bits in _INDEX_TYPES, f"EP_NUM_TOPK_IDX_BITS: got {_index_bits!r}, allowed 0, 32, 64"
)

topk_idx_t: torch.dtype = _INDEX_TYPES[_index_bits]
"""Type of expert indices: int64, or as EP_NUM_TOPK_IDX_BITS requests (0: 64)."""

# Buffer sizes reserve this many expert indices, weights and scales for every token.
_NUM_MAX_TOPK = 128
_NUM_MAX_SCALES = 128
_SOURCE_META_BYTES = 8
_TOKEN_EXTRA_BYTES = (
    _SOURCE_META_BYTES + _NUM_MAX_TOPK * (topk_idx_t.itemsize + 4) + _NUM_MAX_SCALES * 4
)


class Config:
    """The tuning of normal mode: SMs, and the tokens of a chunk for NVLink and RDMA.

    The RDMA receive chunk is rounded up to a multiple of the send chunk. Raises TypeError for
    arguments that are not integers, RuntimeError for values out of range.
    """

    __slots__ = ("_num_sms", "_nvl_send", "_nvl_recv", "_rdma_send", "_rdma_recv")

    def __init__(
        self,
        num_sms: int = NUM_DEFAULT_SMS,
        num_max_nvl_chunked_send_tokens: int = 6,
        num_max_nvl_chunked_recv_tokens: int = 256,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 256,
    ) -> None:
        sms = operator.index(num_sms)
        nvl_send = operator.index(num_max_nvl_chunked_send_tokens)
        nvl_recv = operator.index(num_max_nvl_chunked_recv_tokens)
        rdma_send = operator.index(num_max_rdma_chunked_send_tokens)
        rdma_recv = operator.index(num_max_rdma_chunked_recv_tokens)

        native_assert(sms >= 0, f"num_sms >= 0, got {sms}")
        native_assert(nvl_send > 0, f"num_max_nvl_chunked_send_tokens > 0, got {nvl_send}")
        native_assert(nvl_recv > 0, f"num_max_nvl_chunked_recv_tokens > 0, got {nvl_recv}")
        native_assert(
            nvl_send < nvl_recv,
            "num_max_nvl_chunked_send_tokens < num_max_nvl_chunked_recv_tokens, "
            f"got {nvl_send} and {nvl_recv}",
        )
        native_assert(rdma_send > 0, f"num_max_rdma_chunked_send_tokens > 0, got {rdma_send}")
        native_assert(rdma_recv > 0, f"num_max_rdma_chunked_recv_tokens > 0, got {rdma_recv}")
        rdma_recv = align(rdma_recv, rdma_send)
        native_assert(
            rdma_send <= rdma_recv // 2,
            "num_max_rdma_chunked_send_tokens <= num_max_rdma_chunked_recv_tokens / 2, "
            f"got {rdma_send} and {rdma_recv} (rounded up to a multiple of the former)",
        )
        self._num_sms, self._nvl_send, self._nvl_recv = sms, nvl_send, nvl_recv
        self._rdma_send, self._rdma_recv = rdma_send, rdma_recv

    def __repr__(self) -> str:
        nvl, rdma = f"{self._nvl_send}, {self._nvl_recv}", f"{self._rdma_send}, {self._rdma_recv}"
        return f"Config({self._num_sms}, {nvl}, {rdma})"

    def _num_channels(self, num_ranks: int) -> int:
        native_assert(num_ranks > 0, f"num_ranks > 0, got {num_ranks}")
        native_assert(
            num_ranks < NUM_MAX_NVL_PEERS or num_ranks % NUM_MAX_NVL_PEERS == 0,
            f"num_ranks below {NUM_MAX_NVL_PEERS} or a multiple of it, got {num_ranks}",
        )
        native_assert(
            num_ranks <= NUM_MAX_NVL_PEERS or self._num_sms % 2 == 0,
            f"num_sms even for more than {NUM_MAX_NVL_PEERS} ranks, got {self._num_sms}",
        )
        return self._num_sms // 2

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of the NVLink buffer for tokens of `hidden_bytes`, a multiple of 128.

        Raises RuntimeError unless num_ranks is below 8 or a multiple of 8, and num_sms is even
        above 8 ranks.
        """
        channels = self._num_channels(num_ranks)
        num_nodes, num_peers = (
            max(num_ranks // NUM_MAX_NVL_PEERS, 1),
            min(num_ranks, NUM_MAX_NVL_PEERS),
        )
        control = channels * num_peers * (2 * num_nodes + 3) * 4
        tokens = channels * num_peers * self._nvl_recv
        return align(control + tokens * (hidden_bytes + _TOKEN_EXTRA_BYTES), 128)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of the RDMA buffer, a multiple of 128; 0 for at most 8 ranks.

        Errors as for the NVLink buffer.
        """
        if num_ranks <= NUM_MAX_NVL_PEERS:
            return 0
        channels = self._num_channels(num_ranks)
        num_nodes = num_ranks // NUM_MAX_NVL_PEERS
        control = channels * num_nodes * (NUM_MAX_NVL_PEERS * 2 + 2) * 2 * 4
        tokens = 2 * channels * num_nodes * self._rdma_recv  # a send and a receive half
        return align(control + tokens * (hidden_bytes + _TOKEN_EXTRA_BYTES + 16), 128)


# Tokens of a chunk, indexed by the number of ranks: (NVLink send, NVLink receive, RDMA send). The
# RDMA receive chunk is always 128.
DISPATCH_CHUNKS: Mapping[int, tuple[int, int, int]] = {
    2: (24, 256, 6),
    4: (6, 256, 6),
    8: (6, 256, 6),
    16: (36, 288, 20),
    24: (32, 288, 8),
    32: (32, 288, 8),
    48: (32, 288, 8),
    64: (32, 288, 8),
    96: (20, 480, 12),
    128: (20, 560, 12),
    144: (32, 720, 12),
    160: (28, 720, 12),
}
COMBINE_CHUNKS: Mapping[int, tuple[int, int, int]] = {
    2: (10, 256, 6),
    4: (9, 256, 6),
    8: (4, 256, 6),
    16: (4, 288, 12),
    24: (1, 288, 8),
    32: (1, 288, 8),
    48: (1, 288, 8),
    64: (1, 288, 8),
    96: (1, 480, 8),
    128: (1, 560, 8),
    144: (2, 720, 8),
    160: (2, 720, 8),
}


def _config_of(table: Mapping[int, tuple[int, int, int]], num_ranks: int, num_sms: int) -> Config:
    assert num_ranks in table, (
        f"Unsupported number of EP ranks: got {num_ranks}, allowed {', '.join(map(str, table))}"
    )
    return Config(num_sms, *table[num_ranks], 128)


def get_dispatch_config(num_ranks: int, num_sms: int = NUM_DEFAULT_SMS) -> Config:
    """The recommended dispatch tuning.

    Raises AssertionError for a number of ranks that is not in `DISPATCH_CHUNKS`.
    """
    return _config_of(DISPATCH_CHUNKS, num_ranks, num_sms)


def get_combine_config(num_ranks: int, num_sms: int = NUM_DEFAULT_SMS) -> Config:
    """The recommended combine tuning.

    Raises AssertionError for a number of ranks that is not in `COMBINE_CHUNKS`.
    """
    return _config_of(COMBINE_CHUNKS, num_ranks, num_sms)


def get_low_latency_rdma_size_hint(
    num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
) -> int:
    """Bytes of the low-latency buffer, a multiple of 128.

    Operations alternate between two sets of a send area, a receive area and signals. For hidden
    sizes that are not multiples of 512, which DeepEP refuses, the scales of a token are padded to
    16 bytes. Raises RuntimeError where an argument is not positive or a token is not a multiple of
    16 bytes.
    """
    n = num_max_dispatch_tokens_per_rank
    native_assert(
        min(n, hidden, num_ranks, num_experts) > 0,
        "tokens, hidden, num_ranks and num_experts > 0, "
        f"got {n}, {hidden}, {num_ranks} and {num_experts}",
    )
    native_assert(
        2 * hidden % 16 == 0, f"hidden with rows of a multiple of 16 bytes, got {hidden} (bfloat16)"
    )
    scale_bytes = align(hidden // 128 * 4, 16)
    dispatch_bytes = 16 + max(2 * hidden, hidden + scale_bytes)
    combine_bytes = scale_bytes + 2 * hidden
    send = max(n * dispatch_bytes, num_experts * n * combine_bytes)
    receive = num_experts * n * max(dispatch_bytes, combine_bytes)
    signals = align(4 * num_experts, 128)
    total = 2 * (send + receive + signals)
    # DeepEP rounds the same way: a multiple of 128 grows by 128.
    return (total + 128) // 128 * 128


def get_elastic_buffer_size(
    num_max_tokens_per_rank: int,
    hidden: int,
    num_topk: int = 0,
    use_fp8_dispatch: bool = False,
    *,
    num_scaleout_ranks: int,
    num_scaleup_ranks: int,
    num_nvlink_ranks: int,
    allow_multiple_reduction: bool = True,
) -> int:
    """Bytes of an elastic buffer, a multiple of 2 MiB: the maximum of dispatch and combine.

    num_topk 0 stands for 32, the maximum. num_scaleout_ranks > 1 selects the two-level form.
    """
    m, k = num_max_tokens_per_rank, num_topk or 32
    so, su = num_scaleout_ranks, num_scaleup_ranks
    r = so * su

    payload = (
        align(hidden, 32) + align(4 * ceil_div(hidden, 32), 32)
        if use_fp8_dispatch
        else align(2 * hidden, 32)
    )
    dispatch_token = payload + align(8 * k + 4 * (1 + k), 32)
    combine_token = align(2 * hidden, 32) + align(8 * k, 32)
    if so > 1:
        channels = so * (m + 1280)
        up, out, copies = (min(su, k), min(so, k), 1) if allow_multiple_reduction else (k, k, k)
        dispatch_tokens = r * m + m + channels
        combine_tokens = up * so * m + out * m + copies * channels
    else:
        nvlink_only = num_nvlink_ranks == r
        dispatch_tokens = m * (r + (0 if nvlink_only else 1))
        combine_tokens = m * (min(r, k) if allow_multiple_reduction else k)
        if not nvlink_only:
            combine_tokens += r * m * (1 if allow_multiple_reduction else k)
    return align(max(dispatch_token * dispatch_tokens, combine_token * combine_tokens), 2 << 20)


def _expected_parts(n: int, num_experts: int, num_topk: int) -> float:
    """The expected number of n equal parts of the experts that a token selects."""
    untouched = math.comb(num_experts - num_experts // n, num_topk) / math.comb(
        num_experts, num_topk
    )
    return n * (1 - untouched)


def get_theoretical_num_sms(
    num_experts: int,
    num_topk: int,
    num_scaleout_topk: int = 0,
    rdma_gbs: float = 0,
    nvlink_gbs: float = 0,
    sm_read_gbs: float = 200,
    sm_write_gbs: float = 50,
    *,
    num_scaleout_ranks: int,
    num_scaleup_ranks: int,
    num_nvlink_ranks: int,
    num_device_sms: int,
    prefer_overlap_with_compute: bool = True,
) -> int:
    """SMs that keep the slower link busy with an even choice of experts.

    The result is even, from 4 to num_device_sms. Speeds are in GB/s. A link speed of 0 is unknown
    and no bound; without a bound the result is 20. num_scaleout_ranks > 1 selects the two-level
    form. Without prefer_overlap_with_compute the result is at least 64; without traffic on a link
    it is num_device_sms.

    Raises AssertionError unless num_scaleout_topk is 0 (expert groups are not modelled), the ranks
    divide num_experts, and num_topk is in 1..num_experts.
    """
    so, su, nv = num_scaleout_ranks, num_scaleup_ranks, num_nvlink_ranks
    r = so * su
    assert num_scaleout_topk == 0, f"num_scaleout_topk: got {num_scaleout_topk}, allowed 0"
    assert num_experts % r == 0, f"num_experts: got {num_experts}, need a multiple of {r} ranks"
    assert 1 <= num_topk <= num_experts, f"num_topk: got {num_topk}, need 1 to {num_experts}"

    # Traffic and SM work per row sent.
    rows = _expected_parts(r, num_experts, num_topk)
    read = 1 / rows
    if so > 1:
        node_rows = _expected_parts(so, num_experts, num_topk)
        read += node_rows / rows
        write = 1 / rows + node_rows / (rows * so) + 1
        nvlink, rdma = 1 - 1 / su, node_rows * (1 - 1 / so) / rows
    else:
        write = nv / r + (1 / rows if nv < r else 0)
        nvlink, rdma = nv / r * (1 - 1 / nv), (r - nv) / r

    gbs, traffic = nvlink_gbs, nvlink
    if so > 1 and rdma_gbs > 0 and (nvlink_gbs <= 0 or rdma / rdma_gbs > nvlink / nvlink_gbs):
        gbs, traffic = rdma_gbs, rdma
    if traffic == 0:
        num_sms: float = num_device_sms
    elif gbs <= 0:
        num_sms = NUM_DEFAULT_SMS
    else:
        margin = 1.25  # for imbalance
        num_sms = margin * gbs / traffic * max(read / sm_read_gbs, write / sm_write_gbs)
    result = align(max(4, math.ceil(num_sms)), 2)
    if not prefer_overlap_with_compute:
        result = max(result, 64)
    return min(result, num_device_sms)


def get_theoretical_num_qps(
    num_sms: int, *, num_scaleout_ranks: int, num_allocated_qps: int
) -> int:
    """Queue pairs for `num_sms`, at most the allocated ones.

    16 per SM and one more in the two-level form, else one per SM up to 9.
    """
    wanted = num_sms * 16 + 1 if num_scaleout_ranks > 1 else min(num_sms, 9)
    return min(wanted, num_allocated_qps)
