# SPDX-License-Identifier: Apache-2.0
"""Low-latency options of DeepEP's branches: NVFP4 results, weights of received rows, and the
overlap of a combine with the GEMM that writes its input."""

import contextlib
import threading
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch_ranks import add_tests, of_all_ranks, run_checks, seeded

import deep_ep
from deep_ep.utils.math import calc_diff

H, K, E, N = 512, 3, 8, 40
_shared = []


def make_buffer(timeout_ms=None):
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(N, H, dist.get_world_size(), E)
    with pytest.MonkeyPatch.context() as patch:
        if timeout_ms is not None:
            patch.setenv("SHOAL_TIMEOUT_MS", str(timeout_ms))
        return deep_ep.Buffer(
            dist.group.WORLD,
            num_rdma_bytes=size,
            low_latency_mode=True,
            explicitly_destroy=True,
            use_fabric=True,
            num_topk=K,
        )


def the_buffer():
    if not _shared:
        _shared.append(make_buffer())
    return _shared[0]


def make_inputs():
    generator = seeded(dist.get_rank())
    x = torch.randn((N, H), generator=generator).bfloat16()
    topk_idx = torch.rand((N, E), generator=generator).topk(K, dim=1).indices
    return x, topk_idx, torch.rand((N, K), generator=generator)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def reference(x, global_scale):
    """(codes [rows, H], scales [rows, H / 16]) by a search for the nearest value."""
    groups = x.float().cpu().numpy().reshape(len(x), -1, 16).astype(np.float64)
    scales = np.abs(groups).max(-1) / 6 * global_scale
    scales = torch.from_numpy(scales).float().to(torch.float8_e4m3fn)
    factor = scales.double().numpy()[..., None] / global_scale
    scaled = np.divide(groups, factor, out=np.zeros_like(groups), where=factor > 0)
    distance = np.abs(np.abs(scaled)[..., None] - E2M1)
    # Chooses the value with an even code if two are nearest.
    codes = (distance + 1e-9 * (np.arange(8) % 2)).argmin(-1)
    codes = codes | (np.signbit(scaled) << 3)
    return codes.reshape(len(x), -1), scales


