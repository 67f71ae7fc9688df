# SPDX-License-Identifier: Apache-2.0
"""Streams and profiles of deep_ep on CUDA tensors, between ranks that are threads sharing one GPU
and a communicator like that of mpi4py. test_gpu_like_the_host.py has the calls of frameworks."""

import pytest

torch = pytest.importorskip("torch")

from gpu_buffers import E, N, layout_of, low_latency, make_inputs, with_buffer
from gpu_worlds import delay, fetch

from deep_ep.utils import testing

pytestmark = pytest.mark.usefixtures("small_heaps")


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


def test_released_rows_serve_the_next_low_latency_dispatch():
    """One place of BF16 rows is enough for layers that release theirs, views included, and held
    rows keep what they have, whatever comes next."""

    def body(buffer, comm):
        x, topk_ids, _ = make_inputs(comm.Get_rank(), N, 9)

        def dispatch(rows, use_fp8, hooks):
            recv, _, _, _, hook = buffer.low_latency_dispatch(
                rows, topk_ids, N, E, use_fp8=use_fp8, return_recv_hook=hooks
            )
            hook() if hooks else None
            return recv[0] if use_fp8 else recv

        places = {dispatch(x, False, i % 2 == 0).data_ptr() for i in range(4)}
        assert len(places) == 1
        for hooks in (False, True):
            for first, second in ((False, False), (False, True), (True, False), (True, True)):
                held = dispatch(x, first, hooks).flatten(0, 1).view(torch.uint8)
                before = held.clone()
                dispatch(2 * x, second, hooks)
                assert torch.equal(held, before)
        return True

    assert all(with_buffer(2, body, **low_latency(2)))


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
