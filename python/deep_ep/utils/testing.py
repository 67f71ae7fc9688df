# SPDX-License-Identifier: Apache-2.0
"""Timing: by events or the clock (`bench`), and by the profiler's kernel times (`bench_kineto`)."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType

from .envs import default_device, is_set

_L2_BYTES = 256 << 20
_SKEW_CYCLES = 20_000_000  # about 10 ms of a GPU's clock: longer than ranks differ in launching


def flush_l2_cache(enabled: bool = True) -> None:
    """Overwrites 256 MB of GPU memory, more than any L2 cache; no effect without a GPU."""
    if enabled and torch.cuda.is_available():
        torch.empty(_L2_BYTES, dtype=torch.uint8, device="cuda").zero_()


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _elapsed_by_events(fn: Callable[[], object]) -> Callable[[], float]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    fn()
    end.record()
    return lambda: start.elapsed_time(end) / 1e3


def _elapsed_by_clock(fn: Callable[[], object]) -> Callable[[], float]:
    start = time.perf_counter()
    fn()
    elapsed = time.perf_counter() - start
    return lambda: elapsed


def bench(
    fn: Callable[[], object],
    num_warmups: int = 50,
    num_tests: int = 50,
    post_fn: Callable[[], object] | None = None,
    flush_l2: bool = True,
) -> tuple[float, float, float]:
    """(average, minimum, maximum) seconds of fn(), over num_tests calls without the first.

    At least two calls are made. Events on the GPU's current stream measure the time; without a GPU
    the clock does. `post_fn` runs after each call, outside the measured time. `flush_l2` empties
    the GPU's cache before each call.
    """
    for _ in range(num_warmups):
        fn()
    _synchronize()
    measure = _elapsed_by_events if torch.cuda.is_available() else _elapsed_by_clock
    pending = []
    for _ in range(max(num_tests, 2)):
        if flush_l2:
            flush_l2_cache()
        pending.append(measure(fn))
        if post_fn is not None:
            post_fn()
    _synchronize()
    times = [elapsed() for elapsed in pending[1:]]
    return sum(times) / len(times), min(times), max(times)


class empty_suppress(nullcontext):
    """A context without effect."""


class suppress_stdout_stderr:
    """A context that discards standard output and error of Python and native code."""

    def __enter__(self) -> "suppress_stdout_stderr":
        sys.stdout.flush()
        sys.stderr.flush()
        self._saved = [(fd, os.dup(fd)) for fd in (1, 2)]
        self._streams = sys.stdout, sys.stderr
        self._null = open(os.devnull, "w")
        for fd, _ in self._saved:
            os.dup2(self._null.fileno(), fd)
        sys.stdout = sys.stderr = self._null
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout, sys.stderr = self._streams
        self._null.close()
        for fd, saved in self._saved:
            os.dup2(saved, fd)
            os.close(saved)


def _align_ranks(barrier: Callable[[], object] | None) -> None:
    """Aligns the start of the next call on all ranks."""
    if torch.cuda.is_available():
        torch.cuda._sleep(_SKEW_CYCLES)
    if barrier is not None:
        barrier()
    elif dist.is_initialized():
        dist.all_reduce(torch.ones(1, dtype=torch.float32, device=default_device()))


def bench_kineto(
    fn: Callable[[], object],
    kernel_names: str | tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    barrier_comm_profiling: bool = False,
    num_kernels_per_period: int = 1,
    barrier: Callable[[], object] | None = None,
) -> Any:
    """Average seconds of the kernels of fn() whose name contains `kernel_names`; 0: none ran.

    A tuple of names gives a tuple. Raises AssertionError where two different kernels contain the
    same name. The send and the receive of a low-latency call are the exception: they count as one
    kernel, from the start of the first to the end of the second.

    num_kernels_per_period = p > 1: fn() launches p such kernels (`::name`) per period, and each
    name gives a list of p averages in order of launch. `barrier_comm_profiling`: `barrier`
    (default: an all-reduce) aligns the start of each call on all ranks, unless
    EP_DISABLE_BARRIER_PROFILING is set. `trace_path`: the file for a Chrome trace.

    Names without a kernel are searched among ranges (torch.profiler.record_function) in a second
    round of calls. The time of a range is that of the GPU work that it launched, or its host time
    where it launched none. Without a GPU, operators and ranges of the CPU are timed.

    Under NVIDIA's own profilers (EP_USE_NVIDIA_TOOLS) fn() only runs, and every time is 1.
    """
    names = (kernel_names,) if isinstance(kernel_names, str) else tuple(kernel_names)
    period = num_kernels_per_period

    def run() -> None:
        for _ in range(num_tests):
            if flush_l2:
                flush_l2_cache()
            if barrier_comm_profiling and not is_set("EP_DISABLE_BARRIER_PROFILING"):
                _align_ranks(barrier)
            fn()
        _synchronize()

    if is_set("EP_USE_NVIDIA_TOOLS"):
        run()
        times: list[Any] = [1.0 if period == 1 else [1.0] * period for _ in names]
    else:
        with suppress_stdout_stderr() if suppress_kineto_output else empty_suppress():
            found = _events_by_name(run, names, period, trace_path)
        times = [_kernel_time(found[name], name, period) for name in names]
    return times[0] if isinstance(kernel_names, str) else tuple(times)


def _profiled(
    run: Callable[[], None], activities: list[Any], trace_path: str | None = None
) -> list[Any]:
    """The profiler's events of run(), in order of start."""
    # The first round warms the profiler up.
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(
        activities=activities, schedule=schedule, acc_events=True
    ) as profiler:
        for _ in range(2):
            run()
            profiler.step()
    if trace_path is not None:
        profiler.export_chrome_trace(trace_path)
    return sorted(profiler.events(), key=lambda event: event.time_range.start)


