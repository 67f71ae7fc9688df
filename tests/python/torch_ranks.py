# SPDX-License-Identifier: Apache-2.0
"""Runs checks on several ranks: processes with a gloo group and a world of Shoal over it.

A test module defines functions `check_*(world)` and starts them once, all in the same processes:

    CHECKS = names_of_checks(globals())
    results = pytest.fixture(scope="module")(lambda: run_checks(4, __name__))

    @pytest.mark.parametrize("name", CHECKS)
    def test_on_four_ranks(results, name): results.verify(name)
"""

import datetime
import importlib
import multiprocessing
import os
import tempfile
import traceback

import pytest

# A rank that hangs is a failure of the test, not of the test run.
DEADLINE_S = 120
NOT_RUN = "not run: an earlier check failed"


def names_of_checks(namespace):
    return [name for name in namespace if name.startswith("check_")]


class Results:
    """By rank and check: empty, or why it failed."""

    def __init__(self, ranks):
        self.ranks = ranks

    def verify(self, name):
        failed = [f"rank {rank}: {result[name]}" for rank, result in enumerate(self.ranks) if result[name]]
        if failed:
            pytest.fail("\n".join(failed), pytrace=False)


def run_checks(n_ranks, module, device="cpu"):
    """Runs all checks of the module on each of `n_ranks` processes, in the order in which they are written. device:
    torch's default there; "cuda" deals the ranks over the GPUs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])  # imported once, not once a rank
    results, ranks = [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(n_ranks):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (rank, n_ranks, module, device, os.path.join(folder, "store"), theirs, dict(os.environ))
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


def _rank(rank, n_ranks, module, device, store, pipe, environment):
    os.environ.clear()  # a forkserver's children inherit that of its own start
    os.environ.update(environment)
    import torch
    import torch.distributed as dist

    import shoal

    torch.set_num_threads(1)
    torch.set_default_device(device)
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n_ranks, timeout=timeout)
    namespace = vars(importlib.import_module(module))
    names = names_of_checks(namespace)
    result = dict.fromkeys(names, NOT_RUN)
    name = names[0]
    settings = {"heap": "cuda" if device == "cuda" else "host", "symmetric_size": "64M", "timeout": 20000}
    try:
        # An exception leaves the world at once, which tells the other ranks; so no rank waits for one that has failed.
        with shoal.World.from_torch(settings=settings) as world:
            for name in names:
                torch.manual_seed(rank)
                namespace[name](world)
                result[name] = ""
    except BaseException:  # pytest's own among them
        result[name] = traceback.format_exc()
    pipe.send(result)
    dist.destroy_process_group()


def all_members(team, value):
    """Every member's `value`, an object that can be pickled, by member. Works for all teams of the world."""
    everybody = of_all_ranks(value)
    return [everybody[team.world_pe(member)] for member in range(team.size)]


def of_all_ranks(value):
    """Every rank's `value`, an object that can be pickled; its tensors come to the default device."""
    import torch
    import torch.distributed as dist

    def here(part):
        return part.to(torch.get_default_device()) if isinstance(part, torch.Tensor) else part

    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, value)
    return torch.utils._pytree.tree_map(here, everybody)


def seeded(seed):
    """A generator of random numbers on the default device."""
    import torch

    return torch.Generator(torch.get_default_device()).manual_seed(seed)


def each_group(world, options):
    """A group of all ranks, then one of each pair of them; closed when the next is asked for, results gone by then."""
    import shoal.ep

    if world not in _pairs:
        _pairs[world] = world.team.split_2d(2)[0]
    for team in (world.team, _pairs[world]):
        group = shoal.ep.Group(team, **options)
        yield group
        group.close()


_pairs = {}
