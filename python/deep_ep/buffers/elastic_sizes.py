# SPDX-License-Identifier: Apache-2.0
"""Sizes that ``ElasticBuffer`` tells its callers: bytes to ask for, SMs and queue pairs to use."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from .. import config as sizes
from ..utils.envs import get_nvlink_gbs, get_physical_domain_size, get_rdma_gbs
from ..utils.math import align
from ..utils.semantic import weak_lru

PAGE = 2 << 20
_SMS_WITHOUT_GPU = 132  # so that get_theoretical_num_sms gives on the CPU what it gives on the GPU in mind


class ElasticSizes:
    """Pure functions of shapes, of the ranks, and of the speed of links."""

    num_scaleout_ranks: int
    num_scaleup_ranks: int
    num_rdma_ranks: int
    num_nvlink_ranks: int
    num_allocated_qps: int
    prefer_overlap_with_compute: bool

    @staticmethod
    def _buffer_size(
        physical: tuple[int, int], max_tokens: int, hidden: int, top_k: int, fp8: bool, hybrid: bool, multiple: bool
    ) -> int:
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
            allow_multiple_reduction=multiple,
        )

    @staticmethod
    def get_buffer_size_hint(
        group: dist.ProcessGroup,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """``num_bytes`` for calls of these sizes. Collective. num_topk 0: 32."""
        return ElasticSizes._buffer_size(
            get_physical_domain_size(group),
            num_max_tokens_per_rank,
            hidden,
            num_topk,
            use_fp8_dispatch,
            allow_hybrid_mode,
            allow_multiple_reduction,
        )

    @staticmethod
    def get_engram_storage_size_hint(
        num_entries: int, hidden: int, num_max_tokens_per_rank: int, dtype: torch.dtype = torch.bfloat16
    ) -> tuple[int, int]:
        """(bytes for fetched entries, bytes of the storage) for engram calls."""
        entry = align(hidden * dtype.itemsize, 32)
        return align(entry * num_max_tokens_per_rank, PAGE), align(entry * num_entries, PAGE)

    @staticmethod
    def get_pp_buffer_size_hint(num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> int:
        """``num_bytes`` for pp_send and pp_recv."""
        return align(align(num_max_tensor_bytes, 32) * num_max_inflight_tensors * 4, PAGE)

    @staticmethod
    def get_agrs_num_max_session_bytes(
        group: dist.ProcessGroup, shapes: Sequence[Sequence[int]], dtype: torch.dtype
    ) -> int:
        """Bytes of a session that gathers tensors of these shapes."""
        ranks = dist.get_world_size(group)
        return sum(align(ranks * torch.Size(shape).numel() * dtype.itemsize, 32) for shape in shapes)

    @staticmethod
    def get_agrs_buffer_size_hint(group: dist.ProcessGroup, num_max_session_bytes: int) -> int:
        """``num_bytes`` for gather sessions."""
        return align(num_max_session_bytes, PAGE)

    def get_physical_domain_size(self) -> tuple[int, int]:
        """(nodes, ranks per node)."""
        return self.num_rdma_ranks, self.num_nvlink_ranks

    def get_logical_domain_size(self) -> tuple[int, int]:
        """(scale-out ranks, scale-up ranks)."""
        return self.num_scaleout_ranks, self.num_scaleup_ranks

    @weak_lru(maxsize=None)
    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 200,
        sm_write_gbs: float = 50,
    ) -> int:
        """SMs that keep the slower link busy; link speeds of 0 are looked up."""
        cuda = torch.cuda.is_available()
        return sizes.get_theoretical_num_sms(
            num_experts,
            num_topk,
            num_scaleout_topk,
            rdma_gbs or get_rdma_gbs(),
            nvlink_gbs or get_nvlink_gbs(),
            sm_read_gbs,
            sm_write_gbs,
            num_scaleout_ranks=self.num_scaleout_ranks,
            num_scaleup_ranks=self.num_scaleup_ranks,
            num_nvlink_ranks=self.num_nvlink_ranks,
            num_device_sms=torch.cuda.get_device_properties().multi_processor_count if cuda else _SMS_WITHOUT_GPU,
            prefer_overlap_with_compute=self.prefer_overlap_with_compute,
        )

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """Queue pairs for so many SMs."""
        return sizes.get_theoretical_num_qps(
            num_sms, num_scaleout_ranks=self.num_scaleout_ranks, num_allocated_qps=self.num_allocated_qps
        )
