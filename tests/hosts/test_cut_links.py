# SPDX-License-Identifier: Apache-2.0
"""Links that are cut during an operation. Every PE reports it in time and names a PE that it cannot
reach. When the network is whole again, the same processes open a new world."""

import re
import time

import pytest
from faults import FAULTS, expect_reported, other_host, start
from hosts import SHARED
from launchers import session
from soak import soak


@pytest.fixture
def running(make_network, host_checks, environment, use):
    """running(transport, fault): a network of two hosts and a job with two PEs on each, all of them
    inside the operation."""

    def run(transport, fault, per_host=2):
        use(transport)
        network = make_network(hosts=2)
        again = f"again={SHARED}/again"
        return network, start(network, host_checks, environment, fault, per_host, again)

    return run


def cut_in_the_middle(running, transport, fault, rails=(0, 1)):
    """Cuts these rails of host 1 and waits until every PE has reported. Returns the network, still
    cut, and the job."""
    network, job = running(transport, fault)
    cut = time.monotonic()
    for rail in rails:
        network.cut(network.hosts[1], rail)
    expect_reported(dict(enumerate(job.programs)), cut, other_host)
    return network, job


def expect_cause(job, rails, pes=(2, 3)):
    """Over verbs the reports name the failed retries, and those on the host that was cut its NICs
    on these rails."""
    reports = "".join(program.out for program in job.programs)
    assert "transport retry count exceeded" in reports, reports
    cut = "".join(job.programs[pe].out + job.programs[pe].err for pe in pes)
    causes = [
        f"event PORT_ERR of port mlx5_{rail}:1: the port is down: cable, switch, or ip link"
        for rail in rails
    ]
    assert any(cause in cut for cause in causes), cut


@pytest.mark.parametrize(
    ("transport", "fault"),
    [
        ("ofi", FAULTS[0]),
        ("ofi", FAULTS[2]),
        ("verbs", FAULTS[1]),
        ("devx", FAULTS[2]),
        soak("ofi", FAULTS[1]),
        soak("verbs", FAULTS[0]),
        soak("verbs", FAULTS[2]),
    ],
)
def test_a_cut_link_is_reported_and_a_new_world_works_after_it(running, transport, fault):
    network, job = cut_in_the_middle(running, transport, fault)
    if transport != "ofi":
        expect_cause(job, rails=[0, 1])
    # The message names the transports that the next start can use, with their setting.
    reports = "".join(program.out for program in job.programs)
    assert re.search(r"; both PEs also have \w+ \(not tried\)", reports), reports
    assert "Setting: SHOAL_TRANSPORT_BETWEEN" in reports
    for rail in range(network.rails):
        network.heal(network.hosts[1], rail)
    network.login.path(SHARED / "again.new").write_text(session(network) + "\n")
    network.login.path(SHARED / "again.new").rename(network.login.path(SHARED / "again"))
    for _, _, line in job.lines(30).values():
        assert line.endswith("new world ok")


RAILS = pytest.mark.parametrize("transport", ["ofi", "verbs", "devx"])


@RAILS
def test_one_cut_rail_is_reported(running, transport):
    _, job = cut_in_the_middle(running, transport, "fault-normal", rails=[1])
    if transport != "ofi":
        expect_cause(job, rails=[1])


@pytest.mark.parametrize(
    ("transport", "rail"),
    [("ofi", 0), ("verbs", 1), ("devx", 0), soak("ofi", 1), soak("verbs", 0), soak("devx", 1)],
)
def test_one_cut_rail_of_a_pe_that_has_two_is_reported(running, transport, rail):
    network, job = running(transport, "fault-normal", per_host=1)
    cut = time.monotonic()
    network.cut(network.hosts[1], rail)
    expect_reported(dict(enumerate(job.programs)), cut, lambda pe: {1 - pe})
    if transport != "ofi":
        expect_cause(job, rails=[rail], pes=[1])


def test_a_cut_link_is_reported_over_ucx(running):
    # No new world here: UCX 1.13 sometimes aborts the process when it closes a world whose TCP
    # connections have broken.
    cut_in_the_middle(running, "ucx", "fault-normal")
