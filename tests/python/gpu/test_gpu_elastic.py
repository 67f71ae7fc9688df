# SPDX-License-Identifier: Apache-2.0
"""ElasticBuffer on CUDA tensors of two processes with a torch group."""

import itertools

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
from gpu_buffers import (
    E,
    H,
    K,
    all_experts,
    close,
    layer,
    local_experts,
    make_inputs,
    weighted_expert_output,
)
from gpu_worlds import capture, delay, settle
from torch_ranks import names_of_checks, run_checks

from deep_ep import ElasticBuffer
from deep_ep.utils.streams import current_stream


def make_buffer(**options):
    return ElasticBuffer(dist.group.WORLD, explicitly_destroy=True, **options)


def check_any_number_of_pairs_in_a_graph(_):
    """New and cached dispatches, rank-major and expert-major, whose rows are summed at the receiver
    or at the source."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for multiple, pairs in itertools.product((True, False), (1, 4, 16, 61)):
            capture_pairs(multiple, pairs)


def capture_pairs(multiple, pairs):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    experts, all_matrices = local_experts(rank, ranks), all_experts().cuda()
    buffer = make_buffer(
        num_max_tokens_per_rank=16, hidden=H, num_topk=K, allow_multiple_reduction=multiple
    )
    x, topk_ids, topk_weights = make_inputs(rank, 9, 5)
    outs = [torch.empty_like(x) for _ in range(pairs)]

    def step(out, expand, cached):
        options = {"expert_alignment": 8, "do_expand": True} if expand else {}
        rows, ids, weights, handle, _ = buffer.dispatch(
            x, topk_ids, topk_weights, num_experts=E, do_cpu_sync=False, **options
        )
        if cached:
            rows = buffer.dispatch(x, handle=handle, do_expand=expand)[0]
        y = (
            expanded_output(rows, weights, handle, experts)
            if expand
            else weighted_expert_output(rows, ids, weights, experts)
        )
        out.copy_(buffer.combine(y, handle)[0])

    def steps():
        for i, out in enumerate(outs):
            step(out, i % 2 == 1, i % 4 > 1)

    def refused():
        with pytest.raises(RuntimeError, match="cannot capture the first call"):
            step(outs[0], True, False)

    capture(refused)
    for expand in (False, True):  # makes the group
        step(outs[0], expand, False)
    settle()
    buffer.barrier()
    graph, _ = capture(steps)
    buffer.barrier()
    for seed in range(6, 9):
        for to, new in zip((x, topk_ids, topk_weights), make_inputs(rank, 9, seed)):
            to.copy_(new)
        for out in outs:
            out.fill_(float("nan"))
        graph.replay()
        want = layer(x, topk_ids, topk_weights, all_matrices)
        assert all(close(out, want, 2e-3) for out in outs), (multiple, pairs, seed)
        step(outs[0], False, False)
        assert close(outs[0], want, 2e-3), (multiple, pairs, seed)
    settle()
    buffer.barrier()
    del graph
    buffer.destroy()


def expanded_output(rows, weights, handle, experts):
    """Expert output in expert-major order."""
    ends = handle.psum_num_recv_tokens_per_expert
    owner = torch.bucketize(
        torch.arange(len(rows), device="cuda", dtype=ends.dtype), ends, right=True
    )
    factor = experts[owner.clamp(max=len(experts) - 1)] * weights
    return (rows.float() * factor[:, None]).bfloat16()


def kernels(call):
    """The names of the kernels and copies that call() starts."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return [e.name for e in profile.events() if e.device_type == torch.profiler.DeviceType.CUDA]


