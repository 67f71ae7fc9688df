# SPDX-License-Identifier: Apache-2.0
"""Errors of Buffer in normal mode: arguments, ranks that differ, ranks that fail, use after
destroy."""

import contextlib
import gc
import io
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from buffer_cases import E, H, MOST, layout_of, make_buffer, make_inputs, plain_sum, the_buffer
from torch_ranks import add_tests, run_checks

import deep_ep
from deep_ep.utils import refs
from deep_ep.utils.math import per_token_cast_to_fp8


def check_argument_errors(_):
    """A call that raises sends nothing, so all ranks can continue."""
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(8, seed=11)
    layout = layout_of(buffer, topk_idx)
    topk = {"topk_idx": topk_idx, "topk_weights": weights}
    recv_x, *_, handle, _ = buffer.dispatch(x, **topk, **layout)

    def fails(kind, match, call, *args, **kwargs):
        with pytest.raises(kind, match=match):
            call(*args, **kwargs)

    fails(AssertionError, "num_tokens_per_rank", buffer.dispatch, x, **topk)
    fails(AssertionError, "come together", buffer.dispatch, x, topk_idx=topk_idx, **layout)
    fails(AssertionError, "num_worst_tokens", buffer.dispatch, x, num_worst_tokens=64, **layout)
    fails(AssertionError, "cached", buffer.dispatch, x, handle=handle, **topk)
    fails(
        AssertionError,
        "allocate_on_comm_stream",
        buffer.dispatch,
        x,
        handle=handle,
        allocate_on_comm_stream=True,
    )
    fails(
        AssertionError,
        "allocate_on_comm_stream",
        buffer.combine,
        recv_x,
        handle,
        allocate_on_comm_stream=True,
    )
    torch.use_deterministic_algorithms(True)  # which fills new tensors
    try:
        fails(AssertionError, "fill_uninitialized_memory", buffer.dispatch, x, **topk, **layout)
        fails(AssertionError, "fill_uninitialized_memory", buffer.combine, recv_x, handle)
    finally:
        torch.use_deterministic_algorithms(False)
    fails(RuntimeError, "x is float32", buffer.dispatch, x.float(), **topk, **layout)
    fails(RuntimeError, "not contiguous", buffer.dispatch, x.t().contiguous().t(), **topk, **layout)
    fails(RuntimeError, "16", buffer.dispatch, x[:, :4].contiguous(), **topk, **layout)
    fails(
        RuntimeError,
        "scales",
        buffer.dispatch,
        (per_token_cast_to_fp8(x)[0], torch.ones(3, 2)),
        **topk,
        **layout,
    )
    fails(
        RuntimeError,
        "topk_idx is int16",
        buffer.dispatch,
        x,
        **{**topk, "topk_idx": topk_idx.short()},
        **layout,
    )
    fails(
        RuntimeError,
        "topk_weights",
        buffer.dispatch,
        x,
        **{**topk, "topk_weights": weights.double()},
        **layout,
    )
    for alignment in (0, 65537, 2**31):
        message = f"expert_alignment is {alignment}; allowed: 1 to 65536"
        aligned = {"expert_alignment": alignment, **topk, **layout}
        fails(RuntimeError, message, buffer.dispatch, x, **aligned)
    fails(
        RuntimeError,
        "num_worst_tokens is -1",
        buffer.dispatch,
        x,
        num_worst_tokens=-1,
        **topk,
        **layout,
    )
    if not topk_idx.is_cuda:  # counts do not reach the host there
        wrong = {**layout, "num_tokens_per_rank": layout["num_tokens_per_rank"] + 1}
        fails(
            RuntimeError,
            "num_tokens_per_rank is .*, by topk_idx",
            buffer.dispatch,
            x,
            **topk,
            **wrong,
        )
    fails(
        RuntimeError,
        "is_token_in_rank",
        buffer.dispatch,
        x,
        **topk,
        **{**layout, "is_token_in_rank": topk_idx},
    )
    fails(RuntimeError, "handle", buffer.dispatch, x, handle=tuple(handle))
    fails(RuntimeError, "x is", buffer.combine, recv_x.float(), handle)
    fails(
        RuntimeError, "x is", buffer.combine, torch.zeros(recv_x.shape[0] + 1, H).bfloat16(), handle
    )
    fails(
        RuntimeError, "topk_weights", buffer.combine, recv_x, handle, topk_weights=torch.ones(1, 1)
    )
    fails(RuntimeError, "bias", buffer.combine, recv_x, handle, bias=x[:3])
    fails(RuntimeError, "at most 2", buffer.combine, recv_x, handle, bias=(x, x, x))
    fails(RuntimeError, "config", buffer.combine, recv_x, handle, config=3)
    fails(RuntimeError, "num_experts is 0", buffer.get_dispatch_layout, topk_idx, 0)
    for too_many in (65536 + 4, 2**31 - 4, 2**63):
        message = f"num_experts is {too_many}; .* up to 65536"
        fails(RuntimeError, message, buffer.get_dispatch_layout, topk_idx, too_many)
    assert len(buffer.get_dispatch_layout(topk_idx, 65536)[2]) == 65536
    if not topk_idx.is_cuda:  # a check would make the host wait there
        fails(RuntimeError, "topk_idx has values", buffer.get_dispatch_layout, topk_idx + E, E)
    fails(RuntimeError, "topk_idx is", buffer.get_dispatch_layout, topk_idx[0], E)
    fails(RuntimeError, "low_latency_mode", buffer.clean_low_latency_buffer, 8, 128, E)
    fails(RuntimeError, "Shrink mode", buffer.low_latency_clean_mask_buffer)
    fails(RuntimeError, "multiples of 128", deep_ep.Buffer, dist.group.WORLD, 100)
    fails(RuntimeError, "num_rdma_bytes is -128", deep_ep.Buffer, dist.group.WORLD, 0, -128)
    fails(
        AssertionError,
        "num_qps_per_rank is 0",
        deep_ep.Buffer,
        dist.group.WORLD,
        num_qps_per_rank=0,
    )
    fails(ValueError, "group", deep_ep.Buffer, None)
    fails(AssertionError, "even", deep_ep.Buffer.set_num_sms, 3)
    fails(AssertionError, "Unsupported", deep_ep.Buffer.get_dispatch_config, 3)
    sums, *_ = buffer.combine(recv_x, handle)
    assert torch.equal(sums, plain_sum(x, layout["is_token_in_rank"]))


