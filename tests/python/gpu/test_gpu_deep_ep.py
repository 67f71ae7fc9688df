# SPDX-License-Identifier: Apache-2.0
"""deep_ep on CUDA tensors, called as vLLM, SGLang and Megatron-LM call it. Ranks are threads
that share one GPU and a communicator like that of mpi4py. tests/python/deep_ep has the same on
the host.
"""

import pytest

torch = pytest.importorskip("torch")

from gpu_worlds import capture, delay, fail, fetch, on_threads, settle

from deep_ep import Buffer
from deep_ep.utils import testing
from deep_ep.utils.math import calc_diff, per_token_cast_back, per_token_cast_to_fp8

H, K, E, N = 512, 3, 16, 8


@pytest.fixture(autouse=True)
def small_heaps(monkeypatch):
    """Ranks on one GPU share its memory."""
    monkeypatch.setenv("SHOAL_SYMMETRIC_SIZE", "2G")
    monkeypatch.setenv("SHOAL_TIMEOUT_MS", "20000")


def make_inputs(rank, tokens, seed):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    x = torch.randn((tokens, H), generator=generator).bfloat16()
    scores = torch.rand((tokens, E), generator=generator)
    topk_weights, topk_ids = scores.softmax(1).topk(K, dim=1)
    return x.cuda(), topk_ids.cuda(), topk_weights.cuda()


def all_experts():
    """The factor of each expert; experts differ without a matrix product."""
    return torch.linspace(-2, 2, E)


def local_experts(rank, ranks):
    return all_experts().chunk(ranks)[rank].cuda()


def layer(x, topk_ids, topk_weights, experts):
    """The layer in one process, in float32; ids outside `experts` are ignored."""
    known = (topk_ids >= 0) & (topk_ids < len(experts))
    factor = (experts[topk_ids.clamp(0, len(experts) - 1)] * topk_weights * known).sum(
        1, keepdim=True
    )
    return x.float() * factor


def weighted_expert_output(rows, ids, weights, experts):
    return layer(rows, ids, weights, experts).bfloat16()


def close(got, want, tolerance=1e-3):
    return got.numel() == 0 or calc_diff(fetch(got), fetch(want)) < tolerance


def with_buffer(ranks, body, **options):
    def pe(comm):
        buffer = Buffer(None, comm=comm, explicitly_destroy=True, **options)
        try:
            result = body(buffer, comm)
            settle()
            comm.Barrier()  # destroy() waits for the whole GPU
            buffer.destroy()
        except BaseException as error:
            if buffer.runtime is not None:
                fail(buffer.runtime.world, error)
            del buffer  # this frame lives on with the exception
            raise
        return result

    return on_threads(ranks, pe)


# Normal mode.


def layout_of(buffer, topk_ids):
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_ids, E)
    return {
        "num_tokens_per_rank": per_rank,
        "is_token_in_rank": in_rank,
        "num_tokens_per_expert": per_expert,
    }


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