def unswizzled(scales, rows):
    """[experts, rows, H / 16] of the six-dimensional scales, element by element."""
    tiles = scales.float().cpu().numpy()
    lanes, quarters, _, columns, _, experts = tiles.shape
    assert (lanes, quarters, columns) == (32, 4, 4)
    result = np.zeros((experts, rows, H // 16), np.float32)
    for row in range(rows):
        for group in range(H // 16):
            tile, inside = divmod(row, 128)
            result[:, row, group] = tiles[inside % 32, inside // 32, tile, group % 4, group // 4, :]
    return result


def dequantized(values, scales, global_scale):
    """bfloat16 [experts, rows, H] of an NVFP4 result."""
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=values.device, dtype=torch.float32)
    table = torch.cat((table, -table))
    packed = values.permute(2, 0, 1).contiguous()
    experts, rows, half = packed.shape
    codes = torch.stack((packed & 15, packed >> 4), -1).view(experts, rows, 2 * half)
    factor = torch.from_numpy(unswizzled(scales, rows)).to(values.device)
    factor = factor / (1.0 if global_scale is None else global_scale)
    return (table[codes.int()] * factor.repeat_interleave(16, -1)).bfloat16()


def check_nvfp4(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs()
    x[0, :16] = 0
    plain, plain_count, *_ = buffer.low_latency_dispatch(x, topk_idx, N, E, use_fp8=False)
    plain = plain.clone()
    for hooks in (False, True):
        for asynchronous in {False, not hooks}:
            for scale in (None, torch.tensor(448 * 6 / 5.0)):
                (values, scales), count, handle, event, hook = buffer.low_latency_dispatch(
                    x,
                    topk_idx,
                    N,
                    E,
                    use_fp8=False,
                    use_nvfp4=True,
                    x_global_scale=scale,
                    return_recv_hook=hooks,
                    async_finish=asynchronous,
                )
                if hooks:
                    hook()
                elif asynchronous:
                    event.current_stream_wait()
                verify_nvfp4(values, scales, plain, count, scale)
                assert torch.equal(count, plain_count)
                y = dequantized(values, scales, scale)
                sums, *_ = buffer.low_latency_combine(y, topk_idx, weights, handle)
                assert calc_diff(sums, x.float() * weights.sum(1, keepdim=True)) < 2e-2


def verify_nvfp4(values, scales, plain, count, scale):
    rows = 4 * N
    assert values.shape == (rows, H // 2, E // 4) and values.dtype == torch.uint8
    assert scales.shape == (32, 4, -(-rows // 128), 4, H // 64, E // 4)
    assert scales.dtype == torch.float8_e4m3fn
    assert values.permute(2, 0, 1).is_contiguous()
    assert scales.permute(5, 2, 4, 0, 1, 3).is_contiguous()
    flat = unswizzled(scales, rows)
    for expert, received in enumerate(count.tolist()):
        codes, want = reference(plain[expert, :received], 1.0 if scale is None else scale.item())
        packed = values[:received, :, expert].cpu().numpy()
        assert np.array_equal(flat[expert, :received], want.float().numpy())
        got = np.stack((packed & 15, packed >> 4), -1).reshape(received, H)
        assert (got == codes).mean() > 0.999  # float32 against float64 at midpoints
        back = dequantized(values, scales, scale)[expert, :received]
        assert received == 0 or calc_diff(back, plain[expert, :received]) < 2e-2


def check_element_0_of_the_global_scales_counts(_):
    """Callers pass one scale per local expert, in any layout."""
    buffer = the_buffer()
    x, topk_idx, _ = make_inputs()
    plain, *_ = buffer.low_latency_dispatch(x, topk_idx, N, E, use_fp8=False)
    plain = plain.clone()
    first = torch.tensor(400.0)
    of_experts = torch.full((E // 4,), torch.nan)
    of_experts[0] = first
    strided = torch.full((3, E), torch.nan)[:, ::2]
    strided[0, 0] = first
    for scale in (of_experts, strided, first.view(1)):
        (values, scales), count, *_ = buffer.low_latency_dispatch(
            x, topk_idx, N, E, use_fp8=False, use_nvfp4=True, x_global_scale=scale
        )
        verify_nvfp4(values, scales, plain, count, first)


def verify_weights(received, topk_idx, weights):
    """The rows of each expert: the weight that its source has for this expert."""
    _, count, row_weights, row_ranks, handle, *_ = received
    of_ranks, first = of_all_ranks((topk_idx, weights)), dist.get_rank() * (E // 4)
    shape = (E // 4, 4 * N)
    assert row_weights.dtype == torch.float32 and row_weights.shape == shape
    assert row_ranks.dtype == torch.int32 and row_ranks.shape == shape
    for expert, rows in enumerate(count.tolist()):
        chosen = [(indices == first + expert).nonzero() for indices, _ in of_ranks]
        want = torch.cat([of[where[:, 0], where[:, 1]] for where, (_, of) in zip(chosen, of_ranks)])
        assert torch.equal(row_weights[expert, :rows].cpu(), want.cpu())
        ranks = [rank for rank, where in enumerate(chosen) for _ in where]
        assert row_ranks[expert, :rows].tolist() == ranks
        tokens = torch.cat([where[:, 0] for where in chosen])
        assert torch.equal(handle[0][expert, :rows].cpu().long(), tokens.cpu())


def check_weights_of_rows(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs()
    topk_idx[::3, 1] = -1
    for options in (
        {"use_fp8": False},
        {},
        {"use_fp8": False, "use_nvfp4": True},
        {"async_finish": True},
        {"return_recv_hook": True},
        {"return_recv_hook": True, "use_fp8": False},
    ):
        for _ in range(3):  # both halves, and the fast path
            received = buffer.low_latency_dispatch(
                x, topk_idx, N, E, topk_weights=weights, **options
            )
            assert len(received) == 7
            recv, _, _, _, handle, event, hook = received
            if options.get("return_recv_hook"):
                hook()
            elif options.get("async_finish"):
                event.current_stream_wait()
            verify_weights(received, topk_idx, weights)
            if options == {"use_fp8": False}:
                sums, *_ = buffer.low_latency_combine(recv, topk_idx, weights, handle)
                want = x.float() * weights.masked_fill(topk_idx < 0, 0).sum(1, keepdim=True)
                assert calc_diff(sums, want) < 1e-5


def check_errors_of_weights(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs()
    for options, message in (
        ({"topk_weights": weights[:, 1:]}, "topk_weights"),
        ({"topk_weights": weights.double()}, "topk_weights"),
        ({"use_ue8m0_for_sf": True}, "use_ue8m0_for_sf=True; allowed: False"),
    ):
        with pytest.raises(RuntimeError, match=message):
            buffer.low_latency_dispatch(x, topk_idx, N, E, **options)


def check_errors_of_nvfp4(_):
    buffer = the_buffer()
    x, topk_idx, _ = make_inputs()
    for options, message in (
        ({}, "needs use_fp8=False"),
        ({"use_fp8": False, "x_global_scale": 3.0}, "x_global_scale is float"),
        ({"use_fp8": False, "x_global_scale": torch.ones(0)}, "at least one element"),
        ({"use_fp8": False, "x_global_scale": torch.ones(2).double()}, "float64.*allowed: float32"),
    ):
        with pytest.raises(RuntimeError, match=message):
            buffer.low_latency_dispatch(x, topk_idx, N, E, use_nvfp4=True, **options)


def in_parts(y, x, order, signal):
    """A thread that writes x to y in blocks, each followed by its signal; on a GPU on a stream of
    its own."""
    on_stream = contextlib.nullcontext()
    if y.is_cuda:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        on_stream = torch.cuda.stream(stream)

    def write():
        with on_stream:
            for block in order:
                time.sleep(0.005)
                y[block] = x[block]
                signal(block)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def check_a_combine_waits_for_the_signals_of_blocks(_):
    """The expert output is complete only when the last block has its signal. Callers allocate for
    the smallest blocks, and pass the size of the blocks that their GEMM chose."""
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs()
    allocated_for, threshold = 16, 3
    length = E // 4 * -(-4 * N // allocated_for)
    for block_m, hooks in ((16, False), (16, True), (64, False), (128, True), (48, False)):
        per_expert = -(-4 * N // block_m)
        recv, count, handle, *_ = buffer.low_latency_dispatch(x, topk_idx, N, E, use_fp8=False)
        y, signals = torch.zeros_like(recv), torch.zeros(length, dtype=torch.int32)
        blocks = []
        for expert, rows in enumerate(count.tolist()):
            for first in range(0, rows, block_m):
                blocks.append((expert, slice(first, first + block_m)))

        def signal(block, signals=signals, per_expert=per_expert, block_m=block_m):
            expert, rows = block
            for _ in range(threshold):
                signals[expert * per_expert + rows.start // block_m] += 1

        writer = in_parts(y, recv, blocks, signal)
        sums, _, hook = buffer.low_latency_combine(
            y,
            topk_idx,
            weights,
            handle,
            overlap=True,
            packed_recv_count=count,
            comp_signal=signals,
            block_m=block_m,
            threshold=threshold,
            num_sms=3,
            return_recv_hook=hooks,
        )
        if hooks:
            hook()
        writer.join()
        assert calc_diff(sums, x.float() * weights.sum(1, keepdim=True)) < 1e-5


def check_a_combine_waits_for_the_signals_of_experts(_):
    buffer = the_buffer()
    x, topk_idx, weights = make_inputs()
    for dtype in (torch.int32, torch.uint32):
        recv, _, handle, *_ = buffer.low_latency_dispatch(x, topk_idx, N, E, use_fp8=False)
        y, signals = torch.zeros_like(recv), torch.zeros(E // 4, dtype=dtype)

        def signal(expert, signals=signals):
            signals.view(torch.int32)[expert] += 5

        writer = in_parts(y, recv, range(E // 4), signal)
        sums, *_ = buffer.low_latency_combine(
            y,
            topk_idx,
            weights,
            handle,
            overlap=True,
            src_signals=signals,
            src_signal_expect_value=5,
        )
        writer.join()
        assert calc_diff(sums, x.float() * weights.sum(1, keepdim=True)) < 1e-5


def check_errors_of_the_overlap(_):
    buffer = make_buffer(timeout_ms=1500)
    x, topk_idx, weights = make_inputs()
    recv, count, handle, *_ = buffer.low_latency_dispatch(x, topk_idx, N, E, use_fp8=False)
    signals = torch.zeros(E // 4 * 3, dtype=torch.int32)
    blocks = {"packed_recv_count": count, "comp_signal": signals, "threshold": 1}
    experts = {"src_signals": torch.zeros(2, dtype=torch.int32), "src_signal_expect_value": 1}

    def fails(error, message, **options):
        with pytest.raises(error, match=message):
            buffer.low_latency_combine(recv, topk_idx, weights, handle, overlap=True, **options)

    fails(RuntimeError, "either comp_signal or src_signals")
    fails(RuntimeError, "either comp_signal or src_signals", **blocks, **experts)
    fails(RuntimeError, "block_m is 0", **{**blocks, "block_m": 0})
    fails(RuntimeError, "threshold 0", **{**blocks, "threshold": 0})
    fails(RuntimeError, "comp_signal has 5 elements", **{**blocks, "comp_signal": signals[:-1]})
    fails(RuntimeError, "comp_signal is", **{**blocks, "comp_signal": signals.view(2, 3)})
    fails(RuntimeError, "packed_recv_count is None", **{**blocks, "packed_recv_count": None})
    fails(RuntimeError, "src_signals is", **{**experts, "src_signals": signals})
    if x.is_cuda:  # a signal that does not come ends the program's work on a GPU
        return
    fails(TimeoutError, "block 0 of local expert 0 is 0 after 1.5 s, expected 1", **blocks)
    fails(TimeoutError, "signal of local expert 0 is 0", **experts)
    sums, *_ = buffer.low_latency_combine(recv, topk_idx, weights, handle, num_sms=4)
    assert calc_diff(sums, x.float() * weights.sum(1, keepdim=True)) < 1e-5
    buffer.destroy()


add_tests(globals(), lambda: run_checks(4, __name__))
