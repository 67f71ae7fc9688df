# SPDX-License-Identifier: Apache-2.0
"""Worlds, collectives and EP between hosts, over every network transport of the build."""

import re

import pytest
from launchers import by_hand
from soak import soak

CASES = [
    ("ofi", 2, 1),
    ("ofi", 2, 2),
    ("ofi", 3, 1),
    ("ofi", 4, 2),
    ("ucx", 2, 2),
    ("ucx", 3, 1),
    ("verbs", 2, 1),
    ("verbs", 2, 2),
    ("verbs", 3, 1),
    ("verbs", 4, 2),
]  # hosts, PEs on each
# Collectives are quick for two PEs and slow for eight on two cores.
COLLECTIVE_CASES = [soak(*case) if case[1:] in [(2, 1), (4, 2)] else case for case in CASES]


def expect_lines(lines, n_hosts, per_host, transport, end):
    """Every PE reports success, shared memory with the PEs of its host, and the network to
    others."""
    used = ", ".join(sorted(["shm"] * (per_host > 1) + [transport]))
    assert sorted(lines) == list(range(n_hosts * per_host))
    for pe, (_, _, line) in lines.items():
        assert (
            f"on host{pe // per_host} (index {pe % per_host} of {per_host} on its node; {used}): "
            in line
        )
        assert line.endswith(end)


@pytest.mark.parametrize(("transport", "n_hosts", "per_host"), COLLECTIVE_CASES)
def test_world_and_collectives(
    make_network, host_checks, environment, needs, transport, n_hosts, per_host
):
    needs(transport)
    environment["SHOAL_TRANSPORT_BETWEEN"] = transport
    lines = by_hand(
        make_network(hosts=n_hosts), [host_checks, "world", "collectives"], per_host, environment
    ).lines(90)
    expect_lines(lines, n_hosts, per_host, transport, "world ok, collectives ok")


@pytest.mark.parametrize("inside", ["shm,ofi", "shm,verbs"])
def test_containers_of_one_machine_that_share_no_memory(
    make_network, host_checks, environment, needs, inside
):
    """Containers have a network each: the loopback interface reaches no other. More PEs than cores:
    those of one machine would meet in the memory of the first one."""
    needs(inside.split(",")[1])
    environment["SHOAL_TRANSPORT_INSIDE"] = inside
    network = make_network(hosts=2, one_machine=True)
    lines = by_hand(network, [host_checks, "world"], 5, environment).lines(90)
    assert len(lines) == 10
    for _, _, line in lines.values():
        assert line.endswith("world ok")


@pytest.mark.parametrize(("transport", "n_hosts", "per_host"), CASES)
def test_ep_in_both_modes(
    make_network, host_checks, environment, needs, transport, n_hosts, per_host
):
    needs(transport)
    environment["SHOAL_TRANSPORT_BETWEEN"] = transport
    lines = by_hand(make_network(hosts=n_hosts), [host_checks, "ep"], per_host, environment).lines(
        90
    )
    expect_lines(lines, n_hosts, per_host, transport, "ep ok")


@pytest.mark.parametrize(
    ("transport", "n_hosts", "per_host"), [("ofi", 2, 2), soak("ofi", 3, 2), ("verbs", 2, 2)]
)
def test_pes_dealt_round_robin(
    make_network, host_checks, environment, needs, transport, n_hosts, per_host
):
    needs(transport)
    environment["SHOAL_TRANSPORT_BETWEEN"] = transport
    lines = by_hand(
        make_network(hosts=n_hosts),
        [host_checks, "identity", "world", "collectives", "ep"],
        per_host,
        environment,
        round_robin=True,
    ).lines(90)
    assert sorted(lines) == list(range(n_hosts * per_host))
    used = ", ".join(sorted(["shm", transport]))
    for pe, (_, host, line) in lines.items():
        assert host == f"host{pe % n_hosts}"
        assert f"(index {pe // n_hosts} of {per_host} on its node; {used}): " in line
        assert line.endswith("identity ok, world ok, collectives ok, ep ok")