def low_latency(ranks):
    size = Buffer.get_low_latency_rdma_size_hint(N, H, ranks, E)
    return {"num_rdma_bytes": size, "low_latency_mode": True, "num_qps_per_rank": E // ranks}


def expert_rows(recv, count, use_fp8, experts):
    rows = recv
    if use_fp8:
        rows = per_token_cast_back(recv[0].flatten(0, 1), recv[1].flatten(0, 1)).view(recv[0].shape)
    expert_output = (rows.float() * experts[:, None, None]).bfloat16()
    return expert_output.masked_fill_(
        torch.arange(rows.shape[1], device="cuda")[None, :, None] >= count[:, None, None], 0
    )


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


# CUDA graphs.


def test_low_latency_in_a_graph():
    """The decode of vLLM: captured once, replayed with other tokens."""

    def body(buffer, comm):
        rank, ranks = comm.Get_rank(), comm.Get_size()
        x, topk_ids, topk_weights = make_inputs(rank, N, 7)
        experts, out = local_experts(rank, ranks), torch.empty_like(x)

        def step():
            recv, count, handle, _, hook = buffer.low_latency_dispatch(
                x, topk_ids, N, E, use_fp8=False, return_recv_hook=True
            )
            hook()
            expert_output = expert_rows(recv, count, False, experts)
            _, _, hook = buffer.low_latency_combine(
                expert_output, topk_ids, topk_weights, handle, return_recv_hook=True, out=out
            )
            hook()

        for _ in range(2):
            step()
        settle()
        comm.Barrier()
        graph, _ = capture(step)
        comm.Barrier()
        for seed in range(8, 12):
            for to, new in zip((x, topk_ids, topk_weights), make_inputs(rank, N, seed)):
                to.copy_(new)
            graph.replay()
            assert close(out, layer(x, topk_ids, topk_weights, all_experts().cuda()), 2e-3), seed
        settle()
        comm.Barrier()
        del graph
        return True

    assert all(with_buffer(8, body, **low_latency(8)))


def test_normal_mode_in_a_graph():
    """Dispatch of a fixed size and combine, replayed with other tokens between plain calls whose
    results are held."""

    def body(buffer, comm):
        rank, ranks = comm.Get_rank(), comm.Get_size()
        x, topk_ids, topk_weights = make_inputs(rank, N, 12)
        experts, all_matrices, out = (
            local_experts(rank, ranks),
            all_experts().cuda(),
            torch.empty_like(x),
        )

        def send():
            return buffer.dispatch(
                x,
                topk_idx=topk_ids,
                topk_weights=topk_weights,
                num_worst_tokens=ranks * N,
                **layout_of(buffer, topk_ids),
            )

        def step():
            rows, ids, weights, counts, handle, _ = send()
            assert counts == [] and len(rows) == ranks * N
            out.copy_(
                buffer.combine(weighted_expert_output(rows, ids, weights, experts), handle)[0]
            )

        for _ in range(2):
            step()
        settle()
        comm.Barrier()  # no other work runs during captures
        graph, _ = capture(step)
        comm.Barrier()
        for seed in range(13, 17):
            for to, new in zip((x, topk_ids, topk_weights), make_inputs(rank, N, seed)):
                to.copy_(new)
            # A replay must not overwrite the rows or the layout of a plain call.
            rows, ids, weights, _, handle, _ = send()
            before = fetch(rows[: int((fetch(ids) >= 0).any(1).sum())])
            kept = layer(x, topk_ids, topk_weights, all_matrices)
            for to, new in zip((x, topk_ids, topk_weights), make_inputs(rank, N, 10 + seed)):
                to.copy_(new)
            out.fill_(float("nan"))
            graph.replay()
            assert close(out, layer(x, topk_ids, topk_weights, all_matrices), 2e-3), seed
            assert torch.equal(fetch(rows[: len(before)]), before), seed
            sums, *_ = buffer.combine(weighted_expert_output(rows, ids, weights, experts), handle)
            assert close(sums, kept, 2e-3), seed
        settle()
        comm.Barrier()
        del graph
        return True

    assert all(with_buffer(8, body, num_nvl_bytes=1 << 20))


def results_stay(buffer, send):
    """Whether the rows of a plain dispatch stay in the heap."""
    rows = send()[0]
    (group,) = buffer.runtime.groups
    return len(rows) > 0 and group.calls.held == 1


@pytest.mark.parametrize("mode", ["thread_local", "global"])
@pytest.mark.parametrize("pairs", [1, 4, 16, 61])
def test_any_number_of_pairs_in_graphs(pairs, mode):
    """New and cached dispatches of normal mode and low-latency pairs, in two graphs. Beside the
    graphs, after them and after captures that failed, plain results stay in the heap."""
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

        def normal(out, cached):
            rows, ids, weights, _, handle, _ = send()
            if cached:
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
        return results_stay(buffer, send)

    assert all(with_buffer(ranks, body, num_nvl_bytes=1 << 20, **low_latency(ranks)))


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
