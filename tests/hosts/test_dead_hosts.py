# SPDX-License-Identifier: Apache-2.0
"""Hosts that die during an operation: the PEs of the others report it in time, or mask the dead
ones and continue."""

import time

import pytest
from faults import FAULTS, expect_reported, other_host, start
from launchers import by_hand
from soak import soak


@pytest.mark.parametrize(
    ("transport", "fault"),
    [("ofi", FAULTS[0]), ("verbs", FAULTS[2]), soak("ofi", FAULTS[2]), soak("verbs", FAULTS[0])],
)
def test_a_host_that_dies_is_reported_by_the_others(
    make_network, host_checks, environment, use, transport, fault
):
    use(transport)
    network = make_network(hosts=2)
    job = start(network, host_checks, environment, fault, 2)
    died = time.monotonic()
    network.hosts[1].die()
    expect_reported({0: job.programs[0], 1: job.programs[1]}, died, other_host)


@pytest.mark.parametrize("transport", ["ofi", "ucx", "verbs"])
def test_low_latency_continues_without_a_host_that_died(
    make_network, host_checks, environment, needs, transport
):
    needs(transport)
    environment["SHOAL_TRANSPORT_BETWEEN"] = transport
    network = make_network(hosts=2)
    environment["SHOAL_TIMEOUT_MS"] = 30_000  # the group has a shorter timeout of its own
    job = by_hand(network, [host_checks, "masks"], 2, environment)
    for program in job.programs:
        assert program.wait_for("is running", 20), program.wait(0)
    died = time.monotonic()
    network.hosts[1].die()
    for pe, program in enumerate(job.programs[:2]):
        assert program.wait_for(
            f"PE {pe} has masked 0 0 1 1", max(0.1, died + 20 - time.monotonic())
        ), f"{job.programs[0].err}\n{job.programs[1].err}"
        assert "FAILED" not in program.out and "Failure" not in program.out, program.wait(0)
    job.kill()  # closing the world would wait for the dead host
