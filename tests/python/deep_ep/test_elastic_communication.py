# SPDX-License-Identifier: Apache-2.0
"""Calls of ElasticBuffer other than dispatch and combine: tensors along a ring of ranks, gather
sessions, engram tables. Each by calls of the host, and by the operations on streams that GPUs use.
Also the calls of both buffers as a profiler shows them."""

import pytest
import torch
import torch.distributed as dist
from elastic_cases import E, MIB, make_buffer, make_inputs
from host_streams import on_streams
from torch_ranks import add_tests, run_checks, seeded

import deep_ep
from deep_ep.utils import testing
from deep_ep.utils.event import PROFILER_NAMES
from deep_ep.utils.math import per_token_cast_to_fp8


def check_ring(_):
    """More tensors than slots in both directions, of several sizes and dtypes, arrive in order."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    buffer = make_buffer(num_bytes=2 * MIB, allow_hybrid_mode=False)
    following, previous = (rank + 1) % ranks, (rank - 1) % ranks
    for slots in (1, 3):
        buffer.pp_set_config(4096, slots)

        def tensor(source, towards, number):
            generator = seeded(1000 * source + 100 * towards + number)
            return torch.randn((5 + number, 16), generator=generator).to(
                (torch.bfloat16, torch.float32)[number % 2]
            )

        for number in range(7):
            buffer.pp_send(tensor(rank, 0, number), following)
            buffer.pp_send(tensor(rank, 1, number), previous)
            for source, towards in ((previous, 0), (following, 1)):
                want = tensor(source, towards, number)
                got = torch.empty_like(want)
                buffer.pp_recv(got, source)
                assert torch.equal(got, want)
        for number in range(slots):  # all slots of a link in flight
            buffer.pp_send(tensor(rank, 0, number), following)
        for number in range(slots):
            got = torch.empty_like(tensor(previous, 0, number))
            buffer.pp_recv(got, previous)
            assert torch.equal(got, tensor(previous, 0, number))
    with pytest.raises(RuntimeError, match="neighbours"):
        buffer.pp_send(got, (rank + 2) % ranks)
    with pytest.raises(RuntimeError, match="up to 4096"):
        buffer.pp_send(torch.zeros(4097, dtype=torch.int8), following)
    with pytest.raises(RuntimeError, match="up to 4096"):
        buffer.pp_recv(torch.zeros((4, 4)).t()[1:], previous)  # not contiguous
    with pytest.raises(RuntimeError, match="num_bytes"):
        buffer.pp_set_config(MIB, 4)
    with pytest.raises(RuntimeError, match="num_max_tensor_bytes is 0"):
        buffer.pp_set_config(0, 4)
    with pytest.raises(RuntimeError, match="num_max_inflight_tensors is 0"):
        buffer.pp_set_config(4096, 0)
    buffer.destroy()


def check_gather_sessions(_):
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    shapes = [(3, 5), (16,)]
    size = deep_ep.ElasticBuffer.get_agrs_num_max_session_bytes(group, shapes * 2, torch.bfloat16)
    buffer = make_buffer(num_bytes=deep_ep.ElasticBuffer.get_agrs_buffer_size_hint(group, size))
    for wrong, match in (
        ((0, 2), "session_bytes is 0"),
        ((size, 0), "is 0; allowed: 1"),
        ((size, 33), "is 33"),
    ):
        with pytest.raises(RuntimeError, match=match):
            buffer.agrs_set_config(*wrong)
    with pytest.raises(RuntimeError, match="num_bytes is"):
        buffer.agrs_set_config(buffer.num_bytes + 1, 2)
    buffer.agrs_set_config(size, 2)

    def part(source, session, i):
        generator = seeded(100 * source + 10 * session + i)
        return torch.randn(shapes[i % 2], generator=generator).bfloat16()

    for session in range(5):
        with buffer.agrs_new_session():
            first, second = buffer.agrs_get_inplace_tensor(shapes, torch.bfloat16)
            first.copy_(part(rank, session, 0))
            second.copy_(part(rank, session, 1))
            gathered_0, gathered_1, handle = buffer.all_gather((first, second))
            assert gathered_0[rank].data_ptr() == first.data_ptr()
            one = buffer.agrs_get_inplace_tensor(shapes[0], torch.bfloat16)
            gathered_2, later = buffer.all_gather(part(rank, session, 2))
            assert one.data_ptr() == gathered_2[rank].data_ptr()
            handle()
            later()
            for i, gathered in enumerate((gathered_0, gathered_1, gathered_2)):
                assert torch.equal(
                    gathered, torch.stack([part(source, session, i) for source in range(ranks)])
                )
            with pytest.raises(RuntimeError, match="agrs_set_config allows"):
                buffer.all_gather(part(rank, session, 2))
            for wrong in (
                torch.zeros(0),
                torch.zeros((4, 4)).t(),
                [part(rank, session, 2), torch.zeros(0)],
            ):
                with pytest.raises(RuntimeError, match="empty or not contiguous"):
                    buffer.all_gather(wrong)
            for again in (buffer.create_agrs_session, lambda: buffer.agrs_set_config(size, 2)):
                with pytest.raises(RuntimeError, match="a session is active"):
                    again()
        with pytest.raises(RuntimeError, match="before its session ends"):
            handle()
    with pytest.raises(RuntimeError, match="no session is active"):
        buffer.destroy_agrs_session()
    with buffer.agrs_new_session(enabled=False), pytest.raises(RuntimeError, match="no session"):
        buffer.all_gather(part(rank, 0, 0))
    buffer.destroy()


def check_results_of_sessions_are_tensors_of_their_own(_):
    """Equal sessions share memory, and no attribute of a tensor; one in inference mode leaves
    later ones usable for gradients."""
    buffer = make_buffer(num_bytes=2 * MIB)
    buffer.agrs_set_config(1 << 16, 2)
    x = torch.full((3, 4), float(dist.get_rank()))

    def gather():
        with buffer.agrs_new_session():
            gathered, handle = buffer.all_gather(x)
            handle()
            return gathered, buffer.agrs_get_inplace_tensor((2, 2), torch.bfloat16)

    with torch.inference_mode():
        first = gather()
    second, third = gather(), gather()
    assert first[0].data_ptr() == second[0].data_ptr() == third[0].data_ptr()
    second[0].requires_grad_()
    assert not third[0].requires_grad and not gather()[0].requires_grad
    weight = torch.ones(4, requires_grad=True)
    (third[0] * weight).sum().backward()
    ranks = dist.get_world_size()
    assert weight.grad.tolist() == [3 * sum(range(ranks))] * 4
    assert third[1].shape == (2, 2) and third[1].dtype == torch.bfloat16
    buffer.destroy()


def check_engram(_):
    rank, ranks, entries, width = dist.get_rank(), dist.get_world_size(), 10, 64
    buffer = make_buffer(num_bytes=4 * MIB, num_cpu_bytes=2 * MIB)

    def table(round_):
        generator = seeded(round_)
        return torch.randn((ranks * entries, width), generator=generator).bfloat16()

    generator = seeded(rank)
    for round_ in range(3):
        full = table(round_)
        buffer.engram_write(full[rank * entries : (rank + 1) * entries].contiguous())
        indices = torch.randint(
            0, ranks * entries, (3 + rank, 4), generator=generator, dtype=torch.int32
        )
        indices[0] = torch.tensor([8, 9, 10, 11])  # neighbours, of two ranks
        data, scales = buffer.engram_fetch(indices)()
        assert scales is None and torch.equal(data, full[indices.long()].flatten(1))
    data, scales = per_token_cast_to_fp8(table(7))
    buffer.engram_write(data[rank * entries : (rank + 1) * entries].contiguous(), scales)
    for columns_first in (False, True):
        got, got_scales = buffer.engram_fetch(indices, use_tma_aligned_col_major_sf=columns_first)()
        assert torch.equal(got.view(torch.uint8), data.view(torch.uint8)[indices.long()].flatten(1))
        assert torch.equal(got_scales, scales[indices.long()].flatten(1))
    if buffer._streams is None:  # a kernel reports it later
        with pytest.raises(RuntimeError, match="out of 0 to 39"):
            buffer.engram_fetch(indices + 40)
    with pytest.raises(AssertionError, match="num_qps is 1000"):
        buffer.engram_fetch(indices, num_qps=1000)
    for wrong in (indices.long(), indices.flatten()):
        with pytest.raises(RuntimeError, match=r"allowed: int32 \[T, n\]"):
            buffer.engram_fetch(wrong)
    with pytest.raises(RuntimeError, match="sf is required"):
        buffer.engram_write(data[:entries])
    with pytest.raises(RuntimeError, match="sf is required"):
        buffer.engram_write(full[:entries], scales)
    mine = data[:entries].contiguous()
    for wrong in (
        scales[1:].contiguous(),
        scales.half(),
        torch.ones((2, len(scales))).t(),
        scales[:, 0],
    ):
        with pytest.raises(RuntimeError, match="allowed: contiguous elements of four bytes"):
            buffer.engram_write(mine, wrong)
    for wrong in (full.float()[:entries], full[:entries].t(), full[0]):
        with pytest.raises(RuntimeError, match="allowed: contiguous bfloat16 or float8_e4m3fn"):
            buffer.engram_write(wrong)
    with pytest.raises(RuntimeError, match="rank . has . entries in"):  # on all ranks
        buffer.engram_write(full[: entries - 1 if rank == 2 else entries - 2].contiguous())
    # The entries are unchanged.
    assert torch.equal(buffer.engram_fetch(indices)()[0].view(torch.uint8), got.view(torch.uint8))
    with pytest.raises(RuntimeError, match="num_cpu_bytes"):
        buffer.engram_write(torch.zeros((MIB, 2)).bfloat16())
    buffer.destroy()


def check_everything_on_streams(_):
    """The same calls, by one operation each."""
    with on_streams():
        check_ring(None)
        check_gather_sessions(None)
        check_engram(None)
        buffer = make_buffer(num_bytes=4 * MIB, num_cpu_bytes=2 * MIB)
        calls = buffer._streams.calls
        x, rank, ranks = torch.ones((2, 64)).bfloat16(), dist.get_rank(), dist.get_world_size()
        buffer.barrier()
        buffer.barrier(with_cpu_sync=True)
        assert calls == {"barrier": 2, "check": 2}
        buffer.engram_write(x)
        calls.clear()
        data, scales = buffer.engram_fetch(torch.zeros((0, 3), dtype=torch.int32))()
        assert data.shape == (0, 192) and scales is None
        buffer.engram_fetch(torch.tensor([[0, 1], [1, 0]], dtype=torch.int32))()
        assert calls == {"fetch_entries": 2, "check": 2}
        buffer.pp_set_config(4096, 2)
        buffer.pp_send(x, (rank + 1) % ranks)
        buffer.pp_recv(torch.empty_like(x), (rank - 1) % ranks)
        buffer.agrs_set_config(MIB, 2)
        calls.clear()
        with buffer.agrs_new_session():
            handle = buffer.all_gather((x, x.float()))[-1]
            handle()
        assert calls == {"barrier": 1, "put_to_all": 1, "wait_for_all": 1, "check": 2}
        large = torch.full((70_000,), float(rank))  # this rank's copy is made apart
        buffer.agrs_set_config(4 * MIB, 1)
        with buffer.agrs_new_session():
            gathered, handle = buffer.all_gather(large)
            handle()
            assert gathered[:, 0].tolist() == gathered[:, -1].tolist() == list(range(ranks))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(buffer.runtime, "capturing", lambda: True)
            for call in (
                lambda: buffer.pp_send(x, (rank + 1) % ranks),
                lambda: buffer.pp_recv(torch.empty_like(x), (rank - 1) % ranks),
                buffer.create_agrs_session,
            ):
                with pytest.raises(RuntimeError, match="a CUDA graph cannot capture it"):
                    call()
        buffer.destroy()


def check_profilers_find_every_name(_):
    """torch's profiler shows the names of PROFILER_NAMES in every form of a call: in the first one
    and in later ones."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, topk_idx, weights = make_inputs(11, tokens=8)
    elastic = make_buffer(num_bytes=8 * MIB, num_cpu_bytes=2 * MIB)
    elastic.pp_set_config(4096, 2)
    elastic.engram_write(x)
    wanted = torch.tensor([[0, 8 * ranks - 1]], dtype=torch.int32)
    sent = {
        expand: elastic.dispatch(x, topk_idx, weights, num_experts=E, do_expand=expand)
        for expand in (False, True)
    }

    def elastic_dispatch(**how):
        return lambda: elastic.dispatch(x, topk_idx, weights, num_experts=E, **how)

    def elastic_combine(expand, weighted):
        rows, _, received_weights, handle, _ = sent[expand]
        return lambda: elastic.combine(rows, handle, received_weights if weighted else None)

    def around_the_ring():
        elastic.pp_send(x, (rank + 1) % ranks)
        elastic.pp_recv(torch.empty_like(x), (rank - 1) % ranks)

    wide = torch.ones((8, 512), dtype=torch.bfloat16)
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(8, 512, ranks, E)
    buffer = deep_ep.Buffer(
        dist.group.WORLD, MIB, hint, low_latency_mode=True, explicitly_destroy=True
    )
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, E)

    def dispatch():
        return buffer.dispatch(
            x, None, per_rank, None, in_rank, per_expert, topk_idx, weights, num_worst_tokens=64
        )

    rows, _, received_weights, _, handle, _ = dispatch()

    def low_latency_pair(fp8, hooks):
        received, _, sent, _, hook = buffer.low_latency_dispatch(
            wide, topk_idx, 8, E, use_fp8=fp8, return_recv_hook=hooks
        )
        hook() if hooks else None
        y = torch.zeros(received[0].shape if fp8 else received.shape, dtype=torch.bfloat16)
        *_, hook = buffer.low_latency_combine(y, topk_idx, weights, sent, return_recv_hook=hooks)
        hook() if hooks else None

    pairs = [
        lambda fp8=fp8, hooks=hooks: low_latency_pair(fp8, hooks)
        for fp8 in (False, True)
        for hooks in (False, True)
    ]
    calls = {
        "Buffer.dispatch": [dispatch, lambda: buffer.dispatch(x, handle)],
        "Buffer.combine": [
            lambda: buffer.combine(rows, handle),
            lambda: buffer.combine(rows, handle, received_weights),
        ],
        "Buffer.low_latency_dispatch": pairs,
        "Buffer.low_latency_combine": pairs,
        "ElasticBuffer.dispatch": [
            *(elastic_dispatch(do_cpu_sync=sync) for sync in (False, True)),
            elastic_dispatch(do_expand=True),
            lambda: elastic.dispatch(x, handle=sent[False][3]),
            lambda: elastic.dispatch(x, handle=sent[True][3], do_expand=True),
        ],
        "ElasticBuffer.combine": [
            elastic_combine(expand, weighted)
            for expand in (False, True)
            for weighted in (False, True)
        ],
        "ElasticBuffer.barrier": [elastic.barrier],
        "ElasticBuffer.pp_send": [around_the_ring],
        "ElasticBuffer.pp_recv": [around_the_ring],
        "ElasticBuffer.engram_fetch": [lambda: elastic.engram_fetch(wanted)()],
    }
    assert calls.keys() == PROFILER_NAMES.keys()
    for call, names in PROFILER_NAMES.items():
        for form, run in enumerate(calls[call]):
            for _ in range(2):
                run()
            times = testing.bench_kineto(run, names, num_tests=2, flush_l2=False)
            assert all(0 < time < 1 for time in times), (call, form, names, times)
    buffer.destroy()
    elastic.destroy()


add_tests(globals(), lambda: run_checks(4, __name__))