@pytest.mark.parametrize("transport", ["ofi", "verbs"])
def test_ep_with_skewed_pes(make_network, host_checks, environment, needs, transport):
    needs(transport)
    environment["SHOAL_TRANSPORT_BETWEEN"] = transport
    lines = by_hand(make_network(hosts=2), [host_checks, "soak"], 2, environment).lines(90)
    expect_lines(lines, 2, 2, transport, "soak ok")


# Verbs: the emulated NIC repeats what is lost.
@pytest.mark.parametrize("transport", ["ofi", "verbs"])
def test_results_are_right_on_a_slow_lossy_network(
    make_network, host_checks, environment, needs, transport
):
    needs(transport)
    environment["SHOAL_TRANSPORT_BETWEEN"] = transport
    network = make_network(hosts=2)
    network.shape("1gbit")
    network.lose(10)
    lines = by_hand(network, [host_checks, "collectives", "ep"], 2, environment).lines(90)
    expect_lines(lines, 2, 2, transport, "collectives ok, ep ok")


# One packet of a hundred is lost; the default timeouts hold. Early resends after 1 ms: with the
# default of 10 ms most of the time would be waits for them.
@pytest.mark.parametrize("ordering", ["adaptive", "unordered"])
def test_results_are_right_where_the_network_reorders(
    make_network, host_checks, environment, needs, ordering
):
    needs("verbs")
    environment |= {
        "SHOAL_TRANSPORT_BETWEEN": "verbs",
        "SHOAL_EMULATOR_ORDERING": ordering,
        "SHOAL_EMULATOR_FIRST_RESEND_US": 1000,
        "SHOAL_EMULATOR_REORDERING": 0.1,  # by the NIC: not every kernel has netem
    }
    network = make_network(hosts=2)
    network.lose(10)
    lines = by_hand(network, [host_checks, "world", "ep"], 2, environment).lines(90)
    expect_lines(lines, 2, 2, "verbs", "world ok, ep ok")


# Queues that device commands create, which take the MAC address of the peer's host.
def test_world_collectives_and_ep_over_device_commands(make_network, host_checks, environment, use):
    use("devx")
    checks = [host_checks, "world", "collectives", "ep"]
    lines = by_hand(make_network(hosts=2), checks, 2, environment).lines(90)
    expect_lines(lines, 2, 2, "verbs", "world ok, collectives ok, ep ok")


# The bootstrap is on the first rail, RDMA on the second.
def test_a_peer_whose_mac_address_is_not_found_is_named(
    make_network, host_checks, environment, use
):
    use("devx")
    environment["SHOAL_NIC_LIST"] = "rail1"
    network = make_network(hosts=2)
    peer = network.hosts[1].address(rail=1)
    network.hosts[0].check(["ip", "route", "add", "unreachable", f"{peer}/32"])
    results = by_hand(network, [host_checks, "world"], 1, environment).wait(60)
    assert not any(result.ok for result in results)
    text = "".join(result.out + result.err for result in results)
    assert (
        "queue pair 1 of 1 for PE 1 on mlx5_1:1 (PE 0) does not change to RTR: SHOAL-N406: the "
        f"MAC address of GID ::ffff:{peer} cannot be resolved: No route to host" in text
    ), text


def grown(network, job):
    """Bytes that the job moved over each rail of each host. The job must succeed."""

    def traffic():
        return [[host.traffic(rail) for rail in range(network.rails)] for host in network.hosts]

    before = traffic()
    job().lines(90)
    return [
        [b - a for a, b in zip(x, y, strict=True)] for x, y in zip(before, traffic(), strict=True)
    ]


BOOTSTRAP_BYTES = 200_000  # an upper bound of the traffic that starts a world, on rail 0
TRAFFIC_BYTES = (
    4 << 20
)  # "traffic": sent by each PE to the PE of the same local index on another host


RAILS = pytest.mark.parametrize("transport", ["ofi", "verbs", "devx"])


@RAILS
def test_pes_of_a_host_use_different_rails(make_network, host_checks, environment, use, transport):
    use(transport)
    network = make_network(hosts=2)
    for rails in grown(network, lambda: by_hand(network, [host_checks, "traffic"], 2, environment)):
        assert min(rails) > 2 * TRAFFIC_BYTES, "the traffic of a PE in both directions"