def check_transfers_on_streams(_):
    """Several sizes, more messages than slots, without the host; one kernel for each small one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    following, previous = (rank + 1) % ranks, (rank - 1) % ranks
    buffer = make_buffer(num_bytes=64 << 20, num_cpu_bytes=2 << 20)
    assert buffer._streams is not None
    for size in (100, 50_000, 3 << 20):
        buffer.pp_set_config(size, 2)
        sent = [torch.full((size,), 10 * n + rank, dtype=torch.uint8).cuda() for n in range(5)]
        got = [torch.zeros_like(one) for one in sent]
        for one, to in zip(sent, got):
            buffer.pp_send(one, following)
            buffer.pp_recv(to, previous)
        for n, one in enumerate(got):
            assert bool((one == 10 * n + previous).all()), (size, n)
    buffer.pp_set_config(4096, 2)
    assert len(kernels(lambda: buffer.pp_send(sent[0][:100], following))) == 1
    assert len(kernels(lambda: buffer.pp_recv(got[0][:100], previous))) == 1
    for size in (8, 40_000, 1 << 20):
        buffer.agrs_set_config(4 * ranks * size * 2, 2)
        for session in range(3):
            with buffer.agrs_new_session():
                mine = buffer.agrs_get_inplace_tensor((size,), torch.float32)
                mine.fill_(100 * session + rank)
                other = torch.full((size,), -1.0 - rank, device="cuda")
                first, second, wait = buffer.all_gather((mine, other))
                del other
                wait()
                for source in range(ranks):
                    assert bool((first[source] == 100 * session + source).all())
                    assert bool((second[source] == -1 - source).all())

    generator = torch.Generator().manual_seed(3)
    table = torch.randn((ranks * 40, 128), generator=generator).cuda()
    data, scales = table.to(torch.float8_e4m3fn), table[:, :3].contiguous()
    buffer.engram_write(data[40 * rank : 40 * rank + 40].contiguous(), scales)
    indices = torch.randint(0, ranks * 40, (9, 5), generator=generator, dtype=torch.int32).cuda()
    for columns_first in (False, True):
        got, got_scales = buffer.engram_fetch(indices, use_tma_aligned_col_major_sf=columns_first)()
        want = data.view(torch.uint8)[indices.long()].flatten(1)
        assert torch.equal(got.view(torch.uint8), want)
        assert torch.equal(got_scales, scales[indices.long()].flatten(1))
    assert len(kernels(lambda: buffer.engram_fetch(indices)())) == 1
    bad = indices.clone()
    bad[1, 2] = 40 * ranks
    got, _ = buffer.engram_fetch(bad)()
    assert bool((got.view(torch.uint8)[1, 256:384] == 0).all())
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match=f"index 7 is {40 * ranks}; the table has entries 0 to"):
        buffer.barrier()
    buffer.barrier(with_cpu_sync=True)

    def refused():
        for call in (
            lambda: buffer.pp_send(sent[0][:100], following),
            lambda: buffer.pp_recv(sent[1][:100], previous),
            buffer.create_agrs_session,
        ):
            with pytest.raises(RuntimeError, match="a CUDA graph cannot capture it"):
                call()

    with torch.cuda.stream(torch.cuda.Stream()):
        capture(refused)
    with pytest.raises(RuntimeError, match="is not memory that GPU"):
        buffer.pp_send(torch.zeros(100), following)
    buffer.barrier(with_cpu_sync=True)
    buffer.destroy()


def check_barriers(_):
    """One kernel each; replays of a graph meet as often as they have barriers."""
    buffer = make_buffer(num_bytes=2 << 20)
    with torch.cuda.stream(torch.cuda.Stream()):
        buffer.barrier()
        found = kernels(buffer.barrier)
        assert len(found) == 1 and "barrier" in found[0], found
        graph, _ = capture(lambda: [buffer.barrier() for _ in range(3)])
        for _ in range(5):
            graph.replay()
            buffer.barrier(use_comm_stream=False)
        settle()
        buffer.barrier(with_cpu_sync=True)
        del graph
    buffer.destroy()


def check_streams_of_torch(_):
    """deep_ep reads and sets the current stream as torch does."""
    buffer, second = (make_buffer(num_bytes=2 << 20) for _ in range(2))
    assert buffer.runtime.device.type == "cuda"
    assert second.get_comm_stream() == buffer.get_comm_stream() != torch.cuda.current_stream()
    second.destroy()
    comm, others = buffer.get_comm_stream(), [torch.cuda.Stream() for _ in range(3)]
    for stream in (torch.cuda.current_stream(), *others, *others):
        with torch.cuda.stream(stream):
            assert current_stream() == stream == torch.cuda.current_stream()
            with pytest.raises(ValueError), buffer.runtime.operation("test", None, True):
                assert current_stream() == comm == torch.cuda.current_stream()
                raise ValueError
            assert current_stream() == stream == torch.cuda.current_stream()
    buffer.destroy()


def check_calls_on_changing_streams(_):
    """Calls follow each other in the order of the program, on the default stream and others, where
    nothing but the group orders the streams."""
    buffer = make_buffer(num_max_tokens_per_rank=16, hidden=H, num_topk=K)
    default, other = torch.cuda.current_stream(), torch.cuda.Stream()
    inputs = [make_inputs(dist.get_rank(), 9, seed) for seed in range(6)]

    def pair(x, topk_ids, topk_weights):
        recv_x, ids, weights, handle, _ = buffer.dispatch(
            x, topk_idx=topk_ids, topk_weights=topk_weights, num_experts=E, do_cpu_sync=False
        )
        return ids, *buffer.combine(recv_x, handle, topk_weights=weights)[:2]

    wanted = [[one.cpu() for one in pair(*one)] for one in inputs]  # on the default stream alone
    torch.cuda.synchronize()
    results = []
    for number, one in enumerate(inputs):
        with torch.cuda.stream(default if number % 2 == 0 else other):
            delay(5)  # a call on the other stream would overtake this one
            results.append(pair(*one))
    torch.cuda.synchronize()
    for got, want in zip(results, wanted):
        assert all(torch.equal(one.cpu(), two) for one, two in zip(got, want))
    buffer.destroy()


def check_events(_):
    """Pairs with events after a delay on either stream have the results of plain pairs."""
    rank = dist.get_rank()
    buffer = make_buffer(num_max_tokens_per_rank=16, hidden=H, num_topk=K)
    comm = buffer.get_comm_stream()
    on_comm = {"async_with_compute_stream": True, "allocate_on_comm_stream": True}
    for seed in range(4):
        x, topk_ids, topk_weights = make_inputs(rank, 9, seed)
        new = {"topk_idx": topk_ids, "topk_weights": topk_weights, "num_experts": E}
        recv_x, ids, weights, handle, _ = buffer.dispatch(x, **new, do_cpu_sync=False)
        want = [ids.clone(), *buffer.combine(recv_x, handle, topk_weights=weights)[:2]]
        for late in (torch.cuda.current_stream(), comm):
            written = torch.zeros_like(x)
            with torch.cuda.stream(late):
                delay()
            written.copy_(x)
            recv_x, ids, weights, handle, event = buffer.dispatch(
                written, **new, do_cpu_sync=False, previous_event=buffer.capture(), **on_comm
            )
            event.current_stream_wait()
            sums, summed, event = buffer.combine(
                recv_x, handle, topk_weights=weights, previous_event=buffer.capture(), **on_comm
            )
            del recv_x, weights, written
            event.current_stream_wait()
            for got, one in zip((ids, sums, summed), want):
                assert torch.equal(got, one)
    settle()
    buffer.destroy()


CHECKS = names_of_checks(globals())


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:  # inherited by the ranks
        patch.setenv("SHOAL_SYMMETRIC_SIZE", "1G")
        patch.setenv("SHOAL_TIMEOUT_MS", "30000")
        return run_checks(2, __name__)


@pytest.mark.parametrize("name", CHECKS)
def test_on_two_processes(results, name):
    results.verify(name)
