# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of both modes of deep_ep.Buffer: captured once, replayed with other tokens next to
plain calls."""

import time

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
from gpu_worlds import capture, fetch, settle

pytestmark = pytest.mark.usefixtures("small_heaps")


def results_stay(buffer, send):
    """Return true if the rows of a plain dispatch stay in the heap."""
    rows = send()[0]
    (group,) = buffer.runtime.groups
    return len(rows) > 0 and group.calls.held == 1


def stay_soon(buffer, comm, send):
    """Whether they do on all ranks, soon after a graph is gone: the driver gives its memory back in
    a thread of its own."""
    deadline = time.monotonic() + 10
    while True:
        seen = comm.allgather((results_stay(buffer, send), time.monotonic() < deadline))
        if all(stays for stays, _ in seen) or not all(early for _, early in seen):
            return all(stays for stays, _ in seen)
        time.sleep(0.01)


@pytest.mark.parametrize("mode", ["thread_local", "global"])
@pytest.mark.parametrize("pairs", [1, 4, 16, 61])
def test_any_number_of_pairs_in_graphs(pairs, mode):
    """New and cached dispatches of normal mode and low-latency pairs, in two graphs. Next to the
    graphs, which take less than the room of one result, after them and after captures that failed,
    plain results stay in the heap."""
    ranks = 1 if mode == "global" else 2  # calls of other threads fail a global capture

    def body(buffer, comm):
        rank = comm.Get_rank()
        x, topk_ids, topk_weights = make_inputs(rank, N, 18)
        experts, all_matrices = local_experts(rank, ranks), all_experts().cuda()

        def send():
            return buffer.dispatch(
                x,
                topk_idx=topk_ids,
                topk_weights=topk_weights,
                num_worst_tokens=ranks * N,
                **layout_of(buffer, topk_ids),
            )

        many = torch.cat([topk_ids] * 4)  # other batches may be longer
        buffer.dispatch(
            torch.cat([x] * 4),
            topk_idx=many,
            topk_weights=torch.cat([topk_weights] * 4),
            **layout_of(buffer, many),
        )

        def normal(out, cached):
            rows, ids, weights, _, handle, _ = send()
            if cached:
                del rows  # its room is that of the next result
                rows = buffer.dispatch(x, handle=handle)[0]
            y = weighted_expert_output(rows, ids, weights, experts)
            out.copy_(buffer.combine(y, handle)[0])

        def low_latency_pair(out):
            recv, count, handle, _, hook = buffer.low_latency_dispatch(
                x, topk_ids, N, E, use_fp8=False, return_recv_hook=True
            )
            hook()
            y = expert_rows(recv, count, False, experts)
            _, _, hook = buffer.low_latency_combine(
                y, topk_ids, topk_weights, handle, return_recv_hook=True, out=out
            )
            hook()

        def steps(outs):
            for i, out in enumerate(outs):
                low_latency_pair(out) if i % 3 == 2 else normal(out, i % 3 == 1)

        def fails():
            steps(torch.empty_like(x) for _ in range(3))
            raise ZeroDivisionError

        steps(torch.empty_like(x) for _ in range(3))  # makes the groups
        settle()
        comm.Barrier()
        with pytest.raises(ZeroDivisionError):
            capture(fails, mode)
        comm.Barrier()
        graphs = []
        for _ in range(2):
            outs = [torch.empty_like(x) for _ in range(pairs)]
            graphs.append((capture(lambda outs=outs: steps(outs), mode)[0], outs))
            comm.Barrier()  # no other work runs during captures
        for seed in range(19, 23):
            graph, outs = graphs[seed % 2]
            rows, ids, weights, _, handle, _ = send()
            kept = layer(x, topk_ids, topk_weights, all_matrices)
            for to, new in zip((x, topk_ids, topk_weights), make_inputs(rank, N, seed)):
                to.copy_(new)
            graph.replay()
            want = layer(x, topk_ids, topk_weights, all_matrices)
            assert all(close(out, want, 2e-3) for out in outs), seed
            y = weighted_expert_output(rows, ids, weights, experts)
            assert close(buffer.combine(y, handle)[0], kept, 2e-3), seed
            del rows, ids, weights, handle
            assert results_stay(buffer, send), seed
        settle()
        comm.Barrier()
        del graph
        graphs.clear()
        return stay_soon(buffer, comm, send)

    assert all(with_buffer(ranks, body, num_nvl_bytes=1 << 20, **low_latency(ranks)))


def test_results_that_a_capture_holds():
    """Several at once, and until the replay: those without room are copied, and plain results next
    to them too."""

    def body(buffer, comm):
        rank = comm.Get_rank()
        x, topk_ids, topk_weights = make_inputs(rank, N, 18)

        def send():
            return buffer.dispatch(
                x,
                topk_idx=topk_ids,
                topk_weights=topk_weights,
                num_worst_tokens=2 * N,
                **layout_of(buffer, topk_ids),
            )

        expected = [x.clone() for x in send()[:1]]
        settle()
        comm.Barrier()
        held = []
        graph, _ = capture(lambda: held.extend(send() for _ in range(3)))
        comm.Barrier()
        for _ in range(3):
            plain = [send() for _ in range(3)]
            graph.replay()
            settle()
            for rows, ids, *_ in held + plain:
                used = (ids >= 0).any(1)
                assert torch.equal(rows[used], expected[0][used])
        del rows, ids, plain
        held.clear()
        graph.replay()  # writes where the released results were
        assert not results_stay(buffer, send)
        settle()
        comm.Barrier()
        del graph
        return stay_soon(buffer, comm, send)

    assert all(with_buffer(2, body, num_nvl_bytes=1 << 20))


def test_a_result_that_another_graph_would_overwrite():
    """The second graph's result stays what its replay wrote, whatever the first one does; so does
    one that a captured read on another stream releases."""

    def body(buffer, comm):
        inputs = [make_inputs(comm.Get_rank(), N, seed) for seed in (21, 22, 23)]

        def send(which):
            x, topk_ids, topk_weights = inputs[which]
            return buffer.dispatch(
                x,
                topk_idx=topk_ids,
                topk_weights=topk_weights,
                num_worst_tokens=2 * N,
                **layout_of(buffer, topk_ids),
            )

        def used(result):
            return result[0][(result[1] >= 0).any(1)]

        expected = [used(send(which)).clone() for which in range(3)]
        side, read = torch.cuda.Stream(), torch.empty_like(send(2)[0])
        settle()
        comm.Barrier()

        def first():
            rows = send(0)[0]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(2_000_000)
                read.copy_(rows)
                del rows
            send(2)
            torch.cuda.current_stream().wait_stream(side)

        held = []
        graphs = [capture(first)[0], capture(lambda: held.append(send(1)))[0]]
        comm.Barrier()
        for _ in range(2):
            graphs[1].replay()
            graphs[0].replay()
            settle()
            assert torch.equal(used(held[0]), expected[1])
            assert torch.equal(read[: len(expected[0])], expected[0])
        held.clear()
        comm.Barrier()
        graphs.clear()

    with_buffer(2, body, num_nvl_bytes=1 << 20)


def test_cached_dispatch_in_a_graph():
    def body(buffer, comm):
        rank, ranks = comm.Get_rank(), comm.Get_size()
        x, topk_ids, topk_weights = make_inputs(rank, 3 + rank % 4, 14)
        rows, ids, weights, _, handle, _ = buffer.dispatch(
            x, topk_idx=topk_ids, topk_weights=topk_weights, **layout_of(buffer, topk_ids)
        )
        experts, again, out = (
            local_experts(rank, ranks),
            torch.empty_like(rows),
            torch.empty_like(x),
        )

        def step():
            again.copy_(buffer.dispatch(x, handle=handle)[0])
            out.copy_(
                buffer.combine(weighted_expert_output(again, ids, weights, experts), handle)[0]
            )

        for _ in range(2):
            step()
        first = fetch(rows)
        del rows
        settle()
        comm.Barrier()
        graph, _ = capture(step)
        comm.Barrier()
        for factor in (2, 0.5, 4):
            x.mul_(factor)
            graph.replay()
            first = factor * first
            assert torch.equal(fetch(again), first), factor
            assert close(out, layer(x, topk_ids, topk_weights, all_experts().cuda()), 2e-3), factor
        settle()
        comm.Barrier()
        del graph
        return True

    assert all(with_buffer(8, body, num_nvl_bytes=1 << 20))


def test_what_a_graph_cannot_capture_is_reported():
    """The first call of a shape exchanges sizes."""

    def body(buffer, comm):
        x, topk_ids, topk_weights = make_inputs(comm.Get_rank(), N, 15)
        layout = layout_of(buffer, topk_ids)
        topk = {
            "topk_idx": topk_ids,
            "topk_weights": topk_weights,
            "num_worst_tokens": N * comm.Get_size(),
        }

        def refused(match, work):
            def attempt():
                with pytest.raises(RuntimeError, match=match):
                    work()

            settle()
            comm.Barrier()
            capture(attempt)
            comm.Barrier()

        refused("cannot capture the first call", lambda: buffer.dispatch(x, **topk, **layout))
        rows, _, _, _, handle, _ = buffer.dispatch(x, **topk, **layout)
        more = torch.cat([x] * 9)  # 72 tokens, where there is room for 16
        refused(
            "cannot capture the first call",
            lambda: buffer.dispatch(
                more,
                topk_idx=torch.cat([topk_ids] * 9),
                topk_weights=torch.cat([topk_weights] * 9),
                num_worst_tokens=9 * N * comm.Get_size(),
                **{**layout, "is_token_in_rank": torch.cat([layout["is_token_in_rank"]] * 9)},
            ),
        )
        sums, *_ = buffer.combine(rows, handle)
        return close(sums, x.float() * layout["is_token_in_rank"].sum(1, keepdim=True), 2e-3)

    assert all(with_buffer(8, body, num_nvl_bytes=1 << 20))


def test_combine_with_weights_in_a_graph():
    """The sums of rows and of weights lie in the graph's memory pool; a replay reads the rows and
    weights of its time."""

    def body(buffer, comm):
        x, topk_ids, topk_weights = make_inputs(comm.Get_rank(), N, 16)
        layout = layout_of(buffer, topk_ids)
        rows, _, weights, _, handle, _ = buffer.dispatch(
            x,
            topk_idx=topk_ids,
            topk_weights=topk_weights,
            num_worst_tokens=N * comm.Get_size(),
            **layout,
        )
        y, given = rows.clone(), weights.clone()

        def step():
            return buffer.combine(y, handle, topk_weights=given)[:2]

        want = x.float() * layout["is_token_in_rank"].sum(1, keepdim=True)
        plain, plain_weights = step()
        assert close(plain, want, 2e-3) and torch.equal(fetch(plain_weights), fetch(topk_weights))
        settle()
        comm.Barrier()  # no other work runs during captures
        graph, (sums, combined_weights) = capture(step)
        comm.Barrier()
        for factor in (1, 2, 0.5):
            y.copy_(rows * factor)
            given.copy_(weights * factor)
            sums.fill_(float("nan"))
            combined_weights.fill_(float("nan"))
            graph.replay()
            assert close(sums, want * factor, 2e-3), factor
            assert torch.equal(fetch(combined_weights), fetch(topk_weights * factor)), factor
        again, again_weights = step()  # a plain call after replays
        assert torch.equal(fetch(again), fetch(sums))
        assert torch.equal(fetch(again_weights), fetch(combined_weights))
        settle()
        comm.Barrier()
        del graph
        return True

    assert all(with_buffer(8, body, num_nvl_bytes=1 << 20))
