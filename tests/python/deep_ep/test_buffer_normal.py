# SPDX-License-Identifier: Apache-2.0
"""Buffer in normal mode on four ranks of a gloo group, against plain torch on gathered inputs."""

import contextlib
import gc
import io
import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed as dist
from torch_ranks import names_of_checks, run_checks, seeded

import deep_ep
from deep_ep.utils import refs
from deep_ep.utils.math import per_token_cast_back, per_token_cast_to_fp8

H, K, E, MOST = 256, 4, 16, 64


def make_buffer(**options):
    return deep_ep.Buffer(dist.group.WORLD, 1 << 20, explicitly_destroy=True, **options)


_shared = []


def the_buffer():
    if not _shared:
        _shared.append(make_buffer())
    return _shared[0]


def make_inputs(tokens, top_k=K, seed=0, none=0.2):
    generator = seeded(100 * seed + dist.get_rank())
    x = torch.randn((tokens, H), generator=generator).bfloat16()
    topk_idx = torch.rand((tokens, E), generator=generator).topk(top_k, dim=1).indices
    topk_idx[torch.rand((tokens, top_k), generator=generator) < none] = -1
    return x, topk_idx, torch.rand((tokens, top_k), generator=generator)


def my_tokens():
    return (37, 0, 64, 5)[dist.get_rank() % 4]


def layout_of(buffer, topk_idx):
    per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(topk_idx, E)
    layout = {
        "num_tokens_per_rank": per_rank,
        "is_token_in_rank": in_rank,
        "num_tokens_per_expert": per_expert,
    }
    assert per_node is None and event.event is None
    return layout


def masked(weights, idx):
    return weights.masked_fill(idx < 0, 0)


def plain_sum(y_rows, in_rank):
    """The combine of the received rows as expert output."""
    return (y_rows.float() * in_rank.sum(1, keepdim=True)).bfloat16()


