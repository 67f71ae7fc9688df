# SPDX-License-Identifier: Apache-2.0
"""Times of calls of `deep_ep` for deep_ep_pairs.py: of GPU and host, and what a call queues.

`case` has the options of the program (`a`) and the device.
"""

import math
import time

import torch
import torch.distributed as dist


def settle(case):
    if case.device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


def chain(case, call, count, skipped):
    """(time of a call on the slowest rank, host time of queueing one), in us."""
    if case.a.counts:
        call()
        return [math.nan, math.nan]
    for _ in range(skipped):
        call()
    settle(case)
    on_gpu = case.device.type == "cuda"
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if on_gpu else None
    start = time.perf_counter()
    if on_gpu:
        events[0].record()
    for _ in range(count):
        call()
    if on_gpu:
        events[1].record()
    host = (time.perf_counter() - start) / count
    settle(case)
    device = events[0].elapsed_time(events[1]) * 1e-3 / count if on_gpu else host
    times = torch.tensor([device, host], dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return [1e6 * float(value) for value in times]


def host_time(case, call, calls=1):
    """Host time of a call on an empty queue: the least mean of several tries, in us.

    One call alone follows a wait and finds cold caches; of eight in a row, as of a model's layers,
    most do not.
    """
    if case.a.counts:
        return math.nan
    best = float("inf")
    for _ in range(12):
        settle(case)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    settle(case)
    return 1e6 * best


def queued(case, call):
    """(kernels and copies that one call queues, its calls of CUDA: name -> [number, us of each]).
    The profiler lengthens the calls. None in the processes that measure times."""
    if not case.a.counts:
        return None, None
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    settle(case)
    with torch.profiler.profile(activities=activities) as profile:
        call()
    settle(case)
    launched, calls = 0, {}
    for event in profile.events():
        if event.device_type == torch.profiler.DeviceType.CUDA:
            launched += 1
        elif event.name.startswith("cu"):
            number, total = calls.get(event.name, (0, 0.0))
            calls[event.name] = (number + 1, total + event.cpu_time)
    return launched, {name: [n, round(total / n, 2)] for name, (n, total) in calls.items()}