def check_ranks_that_differ_are_reported(_):
    """A different hidden size on one rank is an error on all of them. The buffer stays usable."""
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(8, seed=12)
    layout = layout_of(buffer, topk_idx)
    given = x[:, :128].contiguous() if dist.get_rank() == 2 else x
    with pytest.raises(RuntimeError, match="ranks differ.*rank 2 hidden 128"):
        buffer.dispatch(given, topk_idx=topk_idx, topk_weights=weights, **layout)
    recv_x, *_ = buffer.dispatch(x, topk_idx=topk_idx, topk_weights=weights, **layout)
    assert torch.equal(recv_x, refs.dispatch(x, topk_idx, None, MOST, E)[0])


def check_local_buffer(_):
    buffer = make_buffer()
    flat = buffer.get_local_buffer_tensor(torch.int8)
    assert flat.shape == (1 << 20,)
    flat.fill_(3)
    part = buffer.get_local_buffer_tensor(torch.int32, torch.Size((4, 8)), offset=64)
    assert part.shape == (4, 8) and (part == 0x03030303).all()
    assert buffer.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True).numel() == 0
    with pytest.raises(AssertionError, match="elements"):
        buffer.get_local_buffer_tensor(torch.int64, torch.Size((1 << 20,)))
    for offset in (-4, 2, (1 << 20) + 4):
        with pytest.raises(
            RuntimeError, match=rf"offset is {offset}; allowed: multiples of 4 up to {1 << 20}"
        ):
            buffer.get_local_buffer_tensor(torch.int32, offset=offset)
    assert buffer.get_local_buffer_tensor(torch.int32, offset=1 << 20).numel() == 0
    buffer.get_comm_stream()
    buffer.destroy()
    buffer.destroy()
    with pytest.raises(RuntimeError, match="destroyed"):
        buffer.get_local_buffer_tensor(torch.int8)