@RAILS
def test_a_pe_alone_uses_both_rails(make_network, host_checks, environment, use, transport):
    use(transport)
    network = make_network(hosts=2)
    for rails in grown(network, lambda: by_hand(network, [host_checks, "traffic"], 1, environment)):
        assert sum(rails) > 2 * TRAFFIC_BYTES
        assert min(rails) > sum(rails) / 4


@pytest.mark.parametrize("index", [0, 1])
@RAILS
def test_a_pe_that_is_given_one_rail_leaves_the_other_alone(
    make_network, host_checks, environment, use, transport, index
):
    use(transport)
    network = make_network(hosts=2)
    environment["SHOAL_NIC_LIST"] = f"rail{index}"
    for rails in grown(network, lambda: by_hand(network, [host_checks, "traffic"], 1, environment)):
        assert rails[index] > 2 * TRAFFIC_BYTES
        assert rails[1 - index] < BOOTSTRAP_BYTES


@pytest.mark.parametrize("transport", ["ofi", "ucx", "verbs"])
def test_a_token_crosses_once_and_one_row_comes_back(
    make_network, host_checks, environment, needs, transport
):
    needs(transport)
    environment |= {"SHOAL_TRANSPORT_BETWEEN": transport, "SHOAL_SYMMETRIC_SIZE": "1G"}
    results = by_hand(make_network(hosts=2), [host_checks, "copies"], 2, environment).wait(60)
    assert all(result.ok for result in results), "\n".join(map(str, results))
    text = "".join(result.out for result in results)
    sent = re.findall(
        r"host\d sent (\d+) bytes to dispatch and (\d+) to combine (\d+) bytes of tokens", text
    )
    assert len(sent) == 2
    for dispatched, combined, tokens in sent:
        assert int(tokens) <= int(dispatched) <= 1.3 * int(tokens)
        assert int(tokens) <= int(combined) <= 1.3 * int(tokens)


@RAILS
def test_jobs_that_share_hosts_use_different_nics(
    make_network, host_checks, environment, use, transport
):
    use(transport)
    network = make_network(hosts=2)
    for index in (0, 1):
        job = {**environment, "SHOAL_LOCAL_INDEX": index, "SHOAL_LOCAL_SIZE": 2}
        for rails in grown(
            network, lambda job=job: by_hand(network, [host_checks, "traffic"], 1, job)
        ):
            assert rails[index] > 2 * TRAFFIC_BYTES
            assert rails[1 - index] < BOOTSTRAP_BYTES


@pytest.mark.parametrize("fault", ["put 1 2", "lose-signal 3 0"])
def test_a_network_that_fails_first_is_replaced(
    make_network, bin_dir, host_checks, environment, needs, fault
):
    needs("ofi")
    environment |= {
        "SHOAL_TRANSPORT_BETWEEN": "ucx,ofi",
        "SHOAL_PLUGIN_DIR": bin_dir.parent / "tests/faulty_transports",
        "SHOAL_TEST_FAULT": fault,
    }
    job = by_hand(make_network(hosts=2), [host_checks, "collectives"], 2, environment)
    expect_lines(job.lines(90), 2, 2, "ofi", "collectives ok")
    assert "transport ucx is not used (dropped for all" in job.programs[0].err
    assert "ofi takes its place" in job.programs[0].err


def test_the_plan_gives_the_pes_of_a_host_different_rails(make_network, bin_dir):
    (host,) = make_network(hosts=1).hosts
    page = host.run([bin_dir / "shoal-info", "--topology", "--pes", "2"]).out
    for index in (0, 1):
        assert f"PE with local index {index}: rail{index} " in page


# Equal host ids: pods of one machine without ids of their own.
@pytest.mark.parametrize(
    ("host_id", "reason"),
    [("", "on another host"), ("same", "on this host, but in another network namespace")],
)
def test_says_why_a_pair_has_no_transport(make_network, host_checks, environment, host_id, reason):
    environment["SHOAL_PLUGIN_DIR"] = "/nowhere"
    environment["SHOAL_HOST_ID"] = host_id
    results = by_hand(make_network(hosts=2), [host_checks, "world"], 2, environment).wait(60)
    for result in results:
        assert result.status == 77, result
        assert "no transport connects PE 0 and PE 2" in result.out
        assert f"shm offers nothing ({reason}" in result.out
        assert "/nowhere/libshoal_transport_ofi.so" in result.out
