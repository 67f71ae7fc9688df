# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests between hosts. SHOAL_BIN_DIR names the folder of the programs. Where
namespaces are not allowed, every test is skipped and one line at the end says why."""

import os
import pathlib

import pytest

import hosts

TIMEOUT_MS = 20_000  # of operations and of the bootstrap, on an unloaded machine


def pytest_collection_modifyitems(items):
    reason = hosts.why_not()
    if reason is not None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter):
    reason = hosts.why_not()
    if reason is not None:
        terminalreporter.write_line(f"tests/hosts skipped: {reason}")


@pytest.fixture(scope="session")
def bin_dir():
    directory = os.environ.get("SHOAL_BIN_DIR")
    if not directory:
        pytest.fail("set SHOAL_BIN_DIR to the build's bin directory")
    return pathlib.Path(directory).resolve()


def emulated_verbs(bin_dir):
    return bin_dir.parent / "lib/emulator/libibverbs.so.1"


@pytest.fixture(scope="session")
def host_checks(bin_dir):
    return bin_dir / "host_checks"


@pytest.fixture
def environment(bin_dir):
    """Small heaps, and timeouts that only a hanging test reaches. Verbs use emulated NICs with a
    wire between hosts: mlx5_0 on rail 0, mlx5_1 on rail 1."""
    timeout = str(round(hosts.scaled(TIMEOUT_MS)))
    return {
        "SHOAL_VERBS_LIBRARY": str(emulated_verbs(bin_dir)),
        "SHOAL_EMULATOR_WIRE": "udp",
        "SHOAL_EMULATOR_UDP_INTERFACE": "rail0,rail1",
        "SHOAL_SYMMETRIC_SIZE": "64M",
        "SHOAL_TIMEOUT_MS": timeout,
        "SHOAL_BOOTSTRAP_TIMEOUT_MS": timeout,
    }


@pytest.fixture
def make_network():
    """make_network(hosts=2, rails=2): a Network that ends with the test."""
    made = []

    def make(**options):
        made.append(hosts.Network(**options))
        return made[-1]

    yield make
    for network in made:
        network.close()


@pytest.fixture(scope="session")
def needs(bin_dir):
    """needs("ofi"): skips the test if this build has no such transport because its library is
    missing. "devx" is verbs by device commands."""

    def skip_without(transport):
        transport = "verbs" if transport == "devx" else transport
        module = bin_dir.parent / "lib/shoal" / f"libshoal_transport_{transport}.so"
        if not module.exists():
            pytest.skip(f"this build has no {module.name}")
        if transport == "verbs" and not emulated_verbs(bin_dir).exists():
            pytest.skip("this build has no emulated NIC")

    return skip_without


@pytest.fixture
def use(environment, needs):
    """use("devx"): this network between hosts for the test, which is skipped without it. Returns
    the name of the transport."""

    def choose(transport):
        needs(transport)
        if transport == "devx":
            transport = "verbs"
            environment["SHOAL_VERBS_INTERFACE"] = "devx"
        environment["SHOAL_TRANSPORT_BETWEEN"] = transport
        return transport

    return choose