def _events_by_name(
    run: Callable[[], None], names: tuple[str, ...], period: int, trace_path: str | None
) -> dict[str, list[Any]]:
    """The events for each name: kernels, else ranges; without a GPU any host event."""
    on_gpu = torch.cuda.is_available()
    cpu, cuda = torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA

    def matching(events: list[Any], name: str, device: DeviceType) -> list[Any]:
        part = name if period == 1 else f"::{name}"
        return [event for event in events if event.device_type == device and part in event.name]

    events = _profiled(run, [cuda if on_gpu else cpu], trace_path)
    found = {
        name: matching(events, name, DeviceType.CUDA if on_gpu else DeviceType.CPU)
        for name in names
    }
    missing = [name for name, kernels in found.items() if not kernels]
    if on_gpu and _on_any_rank(bool(missing)):  # fn() may be collective
        # A second round, because profiling the host slows down the launches of waiting kernels.
        ranges = [event for event in _profiled(run, [cpu, cuda]) if event.is_user_annotation]
        for name in missing:
            found[name] = matching(ranges, name, DeviceType.CUDA) or matching(
                ranges, name, DeviceType.CPU
            )
    return found


def _on_any_rank(here: bool) -> bool:
    """Return true if `here` is true on any rank. Collective where ranks are initialised."""
    if not dist.is_initialized():
        return here
    anywhere = torch.tensor(float(here), device=default_device())
    dist.all_reduce(anywhere, dist.ReduceOp.MAX)
    return bool(anywhere)


def _kernel_time(events: list[Any], name: str, period: int) -> Any:
    """The average of `events` in seconds, or a list of averages by position in a period."""
    kernels = {event.name for event in events}
    if period == 1 and len(kernels) == 2:
        sends, receives = (
            [e for e in events if half in e.name] for half in ("_send_kernel", "_receive_kernel")
        )
        if len(sends) == len(receives) > 0:
            spans = sum(e.time_range.end for e in receives) - sum(e.time_range.start for e in sends)
            return spans / len(sends) / 1e6
    assert period > 1 or len(kernels) <= 1, f"several kernels contain {name!r}: {sorted(kernels)}"
    assert len(events) % period == 0, (
        f"{len(events)} kernels contain '::{name}', no multiple of the period {period}"
    )

    def average(part: list[Any]) -> float:
        return sum(event.time_range.elapsed_us() for event in part) / len(part) / 1e6 if part else 0

    return average(events) if period == 1 else [average(events[i::period]) for i in range(period)]
