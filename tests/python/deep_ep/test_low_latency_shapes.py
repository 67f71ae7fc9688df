# SPDX-License-Identifier: Apache-2.0
"""Low-latency shapes that exist before the first call, so that a rank may be absent from then on;
and the profiler ranges of low-latency calls on the CPU."""

import os
import tempfile
import time

import pytest
import torch
import torch.distributed as dist
from torch_ranks import add_tests, run_checks, seeded

import deep_ep
import shoal
from deep_ep.buffers.legacy.early_shapes import EarlyShapes
from deep_ep.utils import testing
from deep_ep.utils.math import calc_diff

H, K, E, N = 512, 2, 8, 16


def make_buffer(timeout_ms=None, **options):
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(N, H, dist.get_world_size(), E)
    with pytest.MonkeyPatch.context() as patch:
        if timeout_ms is not None:
            patch.setenv("SHOAL_TIMEOUT_MS", str(timeout_ms))
        return deep_ep.Buffer(
            dist.group.WORLD, 0, size, low_latency_mode=True, explicitly_destroy=True, **options
        )


class Stderr:
    """A context that keeps what the process writes to standard error, in ``text``."""

    def __enter__(self):
        self._file, self._before = tempfile.TemporaryFile("w+"), os.dup(2)
        os.dup2(self._file.fileno(), 2)
        return self

    def __exit__(self, *_):
        os.dup2(self._before, 2)
        os.close(self._before)
        self._file.seek(0)
        self.text = self._file.read()


def make_inputs(top_k=K):
    generator = seeded(dist.get_rank())
    x = torch.randn((N, H), generator=generator).bfloat16()
    topk_idx = torch.rand((N, E), generator=generator).topk(top_k, dim=1).indices
    return x, topk_idx, torch.rand((N, top_k), generator=generator)


def expect_pair(buffer, ranks, top_k=K):
    """A pair sums the rows of the first ``ranks`` ranks, and only these are unmasked."""
    x, topk_idx, weights = make_inputs(top_k)
    start = time.monotonic()
    recv, _, handle, *_ = buffer.low_latency_dispatch(x, topk_idx, N, E, use_fp8=False)
    between = time.monotonic()
    sums, *_ = buffer.low_latency_combine(recv, topk_idx, weights, handle)
    end = time.monotonic()
    reached = topk_idx < E // 4 * ranks
    want = x.float() * (weights * reached).sum(1, keepdim=True)
    status = torch.tensor([0] * ranks + [1] * (4 - ranks), dtype=torch.int32)
    if buffer.enable_shrink:
        buffer.low_latency_query_mask_buffer(status)
    difference, wrong = calc_diff(sums, want), ~torch.isclose(sums.float(), want, 1e-2, 1e-2)
    tokens = wrong.any(1).nonzero().flatten().tolist()
    found = (
        f"rank {dist.get_rank()}: difference {difference:.3g}, wrong tokens {tokens} "
        f"(experts {topk_idx[tokens].tolist()}), mask status {status.tolist()}, "
        f"dispatch {1e3 * (between - start):.1f} ms, combine {1e3 * (end - between):.1f} ms"
    )
    assert difference < 1e-5 and status.tolist() == [0] * ranks + [1] * (4 - ranks), found


def absent_from_the_start(buffer):
    """Rank 3 does nothing; the others finish without it."""
    if dist.get_rank() != 3:
        for _ in range(3):
            expect_pair(buffer, 3)
    dist.barrier()
    buffer.destroy()


def check_sizes_from_the_constructor(_):
    absent_from_the_start(make_buffer(1500, enable_shrink=True, num_topk=K))


def check_sizes_from_the_environment(_):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EP_LOW_LATENCY_TOPK", str(K))
        buffer = make_buffer(1500, enable_shrink=True)
    absent_from_the_start(buffer)


def check_sizes_from_warmup(_):
    buffer = make_buffer(1500, enable_shrink=True)
    buffer.warmup_low_latency(N, H, E, K)
    absent_from_the_start(buffer)


def check_another_top_k_replaces_the_default(_):
    for enable_shrink in (False, True):
        buffer = make_buffer(enable_shrink=enable_shrink)
        groups = buffer._groups._groups
        assert [key[1] for key in groups] == [8]
        expect_pair(buffer, 4)
        assert [key[1] for key in groups] == [K]
        expect_pair(buffer, 4, top_k=3)
        assert [key[1] for key in groups] == [K, 3]
        buffer.destroy()


