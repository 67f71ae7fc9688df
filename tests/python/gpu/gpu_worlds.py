# SPDX-License-Identifier: Apache-2.0
"""Worlds whose PEs are threads that share one GPU. Torch's current stream of each thread is its
own."""

import contextlib
import gc
import threading
import time
import traceback

import torch

import shoal

SETTINGS = {"heap": "cuda", "symmetric_size": "512M", "timeout": 20.0}


def on_gpu(pes, body, **settings):
    """The results of body(world) on each PE, after its stream is done."""
    torch.cuda.init()
    ready = threading.Barrier(pes)

    def pe(world):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            warm_up()
            stream.synchronize()
            ready.wait(60)  # no thread allocates while the kernels of others wait for it
            result = body(world)
            settle()
        return result

    try:
        return shoal.run_threads(pes, pe, {**SETTINGS, **settings})
    except BaseException as error:
        release([error])
        raise


def warm_up():
    """Fills torch's allocator of this stream and creates the state of matrix products. A later
    cudaMalloc could wait for kernels that wait for this PE."""
    memory = [torch.empty(96 << 20, dtype=torch.uint8, device="cuda")]
    memory += [torch.empty(1 << 19, dtype=torch.uint8, device="cuda") for _ in range(24)]
    square = torch.ones(16, 16, device="cuda")
    memory.append(square @ square)
    memory.append((square.bfloat16() @ square.bfloat16()).float())


def with_group(pes, body, settings=None, close=True, **options):
    """body(group, pe) on each PE of a world, with a group of all PEs. close: whether the group
    is usable at the end."""
    import shoal.ep

    def on_world(world):
        group = shoal.ep.Group(world.team, **options)
        result = body(group, world.my_pe)  # an exception fails the world and the group
        settle()
        gc.collect()
        if close:
            group.close()
        return result

    return on_gpu(pes, on_world, **(settings or {}))


def fetch(tensor):
    """The tensor on the host, once it is ready. The host does not wait inside the copy, because
    the driver would hold back the calls of other threads for which earlier kernels may wait."""
    if not tensor.is_cuda:
        return tensor
    settle()
    return tensor.cpu()


def settle():
    """Waits for the current stream."""
    done, deadline = torch.cuda.current_stream().record_event(), time.monotonic() + 60
    while not done.query():
        assert time.monotonic() < deadline, "the stream has not ended after 60 s"
        time.sleep(0.0001)


def delay(milliseconds=20):
    """Keeps the current stream busy on one SM, so that a missing wait has a visible effect."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))


# All threads share torch's random generators, which captures register with.
_capturing = threading.Lock()


def capture(work, mode="thread_local"):
    """A graph of work() and its result, captured on the current stream. Calls of other threads
    do not end the capture, except in the mode "global"."""
    graph = torch.cuda.CUDAGraph()
    with _capturing:
        graph.capture_begin(capture_error_mode=mode)
        try:
            kept = work()
        finally:
            graph.capture_end()
    return graph, kept


class Meeting:
    """The interface of mpi4py's communicators for PEs that are threads: see `comms`."""

    def __init__(self, size):
        self.size, self.barrier, self.slot = size, threading.Barrier(size), [None] * size


class Comm:
    """The communicator of one thread."""

    def __init__(self, meeting, rank):
        self._meeting, self._rank = meeting, rank

    def Get_rank(self):
        return self._rank

    def Get_size(self):
        return self._meeting.size

    def allgather(self, value):
        self._meeting.slot[self._rank] = value
        self._meeting.barrier.wait(60)
        values = list(self._meeting.slot)
        self._meeting.barrier.wait(60)
        return values

    def bcast(self, value, root=0):
        return self.allgather(value)[root]

    def Barrier(self):
        self.allgather(None)


def fail(world, error):
    """Ends a world after an exception, so that the calls of its other PEs end as well."""
    with contextlib.suppress(Exception):
        world.__exit__(type(error), error, None)


def release(errors):
    """Frees what the frames of failed PEs hold, and waits until the GPU is idle: groups whose
    kernels still wait would hold the next test's kernels back."""
    for error in errors:
        seen = error
        while seen is not None:
            traceback.clear_frames(seen.__traceback__)
            seen = seen.__context__
    gc.collect()
    with contextlib.suppress(Exception):  # an error of the GPU is one of the failed PEs'
        torch.cuda.synchronize()


def on_threads(pes, body):
    """body(comm) on `pes` threads, each with its own stream, as on_gpu but without a world. The
    first exception is raised again."""
    torch.cuda.init()
    meeting, results, errors = Meeting(pes), [None] * pes, []

    def pe(rank):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                warm_up()
                stream.synchronize()
                meeting.barrier.wait(60)
                results[rank] = body(Comm(meeting, rank))
                settle()
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=pe, args=(rank,), daemon=True) for rank in range(pes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    first = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        release(errors)
        raise (first or errors)[0]
    assert not any(thread.is_alive() for thread in threads), "a PE has not ended after 120 s"
    return results
