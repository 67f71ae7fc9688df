# SPDX-License-Identifier: Apache-2.0
"""deep_ep on four ranks of two emulated nodes: the checks of one node, which differ only in the
rounding of sums."""

import multiprocessing
import os

import torch
import torch.distributed as dist
from buffer_cases import layout_of, make_inputs, my_tokens, the_buffer
from elastic_cases import (
    E,
    Expected,
    combined,
    expert_output_of_ranks,
    expert_output_of_slots,
    local_expert_output,
    make_buffer,
)
from elastic_cases import make_inputs as make_elastic_inputs
from test_buffer_low_latency import check_bfloat16 as check_low_latency
from test_buffer_low_latency import check_fp8 as check_low_latency_fp8
from test_buffer_low_latency import check_hooks as check_low_latency_hooks
from test_buffer_normal import (
    check_cached_dispatch,
    check_dispatch_and_combine,
    check_fp8,
    check_growth_keeps_old_handles,
    check_internode_methods,
    check_worst_tokens,
)
from test_elastic import check_cached as check_elastic_cached
from test_elastic import check_expert_major as check_elastic_expert_major
from test_elastic import check_fp8_and_column_major_scales as check_elastic_fp8
from test_elastic import check_order_of_sums as check_elastic_order_of_sums
from test_elastic import check_rank_major as check_elastic_rank_major
from test_elastic import check_reduction_orders_differ as check_elastic_reduction_orders_differ
from test_elastic import check_without_cpu_sync as check_elastic_without_cpu_sync
from torch_ranks import add_tests, run_checks

if multiprocessing.parent_process() is not None:  # a rank, not the process that starts them
    os.environ["SHOAL_NODE_SIZE"] = "2"


def check_two_nodes(_):
    assert the_buffer().runtime.world.pes_per_node == 2 and dist.get_world_size() == 4


def check_sums_are_rounded_once_a_node(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=2)
    recv_x, *_, handle, _ = buffer.dispatch(
        x, topk_idx=topk_idx, topk_weights=weights, **layout_of(buffer, topk_idx)
    )
    sums, *_ = buffer.combine((recv_x.float() * (1.37 + dist.get_rank())).bfloat16(), handle)
    per_rank = 16 // dist.get_world_size()
    for t, row in enumerate(topk_idx.tolist()):
        ranks = []
        for expert in row:
            if expert >= 0:
                ranks = [rank for rank in ranks if rank != expert // per_rank] + [
                    expert // per_rank
                ]
        nodes = []
        for rank in ranks:
            nodes = [node for node in nodes if node != rank // 2] + [rank // 2]
        total = torch.zeros(x.shape[1])
        for node in nodes:
            level = torch.zeros(x.shape[1])
            for rank in ranks:
                if rank // 2 == node:
                    level += (x[t].float() * (1.37 + rank)).bfloat16().float()
            total += level.bfloat16().float()
        assert torch.equal(sums[t], total.bfloat16()), f"token {t}"


def check_elastic_without_hybrid_mode(_):
    """The option changes the reported domain sizes, not the sums: those of a node are always
    rounded."""
    for multiple in (True, False):
        buffer = make_buffer(allow_hybrid_mode=False, allow_multiple_reduction=multiple)
        assert buffer.get_physical_domain_size() == (2, 2) and buffer.get_logical_domain_size() == (
            1,
            4,
        )
        x, topk_idx, weights = make_elastic_inputs(1)
        want = Expected(x, topk_idx, weights)
        for expand in (False, True):
            *_, handle, _ = buffer.dispatch(x, topk_idx, weights, num_experts=E, do_expand=expand)
            y = expert_output_of_slots(want.source, want.slot_rows, handle.num_expanded_tokens)
            sums, *_ = buffer.combine(
                y if expand else expert_output_of_ranks(want), handle, None, x
            )
            assert torch.equal(
                sums, combined(local_expert_output(len(x)), topk_idx, x, multiple or not expand)
            )
        buffer.destroy()


add_tests(globals(), lambda: run_checks(4, __name__))
