# SPDX-License-Identifier: Apache-2.0
"""After warmup() or preinitialize=True, first calls create nothing, exchange nothing and touch no
new memory; a warm-up in the background ends before the next call; which sizes a warm-up takes."""

import contextlib
import gc
import io
import os
import resource
import sys
import threading
import types
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from buffer_cases import (
    E,
    H,
    K,
    MOST,
    layout_of,
    make_buffer,
    make_elastic,
    make_inputs,
    masked,
    my_tokens,
    plain_sum,
)
from torch_ranks import add_tests, of_all_ranks, run_checks, seeded

import deep_ep
import shoal
import shoal.ep
from deep_ep.buffers import groups, warmup
from deep_ep.buffers.legacy import normal as normal_mode
from deep_ep.utils import refs

SIZES = {"num_max_tokens_per_rank": MOST, "hidden": H, "num_experts": E, "num_topk": K}


@contextlib.contextmanager
def collectives():
    """The names of collective steps inside the block."""
    names = []

    def noted(owner, name):
        function = getattr(owner, name)

        def call(*arguments, **options):
            names.append(name)
            return function(*arguments, **options)

        return mock.patch.object(owner, name, call)

    with noted(groups.GroupPool, "agree"), noted(groups.NormalGroup, "__init__"):
        yield names


def run_pair(buffer, seed):
    """A pair of Buffer against references."""
    x, topk_idx, weights = make_inputs(my_tokens(), seed=seed)
    layout = layout_of(buffer, topk_idx)
    recv_x, recv_idx, recv_weights, _, handle, _ = buffer.dispatch(
        x,
        topk_idx=topk_idx,
        topk_weights=weights,
        num_worst_tokens=MOST * dist.get_world_size(),
        **layout,
    )
    want, ref_idx, *_ = refs.dispatch(x, topk_idx, weights, MOST, E)
    assert torch.equal(recv_x[: len(want)], want)
    assert torch.equal(recv_idx[: len(want)], ref_idx)
    sums, summed_weights, _ = buffer.combine(recv_x, handle, topk_weights=recv_weights)
    assert torch.equal(sums, plain_sum(x, layout["is_token_in_rank"]))
    assert torch.equal(summed_weights, masked(weights, topk_idx))


