# SPDX-License-Identifier: Apache-2.0
"""Runs checks on several ranks: processes with a gloo group and a world of Shoal over it.

A test module defines functions `check_*(world)` and starts them once, all in the same processes:

    add_tests(globals(), lambda: run_checks(4, __name__))
"""

import datetime
import importlib
import multiprocessing
import os
import tempfile
import time
import traceback

import pytest

# A hanging rank fails its test, not the test run.
DEADLINE_S = 120
NOT_RUN = "not run: an earlier check failed"
# Their stand-in for streams (deep_ep/host_streams.py) copies from addresses of the host.
HOST_ONLY = {"check_everything_on_streams"}


def names_of_checks(namespace):
    return [name for name in namespace if name.startswith("check_")]


class Results:
    """Failures by rank and check; empty: passed."""

    def __init__(self, ranks):
        self.ranks = ranks

    def verify(self, name):
        failed = [
            f"rank {rank}: {result[name]}" for rank, result in enumerate(self.ranks) if result[name]
        ]
        if failed:
            pytest.fail("\n".join(failed), pytrace=False)


def add_tests(namespace, run):
    """Adds one test per check to a test module. The first of them calls `run`, which returns the
    Results of all checks."""

    @pytest.mark.parametrize("name", names_of_checks(namespace))
    def test_on_ranks(results, name):
        results.verify(name)

    namespace["results"] = pytest.fixture(scope="module")(run)
    namespace["test_on_ranks"] = test_on_ranks


def forkserver(device="cpu"):
    """The context of processes that have torch without importing it."""
    context = multiprocessing.get_context("forkserver")
    # The first operator would load _dynamo, while other ranks wait in a call.
    context.set_forkserver_preload(
        ["torch", "torch.distributed"] + ["torch._dynamo"] * (device == "cpu")
    )
    return context


def spawn(function, arguments, n_ranks):
    """Runs function(rank, *arguments) on processes, as torch.multiprocessing.spawn."""
    import torch.multiprocessing

    forkserver()
    torch.multiprocessing.start_processes(function, arguments, n_ranks, start_method="forkserver")


def run_checks(n_ranks, module, device="cpu", backend="gloo"):
    """Runs all checks of the module on each of `n_ranks` processes, in their order in the file.
    device: torch's default there; "cuda" distributes the ranks over the GPUs. backend: of the
    process group."""
    context = forkserver(device)
    results, ranks = [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(n_ranks):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (
                rank,
                n_ranks,
                module,
                device,
                backend,
                os.path.join(folder, "store"),
                theirs,
                dict(os.environ),
            )
            process = context.Process(target=_rank, args=arguments)
            process.start()
            theirs.close()
            ranks.append((process, ours))
        try:
            for rank, (_, pipe) in enumerate(ranks):
                assert pipe.poll(DEADLINE_S), f"rank {rank} has not ended after {DEADLINE_S} s"
                try:
                    results.append(pipe.recv())
                except EOFError:
                    raise AssertionError(f"rank {rank} died") from None
        finally:
            for process, _ in ranks:
                process.join(10)
                if process.is_alive():
                    process.kill()
    return Results(results)


def _rank(rank, n_ranks, module, device, backend, store, pipe, environment):
    os.environ.clear()  # children of a forkserver inherit it from its start
    os.environ.update(environment, LOCAL_RANK=str(rank))
    import torch
    import torch._dynamo
    import torch.distributed as dist

    import shoal

    torch.set_num_threads(1)
    torch.set_default_device(device)
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=n_ranks, timeout=timeout
    )
    namespace = vars(importlib.import_module(module))
    names = [
        name for name in names_of_checks(namespace) if device == "cpu" or name not in HOST_ONLY
    ]
    result = dict.fromkeys(names, NOT_RUN)
    name = names[0]
    if device == "cuda" and "SHOAL_NODE_SIZE" in os.environ:
        _settle_before_copies()
    settings = {
        "heap": "cuda" if device == "cuda" else "host",
        "symmetric_size": "64M",
        "timeout": 20.0,
    }
    try:
        # An exception fails the world at once, so that no rank waits for the failed one.
        with shoal.World.from_torch(settings=settings) as world:
            for name in names:
                torch.manual_seed(rank)
                namespace[name](world)
                result[name] = ""
    except BaseException:  # also those of pytest
        result[name] = traceback.format_exc()
    pipe.send(result)
    dist.destroy_process_group()


def settle():
    """Waits for the current stream by polling, if there is one."""
    import torch

    if not torch.cuda.is_initialized():
        return
    done, deadline = torch.cuda.current_stream().record_event(), time.monotonic() + 60
    while not done.query():
        assert time.monotonic() < deadline, "the stream has not ended after 60 s"
        time.sleep(0.0001)


def _settle_before_copies():
    """From now on, torch functions that copy to the host settle first. A copy to pageable memory
    waits inside the driver, which then holds back the copies of the thread that sends this rank's
    rows to other nodes (docs/guide/gpus.md)."""
    import torch.overrides

    copies = {"__bool__", "__float__", "__int__", "__repr__", "allclose", "cpu", "equal", "item"}
    copies |= {"numpy", "tolist", "to"}

    class Settling(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if getattr(function, "__name__", "") in copies:
                with torch._C.DisableTorchFunction():
                    settle()
            return function(*args, **(kwargs or {}))

    Settling().__enter__()


def all_ranks(team, value):
    """The `value` of every rank, an object that can be pickled. Works for all teams of the
    world."""
    values = of_all_ranks(value)
    return [values[team.world_pe(pe)] for pe in range(team.size)]


def of_all_ranks(value):
    """The `value` of every rank, an object that can be pickled, with its tensors on the default
    device."""
    import torch
    import torch.distributed as dist

    def here(part):
        return part.to(torch.get_default_device()) if isinstance(part, torch.Tensor) else part

    values = [None] * dist.get_world_size()
    settle()
    dist.all_gather_object(values, value)
    return torch.utils._pytree.tree_map(here, values)


def seeded(seed):
    """A random number generator on the default device."""
    import torch

    return torch.Generator(torch.get_default_device()).manual_seed(seed)


def each_group(world, options):
    """A group of all ranks, then one of each pair. A group is closed when the next one is
    requested; its results must be released by then."""
    import shoal.ep

    if world not in _pairs:
        _pairs[world] = world.team.split_2d(2)[0]
    for team in (world.team, _pairs[world]):
        group = shoal.ep.Group(team, **options)
        yield group
        group.close()


_pairs = {}
