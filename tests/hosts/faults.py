# SPDX-License-Identifier: Apache-2.0
"""Shared code of fault tests: an operation that runs on two hosts when the fault occurs, and the
expected report of every PE."""

import re
import time

from launchers import by_hand

TIMEOUT_MS = 3000
# From the cut until the last PE has reported: the deadline of that PE, which starts at its last
# progress, and a margin.
LIMIT_S = TIMEOUT_MS / 1000 + 2.5
FAULTS = ["fault-collective", "fault-normal", "fault-low-latency"]


def start(network, host_checks, environment, fault, per_host, *arguments):
    """A job with `per_host` PEs on each host of the network, all of them inside the operation."""
    environment["SHOAL_TIMEOUT_MS"] = TIMEOUT_MS
    job = by_hand(network, [host_checks, fault, *arguments], per_host, environment)
    for program in job.programs:
        assert program.wait_for("is running", 20), program.wait(0)
    return job


def expect_reported(programs, since, others):
    """Each program reports a failure in time. It names one of the PEs in others(pe), or a PE whose
    report does."""
    named = {}
    for pe, program in programs.items():
        assert program.wait_for("has seen code", max(0.1, since + LIMIT_S - time.monotonic())), (
            f"PE {pe}: {program.wait(0)}"
        )
        code, message = re.search(r"has seen code (\w+): (.*)", program.out).groups()
        assert code in ("timeout", "peer_failed"), program.out
        named[pe] = {int(other) for other in re.findall(r"PE (\d+)", message)} - {pe}
    named_directly = {pe for pe, names in named.items() if names & others(pe)}
    for pe, names in named.items():
        assert pe in named_directly or names & named_directly, (
            f"PE {pe} names {names}: {programs[pe].out}"
        )


def other_host(pe):
    return {2, 3} if pe < 2 else {0, 1}
