# SPDX-License-Identifier: Apache-2.0
"""PEs on several hosts under launchers: they find each other, detect which of them share a host,
and run EP over the network. test_bootstraps.py tests the bootstraps that launchers offer."""

import pytest
from hosts import Network
from launchers import (
    Slurm,
    by_hand,
    missing,
    session,
    with_mpirun,
    with_shoal_run,
    with_torch_variables,
)
from soak import SLURM_CASES

SHAPES = [(2, 1), (2, 2), (3, 1), (4, 2)]  # hosts, PEs on each
NO_MPIRUN, NO_SLURM = missing("mpirun"), missing("srun", "slurmctld", "slurmd", "munged")
needs_mpirun = pytest.mark.skipif(NO_MPIRUN is not None, reason=str(NO_MPIRUN))
needs_slurm = pytest.mark.skipif(NO_SLURM is not None, reason=str(NO_SLURM))


def expect_all(lines, n_hosts, per_host):
    n = n_hosts * per_host
    hosts = [f"host{pe // per_host}" for pe in range(n)]
    assert {pe: (count, host) for pe, (count, host, _) in lines.items()} == {
        pe: (n, hosts[pe]) for pe in range(n)
    }
    for _, _, line in lines.values():
        assert line.endswith(": hosts " + " ".join(hosts))


@pytest.mark.parametrize(("n_hosts", "per_host"), SHAPES)
def test_by_hand(make_network, host_checks, environment, n_hosts, per_host):
    network = make_network(hosts=n_hosts)
    expect_all(
        by_hand(network, [host_checks, "bootstrap"], per_host, environment).lines(),
        n_hosts,
        per_host,
    )


def test_torch_variables(make_network, host_checks, environment):
    network = make_network(hosts=2)
    expect_all(
        with_torch_variables(network, [host_checks, "bootstrap"], 2, environment).lines(), 2, 2
    )


# The launcher numbers the PEs; the session is their meeting point.
@needs_mpirun
def test_mpirun_with_a_session(make_network, host_checks, environment):
    network = make_network(hosts=2)
    environment["SHOAL_SESSION_ID"] = session(network)
    expect_all(with_mpirun(network, [host_checks, "bootstrap"], 2, environment).lines(), 2, 2)


@pytest.fixture(scope="module")
def slurm():
    with Network(hosts=2) as network:
        yield Slurm(network)


@needs_slurm
def test_srun_with_a_session(slurm, host_checks, environment):
    environment["SHOAL_SESSION_ID"] = session(slurm.network)
    expect_all(slurm.srun([host_checks, "bootstrap"], 2, "none", environment).lines(), 2, 2)


def expect_ep(lines, transport):
    assert sorted(lines) == [0, 1, 2, 3]
    used = ", ".join(sorted([transport, "shm"]))
    for pe, (_, host, line) in lines.items():
        assert host == f"host{pe // 2}" and line.endswith(
            f"(index {pe % 2} of 2 on its node; {used}): ep ok"
        )


OVER = pytest.mark.parametrize("transport", ["ofi", "verbs"])


@needs_mpirun
@OVER
def test_ep_under_mpirun(make_network, host_checks, environment, use, transport):
    use(transport)
    job = with_mpirun(make_network(hosts=2), [host_checks, "ep"], 2, environment)
    expect_ep(job.lines(), transport)


@needs_mpirun
@OVER
def test_ep_under_shoal_run(make_network, host_checks, environment, use, transport):
    use(transport)
    job = with_shoal_run(make_network(hosts=2), [host_checks, "ep"], 2, environment)
    expect_ep(job.lines(), transport)


@needs_slurm
@SLURM_CASES
def test_ep_under_srun(slurm, host_checks, environment, use, transport, mpi):
    use(transport)
    expect_ep(slurm.srun([host_checks, "ep"], 2, mpi, environment).lines(), transport)


@OVER
def test_ep_with_torch_variables(make_network, host_checks, environment, use, transport):
    use(transport)
    job = with_torch_variables(make_network(hosts=2), [host_checks, "ep"], 2, environment)
    expect_ep(job.lines(), transport)
