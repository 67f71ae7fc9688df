# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends every wait of the main thread at once, as KeyboardInterrupt."""

import signal
import subprocess
import sys
import textwrap

import pytest
from waits import wait_until_blocked

import shoal

PRELUDE = """
import datetime, signal, sys, threading
import numpy as np
import shoal

settings = {"symmetric_size": "64M", "timeout": 3600.0, "bootstrap_timeout": 3600.0}
"""

# Waits of one process.
ALONE = {
    "wait_until": """
        with shoal.World.open(settings) as world:
            flag = world.zeros(1, "int64")
            ready()
            world.wait_until(flag, "==", 1)
    """,
    "World.open": """
        name = shoal.UniqueId.create(settings)
        ready()
        shoal.World.from_unique_id(str(name), 0, 2, settings)
    """,
    "run_threads": """
        def body(world):
            flag = world.zeros(1, "int64")
            if world.my_pe == 0:
                ready()
            world.wait_until(flag, "==", 1)
        shoal.run_threads(2, body, settings)
    """,
}

# Waits of PE 0 for PE 1, which only sleeps.
TOGETHER = {
    "barrier": "shoal.barrier(world.team)",
    "exchange": "world.team.exchange(b'x')",
    "zeros": "world.zeros(4)",
    "dispatch": "group.dispatch(x, group.route(idx))",
    "dispatch_async": "group.dispatch_async(x, group.route(idx)).result()",
    "low_latency": "group.low_latency_dispatch(x.view(np.uint16)[:, :64], idx).receive()",
}

PAIR = """
        options = {"top_k": 1, "experts": 2, "max_tokens": 4}
        x, idx = np.ones((3, 64), np.float32), np.ones((3, 1), np.int64)
        with shoal.World.from_unique_id(sys.argv[1], int(sys.argv[2]), 2, settings) as world:
            group = shoal.ep.Group(
                world.team, hidden=64, dtype="float32", low_latency_max_tokens=4, **options
            )
            if world.my_pe == 0:
                ready()
                CALL
            else:
                sys.stdin.readline()
                shoal.barrier(world.team)
"""


def program(body):
    """A program that reports KeyboardInterrupt."""
    return PRELUDE + textwrap.dedent("""
            def ready():
                print("ready", flush=True)

            try:
            BODY
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            except shoal.Error as error:
                print(type(error).__name__, str(error).replace(chr(10), " "), flush=True)
            """).replace("BODY", textwrap.indent(textwrap.dedent(body), "    "))


def start(body, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", program(body), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def send(process, number):
    """Sends a signal once the process waits."""
    assert process.stdout.readline() == "ready\n"
    wait_until_blocked(process.pid)
    process.send_signal(number)


def interrupt(process, rest=""):
    """Ends the wait, long before its deadline; ``rest``: what the process prints after it."""
    send(process, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert output == "interrupted\n" + rest, output + errors


@pytest.mark.parametrize("call", ALONE)
def test_a_wait_ends_at_once(call):
    interrupt(start(ALONE[call]))


@pytest.mark.parametrize("call", TOGETHER)
def test_a_wait_for_another_pe_ends_at_once_and_the_other_learns_why(call):
    name = shoal.UniqueId.create()
    body = PAIR.replace("CALL", TOGETHER[call])
    if call == "low_latency":
        body = body.replace(
            "x, idx = np.ones((3, 64), np.float32)", "x, idx = np.ones((3, 64), np.uint16)"
        ).replace("x.view(np.uint16)[:, :64]", "shoal_bfloat16(world, x)")
        body = textwrap.dedent("""
        def shoal_bfloat16(world, x):
            import ml_dtypes
            return x.view(ml_dtypes.bfloat16)
        """) + textwrap.dedent(body)
    other = start(body, str(name), "1")
    interrupt(start(body, str(name), "0"))
    output, errors = other.communicate("go\n", timeout=60)
    assert output.startswith("PeerFailedError") and "KeyboardInterrupt" in output, output + errors


def test_a_handler_that_returns_does_not_end_a_wait():
    body = """
        signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
        with shoal.World.open(settings) as world:
            flag = world.zeros(1, "int64")
            def end():
                sys.stdin.readline()
                world.signal(flag.on(0), 5)
            threading.Thread(target=end).start()
            ready()
            print(world.wait_until(flag, ">", 0), flush=True)
    """
    process = start(body)
    send(process, signal.SIGUSR1)
    assert process.stdout.readline() == "handled\n"
    wait_until_blocked(process.pid)
    assert process.communicate("go\n", timeout=60)[0] == "5\n"


def test_a_world_continues_after_an_interrupted_wait():
    """The interrupt ends one wait; the next one, and the world, are as before."""
    body = """
        with shoal.World.open(settings) as world:
            flag = world.zeros(1, "int64")
            ready()
            try:
                world.wait_until(flag, "==", 1)
            except KeyboardInterrupt:
                world.signal(flag.on(0), 1)
                assert world.wait_until(flag, "==", 1) == 1
                shoal.barrier(world.team)
                raise
    """
    interrupt(start(body))
