# SPDX-License-Identifier: Apache-2.0
"""shoal-info in a world between hosts, and worlds in which one PE lacks a network that others
have."""

import json
import re

import pytest
from hosts import SHARED
from launchers import by_hand

LOOK = ["--connectivity", "--init-timeline", "--json"]
NETWORK_PHASES = ["NIC choice", "network", "network links", "network map"]
PHASES = [
    "settings",
    "bootstrap",
    "identity",
    "heap",
    "transports",
    "connectivity",
    *NETWORK_PHASES,
    "teams",
    "final barrier",
]


def look(network, bin_dir, env, own=None):
    """The document that PE 0 prints, and the Results of all PEs, which must have succeeded. Every
    host runs two PEs."""
    results = by_hand(network, [bin_dir / "shoal-info", *LOOK], 2, env, own).wait(60)
    assert all(result.ok for result in results), "\n".join(map(str, results))
    assert [bool(result.out) for result in results] == [True, False, False, False]
    return json.loads(results[0].out), results


def phases(document):
    """The names of the phases; they must be the same on all PEs."""
    names = [[phase["name"] for phase in pe["phases"]] for pe in document["init_timeline"]["pes"]]
    assert len(names) == 4 and all(of_pe == names[0] for of_pe in names)
    return names[0]


def verdicts(document):
    """{(a, b): {transport: its row}} of all pairs of different PEs."""
    pairs = {
        (pair["a"], pair["b"]): {row["name"]: row for row in pair["transports"]}
        for pair in document["connectivity"]["pairs"]
    }
    return {(a, b): rows for (a, b), rows in pairs.items() if a != b}


def chosen(document):
    """The transports that pairs inside hosts use, and those between hosts."""
    used = {
        pair: [name for name, row in rows.items() if row["chosen"]]
        for pair, rows in verdicts(document).items()
    }
    assert sorted(used) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    inside = [used.pop(pair) for pair in ((0, 1), (2, 3))]
    return inside, list(used.values())


def only(transport, host, bin_dir):
    """Environment of a PE on `host` that has only this network."""
    modules, name = SHARED / "modules", f"libshoal_transport_{transport}.so"
    host.path(modules).mkdir()
    (host.path(modules) / name).symlink_to(bin_dir.parent / "lib/shoal" / name)
    return {"SHOAL_PLUGIN_DIR": modules}


@pytest.mark.parametrize("transport", ["ofi", "verbs", "devx"])
def test_shows_hosts_nics_transports_and_phases(make_network, bin_dir, environment, use, transport):
    transport = use(transport)
    document, _ = look(make_network(hosts=2), bin_dir, environment)
    pes = document["connectivity"]["pes"]
    assert [(pe["host"], pe["node"], pe["nics"]) for pe in pes] == [
        ("host0", 0, ["rail0"]),
        ("host0", 0, ["rail1"]),
        ("host1", 1, ["rail0"]),
        ("host1", 1, ["rail1"]),
    ]
    assert chosen(document) == ([["shm"]] * 2, [[transport]] * 4)
    assert "on another host" in verdicts(document)[1, 2]["shm"]["why"]
    assert "comes first and does everything" in "".join(
        row["why"] for row in verdicts(document)[0, 1].values()
    )
    assert phases(document) == PHASES


@pytest.mark.parametrize(("lacked", "left"), [("ofi", "ucx"), ("verbs", "ofi")])
def test_a_network_that_one_pe_lacks_is_dropped_for_all(
    make_network, bin_dir, environment, needs, lacked, left
):
    needs(lacked)
    needs(left)
    network = make_network(hosts=2)
    environment |= {"SHOAL_LOG": "info", "SHOAL_TRANSPORT_BETWEEN": f"{lacked},{left}"}
    document, results = look(
        network, bin_dir, environment, {3: only(left, network.hosts[1], bin_dir)}
    )
    assert chosen(document) == ([["shm"]] * 2, [[left]] * 4)
    for pair in ((0, 2), (0, 3), (1, 2), (1, 3)):
        assert (
            "dropped for all, since between PE 0 and PE 3 it offers nothing"
            in verdicts(document)[pair][lacked]["why"]
        )
    for pe, result in enumerate(results):
        assert (
            f"PE {pe}: transport {lacked} is dropped for all, since between PE 0 and PE 3"
            in result.err
        ), result
    assert phases(document) == PHASES[:6] + NETWORK_PHASES * 2 + PHASES[6 + len(NETWORK_PHASES) :]


@pytest.mark.parametrize(("lacked", "left"), [("ucx", "ofi"), ("ofi", "verbs"), ("verbs", "ofi")])
def test_a_world_works_on_the_network_that_is_left(
    make_network, bin_dir, host_checks, environment, needs, lacked, left
):
    needs(lacked)
    needs(left)
    network = make_network(hosts=2)
    environment["SHOAL_TRANSPORT_BETWEEN"] = f"{lacked},{left}"
    own = {1: only(left, network.hosts[0], bin_dir)}
    results = by_hand(
        network, [host_checks, "collectives", "ep", "threads"], 2, environment, own
    ).wait(90)
    for pe, result in enumerate(results):
        assert result.ok, result
        used = ", ".join(sorted([left, "shm"]))
        assert f"; {used}): collectives ok, ep ok" in result.out
        threads = re.search(rf"PE {pe}: threads: (.*)", result.out).group(1)
        assert f"1 of {left}" in threads, threads
        assert f"0 of {lacked}" in threads, "a dropped transport ends its threads"


def test_one_wrong_nic_list_fails_all(make_network, host_checks, environment):
    results = by_hand(
        make_network(hosts=2),
        [host_checks, "world"],
        2,
        environment,
        {2: {"SHOAL_NIC_LIST": "rail7"}},
    ).wait(60)
    for result in results:
        assert result.status == 1, result
        assert (
            "PE 2 failed in phase NIC choice: SHOAL-N227: SHOAL_NIC_LIST is "
            '"rail7": no NIC is called "rail7"' in result.out
        ), result
        assert "This host has: rail0, rail1" in result.out, result


def test_transports_that_differ_fail_all(make_network, host_checks, environment):
    own = {pe: {"SHOAL_TRANSPORT_BETWEEN": "ucx"} for pe in (2, 3)}
    for result in by_hand(make_network(hosts=2), [host_checks, "world"], 2, environment, own).wait(
        60
    ):
        assert result.status == 1, result
        assert (
            "PEs disagree about SHOAL_TRANSPORT_BETWEEN, which must be the same on all: "
            "PE 0, 1: automatic; PE 2, 3: ucx" in result.out
        )
