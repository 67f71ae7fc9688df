# SPDX-License-Identifier: Apache-2.0
"""PEs on several hosts without Shoal's own variables: plug-ins for launchers, and shoal-run
--hosts."""

import re

import pytest
from launchers import Slurm, missing, mpirun_options

ENVIRONMENT = {"SHOAL_BOOTSTRAP_TIMEOUT_MS": "20000", "SHOAL_TIMEOUT_MS": "20000"}
MPIRUN, SLURM = missing("mpirun"), missing("srun", "slurmctld", "slurmd", "munged")
needs_mpirun = pytest.mark.skipif(MPIRUN is not None, reason=str(MPIRUN))
needs_slurm = pytest.mark.skipif(SLURM is not None, reason=str(SLURM))


@pytest.fixture
def probe(bin_dir):
    return bin_dir / "bootstrap_probe"


# The control plane only: test_worlds.py tests the networks that carry data.
OPTIONS = ["--control", "--worlds", 2]


def expect(program, n_pes, via, worlds=2):
    result = program.wait(60)
    assert result.ok, str(result)
    assert sorted(re.findall(r"PE \d+ of \d+ via \w+ ok", result.out)) == sorted(
        [f"PE {pe} of {n_pes} via {via} ok" for pe in range(n_pes)] * worlds
    ), str(result)


@needs_mpirun
@pytest.mark.parametrize("asked", ["automatic", "mpi"])
def test_mpirun(make_network, probe, asked):
    network = make_network(hosts=2)
    command = [
        "mpirun",
        *mpirun_options(network),
        "--host",
        "host0:2,host1:2",
        "-np",
        4,
        "-x",
        "SHOAL_BOOTSTRAP",
        probe,
        *OPTIONS,
    ]
    expect(
        network.login.popen(command, {**ENVIRONMENT, "SHOAL_BOOTSTRAP": asked}),
        4,
        "pmix" if asked == "automatic" else asked,
    )


@needs_slurm
def test_srun(make_network, probe):
    slurm = Slurm(make_network(hosts=2))
    for mpi, asked, via in [
        ("none", "automatic", "pmi"),
        ("pmi2", "automatic", "pmi"),
        ("pmi2", "pmi2", "pmi2"),
        ("pmix", "automatic", "pmix"),
    ]:
        command = [
            "srun",
            f"--mpi={mpi}",
            "--nodes=2",
            "--ntasks-per-node=2",
            "--overcommit",
            "--kill-on-bad-exit=1",
            probe,
            *OPTIONS,
        ]
        expect(
            slurm.network.login.popen(
                command, {**ENVIRONMENT, **slurm.env, "SHOAL_BOOTSTRAP": asked}
            ),
            4,
            via,
        )


@needs_mpirun
def test_shoal_run_hosts_through_mpirun(make_network, bin_dir, probe):
    network = make_network(hosts=2)
    command = [
        bin_dir / "shoal-run",
        "--no-label",
        "--hosts",
        "host0:2,host1:2",
        "--launcher",
        "mpirun",
        "--launcher-args",
        " ".join(map(str, mpirun_options(network))),
        probe,
        "--control",
    ]
    expect(network.login.popen(command, ENVIRONMENT), 4, "uid", worlds=1)


@needs_slurm
def test_shoal_run_hosts_through_srun(make_network, bin_dir, probe):
    slurm = Slurm(make_network(hosts=2))
    command = [
        bin_dir / "shoal-run",
        "--no-label",
        "--hosts",
        "host1:1,host0:2",
        "--launcher",
        "srun",
        "--launcher-args",
        "--overcommit",
        probe,
        "--control",
    ]
    expect(slurm.network.login.popen(command, {**ENVIRONMENT, **slurm.env}), 3, "uid", worlds=1)