def check_a_guess_that_does_not_fit_is_dropped(_):
    create = shoal.ep.Group

    def refuse(team, **options):
        if options["top_k"] == 8:
            raise shoal.errors.ExhaustedError("too large for this test")
        return create(team, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shoal.ep, "Group", refuse)
        buffer = make_buffer()
        assert not buffer._groups._groups
        expect_pair(buffer, 4)
        buffer.destroy()
        with pytest.raises(shoal.errors.ExhaustedError):  # the caller's own top-k
            make_buffer(num_topk=8)


def check_another_shape_replaces_that_of_the_hint(_):
    """Calls then have the groups, and so the kernels, that they have without a hint."""
    buffer = make_buffer(num_topk=K)
    groups = buffer._groups._groups
    assert [*groups] == [(H, K, E, N)]
    x, topk_idx, _ = make_inputs()
    buffer.low_latency_dispatch(x[:, :128].contiguous(), topk_idx, N, E, use_fp8=False)
    assert [*groups] == [(128, K, E, N)]
    buffer.destroy()


def check_the_default_top_k_is_kept(_):
    buffer = make_buffer(enable_shrink=True)
    expect_pair(buffer, 4, top_k=8)
    expect_pair(buffer, 4)
    assert [key[1] for key in buffer._groups._groups] == [8, K]
    buffer.destroy()


def check_nothing_is_created_for_sizes_that_are_not_known(_):
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(N, H, 4, E)
    hints = EarlyShapes._hints
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 0:  # one rank knows other sizes
            patch.setattr(EarlyShapes, "_hints", {key: (2 * N, H, E) for key in hints})
        for options in ({"enable_shrink": True}, {"num_topk": K}, {}):
            buffer = deep_ep.Buffer(
                dist.group.WORLD, 0, size, low_latency_mode=True, explicitly_destroy=True, **options
            )
            assert not buffer._groups._groups
            buffer.destroy()


def check_ranks_that_leave_early(_):
    """Ranks destroy their buffers one after another, each while the rest continues without it. No
    call raises."""
    buffer = make_buffer(1500, enable_shrink=True, num_topk=K)
    expect_pair(buffer, 4)
    for here in (3, 2):
        if dist.get_rank() == here:
            with Stderr() as log:
                buffer.destroy()
            assert f"PE {here} has closed its world alone" in log.text, log.text
        elif buffer.runtime is not None:
            expect_pair(buffer, here)
        dist.barrier()  # ranks that also destroy their buffers close the world with this one
    if buffer.runtime is not None:
        buffer.destroy()
    assert buffer.runtime is None


def check_errors_of_warmup(_):
    buffer = make_buffer()
    for sizes, message in (
        ((N, H, E, 0), "num_topk is 0"),
        ((N, H + 1, E, K), "hidden is 513"),
        ((100 * N, H, E, K), "num_rdma_bytes"),
        ((N, H, 0, K), "num_experts is 0"),
    ):
        with pytest.raises(RuntimeError, match=message):
            buffer.warmup_low_latency(*sizes)
    buffer.destroy()


def check_profiler_ranges(_):
    """A profiling program finds dispatch and combine, with hooks as two kernels each."""
    buffer = make_buffer(num_topk=K)
    x, topk_idx, weights = make_inputs()

    def pair(hooks):
        recv, _, handle, _, hook = buffer.low_latency_dispatch(
            x, topk_idx, N, E, use_fp8=False, return_recv_hook=hooks
        )
        if hooks:
            hook()
        *_, hook = buffer.low_latency_combine(
            recv, topk_idx, weights, handle, return_recv_hook=hooks
        )
        if hooks:
            hook()

    for hooks in (False, True):
        times = testing.bench_kineto(lambda: pair(hooks), ("dispatch", "combine"), num_tests=3)
        assert all(0 < time < 1 for time in times)
    halves = testing.bench_kineto(
        lambda: pair(True), ("dispatch", "combine"), num_tests=3, num_kernels_per_period=2
    )
    assert all(0 < half < 1 for pairs in halves for half in pairs)
    buffer.destroy()


def check_an_absent_rank_without_preparation(_):
    """The error says how to prepare; last, because it ends the buffers' worlds."""
    buffer = make_buffer(1500, enable_shrink=True)
    if dist.get_rank() != 3:
        with pytest.raises(shoal.Error) as error:
            expect_pair(buffer, 3)  # the default top-k is another
        notes = getattr(error.value, "__notes__", ["warmup_low_latency"])
        assert "warmup_low_latency" in notes[0]
    dist.barrier()


add_tests(globals(), lambda: run_checks(4, __name__))
