# SPDX-License-Identifier: Apache-2.0
"""OpenSHMEM programs of tests/shmem between hosts, two PEs on each, under each launcher and over
each network."""

import itertools

import pytest
from hosts import Network
from launchers import Slurm, missing, with_mpirun, with_shoal_run
from soak import SLURM_CASES, soak

NO_MPIRUN, NO_SLURM = missing("mpirun"), missing("srun", "slurmctld", "slurmd", "munged")
needs_mpirun = pytest.mark.skipif(NO_MPIRUN is not None, reason=str(NO_MPIRUN))
needs_slurm = pytest.mark.skipif(NO_SLURM is not None, reason=str(NO_SLURM))
OVER = pytest.mark.parametrize("transport", ["ofi", "verbs"])
PROGRAMS = ["atomics", "collectives", "contexts", "locks", "order", "rma", "signals", "statics"]
# Over libfabric the others run inside a host (tests/shmem).
SOAK = [("ofi", name) for name in ("atomics", "contexts", "order", "rma", "statics")]


@pytest.fixture(scope="module")
def network():
    with Network(hosts=2) as network:
        yield network


@pytest.fixture(scope="module")
def slurm(network):
    yield Slurm(network)


@pytest.fixture
def shmem_environment(environment):
    del environment["SHOAL_SYMMETRIC_SIZE"]
    return {
        **environment,
        "SHMEM_SYMMETRIC_SIZE": "64M",
        "SHMEM_VERSION": "1",
        "SHOAL_TEST_FEW": "1",
    }


def expect_one_world(job):
    """Every PE succeeds, and one of them is PE 0, which prints the version."""
    results = job.wait()
    assert all(result.ok for result in results), "\n".join(map(str, results))
    printed = "".join(result.out for result in results)
    assert printed.count("Shoal, OpenSHMEM 1.5") == 1, printed


@needs_mpirun
@pytest.mark.parametrize(
    ("transport", "program"),
    [
        soak(*case) if case in SOAK else case
        for case in itertools.product(["ofi", "verbs"], PROGRAMS)
    ],
)
def test_mpirun(network, bin_dir, shmem_environment, needs, transport, program):
    needs(transport)
    shmem_environment["SHOAL_TRANSPORT_BETWEEN"] = transport
    command = [bin_dir / f"shmem_{program}"]
    expect_one_world(with_mpirun(network, command, 2, shmem_environment))


@needs_slurm
@SLURM_CASES
def test_srun(slurm, bin_dir, shmem_environment, needs, transport, mpi):
    needs(transport)
    shmem_environment["SHOAL_TRANSPORT_BETWEEN"] = transport
    expect_one_world(slurm.srun([bin_dir / "shmem_collectives"], 2, mpi, shmem_environment))


@needs_mpirun
@OVER
def test_oshrun(network, bin_dir, shmem_environment, needs, transport):
    needs(transport)
    shmem_environment["SHOAL_TRANSPORT_BETWEEN"] = transport
    expect_one_world(with_shoal_run(network, [bin_dir / "shmem_collectives"], 2, shmem_environment))