def check_destroy(_):
    buffer = deep_ep.Buffer(dist.group.WORLD, 128)
    assert (buffer.rank, buffer.group_size) == (dist.get_rank(), dist.get_world_size())
    assert buffer.runtime.is_available() and buffer.runtime.get_num_rdma_ranks() == 1
    with pytest.raises(AssertionError, match="explicitly_destroy"):
        buffer.destroy()
    the_buffer().destroy()


def check_repr(_):
    buffer = make_buffer()
    rank = f"(rank {dist.get_rank()} of {dist.get_world_size()}, {buffer.runtime.device}, "
    start = f"deep_ep.Buffer{rank}num_nvl_bytes={buffer.num_nvl_bytes}, num_rdma_bytes="
    assert repr(buffer).startswith(start) and "low_latency_mode=False)" in repr(buffer)
    buffer.destroy()
    assert repr(buffer) == "deep_ep.Buffer(closed)"
    elastic = deep_ep.ElasticBuffer(dist.group.WORLD, 2 << 20, explicitly_destroy=True)
    sizes = "num_bytes=2097152, num_max_tokens_per_rank=0, hidden=0)"
    assert repr(elastic) == f"deep_ep.ElasticBuffer{rank}{sizes}"
    elastic.destroy()
    assert repr(elastic) == "deep_ep.ElasticBuffer(closed)"
    hybrid = deep_ep.HybridEPBuffer(dist.group.WORLD, 128, 4, 2)
    assert repr(hybrid).startswith(f"deep_ep.HybridEPBuffer{rank}configurer=")
    assert "hidden_dim=128, max_num_of_tokens_per_rank=4" in repr(hybrid)


def check_a_forgotten_destroy_is_reported(_):
    for make in (
        make_buffer,
        lambda: deep_ep.ElasticBuffer(dist.group.WORLD, 2 << 20, explicitly_destroy=True),
    ):
        for forgotten in (False, True):
            buffer, said = make(), io.StringIO()
            name = type(buffer).__name__
            if not forgotten:
                buffer.destroy()
            with contextlib.redirect_stdout(said):
                del buffer
                gc.collect()
            warning = f"WARNING: deep_ep.{name} was created with explicitly_destroy=True and released without destroy()\n"
            assert said.getvalue() == warning * forgotten


add_tests(globals(), lambda: run_checks(4, __name__))


RANK_THAT_FAILS = """
import sys
import torch, torch.distributed as dist
import deep_ep

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
buffer = deep_ep.Buffer(dist.group.WORLD, 1 << 20)
x, topk_idx = torch.zeros((4, 128)).bfloat16(), torch.tensor([[0, 3]] * 4)
weights = torch.ones((4, 2))
per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, 4)
for turn in range(2):
    if turn == 1 and rank == 0:
        raise ValueError("no more experts")
    try:
        buffer.dispatch(x, None, per_rank, None, in_rank, per_expert, topk_idx, weights)
    except RuntimeError as error:
        print(type(error).__name__, error)
"""


def test_an_exception_ends_the_waits_of_other_ranks(tmp_path):
    command = [sys.executable, "-c", RANK_THAT_FAILS]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    failed, other = (rank.communicate(timeout=60)[0] for rank in ranks)
    assert ranks[0].returncode == 1 and "no more experts" in failed
    assert ranks[1].returncode == 0 and "PeerFailedError" in other and "no more experts" in other
