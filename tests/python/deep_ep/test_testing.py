# SPDX-License-Identifier: Apache-2.0
"""Timing helpers: the calls that they make, count and hide."""

import json
import os
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from deep_ep.utils import testing
from deep_ep.utils.event import profiled
from torch.autograd import DeviceType

on_host = pytest.mark.skipif(torch.cuda.is_available(), reason="how things are timed without a GPU")


@on_host
def test_bench_times_the_function_and_nothing_else(monkeypatch):
    calls, now = [], [0]
    monkeypatch.setattr(testing.time, "perf_counter", lambda: now[0])

    def work():
        calls.append("work")
        # The first after two warm-ups is not counted.
        now[0] += {3: 50, 4: 2, 5: 3, 6: 7}.get(calls.count("work"), 100)

    def post():
        calls.append("post")
        now[0] += 20

    assert testing.bench(work, num_warmups=2, num_tests=4, post_fn=post) == (4, 2, 7)
    assert calls == ["work"] * 2 + ["work", "post"] * 4


def test_flush_is_harmless():
    testing.flush_l2_cache()


class Named:
    """A callable that profiles itself under the given names, each 2 ms longer than the previous
    one."""

    def __init__(self, *names):
        self.names, self.calls = names, 0

    def __call__(self):
        self.calls += 1
        for i, name in enumerate(self.names):
            with torch.profiler.record_function(name):
                time.sleep(0.002 * (i + 1))


@on_host
def test_kineto_times_by_name():
    fn = Named("ns::alpha_impl<1>(int)", "ns::beta_impl")
    alpha, beta, missing = testing.bench_kineto(fn, ("alpha_impl", "beta", "gamma"), num_tests=5)
    assert 0.002 <= alpha < beta >= 0.004 and missing == 0
    assert fn.calls == 10  # one round to warm up, one to count
    assert testing.bench_kineto(fn, "alpha_impl", num_tests=2) >= 0.002


@on_host
def test_kineto_refuses_ambiguous_names():
    with pytest.raises(AssertionError, match="several kernels contain 'copy'"):
        testing.bench_kineto(Named("a::copy", "b::copy"), "copy", num_tests=2)


@on_host
def test_kineto_counts_the_two_kernels_of_a_call_as_one():
    fn = Named("ns::dispatch_send_kernel", "ns::dispatch_receive_kernel<1>", "ns::combine_impl")
    dispatch, combine = testing.bench_kineto(fn, ("dispatch", "combine"), num_tests=4)
    assert dispatch >= 0.006 <= combine  # 2 ms and 4 ms; 6 ms


@on_host
def test_kineto_periods():
    send, receive = testing.bench_kineto(
        Named("a::dispatch<0>", "other dispatch", "a::dispatch<1>"),
        "dispatch",
        num_tests=4,
        num_kernels_per_period=2,
    )
    assert 0.002 <= send < receive >= 0.006
    with pytest.raises(
        AssertionError, match="8 kernels contain '::dispatch', no multiple of the period 3"
    ):
        testing.bench_kineto(
            Named("a::dispatch", "a::dispatch"), "dispatch", num_tests=4, num_kernels_per_period=3
        )


def test_kineto_looks_for_ranges_where_no_kernel_has_the_name(monkeypatch):
    """Ranges are searched in a second round, because profiling the host delays launches. GPU
    time has precedence over host time."""
    rounds = []

    def event(name, device, microseconds, is_user_annotation=True):
        span = SimpleNamespace(start=0, elapsed_us=lambda: microseconds)
        return SimpleNamespace(
            name=name, device_type=device, time_range=span, is_user_annotation=is_user_annotation
        )

    def fake(run, activities, trace_path=None):
        rounds.append([activity.name for activity in activities])
        kernels = [event("shoal::dispatch_impl<1>", DeviceType.CUDA, 3, False)]
        if len(rounds) == 1:
            return kernels
        return [
            *kernels,
            event("aten::barrier_impl", DeviceType.CPU, 900, False),
            event("deep_ep::barrier_impl", DeviceType.CPU, 5),
            event("deep_ep::dispatch_copy_epilogue_impl", DeviceType.CUDA, 7),
            event("deep_ep::dispatch_copy_epilogue_impl", DeviceType.CPU, 800),
        ]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(testing, "_profiled", fake)
    names = ("dispatch_impl", "dispatch_copy_epilogue_impl", "barrier", "notify")
    times = testing.bench_kineto(lambda: None, names, flush_l2=False)
    assert times == pytest.approx((3e-6, 7e-6, 5e-6, 0)) and rounds == [["CUDA"], ["CPU", "CUDA"]]
    rounds.clear()
    assert testing.bench_kineto(lambda: None, "dispatch_impl") == pytest.approx(
        3e-6
    ) and rounds == [["CUDA"]]


def test_ranges_cost_nothing_without_a_profiler():
    with profiled("one") as first, profiled("two") as second:
        assert first is second is None
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], acc_events=True) as profiler:
        with profiled("one"):
            pass
    assert [event.name for event in profiler.events() if "one" in event.name] == ["deep_ep::one"]


def test_kineto_barrier_and_trace(tmp_path, monkeypatch):
    order = []
    # Names without a kernel are searched among ranges on GPUs.
    rounds = 2 if torch.cuda.is_available() else 1
    trace = tmp_path / "trace.json"
    arguments = dict(
        num_tests=2, barrier_comm_profiling=True, barrier=lambda: order.append("barrier")
    )
    testing.bench_kineto(lambda: order.append("call"), "x", trace_path=str(trace), **arguments)
    assert order == ["barrier", "call"] * 4 * rounds
    assert "traceEvents" in json.loads(trace.read_text())
    order.clear()
    monkeypatch.setenv("EP_DISABLE_BARRIER_PROFILING", "1")
    testing.bench_kineto(lambda: order.append("call"), "x", **arguments)
    assert order == ["call"] * 4 * rounds


def test_kineto_under_other_profilers(monkeypatch):
    monkeypatch.setenv("EP_USE_NVIDIA_TOOLS", "1")
    fn = Named("a")
    assert testing.bench_kineto(fn, ("a", "b"), num_tests=3) == (1, 1) and fn.calls == 3
    assert testing.bench_kineto(fn, "a", num_tests=1, num_kernels_per_period=2) == [1, 1]


def test_suppress(capfd):
    def speak(word):
        print(word, flush=True)
        print(word, file=sys.stderr, flush=True)
        os.write(1, word.encode())
        os.write(2, word.encode())

    speak("before ")
    with pytest.raises(ZeroDivisionError), testing.suppress_stdout_stderr():
        speak("hidden ")
        1 / 0  # noqa: B018
    with testing.empty_suppress():
        speak("after ")
    out, err = capfd.readouterr()
    assert "hidden" not in out + err
    for text in (out, err):
        assert text.count("before") == 2 and text.count("after") == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_times():
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    average, least, most = testing.bench(lambda: a @ a, num_warmups=3, num_tests=5)
    assert 1e-5 < least <= average <= most < 1
    spin = testing.bench_kineto(lambda: torch.cuda._sleep(1_000_000), "spin_kernel", num_tests=3)
    assert 1e-4 < spin < 1e-2
