# SPDX-License-Identifier: Apache-2.0
"""The calls of vLLM, SGLang and Megatron-LM, imitated one by one on eight ranks of a gloo group.

The layer is always the same: every token goes to K experts, each a matrix, and the weighted
expert outputs are added. The reference is one process with all experts.
"""

import torch
import torch.distributed as dist
from torch_ranks import add_tests, run_checks, seeded

import deep_ep
from deep_ep import Buffer, ElasticBuffer
from deep_ep.utils.math import calc_diff, per_token_cast_back, per_token_cast_to_fp8

H, K, E, N = 512, 3, 16, 8


def make_inputs(tokens, seed):
    generator = seeded(100 * seed + dist.get_rank())
    x = torch.randn((tokens, H), generator=generator).bfloat16()
    scores = torch.rand((tokens, E), generator=generator)
    topk_weights, topk_ids = scores.softmax(1).topk(K, dim=1)
    return x, topk_ids, topk_weights


def all_experts():
    generator = seeded(7)
    return torch.randn((E, H, H), generator=generator) / H**0.5


def local_experts():
    local = E // dist.get_world_size()
    return all_experts()[dist.get_rank() * local : (dist.get_rank() + 1) * local]


def layer(x, topk_ids, topk_weights, experts):
    """The layer in one process, in float32."""
    out = torch.zeros_like(x, dtype=torch.float32)
    for e, matrix in enumerate(experts):
        weights = (topk_weights * (topk_ids == e)).sum(1)
        tokens = (topk_ids == e).any(1).nonzero()[:, 0]
        out = out.index_add(0, tokens, x[tokens].float() @ matrix * weights[tokens, None])
    return out


def experts_on_rows(rows, ids, weights, experts):
    """Weighted output of the local experts for rank-major rows; other ids are ignored."""
    known = (ids >= 0) & (ids < len(experts))
    return layer(
        rows, ids.masked_fill(~known, -1), weights.masked_fill(~known, 0), experts
    ).bfloat16()


def close(got, want, tolerance=1e-3):
    return got.numel() == 0 or calc_diff(got, want) < tolerance


# vLLM.