def check_layout(_):
    _, topk_idx, _ = make_inputs(my_tokens())
    layout = layout_of(the_buffer(), topk_idx)
    rank_of = torch.where(topk_idx < 0, -1, topk_idx // (E // dist.get_world_size()))
    for rank in range(dist.get_world_size()):
        in_rank = (rank_of == rank).any(1)
        assert torch.equal(layout["is_token_in_rank"][:, rank], in_rank)
        assert layout["num_tokens_per_rank"][rank] == in_rank.sum()
    for expert in range(E):
        assert layout["num_tokens_per_expert"][expert] == (topk_idx == expert).sum()
    assert (
        layout["num_tokens_per_rank"].dtype == layout["num_tokens_per_expert"].dtype == torch.int32
    )


def check_dispatch_and_combine(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=1)
    layout = layout_of(buffer, topk_idx)
    recv_x, recv_idx, recv_weights, per_expert, handle, event = buffer.dispatch(
        x, topk_idx=topk_idx, topk_weights=weights, expert_alignment=8, **layout
    )
    ref_x, ref_idx, ref_weights, ref_source, ref_counts = refs.dispatch(
        x, topk_idx, weights, MOST, E
    )
    assert torch.equal(recv_x, ref_x) and torch.equal(recv_idx, ref_idx)
    assert torch.equal(recv_weights, masked(ref_weights, ref_idx))
    assert (
        recv_idx.dtype == deep_ep.topk_idx_t
        and recv_x.is_contiguous()
        and recv_weights.is_contiguous()
    )
    local = E // dist.get_world_size()
    assert per_expert == [-(-int((ref_idx == e).sum()) // 8) * 8 for e in range(local)]
    assert event.event is None

    rank, ranks = dist.get_rank(), dist.get_world_size()
    assert isinstance(handle, tuple) and len(handle) == 6
    prefix, channel_prefix, recv_channel_prefix, source, in_rank, send_head = handle
    assert (
        prefix.shape == (ranks, ranks) and prefix[:, rank].tolist() == ref_counts.cumsum(0).tolist()
    )
    assert torch.equal(channel_prefix, layout["num_tokens_per_rank"][:, None])
    assert torch.equal(recv_channel_prefix, torch.zeros((ranks, 1), dtype=torch.int32))
    assert torch.equal(source, ref_source % MOST) and source.dtype == torch.int32
    assert torch.equal(in_rank, layout["is_token_in_rank"])
    assert torch.equal(send_head >= 0, in_rank) and send_head.shape == (x.shape[0], ranks)

    sums, summed_weights, _ = buffer.combine(recv_x, handle, topk_weights=recv_weights)
    assert torch.equal(sums, plain_sum(x, in_rank))
    assert torch.equal(summed_weights, masked(weights, topk_idx))


def check_sum_in_float32(_):
    """Expert output that differs by rank: added in float32 after the biases, rounded once."""
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=2)
    layout = layout_of(buffer, topk_idx)
    recv_x, recv_idx, *_, handle, _ = buffer.dispatch(
        x, topk_idx=topk_idx, topk_weights=weights, **layout
    )
    rank, ranks = dist.get_rank(), dist.get_world_size()
    expert_output = (recv_x.float() * (1.37 + rank)).bfloat16()
    for bias in (None, torch.randn_like(x), (torch.randn_like(x), torch.randn_like(x))):
        sums, none, _ = buffer.combine(expert_output, handle, bias=bias)
        # In the order of the last top-k slot of each rank.
        slots = torch.zeros((x.shape[0], K, H), dtype=torch.bfloat16)
        rank_of = torch.where(topk_idx < 0, -1, topk_idx // (E // ranks))
        for t, row in enumerate(rank_of.tolist()):
            for k, owner in enumerate(row):
                if owner >= 0 and owner not in row[k + 1 :]:
                    slots[t, k] = (x[t].float() * (1.37 + owner)).bfloat16()
        assert torch.equal(sums, refs.ordered_accumulate(slots, bias)) and none is None


def check_cached_dispatch(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=3)
    *_, handle, _ = buffer.dispatch(
        x, topk_idx=topk_idx, topk_weights=weights, **layout_of(buffer, topk_idx)
    )
    other = x * 2
    result = buffer.dispatch(other, handle=handle)
    assert len(result) == 6 and result[1:5] == (None, None, None, None)
    assert torch.equal(result[0], refs.dispatch(other, topk_idx, None, MOST, E)[0])
    data, scales = per_token_cast_to_fp8(x)
    (recv_data, recv_scales), *_ = buffer.dispatch((data, scales), handle=handle)
    want_data, want_scales = refs.dispatch((data, scales), topk_idx, None, MOST, E)[0]
    assert torch.equal(recv_data.view(torch.uint8), want_data.view(torch.uint8))
    assert torch.equal(recv_scales, want_scales)


def check_fp8(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=4)
    data, scales = per_token_cast_to_fp8(x)
    for given in (
        scales,
        scales.t().contiguous().t(),
        torch.randint(0, 1 << 30, (x.shape[0], 5), dtype=torch.int32),
    ):
        (recv_data, recv_scales), recv_idx, *_ = buffer.dispatch(
            (data, given), topk_idx=topk_idx, topk_weights=weights, **layout_of(buffer, topk_idx)
        )
        (want_data, want_scales), want_idx, *_ = refs.dispatch(
            (data, given), topk_idx, None, MOST, E
        )
        assert recv_data.dtype == torch.float8_e4m3fn
        assert torch.equal(recv_data.view(torch.uint8), want_data.view(torch.uint8))
        assert (
            torch.equal(recv_scales, want_scales)
            and recv_scales.is_contiguous()
            and recv_scales.dtype == given.dtype
        )
        assert torch.equal(recv_idx, want_idx)
    back = per_token_cast_back(recv_data, torch.ones((recv_data.shape[0], H // 128)))
    assert back.shape == recv_data.shape


def check_worst_tokens(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=5)
    worst = MOST * dist.get_world_size() + 3
    recv_x, recv_idx, recv_weights, per_expert, handle, _ = buffer.dispatch(
        x,
        topk_idx=topk_idx,
        topk_weights=weights,
        num_worst_tokens=worst,
        **layout_of(buffer, topk_idx),
    )
    want_x, want_idx, *_ = refs.dispatch(x, topk_idx, None, MOST, E)
    rows = want_x.shape[0]
    assert (
        recv_x.shape == (worst, H)
        and recv_idx.shape == recv_weights.shape == (worst, K)
        and per_expert == []
    )
    assert torch.equal(recv_x[:rows], want_x) and torch.equal(recv_idx[:rows], want_idx)
    assert (recv_idx[rows:] == -1).all()
    again, *_ = buffer.dispatch(x, handle=handle)
    assert again.shape == recv_x.shape and torch.equal(again[:rows], want_x)
    sums, *_ = buffer.combine(recv_x, handle)
    assert torch.equal(sums, plain_sum(x, handle[4]))


def check_without_topk(_):
    """A caller without top-k indices gets counts per expert from all ranks."""
    buffer = the_buffer()
    x, topk_idx, _ = make_inputs(my_tokens(), seed=6)
    layout = layout_of(buffer, topk_idx)
    recv_x, recv_idx, recv_weights, per_expert, handle, _ = buffer.dispatch(
        x, expert_alignment=4, **layout
    )
    want_x, want_idx, *_ = refs.dispatch(x, topk_idx, None, MOST, E)
    assert torch.equal(recv_x, want_x) and recv_idx is None and recv_weights is None
    assert per_expert == [
        -(-int((want_idx == e).sum()) // 4) * 4 for e in range(E // dist.get_world_size())
    ]
    sums, *_ = buffer.combine(recv_x, handle)
    assert torch.equal(sums, plain_sum(x, layout["is_token_in_rank"]))


def check_growth_keeps_old_handles(_):
    """A handle stays usable after calls with more tokens, more scales and another top-k."""
    buffer = make_buffer()
    x, topk_idx, weights = make_inputs(7, seed=7)
    recv_x, *_, handle, _ = buffer.dispatch(
        x, topk_idx=topk_idx, topk_weights=weights, **layout_of(buffer, topk_idx)
    )
    for tokens, top_k in ((300, K), (3, 2), (700, 2)):
        more_x, more_idx, more_weights = make_inputs(tokens, top_k, seed=8)
        more, *_ = buffer.dispatch(
            more_x, topk_idx=more_idx, topk_weights=more_weights, **layout_of(buffer, more_idx)
        )
        assert torch.equal(more, refs.dispatch(more_x, more_idx, None, 700, E)[0])
    sums, *_ = buffer.combine(recv_x, handle)
    assert torch.equal(sums, plain_sum(x, handle[4]))
    again, *_ = buffer.dispatch(x, handle=handle)
    assert torch.equal(again, recv_x)
    few_x, few_idx, few_weights = make_inputs(3, seed=9)
    few = (per_token_cast_to_fp8(few_x)[0], torch.ones((3, 40)))
    buffer.dispatch(few, topk_idx=few_idx, topk_weights=few_weights, **layout_of(buffer, few_idx))
    more_x, more_idx, more_weights = make_inputs(300, seed=8)
    buffer.dispatch(
        more_x, topk_idx=more_idx, topk_weights=more_weights, **layout_of(buffer, more_idx)
    )
    # 7, 300 and 40 scales with top-4; 3 and 700 with top-2.
    assert len(list(buffer.runtime.groups)) == 5
    buffer.destroy()


def check_results_are_ordinary_tensors(_):
    """A caller may hold more results than fit in the heap; they stay valid after destroy."""
    buffer = make_buffer()
    held = []
    for seed in range(20):
        x, topk_idx, weights = make_inputs(16, seed=seed)
        recv_x, *_ = buffer.dispatch(
            x, topk_idx=topk_idx, topk_weights=weights, **layout_of(buffer, topk_idx)
        )
        held.append((recv_x, refs.dispatch(x, topk_idx, None, MOST, E)[0]))
    in_heap = next(iter(buffer.runtime.groups))._held
    assert 0 < len(in_heap) < 20
    view = held[0][0][1:]
    held[1:2] = []
    buffer.destroy()
    assert all(torch.equal(got, want) for got, want in held)
    want = held[0][1][1:]
    held.clear()
    assert torch.equal(view, want) and len(in_heap) == 1


def check_results_are_copied_where_that_is_asked_for(_):
    """With EP_COPY_RECEIVED, read at the first call of a shape, no result stays in the heap.
    Nothing else changes."""
    os.environ["EP_COPY_RECEIVED"] = "1"
    try:
        buffer, held = make_buffer(), []
        for seed in range(3):
            x, topk_idx, weights = make_inputs(16, seed=seed)
            layout = layout_of(buffer, topk_idx)
            recv_x, recv_idx, recv_weights, _, handle, _ = buffer.dispatch(
                x, topk_idx=topk_idx, topk_weights=weights, **layout
            )
            again, *_ = buffer.dispatch(2 * x, handle=handle)
            held.append((recv_x, again, refs.dispatch(x, topk_idx, None, MOST, E)[0]))
            sums, summed_weights, _ = buffer.combine(recv_x, handle, topk_weights=recv_weights)
            assert torch.equal(sums, plain_sum(x, layout["is_token_in_rank"]))
            assert torch.equal(summed_weights, masked(weights, topk_idx))
        assert [group._calls.held for group in buffer.runtime.groups] == [0]
        assert all(
            torch.equal(got, want) and torch.equal(twice, 2 * want) for got, twice, want in held
        )
        buffer.destroy()
    finally:
        del os.environ["EP_COPY_RECEIVED"]


def check_events(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=9)
    options = {
        "previous_event": buffer.capture(),
        "async_finish": True,
        "allocate_on_comm_stream": True,
    }
    per_rank, _, per_expert, in_rank, event = buffer.get_dispatch_layout(topk_idx, E, **options)
    event.current_stream_wait()
    recv_x, *_, handle, event = buffer.dispatch(
        x,
        None,
        per_rank,
        None,
        in_rank,
        per_expert,
        topk_idx,
        weights,
        1,
        0,
        deep_ep.Buffer.get_dispatch_config(4),
        **options,
    )
    with event:
        pass
    sums, _, event = buffer.combine(
        recv_x, handle, config=deep_ep.Buffer.get_combine_config(4), **options
    )
    event.current_stream_wait()
    assert torch.equal(sums, plain_sum(x, in_rank))


def check_internode_methods(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs(my_tokens(), seed=10)
    layout = layout_of(buffer, topk_idx)
    config = deep_ep.Config()
    recv_x, *_, handle, _ = buffer.internode_dispatch(
        x, topk_idx=topk_idx, topk_weights=weights, config=config, **layout
    )
    sums, *_ = buffer.internode_combine(recv_x, handle, config=config)
    assert torch.equal(sums, plain_sum(x, handle[4]))
    with pytest.raises(AssertionError, match="config"):
        buffer.internode_combine(recv_x, handle)


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
    fails(
        RuntimeError, "expert_alignment", buffer.dispatch, x, expert_alignment=0, **topk, **layout
    )
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
    fails(RuntimeError, "num_experts", buffer.get_dispatch_layout, topk_idx, E + 1)
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


def check_ranks_that_differ_are_told(_):
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


def check_a_forgotten_destroy_is_told(_):
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


CHECKS = names_of_checks(globals())
results = pytest.fixture(scope="module")(lambda: run_checks(4, __name__))


@pytest.mark.parametrize("name", CHECKS)
def test_on_four_ranks(results, name):
    results.verify(name)


class ThreadComm:
    """The part of an mpi4py communicator that Buffer uses, among threads of this process."""

    def __init__(self, rank, shared):
        self.rank, self.shared = rank, shared

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.shared["barrier"].parties

    def bcast(self, value, root=0):
        if self.rank == root:
            self.shared["value"] = value
        self.shared["barrier"].wait()
        value = self.shared["value"]
        self.shared["barrier"].wait()
        return value


def on_threads(ranks, body):
    """The results of body(comm) on a thread per rank."""
    shared, results = {"barrier": threading.Barrier(ranks, timeout=30)}, [None] * ranks

    def run(rank):
        try:
            results[rank] = body(ThreadComm(rank, shared))
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def test_sixteen_ranks_of_an_mpi_communicator(monkeypatch):
    """Two nodes of eight ranks, as DeepEP counts them: ten entries in the handle, tokens per
    node in the layout."""
    monkeypatch.setenv("SHOAL_SYMMETRIC_SIZE", "256M")
    ranks, experts = 16, 32

    def body(comm):
        buffer = deep_ep.Buffer(None, 1 << 20, 1 << 20, comm=comm, explicitly_destroy=True)
        generator = torch.Generator().manual_seed(comm.rank)
        tokens = 3 + comm.rank % 3
        x = torch.randn((tokens, 128), generator=generator).bfloat16()
        topk_idx = torch.rand((tokens, experts), generator=generator).topk(3, dim=1).indices
        weights = torch.rand((tokens, 3), generator=generator)
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, experts)
        recv_x, *_, handle, _ = buffer.dispatch(
            x, None, per_rank, per_node, in_rank, per_expert, topk_idx, weights
        )
        sums, *_ = buffer.combine(recv_x, handle)
        assert torch.equal(sums, (x.float() * in_rank.sum(1, keepdim=True)).bfloat16())
        assert torch.equal(per_node, in_rank.view(tokens, 2, 8).any(-1).sum(0).int())
        buffer.destroy()
        return per_rank, handle, recv_x.shape[0]

    results = on_threads(ranks, body)
    sent = torch.stack([per_rank for per_rank, *_ in results])
    for rank, (_, handle, rows) in enumerate(results):
        assert len(handle) == 10
        prefix = sent[:, rank].cumsum(0).int()
        assert torch.equal(handle[-4], prefix) and prefix[-1] == rows
        assert torch.equal(handle[4], prefix[7::8])
        source_node = handle[7].view(torch.int32)[:, 0]
        assert handle[7].shape == (rows, 8) and (source_node == 0).sum() == prefix[7]


RANK_THAT_FAILS = """
import sys, time
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
    start = time.monotonic()
    try:
        buffer.dispatch(x, None, per_rank, None, in_rank, per_expert, topk_idx, weights)
    except RuntimeError as error:
        print(type(error).__name__, error, "waited" if time.monotonic() - start > 20 else "at once")
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
    failed, told = (rank.communicate(timeout=60)[0] for rank in ranks)
    assert ranks[0].returncode == 1 and "no more experts" in failed
    assert (
        ranks[1].returncode == 0
        and "PeerFailedError" in told
        and "no more experts" in told
        and "at once" in told
    )
