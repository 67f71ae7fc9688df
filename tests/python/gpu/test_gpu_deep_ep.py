# SPDX-License-Identifier: Apache-2.0
"""deep_ep on CUDA tensors, called as vLLM, SGLang and Megatron-LM call it. Ranks are threads
that share one GPU and a communicator like that of mpi4py. tests/python/deep_ep has the same on
the host.
"""

import pytest

torch = pytest.importorskip("torch")

from gpu_buffers import (
    E,
    N,
    all_experts,
    close,
    expert_rows,
    layer,
    layout_of,
    local_experts,
    low_latency,
    make_inputs,
    weighted_expert_output,
    with_buffer,
)
from gpu_worlds import delay, fetch

from deep_ep import Buffer
from deep_ep.utils import testing
from deep_ep.utils.math import per_token_cast_back, per_token_cast_to_fp8

pytestmark = pytest.mark.usefixtures("small_heaps")


# Normal mode.


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_vllm_high_throughput(fp8, asynchronous):
    def body(buffer, comm):
        rank, ranks = comm.Get_rank(), comm.Get_size()
        configs = Buffer.get_dispatch_config(ranks), Buffer.get_combine_config(ranks)
        for turn in range(2):
            x, topk_ids, topk_weights = make_inputs(rank, 5 + rank, 1 + turn)
            previous = Buffer.capture()
            per_rank, per_rdma_rank, per_expert, in_rank, _ = buffer.get_dispatch_layout(
                topk_ids,
                E,
                previous_event=previous,
                async_finish=False,
                allocate_on_comm_stream=False,
            )
            received, ids, weights, counts, handle, event = buffer.dispatch(
                per_token_cast_to_fp8(x) if fp8 else x,
                num_tokens_per_rank=per_rank,
                num_tokens_per_rdma_rank=per_rdma_rank,
                is_token_in_rank=in_rank,
                num_tokens_per_expert=per_expert,
                topk_idx=topk_ids,
                topk_weights=topk_weights,
                expert_alignment=1,
                config=configs[0],
                previous_event=None if fp8 else previous,
                async_finish=asynchronous,
            )
            assert (event.event is not None) == asynchronous
            if asynchronous:
                event.current_stream_wait()
            rows = per_token_cast_back(*received) if fp8 else received
            assert rows.is_cuda and counts == [
                int((fetch(ids) == e).sum()) for e in range(E // ranks)
            ]
            combined, _, event = buffer.combine(
                weighted_expert_output(rows, ids, weights, local_experts(rank, ranks)),
                handle,
                config=configs[1],
                async_finish=asynchronous,
            )
            if asynchronous:
                event.current_stream_wait()
            assert close(combined, layer(x, topk_ids, topk_weights, all_experts().cuda()), 2e-3)
        return True

    assert all(with_buffer(8, body, num_nvl_bytes=1 << 20))


def test_sglang_on_the_comm_stream_and_with_cached_handles():
    def body(buffer, comm):
        rank, ranks = comm.Get_rank(), comm.Get_size()
        # One rank has no tokens.
        x, topk_ids, topk_weights = make_inputs(rank, (4 + 3 * rank) % N, 10)
        previous = Buffer.capture()
        *layout, previous = buffer.get_dispatch_layout(
            topk_ids, E, previous_event=previous, async_finish=True, allocate_on_comm_stream=True
        )
        received, ids, weights, counts, handle, event = buffer.dispatch(
            x,
            topk_idx=topk_ids,
            topk_weights=topk_weights,
            num_tokens_per_rank=layout[0],
            num_tokens_per_rdma_rank=layout[1],
            is_token_in_rank=layout[3],
            num_tokens_per_expert=layout[2],
            previous_event=previous,
            async_finish=True,
            allocate_on_comm_stream=True,
            expert_alignment=128,
        )
        event.current_stream_wait()
        assert all(count % 128 == 0 for count in counts)
        expert_output = weighted_expert_output(received, ids, weights, local_experts(rank, ranks))
        combined, _, event = buffer.combine(
            expert_output,
            handle,
            async_finish=True,
            previous_event=Buffer.capture(),
            allocate_on_comm_stream=True,
        )
        event.current_stream_wait()
        assert close(combined, layer(x, topk_ids, topk_weights, all_experts().cuda()))
        again, *_, event = buffer.dispatch(2 * x, handle=handle, async_finish=True)
        event.current_stream_wait()
        return bool((fetch(again).float() == 2 * fetch(received).float()).all())

    assert all(with_buffer(8, body, num_nvl_bytes=1 << 20))


@pytest.mark.parametrize("copied", [False, True])
def test_received_rows_are_read_on_another_stream(copied, monkeypatch):
    """Freeing rows with that stream current is enough; record_stream works for rows in torch's
    memory."""
    if copied:
        monkeypatch.setenv("EP_COPY_RECEIVED", "1")

    def body(buffer, comm):
        x, topk_ids, topk_weights = make_inputs(comm.Get_rank(), N, 11)
        layout = layout_of(buffer, topk_ids)

        def send(factor):
            return buffer.dispatch(
                factor * x, topk_idx=topk_ids, topk_weights=topk_weights, **layout
            )[0]

        side = torch.cuda.Stream()
        for turn in range(3):
            rows = send(1)
            wanted, copy = fetch(rows), torch.empty_like(rows)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                delay()
                copy.copy_(rows)
                if not copied:
                    del rows
            if copied:
                rows.record_stream(side)
                del rows
            for factor in (2, 3):
                send(factor)
            torch.cuda.current_stream().wait_stream(side)
            assert torch.equal(fetch(copy), wanted), turn
        return True

    assert all(with_buffer(8, body, num_nvl_bytes=1 << 20))


# Low latency.


@pytest.mark.parametrize("use_fp8", [False, True])
@pytest.mark.parametrize("hooks", [False, True])
def test_vllm_low_latency(use_fp8, hooks):
    """With hooks two micro-batches are open: both are sent before one is received."""

    def body(buffer, comm):
        rank, ranks = comm.Get_rank(), comm.Get_size()
        inputs = [make_inputs(rank, 1 + (rank + batch) % N, 2 + batch) for batch in range(2)]
        for batches in [inputs] if hooks else [[one] for one in inputs]:
            received = [
                buffer.low_latency_dispatch(
                    x, topk_ids, N, E, use_fp8=use_fp8, return_recv_hook=hooks
                )
                for x, topk_ids, _ in batches
            ]
            for (recv, count, handle, event, hook), (x, topk_ids, topk_weights) in zip(
                received, batches
            ):
                if hooks:
                    hook()
                expert_output = expert_rows(recv, count, use_fp8, local_experts(rank, ranks))
                output = torch.empty_like(x)
                _, event, hook = buffer.low_latency_combine(
                    expert_output,
                    topk_ids,
                    topk_weights,
                    handle,
                    return_recv_hook=hooks,
                    out=output,
                )
                if hooks:
                    hook()
                assert close(output, layer(x, topk_ids, topk_weights, all_experts().cuda()), 2e-3)
        return True

    assert all(with_buffer(8, body, **low_latency(8)))


def test_low_latency_asynchronous_and_zero_copy():
    def body(buffer, comm):
        rank, ranks = comm.Get_rank(), comm.Get_size()
        x, topk_ids, topk_weights = make_inputs(rank, 1 + rank % N, 5)
        stats = torch.zeros(E // ranks, dtype=torch.int32, device="cuda")
        recv, count, handle, event, _ = buffer.low_latency_dispatch(
            x, topk_ids, N, E, stats, use_fp8=False, async_finish=True
        )
        event.current_stream_wait()
        assert torch.equal(fetch(stats), fetch(count))
        target = buffer.get_next_low_latency_combine_buffer(handle)
        target.copy_(expert_rows(recv, count, False, local_experts(rank, ranks)))
        combined, event, _ = buffer.low_latency_combine(
            target, topk_ids, topk_weights, handle, zero_copy=True, async_finish=True
        )
        event.current_stream_wait()
        return close(combined, layer(x, topk_ids, topk_weights, all_experts().cuda()), 2e-3)

    assert all(with_buffer(8, body, **low_latency(8)))


# Profiling.


def test_profilers_find_the_kernels():
    """Profiling by the names of DeepEP's test programs, in both forms of low-latency calls and
    in normal mode."""

    def body(buffer, comm):
        rank = comm.Get_rank()
        x, topk_ids, topk_weights = make_inputs(rank, N, 9)
        layout = buffer.get_dispatch_layout(topk_ids, E)

        def step(hooks):
            recv, count, handle, _, hook = buffer.low_latency_dispatch(
                x, topk_ids, N, E, use_fp8=False, return_recv_hook=hooks
            )
            hook() if hooks else None
            _, _, hook = buffer.low_latency_combine(
                recv, topk_ids, topk_weights, handle, return_recv_hook=hooks
            )
            hook() if hooks else None

        def normal():
            _, _, _, _, handle, _ = buffer.dispatch(
                x,
                topk_idx=topk_ids,
                topk_weights=topk_weights,
                num_tokens_per_rank=layout[0],
                is_token_in_rank=layout[3],
                num_tokens_per_expert=layout[2],
            )
            return handle

        normal(), step(True), step(False)
        names, found = ("dispatch", "combine"), []
        for fn, period in ((lambda: step(True), 2), (lambda: step(False), 1), (normal, 1)):
            found.append(
                testing.bench_kineto(
                    fn,
                    names,
                    num_tests=5,
                    flush_l2=False,
                    num_kernels_per_period=period,
                    suppress_kineto_output=True,
                )
            )
        return found

    (found,) = with_buffer(1, body, num_nvl_bytes=1 << 20, **low_latency(1))
    (dispatch, combine), (whole_dispatch, whole_combine), (normal_dispatch, _) = found
    times = [*dispatch, *combine, whole_dispatch, whole_combine, normal_dispatch]
    assert len(dispatch) == len(combine) == 2 and all(0 < time < 1e-2 for time in times), found