@torch.inference_mode()
def check_vllm_high_throughput(_):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cpu_group = dist.new_group(backend="gloo")
    buffer = Buffer(
        group=cpu_group,
        num_nvl_bytes=1 << 20,
        num_rdma_bytes=0,
        low_latency_mode=False,
        num_qps_per_rank=1,
        explicitly_destroy=True,
    )
    Buffer.set_num_sms(20)
    configs = Buffer.get_dispatch_config(ranks), Buffer.get_combine_config(ranks)
    for asynchronous in (False, True):
        x, topk_ids, topk_weights = make_inputs(5 + rank, 1)
        token_data = per_token_cast_to_fp8(x) if asynchronous else x
        previous = Buffer.capture()
        per_rank, per_rdma_rank, per_expert, in_rank, event = buffer.get_dispatch_layout(
            topk_idx=topk_ids,
            num_experts=E,
            previous_event=previous,
            async_finish=False,
            allocate_on_comm_stream=False,
        )
        received, ids, weights, counts, handle, event = buffer.dispatch(
            x=token_data,
            handle=None,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=topk_ids,
            topk_weights=topk_weights,
            expert_alignment=1,
            config=configs[0],
            previous_event=previous,
            async_finish=asynchronous,
            allocate_on_comm_stream=False,
        )
        if event.event is not None:
            event.current_stream_wait()
        assert (event.event is not None) == asynchronous
        rows = per_token_cast_back(*received) if asynchronous else received
        # vLLM passes global expert numbers; -1 becomes an expert of another rank.
        first = rank * (E // ranks)
        other = E - 1 if first == 0 else 0
        ids = torch.where(ids == -1, other, ids + first)
        assert sum(counts) == ((ids >= first) & (ids < first + E // ranks)).sum()
        expert_output = experts_on_rows(rows, ids - first, weights, local_experts())
        combined, _, event = buffer.combine(
            x=expert_output,
            handle=handle,
            topk_weights=None,
            config=configs[1],
            previous_event=Buffer.capture(),
            async_finish=asynchronous,
            allocate_on_comm_stream=False,
        )
        if event.event is not None:
            event.current_stream_wait()
        assert close(combined, layer(x, topk_ids, topk_weights, all_experts()))
    buffer.destroy()


@torch.inference_mode()
def check_vllm_low_latency(_):
    ranks = dist.get_world_size()
    size = Buffer.get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank=N, hidden=H, num_ranks=ranks, num_experts=E
    )
    buffer = Buffer(
        group=dist.new_group(backend="gloo"),
        num_nvl_bytes=1 << 20,
        num_rdma_bytes=size,
        low_latency_mode=True,
        num_qps_per_rank=E // ranks,
        explicitly_destroy=True,
        allow_nvlink_for_low_latency_mode=True,
        allow_mnnvl=False,
        enable_shrink=True,
    )
    handles = [None, None]
    inputs = [make_inputs(1 + (dist.get_rank() + batch) % N, 2 + batch) for batch in range(2)]
    for use_fp8 in (False, True):
        received = []
        # Two micro-batches: both send before one receives.
        for batch, (x, topk_ids, _) in enumerate(inputs):
            recv, count, handles[batch], _, hook = buffer.low_latency_dispatch(
                x,
                topk_ids,
                N,
                E,
                use_fp8=use_fp8,
                round_scale=False,
                use_ue8m0=False,
                async_finish=False,
                return_recv_hook=True,
            )
            received.append((recv, count, hook))
        for batch, (x, topk_ids, topk_weights) in enumerate(inputs):
            recv, count, hook = received[batch]
            hook()
            rows = (
                per_token_cast_back(recv[0].flatten(0, 1), recv[1].flatten(0, 1)).view(
                    recv[0].shape
                )
                if use_fp8
                else recv
            )
            expert_output = torch.zeros(rows.shape, dtype=torch.bfloat16)
            for e, matrix in enumerate(local_experts()):
                expert_output[e, : count[e]] = (rows[e, : count[e]].float() @ matrix).bfloat16()
            output = torch.empty_like(x)
            _, _, hook = buffer.low_latency_combine(
                expert_output,
                topk_ids,
                topk_weights,
                handles[batch],
                async_finish=False,
                zero_copy=False,
                return_recv_hook=True,
                out=output,
            )
            hook()
            assert close(output, layer(x, topk_ids, topk_weights, all_experts()))
    status = torch.ones(ranks, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    assert status.sum() == 0
    buffer.low_latency_clean_mask_buffer()
    assert buffer.get_local_buffer_tensor(dtype=torch.int8, use_rdma_buffer=True).numel() == size
    buffer.destroy()


@torch.inference_mode()
def check_vllm_v2(_):
    ranks = dist.get_world_size()
    buffer = ElasticBuffer(
        group=dist.group.WORLD,
        num_max_tokens_per_rank=16,
        hidden=H,
        num_topk=K,
        use_fp8_dispatch=True,
        allow_hybrid_mode=False,
        prefer_overlap_with_compute=True,
        allow_multiple_reduction=True,
        num_cpu_timeout_secs=1800,
        num_gpu_timeout_secs=1800,
        explicitly_destroy=True,
    )
    buffer.get_theoretical_num_sms(num_experts=E, num_topk=K)
    x, topk_ids, topk_weights = make_inputs(9, 4)
    want = layer(x, topk_ids, topk_weights, all_experts())
    for expand, sync in ((False, True), (False, False), (True, True)):
        received, ids, weights, handle, event = buffer.dispatch(
            x=x,
            topk_idx=topk_ids,
            topk_weights=topk_weights,
            num_experts=E,
            num_max_tokens_per_rank=16,
            do_expand=expand,
            do_cpu_sync=sync,
            async_with_compute_stream=False,
        )
        if expand:
            counts, expert_output = (
                handle.num_recv_tokens_per_expert_list,
                torch.zeros_like(received),
            )
            start = 0
            for count, matrix in zip(counts, local_experts()):
                block = slice(start, start + count)
                expert_output[block] = (
                    received[block].float() @ matrix * weights[block, None]
                ).bfloat16()
                start += count
            assert len(counts) == E // ranks and start == len(received)
        else:
            rows = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1])
            ids[rows:] = -1  # vLLM masks the rows after the received ones
            expert_output = torch.zeros_like(received)
            expert_output[:rows] = experts_on_rows(
                received[:rows], ids[:rows], weights[:rows], local_experts()
            )
        combined, _, event = buffer.combine(
            x=expert_output,
            handle=handle,
            topk_weights=None,
            async_with_compute_stream=False,
            allocate_on_comm_stream=False,
        )
        assert close(combined, want)
    buffer.destroy()


# SGLang.


@torch.inference_mode()
def check_sglang_one_buffer_for_both_modes(_):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    nvl, rdma = 0, Buffer.get_low_latency_rdma_size_hint(N, H, ranks, E)
    from_file = deep_ep.Config(
        **{
            "num_sms": 24,
            "num_max_nvl_chunked_send_tokens": 8,
            "num_max_nvl_chunked_recv_tokens": 256,
        }
    )
    for config in (from_file, Buffer.get_dispatch_config(ranks), Buffer.get_combine_config(ranks)):
        nvl = max(nvl, config.get_nvl_buffer_size_hint(2 * H, ranks))
        rdma = max(rdma, config.get_rdma_buffer_size_hint(2 * H, ranks))
    buffer = Buffer(
        dist.group.WORLD,
        nvl,
        rdma,
        low_latency_mode=True,
        num_qps_per_rank=max(Buffer.num_sms, E // ranks),
        allow_mnnvl=True,
    )
    assert buffer.low_latency_mode and buffer.group_size == ranks
    for turn in range(2):
        # One rank has no tokens.
        x, topk_ids, topk_weights = make_inputs((4 + 3 * rank) % N, 10 + turn)
        quantized = per_token_cast_to_fp8(x)
        previous = Buffer.capture()  # of all that the two calls read
        per_rank, per_rdma_rank, per_expert, in_rank, previous = buffer.get_dispatch_layout(
            topk_ids,
            E,
            previous_event=previous,
            async_finish=True,
            allocate_on_comm_stream=previous is not None,
        )
        received, ids, weights, counts, handle, event = buffer.dispatch(
            quantized,
            topk_idx=topk_ids,
            topk_weights=topk_weights,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            previous_event=previous,
            async_finish=True,
            allocate_on_comm_stream=True,
            expert_alignment=128,
            config=from_file,
        )
        event.current_stream_wait()
        assert all(count % 128 == 0 for count in counts)
        expert_output = experts_on_rows(
            per_token_cast_back(*received), ids, weights, local_experts()
        )
        combined, _, event = buffer.combine(
            expert_output,
            handle,
            async_finish=True,
            previous_event=Buffer.capture(),
            allocate_on_comm_stream=True,
            config=from_file,
        )
        event.current_stream_wait()
        want = layer(x, topk_ids, topk_weights, all_experts())
        assert close(combined, want)

        buffer.clean_low_latency_buffer(N, H, E)
        recv, count, handle, event, hook = buffer.low_latency_dispatch(
            x,
            topk_ids,
            N,
            E,
            use_fp8=True,
            round_scale=True,
            use_ue8m0=True,
            async_finish=False,
            return_recv_hook=True,
        )
        hook()
        expert_output = torch.zeros(recv[0].shape, dtype=torch.bfloat16)
        for e, matrix in enumerate(local_experts()):
            n = int(count[e])
            exponents = (
                recv[1][e, :n]
                .clone(memory_format=torch.contiguous_format)
                .view(-1, 1)
                .view(torch.uint8)
            )
            scales = (exponents[:, : H // 128].int() << 23).view(torch.float32)
            expert_output[e, :n] = (
                per_token_cast_back(recv[0][e, :n], scales).float() @ matrix
            ).bfloat16()
        combined, event, hook = buffer.low_latency_combine(
            x=expert_output,
            topk_idx=topk_ids,
            topk_weights=topk_weights,
            handle=handle,
            async_finish=True,
            return_recv_hook=False,
        )
        event.current_stream_wait()
        assert close(combined, want, 2e-3)


@torch.inference_mode()
def check_sglang_v2(_):
    """Prefill in rank-major form, decode in expert-major form, with sizes and numbers of SMs and
    queue pairs passed along."""
    buffer = ElasticBuffer(
        dist.group.WORLD,
        num_max_tokens_per_rank=16,
        hidden=H,
        num_topk=K,
        use_fp8_dispatch=True,
        allow_hybrid_mode=True,
        sl_idx=0,
        prefer_overlap_with_compute=False,
    )
    num_sms = buffer.get_theoretical_num_sms(E, K)
    num_qps = buffer.get_theoretical_num_qps(num_sms)
    x, topk_ids, topk_weights = make_inputs(max(1, dist.get_rank()), 20)
    want = layer(x, topk_ids, topk_weights, all_experts())
    common = {"num_sms": num_sms, "num_qps": num_qps, "async_with_compute_stream": True}
    for expand in (False, True):
        received, ids, weights, handle, event = buffer.dispatch(
            per_token_cast_to_fp8(x),
            topk_idx=topk_ids,
            topk_weights=topk_weights,
            num_experts=E,
            num_max_tokens_per_rank=16,
            expert_alignment=128 if expand else 1,
            do_cpu_sync=not expand,
            do_expand=expand,
            use_tma_aligned_col_major_sf=True,
            **common,
        )
        event.current_stream_wait()
        rows = per_token_cast_back(*received)
        if expand:
            expert_output = torch.zeros(rows.shape, dtype=torch.bfloat16)
            for e, end in enumerate(handle.psum_num_recv_tokens_per_expert.tolist()):
                block = slice(end - int(handle.num_unaligned_recv_tokens_per_expert[e]), end)
                assert block.start % 128 == 0
                expert_output[block] = (
                    rows[block].float() @ local_experts()[e] * weights[block, None]
                ).bfloat16()
        else:
            expert_output = experts_on_rows(rows, ids, weights, local_experts())
        combined, _, event = buffer.combine(expert_output, handle, **common)
        event.current_stream_wait()
        assert close(combined, want)


# Megatron-LM.


def megatron_functions(buffer):
    """Dispatch and combine as autograd functions; each is the backward of the other."""
    from deep_ep.utils import EventHandle, EventOverlap

    class FusedDispatch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, token_indices, token_probs, num_experts, asynchronous):
            previous = EventOverlap(EventHandle()) if asynchronous else None
            options = {"async_finish": asynchronous, "allocate_on_comm_stream": asynchronous}
            per_rank, per_rdma_rank, per_expert, in_rank, event = buffer.get_dispatch_layout(
                token_indices, num_experts, previous_event=previous, **options
            )
            recv_x, recv_indices, recv_probs, counts, handle, after = buffer.dispatch(
                x,
                topk_idx=token_indices,
                topk_weights=token_probs,
                num_tokens_per_rank=per_rank,
                num_tokens_per_rdma_rank=per_rdma_rank,
                is_token_in_rank=in_rank,
                num_tokens_per_expert=per_expert,
                previous_event=event if asynchronous else None,
                **options,
            )
            if asynchronous:
                after.current_stream_wait()
            ctx.handle, ctx.asynchronous = handle, asynchronous
            return recv_x, recv_indices, recv_probs, torch.tensor(counts), handle

        @staticmethod
        def backward(ctx, grad_x, grad_indices, grad_probs, grad_counts, grad_handle):
            grad_x, grad_weights, after = buffer.combine(
                grad_x.contiguous(),
                ctx.handle,
                topk_weights=grad_probs.float(),
                previous_event=EventOverlap(EventHandle()) if ctx.asynchronous else None,
                async_finish=ctx.asynchronous,
                allocate_on_comm_stream=ctx.asynchronous,
            )
            if ctx.asynchronous:
                after.current_stream_wait()
            return grad_x, None, grad_weights, None, None

    class FusedCombine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, handle, asynchronous):
            combined, _, after = buffer.combine(
                x,
                handle=handle,
                async_finish=asynchronous,
                previous_event=EventOverlap(EventHandle()) if asynchronous else None,
                allocate_on_comm_stream=asynchronous,
            )
            if asynchronous:
                after.current_stream_wait()
            ctx.handle, ctx.asynchronous = handle, asynchronous
            return combined

        @staticmethod
        def backward(ctx, grad):
            grad_x, _, _, _, _, after = buffer.dispatch(
                grad.contiguous(),
                handle=ctx.handle,
                previous_event=EventOverlap(EventHandle()) if ctx.asynchronous else None,
                async_finish=ctx.asynchronous,
                allocate_on_comm_stream=ctx.asynchronous,
            )
            if ctx.asynchronous:
                after.current_stream_wait()
            return grad_x, None, None

    return FusedDispatch.apply, FusedCombine.apply


def check_megatron_training_step(_):
    """Two layers forward, then backward: gradients of inputs, gate weights and experts."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    nvl = rdma = 0
    for config in (Buffer.get_dispatch_config(ranks), Buffer.get_combine_config(ranks)):
        nvl = max(nvl, config.get_nvl_buffer_size_hint(2 * H, ranks))
        rdma = max(rdma, config.get_rdma_buffer_size_hint(2 * H, ranks))
    buffer = Buffer(dist.group.WORLD, nvl, rdma)
    Buffer.set_num_sms(24)
    dispatch, combine = megatron_functions(buffer)
    for asynchronous in (False, True):
        inputs = [make_inputs(6 + rank % 3, 30 + part) for part in range(2)]
        weight = torch.randn(H, generator=seeded(1))
        # With Megatron's calls.
        experts = local_experts().requires_grad_()
        x = inputs[0][0].clone().requires_grad_()
        probs = [topk_weights.clone().requires_grad_() for _, _, topk_weights in inputs]
        hidden = x
        for (_, topk_ids, _), prob in zip(inputs, probs):
            topk_ids = topk_ids[: len(x)]
            rows, ids, row_probs, counts, handle = dispatch(
                hidden, topk_ids, prob[: len(x)].float(), E, asynchronous
            )
            assert counts.tolist() == [int((ids == e).sum()) for e in range(E // ranks)]
            hidden = combine(experts_on_rows(rows, ids, row_probs, experts), handle, asynchronous)
        (hidden.float() @ weight).sum().backward()
        # In one process.
        whole = all_experts().requires_grad_()
        alone = inputs[0][0].clone().requires_grad_()
        alone_probs = [topk_weights.clone().requires_grad_() for _, _, topk_weights in inputs]
        out = alone
        for (_, topk_ids, _), prob in zip(inputs, alone_probs):
            out = layer(out, topk_ids[: len(x)], prob[: len(x)], whole).bfloat16()
        (out.float() @ weight).sum().backward()
        dist.all_reduce(whole.grad)

        local = E // ranks
        assert close(hidden, out) and close(x.grad, alone.grad, 2e-3)
        assert all(close(one.grad, other.grad, 2e-3) for one, other in zip(probs, alone_probs))
        assert close(experts.grad, whole.grad[rank * local : (rank + 1) * local], 2e-3)


add_tests(globals(), lambda: run_checks(8, __name__))
