"""PEs started by each launcher find each other between hosts, and see which of them share a host (D7, D9)."""

import pytest
from launchers import Slurm, by_hand, missing, with_mpirun

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


@pytest.mark.skipif(missing("mpirun") is not None, reason=str(missing("mpirun")))
@pytest.mark.parametrize(("n_hosts", "per_host"), [(2, 2), (4, 2)])
def test_mpirun(make_network, net_checks, environment, n_hosts, per_host):
    network = make_network(hosts=n_hosts)
    expect_all(with_mpirun(network, [net_checks, "bootstrap"], per_host, environment).lines(), n_hosts, per_host)


SLURM = missing("srun", "slurmctld", "slurmd", "munged")


@pytest.mark.skipif(SLURM is not None, reason=str(SLURM))
def test_srun(make_network, net_checks, environment):
    slurm = Slurm(make_network(hosts=2))
    for mpi in ("none", "pmi2", "pmix"):
        expect_all(slurm.srun([net_checks, "bootstrap"], 2, mpi, environment).lines(), 2, 2)
