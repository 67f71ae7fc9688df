# SPDX-License-Identifier: Apache-2.0
"""Size hints, errors of arguments and the end of an ElasticBuffer."""

import pytest
import torch
import torch.distributed as dist
from elastic_cases import E, H, K, M, MIB, make_inputs, the_buffer
from torch_ranks import add_tests, run_checks

import deep_ep
from deep_ep.utils import refs
from deep_ep.utils.math import per_token_cast_to_fp8


def check_hints(_):
    group, buffer = dist.group.WORLD, the_buffer()
    assert (
        buffer.num_bytes == deep_ep.ElasticBuffer.get_buffer_size_hint(group, M, H, K)
        and buffer.num_bytes % (2 * MIB) == 0
    )
    assert buffer.get_physical_domain_size() == buffer.get_logical_domain_size() == (1, 4)
    assert (buffer.scaleout_rank_idx, buffer.scaleup_rank_idx) == (0, dist.get_rank())
    slow, fast = (buffer.get_theoretical_num_sms(E, K, nvlink_gbs=gbs) for gbs in (300, 900))
    sms = buffer.get_theoretical_num_sms(num_experts=E, num_topk=K)
    assert slow % 2 == fast % 2 == sms % 2 == 0 and 4 <= slow < fast and sms >= 4
    assert buffer.get_theoretical_num_qps(sms) <= buffer.num_allocated_qps
    assert deep_ep.ElasticBuffer.get_engram_storage_size_hint(100, 100, 7) == (2 * MIB, 2 * MIB)
    assert deep_ep.ElasticBuffer.get_pp_buffer_size_hint(MIB + 1, 2) == 10 * MIB
    assert (
        deep_ep.ElasticBuffer.get_agrs_num_max_session_bytes(group, [(3,), (5, 2)], torch.bfloat16)
        == 32 + 96
    )
    assert deep_ep.ElasticBuffer.get_agrs_buffer_size_hint(group, 100) == 2 * MIB


def check_argument_errors(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(9, tokens=8)
    recv_x, _, recv_weights, handle, _ = buffer.dispatch(x, topk_idx, weights, num_experts=E)

    def fails(kind, match, call, *args, **kwargs):
        with pytest.raises(kind, match=match):
            call(*args, **kwargs)

    dispatch, combine = buffer.dispatch, buffer.combine
    fails(AssertionError, "topk_idx and num_experts", dispatch, x)
    fails(
        AssertionError,
        "previous_event",
        dispatch,
        x,
        topk_idx,
        num_experts=E,
        previous_event=buffer.capture(),
    )
    fails(AssertionError, "num_qps", dispatch, x, topk_idx, num_experts=E, num_qps=1000)
    fails(
        AssertionError,
        "do_zero_padding",
        dispatch,
        x,
        topk_idx,
        num_experts=E,
        do_zero_padding=True,
    )
    fails(
        AssertionError,
        "statistics",
        dispatch,
        x,
        None,
        None,
        torch.zeros(3, dtype=torch.int32),
        handle=handle,
    )
    fails(AssertionError, "expert_alignment", dispatch, x, handle=handle, expert_alignment=2)
    fails(AssertionError, "num_experts", dispatch, x, handle=handle, num_experts=E + 4)
    fails(
        AssertionError, "num_max_tokens", dispatch, x, handle=handle, num_max_tokens_per_rank=M + 1
    )
    fails(AssertionError, "do_expand", dispatch, x, handle=handle, do_expand=True)
    fails(AssertionError, "topk_idx", dispatch, x, topk_idx, handle=handle)
    torch.use_deterministic_algorithms(True)  # which fills new tensors
    try:
        fails(AssertionError, "fill_uninitialized_memory", dispatch, x, topk_idx, num_experts=E)
        fails(AssertionError, "fill_uninitialized_memory", combine, recv_x, handle)
    finally:
        torch.use_deterministic_algorithms(False)
    fails(RuntimeError, "8", dispatch, x[:3].contiguous(), handle=handle)
    fails(RuntimeError, "x is float32", dispatch, x.float(), topk_idx, num_experts=E)
    fails(
        RuntimeError,
        "at most num_max",
        dispatch,
        x,
        topk_idx,
        num_experts=E,
        num_max_tokens_per_rank=7,
    )
    fails(RuntimeError, "num_experts is 0", dispatch, x, topk_idx, num_experts=0)
    fails(RuntimeError, "up to 65536", dispatch, x, topk_idx, num_experts=2**31 - 4)
    fails(RuntimeError, "topk_idx is int32", dispatch, x, topk_idx.int(), num_experts=E)
    fails(
        RuntimeError,
        "topk_weights",
        dispatch,
        x,
        topk_idx,
        weights[:, :1].contiguous(),
        num_experts=E,
    )
    fails(RuntimeError, "recv_stats", dispatch, x, topk_idx, weights, torch.zeros(1), num_experts=E)
    fails(
        RuntimeError,
        "scales",
        dispatch,
        (per_token_cast_to_fp8(x)[0], torch.ones(8, 2).half()),
        topk_idx,
        num_experts=E,
    )
    fails(
        RuntimeError, "expert_alignment", dispatch, x, topk_idx, num_experts=E, expert_alignment=0
    )
    fails(RuntimeError, "top-k", dispatch, x, torch.full((8, 33), -1), num_experts=E)
    fails(RuntimeError, "handle", combine, recv_x, None)
    fails(RuntimeError, "x is", combine, recv_x.float(), handle)
    fails(RuntimeError, "topk_weights", combine, recv_x, handle, recv_weights[:, :1].contiguous())
    fails(RuntimeError, "bias", combine, recv_x, handle, None, x[:2])
    fails(RuntimeError, "at most 2", combine, recv_x, handle, None, (x, x, x))
    fails(
        AssertionError, "topk_idx", deep_ep.EPHandle, False, E, 1, M, 0, None, 0, 0, [], *[None] * 7
    )
    fails(RuntimeError, "2 MiB", deep_ep.ElasticBuffer, dist.group.WORLD, 100)
    fails(AssertionError, "num_cpu_bytes", deep_ep.ElasticBuffer, dist.group.WORLD, None, 2 * MIB)
    fails(AssertionError, "num_bytes", deep_ep.ElasticBuffer, dist.group.WORLD)
    fails(RuntimeError, "pp_set_config", buffer.pp_send, x, 1)
    fails(RuntimeError, "agrs_set_config", buffer.create_agrs_session)
    fails(RuntimeError, "no session", buffer.all_gather, x)
    fails(RuntimeError, "engram_write", buffer.engram_fetch, torch.zeros((1, 1), dtype=torch.int32))
    handle.deterministic_sort(True, False, recv_x, None, None, None, None)
    assert torch.equal(recv_x, refs.dispatch(x, topk_idx, None, M, E)[0])


def check_destroy(_):
    buffer = deep_ep.ElasticBuffer(dist.group.WORLD, 2 * MIB)
    with pytest.raises(AssertionError, match="explicitly_destroy"):
        buffer.destroy()
    for buffer in (the_buffer(True), the_buffer(False)):
        buffer.destroy()
        buffer.destroy()
        with pytest.raises(RuntimeError, match="destroyed"):
            buffer.barrier()


add_tests(globals(), lambda: run_checks(4, __name__))
