# SPDX-License-Identifier: Apache-2.0
"""Waits for states, with deadlines that grow with the load of the machine."""

import contextlib
import os
import pathlib
import time


def wait_for(condition, seconds=30):
    """Polls until ``condition()`` is true, and returns its value. An OSError counts as false."""
    deadline = time.monotonic() + seconds * max(1, os.getloadavg()[0] / os.cpu_count())
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if found := condition():
                return found
        time.sleep(0.01)
    raise AssertionError("it did not come")


def wait_until_blocked(pid, thread=None):
    """Until a thread, the main one by default, sleeps at three looks in a row: the call that it has
    announced waits, and not for the GIL."""
    stat = pathlib.Path(f"/proc/{pid}/task/{thread or pid}/stat")
    seen = []

    def blocked():
        seen.append(stat.read_text().rpartition(")")[2].split()[0])
        return seen[-3:] == ["S"] * 3

    wait_for(blocked)
