"""PEs started by each launcher find each other between hosts, and see which of them share a host (D7, D9)."""

import pytest
from hosts import Network
from launchers import Slurm, by_hand, missing, session, with_mpirun, with_shoal_run, with_torch_variables

SHAPES = [(2, 1), (2, 2), (3, 1), (4, 2)]  # hosts, PEs on each


def expect_all(lines, n_hosts, per_host):
    n = n_hosts * per_host
    hosts = [f"host{pe // per_host}" for pe in range(n)]
    assert {pe: (count, host) for pe, (count, host, _) in lines.items()} == {pe: (n, hosts[pe]) for pe in range(n)}
    for _, _, line in lines.values():
        assert line.endswith(": hosts " + " ".join(hosts))


@pytest.mark.parametrize(("n_hosts", "per_host"), SHAPES)
def test_by_hand(make_network, net_checks, environment, n_hosts, per_host):
    network = make_network(hosts=n_hosts)
    expect_all(by_hand(network, [net_checks, "bootstrap"], per_host, environment).lines(), n_hosts, per_host)


def test_torch_variables(make_network, net_checks, environment):
    network = make_network(hosts=2)
    expect_all(with_torch_variables(network, [net_checks, "bootstrap"], 2, environment).lines(), 2, 2)


# Each launcher's own way first; the others are what a user may ask for in its place.
@pytest.mark.skipif(missing("mpirun") is not None, reason=str(missing("mpirun")))
@pytest.mark.parametrize("bootstrap", ["automatic", "pmix", "mpi", "session"])
def test_mpirun(make_network, net_checks, environment, bootstrap):
    network = make_network(hosts=2)
    how = {"SHOAL_SESSION_ID": session(network)} if bootstrap == "session" else {"SHOAL_BOOTSTRAP": bootstrap}
    expect_all(with_mpirun(network, [net_checks, "bootstrap"], 2, {**environment, **how}).lines(), 2, 2)


@pytest.mark.skipif(missing("mpirun") is not None, reason=str(missing("mpirun")))
def test_shoal_run_through_mpirun(make_network, net_checks, environment):
    network = make_network(hosts=2)
    expect_all(with_shoal_run(network, [net_checks, "bootstrap"], 2, environment).lines(), 2, 2)


@pytest.fixture(scope="module")
def slurm():
    reason = missing("srun", "slurmctld", "slurmd", "munged")
    if reason is not None:
        pytest.skip(reason)
    with Network(hosts=2) as network:
        yield Slurm(network)


@pytest.mark.parametrize(("mpi", "bootstrap"), [("pmi2", "automatic"), ("pmix", "automatic"), ("pmi2", "pmi2"), ("pmi2", "pmi"),
                                                ("none", "session")])
def test_srun(slurm, net_checks, environment, mpi, bootstrap):
    how = {"SHOAL_SESSION_ID": session(slurm.network)} if bootstrap == "session" else {"SHOAL_BOOTSTRAP": bootstrap}
    expect_all(slurm.srun([net_checks, "bootstrap"], 2, mpi, {**environment, **how}).lines(), 2, 2)


def test_shoal_run_through_srun(slurm, net_checks, environment):
    env = {**environment, **slurm.env}
    expect_all(with_shoal_run(slurm.network, [net_checks, "bootstrap"], 2, env, launcher="srun").lines(), 2, 2)