def run_elastic_pair(buffer, seed):
    x, topk_idx, weights = make_inputs(my_tokens(), seed=seed)
    recv_x, _, recv_weights, handle, _ = buffer.dispatch(
        x, topk_idx, weights, num_experts=E, do_cpu_sync=False
    )
    want, *_ = refs.dispatch(x, topk_idx, weights, MOST, E)
    assert torch.equal(recv_x[: len(want)], want)
    sums, *_ = buffer.combine(recv_x, handle, topk_weights=recv_weights)
    in_rank = torch.stack(
        [
            (topk_idx // (E // dist.get_world_size()) == rank).any(1)
            for rank in range(dist.get_world_size())
        ],
        dim=1,
    )
    assert torch.equal(sums, plain_sum(x, in_rank))


def check_without_a_warmup_the_first_pair_is_collective(_):
    buffer = make_buffer()
    with collectives() as names:
        run_pair(buffer, 1)
    assert names == ["agree", "__init__"]
    buffer.destroy()


def check_first_pairs(_):
    for buffer in (make_buffer(), make_buffer(**SIZES, preinitialize=True)):
        buffer.warmup(**SIZES)
        assert len(list(buffer.runtime.groups)) == 1
        with collectives() as names:
            run_pair(buffer, 1)
        assert names == []
        buffer.destroy()


def check_the_constructor_prepares(_):
    buffer = make_buffer(**SIZES, preinitialize=True)
    with collectives() as names:
        run_pair(buffer, 2)
    assert names == []
    buffer.destroy()
    elastic = make_elastic(num_experts=E, preinitialize=True)
    with collectives() as names:
        run_elastic_pair(elastic, 2)
    assert names == []
    elastic.destroy()


@contextlib.contextmanager
def created_groups():
    """The groups that rehearsals create, in a heap of the default size."""
    created = []

    class Noted(groups.NormalGroup):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            created.append(self)

    with mock.patch.object(warmup, "NormalGroup", Noted), mock.patch.dict(os.environ):
        os.environ.pop("SHOAL_SYMMETRIC_SIZE", None)
        yield created


def has_closed(created):
    for group in created:
        with pytest.raises(shoal.errors.ClosedError):
            group.group.synchronize()
    return True


def check_a_rehearsal_with_unknown_sizes(_):
    """Constructors on GPUs run pairs in a group of about that many bytes, which is closed."""
    buffer = make_buffer()
    with created_groups() as created:
        warmup.rehearse(buffer, 3 << 20)
        assert created[0].max_tokens == (3 << 20) // (2 * 4 * 1024 * 2)
        warmup.rehearse(buffer, 0)
        assert created[1].max_tokens == 16
        os.environ["SHOAL_SYMMETRIC_SIZE"] = "1G"
        warmup.rehearse(buffer, 3 << 20)
        assert created[2].max_tokens == 16
    assert list(buffer.runtime.groups) == [] and has_closed(created)
    with collectives() as names:
        run_pair(buffer, 7)
    assert names == ["agree", "__init__"], "no call takes a closed group"
    buffer.destroy()


def check_a_rehearsal_with_known_sizes(_):
    """The group has the memory of the first one that a call needs."""
    buffer = make_elastic()
    with created_groups() as created:
        warmup.rehearse(buffer, 0, warmup.Known(MOST, H, K))
        shape = created[0].shape
        assert (shape.hidden, shape.top_k, created[0].max_tokens) == (H, K, MOST)
        assert shape.experts >= E
        warmup.rehearse(buffer, 0, warmup.Known(MOST, 1 << 40, K))  # refused: sizes are unknown
        assert len(created) == 2 and created[1].max_tokens == 16
        warmup.rehearse(buffer, 0, warmup.Known(MOST, H + 4, K))
        assert created[2].shape.hidden != H + 4
        warmup.rehearse(buffer, 0, warmup.Known(MOST, H, 0))  # as HybridEPBuffer
        assert created[3].shape.hidden == H and created[3].max_tokens == MOST
    assert list(buffer.runtime.groups) == [] and has_closed(created)
    run_elastic_pair(buffer, 8)
    buffer.destroy()


def check_a_rehearsal_makes_two_pairs(_):
    """The first pair takes the group, as first calls do; in Buffer it counts its layout without
    one. The second pair has the group."""
    buffer = make_buffer()
    with (
        mock.patch.object(buffer, "dispatch", wraps=buffer.dispatch) as dispatch,
        mock.patch.object(normal_mode, "count_tokens", wraps=normal_mode.count_tokens) as counted,
    ):
        warmup.rehearse(buffer, 0)
    assert dispatch.call_count == 2 and counted.call_count == 1
    buffer.destroy()
    buffer = make_elastic()
    with mock.patch.object(buffer, "dispatch", wraps=buffer.dispatch) as dispatch:
        warmup.rehearse(buffer, 0)
    assert dispatch.call_count == 2
    buffer.destroy()


def check_when_a_rehearsal_makes_no_pairs(_):
    """Ranks that share a GPU, and a rank on which torch fills new tensors."""
    buffer, rank = make_buffer(), dist.get_rank()
    on_gpu = types.SimpleNamespace(device=torch.device("cuda", 0), team=buffer.runtime.team)
    on_gpu.rank = rank
    for gpu, alone in ((rank, True), (rank // 2, False)):
        uuid = types.SimpleNamespace(bytes=[gpu] * 16)
        properties = types.SimpleNamespace(uuid=uuid)
        with mock.patch.object(torch.cuda, "get_device_properties", lambda _, p=properties: p):
            assert warmup._may_make_pairs(on_gpu) == alone
    assert warmup._may_make_pairs(buffer.runtime)
    torch.use_deterministic_algorithms(rank == 1)
    try:
        assert not warmup._may_make_pairs(buffer.runtime)
        with created_groups() as created:
            with mock.patch.object(buffer, "dispatch", wraps=buffer.dispatch) as dispatch:
                warmup.rehearse(buffer, 0)
        assert dispatch.call_count == 0 and has_closed(created)
    finally:
        torch.use_deterministic_algorithms(False)
    buffer.destroy()


def check_default_dtypes_do_not_matter(_):
    """Constructors run while a program builds a model in bfloat16."""
    for buffer in (make_buffer(), make_elastic()):
        torch.set_default_dtype(torch.bfloat16)
        try:
            warmup.rehearse(buffer, 0)
            buffer.warmup(**SIZES)
        finally:
            torch.set_default_dtype(torch.float32)
        buffer.destroy()


def check_elastic_warmup(_):
    buffer = make_elastic()
    buffer.warmup(E)
    with collectives() as names:
        run_elastic_pair(buffer, 3)
    assert names == []
    buffer.warmup(E, do_expand=True)
    x, topk_idx, weights = make_inputs(my_tokens(), seed=3)
    with collectives() as names:
        buffer.dispatch(x, topk_idx, weights, num_experts=E, do_expand=True)
    assert names == []
    buffer.destroy()


def check_in_the_background(_):
    """The call returns before the work is done; the next one waits for it."""
    for buffer, call, arguments in (
        (make_buffer(), run_pair, SIZES),
        (make_elastic(), run_elastic_pair, {"num_experts": E}),
    ):
        may_run, agree = threading.Event(), groups.GroupPool.agree

        def held(*values):
            assert may_run.wait(30)
            return agree(*values)

        with mock.patch.object(groups.GroupPool, "agree", held):
            buffer.warmup(**arguments, background=True)
            preparation = buffer.runtime.preparation
            assert preparation is not None and not preparation.is_here()
            may_run.set()
            call(buffer, 4)
        assert buffer.runtime.preparation is None
        with collectives() as names:
            call(buffer, 5)
        assert names == []
        buffer.warmup(**arguments, background=True)
        buffer.destroy()  # waits too


def check_errors(_):
    buffer = make_buffer()
    for name, value in (
        ("num_max_tokens_per_rank", -1),
        ("hidden", 12),
        ("num_experts", -1),
        ("num_topk", 33),
    ):
        with pytest.raises(RuntimeError, match=f"warmup: {name} is {value}"):
            buffer.warmup(**{**SIZES, name: value})
    with pytest.raises(RuntimeError, match="num_experts is 0"):
        make_elastic(preinitialize=True)
    different = {**SIZES, "hidden": H * (1 + dist.get_rank() % 2)}
    with pytest.raises(RuntimeError, match="ranks differ in what they pass"):
        buffer.warmup(**different)
    buffer.warmup(**different, background=True)
    with pytest.raises(RuntimeError, match="ranks differ in what they pass"):
        buffer.get_comm_stream()
    run_pair(buffer, 6)
    buffer.destroy()


def check_generated_tokens(_):
    """They load all experts evenly, and go to as many ranks as they can."""
    for ranks, tokens, experts, top_k in ((4, 6, 8, 3), (2, 5, 16, 8), (4, 7, 4, 4)):
        sizes = warmup.Sizes(ranks, tokens, 128, experts, top_k)
        x, topk_idx, weights = sizes.inputs(torch.device("cpu"))
        assert x.shape == (tokens, 128) and weights.shape == topk_idx.shape == (tokens, top_k)
        for row in topk_idx.tolist():
            assert len(set(row)) == top_k
            assert len({one // (experts // ranks) for one in row}) == min(ranks, top_k)
        counts = torch.bincount(topk_idx.flatten(), minlength=experts)
        assert counts.max() - counts.min() <= 1


def process_counts():
    """Memory of this process as the kernel counts it."""
    with open("/proc/self/maps") as file:
        libraries = {line.split(maxsplit=5)[5] for line in file if ".so" in line}
    shared, is_shared = 0, False
    with open("/proc/self/smaps") as file:
        for line in file:
            if "-" in line.split(maxsplit=1)[0]:
                is_shared = "/memfd:shoal-heap" in line
            elif is_shared and line.startswith("Rss:"):
                shared += int(line.split()[1])
    return {
        "libraries": len(libraries),
        "modules": len(sys.modules),
        "threads": len(os.listdir("/proc/self/task")),
        "files and connections": len(os.listdir("/proc/self/fd")),
        "KiB of the heap": shared,
    }


def faults_of(call):
    """Page faults of this thread in a call."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


# Large enough that a first pair without a warm-up touches hundreds of pages more.
LARGE = {"num_max_tokens_per_rank": 64, "hidden": 4096, "num_experts": 16, "num_topk": 4}
# Page faults of a later pair: code and objects of Python, and two arrays of sums, which the C
# library may place anew.
_FEW_FAULTS = 64 + 2 * 128


def large_inputs(experts=LARGE["num_experts"]):
    """Tokens of which some ranks and experts get more than others."""
    generator = seeded(dist.get_rank())
    tokens, top_k = LARGE["num_max_tokens_per_rank"], LARGE["num_topk"]
    scores = torch.rand((tokens, experts), generator=generator) * torch.arange(1, experts + 1)
    x = torch.randn((tokens, LARGE["hidden"]), generator=generator).bfloat16()
    return x, scores.topk(top_k, dim=1).indices, torch.ones(tokens, top_k)


def normal_calls(buffer):
    """A pair of Buffer in each form."""
    x, topk_idx, weights = large_inputs()
    y = torch.ones(LARGE["num_max_tokens_per_rank"] * dist.get_world_size(), LARGE["hidden"])
    y = y.bfloat16()
    for rows in warmup.forms_of(x):
        for worst in (0, len(y)):

            def pair(rows=rows, worst=worst):
                per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, 16)
                layout = (per_rank, None, in_rank, per_expert)
                got, _, gates, _, handle, _ = buffer.dispatch(
                    rows, None, *layout, topk_idx, weights, num_worst_tokens=worst
                )
                count = len(got[0] if isinstance(got, tuple) else got)
                buffer.combine(y[:count], handle, topk_weights=gates)

            yield pair


def elastic_calls(buffer):
    x, topk_idx, weights = large_inputs()
    y = torch.ones(LARGE["num_max_tokens_per_rank"] * dist.get_world_size(), LARGE["hidden"])
    y = y.bfloat16()
    for rows in warmup.forms_of(x):
        for sync in (False, True):

            def pair(rows=rows, sync=sync):
                got, _, gates, handle, _ = buffer.dispatch(
                    rows, topk_idx, weights, num_experts=16, do_cpu_sync=sync
                )
                count = len(got[0] if isinstance(got, tuple) else got)
                buffer.combine(y[:count], handle, topk_weights=gates)

            yield pair


def low_latency_calls(buffer):
    x, topk_idx, weights = large_inputs()
    most, hidden = LARGE["num_max_tokens_per_rank"], LARGE["hidden"]
    ranks = dist.get_world_size()
    y = torch.ones(16 // ranks, most * ranks, hidden).bfloat16()
    for form in ({"use_fp8": False}, {"use_fp8": True}, {"round_scale": True, "use_ue8m0": True}):
        for hooks in (False, True):

            def pair(form=form, hooks=hooks):
                _, _, handle, _, hook = buffer.low_latency_dispatch(
                    x, topk_idx, most, 16, return_recv_hook=hooks, **form
                )
                hook() if hooks else None
                *_, hook = buffer.low_latency_combine(
                    y, topk_idx, weights, handle, return_recv_hook=hooks
                )
                hook() if hooks else None

            yield pair


def low_latency_options():
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint
    sizes = (LARGE[name] for name in ("num_max_tokens_per_rank", "hidden", "num_experts"))
    tokens, hidden, experts = sizes
    size = hint(tokens, hidden, dist.get_world_size(), experts)
    return {"num_rdma_bytes": size, "low_latency_mode": True}


def expect_no_first_touch(buffer, calls, rounds=4):
    """The first calls of each form make nothing that later ones find. A pair takes pages for what
    torch allocates, in later pairs too, so its faults are compared with theirs."""
    made = list(calls(buffer))
    for number, pair in enumerate(made):
        before = process_counts()
        first = faults_of(pair)
        after = process_counts()
        later = max(faults_of(pair) for _ in range(rounds))
        assert after == before, (number, before, after)
        assert first <= later + _FEW_FAULTS, (number, first, later)


def check_first_calls_touch_no_new_memory(_):
    """Each way to prepare, for normal mode and for low latency."""
    normal = make_buffer(**LARGE, preinitialize=True)
    expect_no_first_touch(normal, normal_calls)
    normal.destroy()
    elastic = deep_ep.ElasticBuffer(
        dist.group.WORLD, **LARGE, explicitly_destroy=True, preinitialize=True
    )
    expect_no_first_touch(elastic, elastic_calls)
    elastic.destroy()
    both = make_buffer(**LARGE, **low_latency_options(), preinitialize=True)
    expect_no_first_touch(both, low_latency_calls)
    expect_no_first_touch(both, normal_calls)
    both.destroy()
    later = make_buffer(**low_latency_options())
    later.warmup(**LARGE)
    expect_no_first_touch(later, low_latency_calls)
    later.destroy()
    alone = make_buffer(**low_latency_options())
    alone.warmup_low_latency(*LARGE.values())
    expect_no_first_touch(alone, low_latency_calls)
    alone.destroy()


def check_without_a_warmup_first_calls_touch_memory(_):
    """The counts of the check above find it."""
    buffer = make_buffer(**low_latency_options())
    for calls in (low_latency_calls, normal_calls):
        pair, *_ = calls(buffer)
        before = process_counts()["KiB of the heap"]
        pair()
        assert process_counts()["KiB of the heap"] > before + 1024
    buffer.destroy()


def check_low_latency_results_after_a_warmup(_):
    """Also of the first call in each form: halves of the buffers are in step."""
    buffer = make_buffer(**LARGE, **low_latency_options(), preinitialize=True)
    x, topk_idx, weights = large_inputs()
    for form in ({"use_fp8": False}, {"use_fp8": True}) * 3:
        rows, counts, handle, *_ = buffer.low_latency_dispatch(x, topk_idx, 64, 16, **form)
        if form["use_fp8"]:
            codes, scales = rows
            rows = (codes.float() * scales.repeat_interleave(128, dim=2)).bfloat16()
        sums, *_ = buffer.low_latency_combine(rows, topk_idx, weights, handle)
        error = (sums.float() - 4 * x.float()).norm() / (4 * x.float()).norm()
        assert error < 0.05
        assert counts.sum() == sum(
            int((idx // 4 == dist.get_rank()).sum()) for idx in of_all_ranks(topk_idx)
        )
    buffer.destroy()


def check_sizes_of_a_size_hint(_):
    """preinitialize and warmup() alone take the shape of the hint that num_rdma_bytes equals."""
    options = low_latency_options()
    deep_ep.Buffer.get_low_latency_rdma_size_hint(16, 512, dist.get_world_size(), 8)  # a later one
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EP_LOW_LATENCY_TOPK", "4")
        by_environment = make_buffer(**options, preinitialize=True)
    by_argument = make_buffer(**options, num_topk=4)
    by_argument.warmup()
    for buffer in (by_environment, by_argument):
        assert [*buffer._groups._groups] == [(4096, 4, 16, 64)]
        expect_no_first_touch(buffer, low_latency_calls)
        buffer.destroy()


def check_sizes_that_are_not_known(_):
    """One sentence names the four arguments; nothing is created, and there is no warning."""
    names = r"num_max_tokens_per_rank, hidden, num_experts and num_topk"
    hinted = low_latency_options()
    other = {**hinted, "num_rdma_bytes": hinted["num_rdma_bytes"] + 128}
    three = {name: size for name, size in LARGE.items() if name != "hidden"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for options in ({}, hinted, {**other, "num_topk": 4}, {**hinted, **three}):
            with mock.patch.object(shoal.World, "from_torch") as opened:
                with pytest.raises(RuntimeError, match=names) as error:
                    make_buffer(**options, preinitialize=True)
            assert "." not in str(error.value) and not opened.called
        # These raise when the world is open.
        with pytest.raises(RuntimeError, match="hidden is 12"):
            make_buffer(**{**LARGE, "hidden": 12}, preinitialize=True)
        with pytest.raises(RuntimeError, match="num_experts is 0"):
            make_elastic(preinitialize=True)
        del error
        gc.collect()
    assert "WARNING" not in printed.getvalue()
    buffer = make_buffer()
    with pytest.raises(RuntimeError, match=f"warmup needs {names}"):
        buffer.warmup()
    buffer.destroy()


@pytest.mark.parametrize(
    ("ranks", "num_bytes", "taken"),
    [(2, 2 << 30, 224 << 20), (4, 2 << 30, 448 << 20), (8, 640 << 20, 640 << 20)],
)
def test_memory_of_unknown_sizes_grows_with_the_ranks(ranks, num_bytes, taken):
    runtime = types.SimpleNamespace(
        num_ranks=ranks, world=types.SimpleNamespace(pes_per_node=ranks)
    )
    with (
        mock.patch.dict(os.environ),
        mock.patch.object(warmup, "_agreed_group", lambda _, shape, tokens: (shape, tokens)),
    ):
        os.environ.pop("SHOAL_SYMMETRIC_SIZE", None)
        shape, tokens = warmup._first_group(runtime, num_bytes, warmup.UNKNOWN)
    bytes_of_token = 2 * ranks * shape.hidden * 2
    assert taken - bytes_of_token < tokens * bytes_of_token <= taken
    # No more is needed for 4096 tokens of 7168 channels.
    options = {"hidden": 7168, "top_k": 8, "experts": 256, "max_tokens": 4096}
    group = shoal.ep.size_hint(ranks, heap="cuda", live_results=1, **options)
    prepared = shoal.ep.size_hint(
        ranks, heap="cuda", live_results=1, max_tokens=tokens, **shape._asdict()
    )
    assert prepared["total"] >= group["total"] or num_bytes < group["total"]


add_tests(globals(), lambda: run_checks(4, __name__))
