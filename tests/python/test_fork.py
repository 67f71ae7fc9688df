# SPDX-License-Identifier: Apache-2.0
"""A child that a PE forks: its calls raise ClosedError, and its exit is silent."""

import subprocess
import sys

PROGRAM = """
import os, sys
import numpy
import shoal

unique_id = shoal.UniqueId.create()
settings = {"symmetric_size": "64M", "timeout": 20.0}
with shoal.World.from_unique_id(str(unique_id), 0, 1, settings) as world:
    group = shoal.ep.Group(
        world.team, hidden=128, top_k=1, experts=1, max_tokens=1, low_latency_max_tokens=0
    )
    chosen = numpy.zeros((1, 1), numpy.int64)
    routing = group.route(chosen)
    tokens = numpy.ones((1, 128), numpy.float16)
    numbers = world.zeros((1,), "int64")
    child = os.fork()
    if child == 0:
        calls = {
            "barrier": lambda: shoal.barrier(world.team),
            "put": lambda: world.put(numbers.on(0), numpy.ones(1, numpy.int64)),
            "zeros": lambda: world.zeros((1,), "int64"),
            "quiet": world.quiet,
            "route": lambda: group.route(chosen),
            "dispatch": lambda: group.dispatch(tokens, routing),
            "group.close": group.close,
            "world.close": world.close,
        }
        for name, call in calls.items():
            try:
                call()
            except shoal.ClosedError as error:
                if "is a fork of PE 0" in str(error):
                    continue
                print(name, error, file=sys.stderr)
            else:
                print(name, "returned", file=sys.stderr)
        sys.exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
    received = group.dispatch(tokens, routing)
    group.combine(received.x, received.handle)
    assert numbers.local.numpy()[0] == 0
    del received
    group.close()
print("done")
"""


def test_a_forked_child_of_a_pe_is_refused_and_exits_silently():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
