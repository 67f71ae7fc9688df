# SPDX-License-Identifier: Apache-2.0
"""Links that are cut and hosts that die during an operation. Every PE reports it in time and names
a PE that it cannot reach. When the network is whole again, the same processes open a new world."""

import re
import time

import pytest
from hosts import SHARED
from launchers import by_hand, session
from soak import soak

TIMEOUT_MS = 3000
# From the cut until the last PE has reported: the deadline of that PE, which starts at its last
# progress, and a margin.
LIMIT_S = TIMEOUT_MS / 1000 + 2.5
FAULTS = ["fault-collective", "fault-normal", "fault-low-latency"]


@pytest.fixture
def running(make_network, host_checks, environment, use):
    """running(transport, fault): a network of two hosts and a job with two PEs on each, all of them
    inside the operation."""

    def start(transport, fault, per_host=2):
        use(transport)
        network = make_network(hosts=2)
        environment["SHOAL_TIMEOUT_MS"] = TIMEOUT_MS
        job = by_hand(network, [host_checks, fault, f"again={SHARED}/again"], per_host, environment)
        for program in job.programs:
            assert program.wait_for("is running", 20), program.wait(0)
        return network, job

    return start


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


@pytest.mark.parametrize(
    ("transport", "fault"),
    [("ofi", FAULTS[0]), ("verbs", FAULTS[2]), soak("ofi", FAULTS[2]), soak("verbs", FAULTS[0])],
)
def test_a_host_that_dies_is_reported_by_the_others(running, transport, fault):
    network, job = running(transport, fault)
    died = time.monotonic()
    network.hosts[1].die()
    expect_reported({0: job.programs[0], 1: job.programs[1]}, died, other_host)


@pytest.mark.parametrize("transport", ["ofi", "ucx", "verbs"])
def test_low_latency_goes_on_without_a_host_that_died(
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
