# SPDX-License-Identifier: Apache-2.0
"""Worlds that end while an asynchronous dispatch or combine is running.

Closing drains or fails the running operation. A Future that is held returns its result or raises
shoal.Error afterwards; a fork does not wait for it. Each case runs many times in a process of its
own, because a defect ends the process with a signal.
"""

import subprocess
import sys

import pytest

PES, ROUNDS = 4, 12

PROGRAM = """
import sys

import numpy as np

import shoal

PES, ROUNDS = {pes}, {rounds}
operation, end, starters, settings = {operation!r}, {end!r}, {starters}, {settings!r}
TOKENS, HIDDEN, TOP_K, EXPERTS = 512, 1024, 4, 2 * PES
options = dict(hidden=HIDDEN, top_k=TOP_K, experts=EXPERTS, max_tokens=TOKENS, dtype="float32")
x = np.ones((TOKENS, HIDDEN), np.float32)
topk_idx = (np.arange(TOKENS)[:, None] + np.arange(TOP_K) * 2) % EXPERTS


def body(world):
    group = shoal.ep.Group(world.team, **options)
    routing = group.route(topk_idx)
    received = group.dispatch(x, routing)
    if world.my_pe < starters:
        if operation == "combine":
            futures[world.my_pe] = group.combine_async(received.x, received.handle)
        else:
            futures[world.my_pe] = group.dispatch_async(x, routing)
    if end == "close":
        world.close()
    if end == "raise" and world.my_pe == PES - 1:
        raise ValueError("the last PE gives up")


def result_of(future):
    try:
        return future.result().x.sum() != 0
    except shoal.Error:
        return "raised"


for turn in range(ROUNDS):
    futures = [None] * PES
    try:
        shoal.run_threads(PES, body, settings)
    except (shoal.Error, ValueError) as error:
        assert end == "raise" or starters < PES, error
    outcomes = [result_of(future) for future in futures if future is not None]
    assert all(outcomes), outcomes
    if end != "raise" and starters < PES:  # the operation cannot have completed
        assert set(outcomes) == {{"raised"}}, outcomes
print("done", flush=True)
"""


def run(settings, operation, end, starters, rounds=ROUNDS):
    program = PROGRAM.format(
        pes=PES, rounds=rounds, operation=operation, end=end, starters=starters, settings=settings
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert done.stdout == "done\n"


@pytest.mark.parametrize("operation", ["dispatch", "combine"])
@pytest.mark.parametrize("end", ["return", "close", "raise"])
def test_a_world_ends_while_an_operation_of_all_pes_is_running(settings, operation, end):
    run(settings, operation, end, PES)


@pytest.mark.parametrize("end", ["return", "close"])
def test_a_world_ends_while_an_operation_of_one_pe_waits_for_the_others(settings, end):
    run({**settings, "timeout": 1.0}, "dispatch", end, 1, rounds=2)


FORK = """
import os
import signal

import numpy as np

import shoal


def body(world):
    options = dict(hidden=128, top_k=1, experts=2, max_tokens=4, dtype="float32")
    group = shoal.ep.Group(world.team, **options)
    event = shoal.ep.HostEvent()
    routing = group.route(np.zeros((2, 1), np.int64))
    future = group.dispatch_async(np.ones((2, 128), np.float32), routing, after=event)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that waits
        try:
            future.result()
        except shoal.ClosedError as error:
            del future
            os._exit(0 if "result: this process is a fork" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    event.set()
    print(future.result().rows, flush=True)


shoal.run_threads(1, body, {settings!r})
"""


def test_a_fork_does_not_wait_for_an_operation(settings):
    program = FORK.format(settings=settings)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr[-2000:]
