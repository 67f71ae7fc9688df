# SPDX-License-Identifier: Apache-2.0
"""PEs find each other under real launchers, by torchrun's variables and by a user's plug-in; the
command line of shoal-run --hosts.

The test of a launcher that is not installed is skipped. tests/hosts has the tests of Slurm.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 40
OPEN_MPI = ["--allow-run-as-root", "--oversubscribe"]


def flavour(program):
    """The implementation behind this program: "Open MPI", "MPICH" or None."""
    if shutil.which(program) is None:
        return None
    text = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=LIMIT_S
    ).stdout
    return (
        "Open MPI"
        if "Open MPI" in text or "OpenRTE" in text
        else "MPICH"
        if "HYDRA" in text
        else None
    )


def first(kind, names):
    return next((name for name in names if flavour(name) == kind), None)


MPIRUN = first("Open MPI", ["mpirun.openmpi", "mpirun"])
HYDRA = first("MPICH", ["mpirun.mpich", "mpiexec.hydra", "mpirun"])
OSHRUN = shutil.which("oshrun")
needs_mpirun = pytest.mark.skipif(MPIRUN is None, reason="mpirun of Open MPI is not installed")
needs_hydra = pytest.mark.skipif(HYDRA is None, reason="mpirun of MPICH is not installed")
# Variables of a launcher around this test would be mistaken for variables of the PEs.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not re.match(
        r"SHOAL_|NVSHMEM_|OMPI_|PMIX?_|SLURM_|HYDI_|TORCHELASTIC|RANK$|WORLD_SIZE$|MASTER_", name
    )
}
ENVIRONMENT |= {
    "SHOAL_BOOTSTRAP_TIMEOUT_MS": "15000",
    "SHOAL_SOCKET_INTERFACE": "lo",
    "OMPI_MCA_btl": "self,vader",
}


@pytest.fixture
def modules(bin_dir):
    """modules("pmix"): skips the test if this build has no such plug-in because its library is
    missing."""

    def skip_without(name):
        if not (bin_dir.parent / f"lib/shoal/libshoal_bootstrap_{name}.so").exists():
            pytest.skip(f"this build has no libshoal_bootstrap_{name}.so")

    return skip_without


def run(command, **environment):
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**ENVIRONMENT, **environment},
        cwd="/",
    )


def start(command, **environment):
    return subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **environment},
        cwd="/",
    )


def finish(processes):
    results = [(process, *process.communicate(timeout=LIMIT_S)) for process in processes]
    for process, out, err in results:
        assert process.returncode == 0, out + err
    return "".join(out for _, out, _ in results)


def expect_worlds(text, n_pes, via, worlds=1):
    """The output has exactly `worlds` such lines of each PE."""
    assert sorted(re.findall(r"PE \d+ of \d+ via \S+ ok", text)) == sorted(
        [f"PE {pe} of {n_pes} via {via} ok" for pe in range(n_pes)] * worlds
    ), text


def expect(result, *arguments, **options):
    assert result.returncode == 0, result.stdout + result.stderr
    expect_worlds(result.stdout, *arguments, **options)


@needs_mpirun
@pytest.mark.parametrize("asked", ["automatic", "pmix", "mpi"])
def test_open_mpi(bin_dir, modules, asked):
    modules("pmix" if asked == "automatic" else asked)
    result = run(
        [MPIRUN, *OPEN_MPI, "-np", 3, bin_dir / "bootstrap_probe", "--worlds", 2],
        SHOAL_BOOTSTRAP=asked,
    )
    expect(result, 3, "pmix" if asked == "automatic" else asked, worlds=2)


@needs_mpirun
def test_open_mpi_without_a_plugin_for_pmix_takes_mpi(bin_dir, modules, tmp_path):
    modules("mpi")
    shutil.copy(bin_dir.parent / "lib/shoal/libshoal_bootstrap_mpi.so", tmp_path)
    path = {
        "SHOAL_PLUGIN_DIR": str(tmp_path),
        "LD_LIBRARY_PATH": str(bin_dir.parent / "lib"),
        "SHOAL_LOG": "debug",
    }
    result = run([MPIRUN, *OPEN_MPI, "-np", 2, bin_dir / "bootstrap_probe"], **path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "PE 1 of 2: bootstrap mpi (Open MPI" in result.stderr


@needs_hydra
@pytest.mark.parametrize(
    ("asked", "library"), [("automatic", None), ("pmi", None), ("pmi2", "libpmi2.so.0")]
)
def test_hydra(bin_dir, asked, library):
    result = run(
        [HYDRA, "-n", 3, bin_dir / "bootstrap_probe", "--worlds", 2], SHOAL_BOOTSTRAP=asked
    )
    if library is not None and f"{library}: cannot open" in result.stderr:
        pytest.skip(f"{library} is not installed")
    expect(result, 3, "pmi" if asked == "automatic" else asked, worlds=2)


@needs_mpirun
def test_several_worlds_are_open_at_once(bin_dir, modules):
    modules("pmix")
    expect(
        run([MPIRUN, *OPEN_MPI, "-np", 2, bin_dir / "bootstrap_probe", "--worlds", 3, "--at-once"]),
        2,
        "pmix",
        worlds=3,
    )


@needs_mpirun
def test_communicators_of_different_pes(bin_dir):
    result = run([MPIRUN, *OPEN_MPI, "-np", 4, bin_dir / "mpi_probe"])
    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(result.stdout.split("\n")) == ["", *(f"rank {rank} of 4 ok" for rank in range(4))]


@needs_hydra
@pytest.mark.skipif(shutil.which("mpicxx.mpich") is None, reason="mpicxx of MPICH is not installed")
def test_communicators_of_another_mpi(bin_dir, tmp_path):
    """shoal/mpi.hpp is compiled with the program, so any MPI works, whichever Shoal was built
    with."""
    library = bin_dir.parent / "lib"
    compiled = subprocess.run(
        [
            "mpicxx.mpich",
            "-std=c++20",
            "-I",
            ROOT / "include",
            ROOT / "tests/launchers/mpi_probe.cpp",
            "-L",
            library,
            "-lshoal",
            f"-Wl,-rpath,{library}",
            "-o",
            tmp_path / "probe",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "mpi.h: No such file" in compiled.stderr:
        pytest.skip("libmpich-dev is not installed")
    assert compiled.returncode == 0, compiled.stderr
    result = run([HYDRA, "-n", 2, tmp_path / "probe"])
    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(result.stdout.split("\n")) == ["", "rank 0 of 2 ok", "rank 1 of 2 ok"]


@pytest.mark.skipif(OSHRUN is None, reason="oshrun is not installed")
def test_openshmem(bin_dir, modules):
    modules("shmem")
    # ^patcher: Open MPI 4.1 crashes in shmem_finalize with its memory hooks, with or without Shoal
    oshrun = [OSHRUN, *OPEN_MPI, "--mca", "memory", "^patcher", "-np"]
    result = run([*oshrun, 3, bin_dir / "shmem_probe"], SHOAL_BOOTSTRAP="SHMEM")
    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(result.stdout.split("\n")) == ["", *(f"PE {pe} of 3 ok" for pe in range(3))]
    result = run([*oshrun, 2, bin_dir / "bootstrap_probe"], SHOAL_BOOTSTRAP="shmem")
    assert result.returncode != 0 and "call shmem_init first thing in main" in result.stderr, (
        result.stderr
    )


def test_torchruns_variables(bin_dir):
    ranks = [
        start(
            [bin_dir / "bootstrap_probe", "--worlds", 3, "--at-once"],
            RANK=str(rank),
            WORLD_SIZE="3",
            LOCAL_RANK=str(rank),
            MASTER_ADDR="localhost",
            MASTER_PORT="29500",
            TORCHELASTIC_RUN_ID=f"job{os.getpid()}",
        )
        for rank in range(3)
    ]
    expect_worlds(finish(ranks), 3, "torch", worlds=3)


def test_no_launcher(bin_dir):
    expect(run([bin_dir / "bootstrap_probe", "--worlds", 2]), 1, "single", worlds=2)


def test_own_plugin_is_the_example(bin_dir, tmp_path):
    plugin = bin_dir.parent / "tests/plugins/example_bootstrap_plugin.so"
    pes = [
        start(
            [bin_dir / "bootstrap_probe", "--worlds", 2],
            SHOAL_BOOTSTRAP=f"plugin:{plugin}",
            FOLDER=str(tmp_path),
            FOLDER_PE=str(pe),
            FOLDER_N_PES="3",
        )
        for pe in range(3)
    ]
    expect_worlds(finish(pes), 3, f"plugin:{plugin}", worlds=2)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}, (
        "the ids are secret"
    )


def test_own_plugin_keeps_its_deadline(bin_dir, tmp_path):
    plugin = bin_dir.parent / "tests/plugins/example_bootstrap_plugin.so"
    result = run(
        [bin_dir / "bootstrap_probe"],
        NVSHMEM_BOOTSTRAP="plugin",
        NVSHMEM_BOOTSTRAP_PLUGIN=str(plugin),
        FOLDER=str(tmp_path),
        FOLDER_PE="1",
        FOLDER_N_PES="2",
        SHOAL_BOOTSTRAP_TIMEOUT_MS="300",
    )
    assert result.returncode == 1
    assert "broadcast failed: " in result.stderr and "PE 0 has not written it" in result.stderr


@needs_hydra
def test_pe_that_does_not_come(bin_dir):
    result = run(
        [HYDRA, "-n", 3, bin_dir / "bootstrap_probe", "--absent", 1],
        SHOAL_BOOTSTRAP_TIMEOUT_MS="700",
    )
    assert result.returncode != 0
    assert 'no answer from the launcher to "cmd=barrier_in" in time' in result.stderr


@needs_mpirun
def test_pe_that_does_not_come_to_pmix(bin_dir, modules):
    modules("pmix")
    result = run(
        [MPIRUN, *OPEN_MPI, "-np", 3, bin_dir / "bootstrap_probe", "--absent", 1],
        SHOAL_BOOTSTRAP_TIMEOUT_MS="1000",
    )
    assert result.returncode != 0
    assert "TIMEOUT (-24): some process of the job does not open this world" in result.stderr


@needs_hydra
@pytest.mark.parametrize("asked", ["pmi", "automatic"])
def test_pe_that_fails_ends_the_job(bin_dir, asked):
    """No PE waits in the launcher's library for a PE that has ended: the launcher ends soon."""
    result = run(
        [HYDRA, "-n", 3, bin_dir / "bootstrap_probe", "--pe-fails", 1], SHOAL_BOOTSTRAP=asked
    )
    assert result.returncode != 0 and "PE 1 of 3 via pmi ok" in result.stdout, (
        result.stdout + result.stderr
    )


@needs_hydra
def test_plugin_of_another_launcher_is_no_world_of_one(bin_dir, modules):
    modules("mpi")
    if flavour("mpirun") != "Open MPI":
        pytest.skip("the plug-in mpi is for this launcher")
    result = run([HYDRA, "-n", 2, bin_dir / "bootstrap_probe"], SHOAL_BOOTSTRAP="mpi")
    assert result.returncode != 0
    assert "bootstrap mpi knows of one PE only, but Hydra has started 2" in result.stderr


def shoal_run(bin_dir, *arguments, **environment):
    return run([bin_dir / "shoal-run", *arguments], **environment)


def on_hosts(bin_dir, hosts, *arguments):
    """shoal-run through mpirun of Open MPI."""
    launcher = ["--launcher", MPIRUN, "--launcher-args", " ".join(OPEN_MPI)]
    return shoal_run(bin_dir, "--hosts", hosts, *launcher, *arguments)


@needs_mpirun
def test_hosts_through_open_mpi(bin_dir):
    result = on_hosts(
        bin_dir, "localhost:3", "--no-label", bin_dir / "bootstrap_probe", "--worlds", 1
    )
    expect(result, 3, "uid")
    result = on_hosts(bin_dir, "localhost:2", "sh", "-c", "exit 5")
    assert result.returncode == 5
    assert f"{MPIRUN} (pid " in result.stderr and "exited with status 5" in result.stderr


@needs_hydra
def test_hosts_through_hydra(bin_dir):
    expect(
        shoal_run(
            bin_dir,
            "--hosts",
            "localhost:1,localhost:1",
            "--launcher",
            HYDRA,
            "--no-label",
            bin_dir / "bootstrap_probe",
        ),
        2,
        "uid",
    )


@needs_mpirun
def test_hosts_keep_the_secret_from_command_lines(bin_dir):
    # printf is a shell built-in, so the test itself puts the key on no command line.
    script = 'printf %s "${SHOAL_UNIQUE_ID##*:}" | grep -laF -f - /proc/[0-9]*/cmdline | wc -l'
    result = on_hosts(
        bin_dir,
        "localhost:2",
        "--no-label",
        "sh",
        "-c",
        script + " | sed 's/^/found /'; test ${#SHOAL_UNIQUE_ID} -gt 64",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.split("\n") == ["found 0", "found 0", ""]


def fake(folder, name, version):
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    return program


def dry_run(bin_dir, *arguments, **environment):
    result = shoal_run(bin_dir, "--dry-run", *arguments, **environment)
    assert result.returncode == 0, result.stderr
    return shlex.split(result.stdout)


@pytest.mark.parametrize("name", ["SHOAL_SOCKET_INTERFACE", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"])
def test_an_absent_interface_is_an_error_on_one_host(bin_dir, name):
    environment = {other: value for other, value in ENVIRONMENT.items() if "SOCKET" not in other}
    result = subprocess.run(
        [bin_dir / "shoal-run", "-n", "2", "true"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**environment, name: "eth77"},
    )
    assert result.returncode != 0
    assert 'no network interface fits "eth77"' in result.stderr
    assert "lo 127.0.0.1" in result.stderr


def test_a_log_file_at_a_link_is_refused(bin_dir, tmp_path):
    victim, link = tmp_path / "victim", tmp_path / "log"
    victim.write_text("precious")
    link.symlink_to(victim)
    command = [bin_dir / "shoal-run", "-n", "1", "--no-label", bin_dir / "shoal-info"]
    result = run([*command, "--connectivity"], SHOAL_LOG_FILE=str(link), SHOAL_LOG="debug")
    assert result.returncode != 0
    assert f'SHOAL_LOG_FILE is "{link}", which cannot be opened: it is a symbolic link' in (
        result.stderr
    )
    assert victim.read_text() == "precious"
    link.unlink()
    result = run([*command, "--connectivity"], SHOAL_LOG_FILE=str(link), SHOAL_LOG="debug")
    assert result.returncode == 0, result.stderr
    assert "PE 0 of 1" in link.read_text()


def test_hosts_dry_run(bin_dir, tmp_path):
    mpirun = fake(tmp_path, "mpirun", "mpirun (Open MPI) 4.1.4")
    program = ["prog", "it's", "-n"]
    asked = ["--hosts", "a:2,b", "--launcher-args", "--x y"]
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SHOAL_PE": "1"}
    names = [
        word
        for name in (
            "SHOAL_BOOTSTRAP_TIMEOUT_MS",
            "SHOAL_N_PES",
            "SHOAL_SOCKET_INTERFACE",
            "SHOAL_UNIQUE_ID",
        )
        for word in ("-x", name)
    ]
    assert dry_run(bin_dir, *asked, *program, **path) == [
        "SHOAL_N_PES=3",
        "SHOAL_UNIQUE_ID=...",
        "mpirun",
        "--host",
        "a:2,b:1",
        "-np",
        "3",
        "--tag-output",
        *names,
        "--x",
        "y",
        *program,
    ]
    fake(tmp_path, "mpirun", "HYDRA build details:")
    assert dry_run(bin_dir, *asked, "--no-label", *program, **path)[2:] == [
        "mpirun",
        "-hosts",
        "a:2,b:1",
        "-n",
        "3",
        "--x",
        "y",
        *program,
    ]
    fake(tmp_path, "srun", "slurm-wlm 22.05.8")
    in_job = dry_run(bin_dir, *asked, "--no-label", *program, **path, SLURM_JOB_ID="7")[2:]
    assert in_job == [
        "srun",
        "--nodes=2",
        "--ntasks=3",
        "--distribution=arbitrary",
        "--nodelist=a,a,b",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        "--x",
        "y",
        *program,
    ]
    assert dry_run(bin_dir, *asked, "--launcher", mpirun, *program, **path, SLURM_JOB_ID="7")[
        2
    ] == str(mpirun)


def test_hosts_that_cannot_be(bin_dir, tmp_path):
    def says(part, *arguments, **environment):
        result = shoal_run(bin_dir, *arguments, "prog", **environment)
        assert result.returncode == 125 and part in result.stderr, result.stdout + result.stderr

    says("neither mpirun nor srun is installed", "--hosts", "a:2", PATH=str(tmp_path))
    says(
        "--launcher mpirun is not installed",
        "--hosts",
        "a:2",
        "--launcher",
        "mpirun",
        PATH=str(tmp_path),
    )
    fake(tmp_path, "mpirun", "mpirun of an unknown kind")
    says('says "mpirun of an unknown kind"', "--hosts", "a:2", PATH=f"{tmp_path}:/usr/bin:/bin")
    fake(tmp_path, "mpirun", "mpirun (Open MPI) 4.1.4")
    for hosts in ("a:0", "a:x", "a:2,", ":2", "-x:2", "a b"):
        says(
            f'--hosts is "{hosts}"; allowed: ', f"--hosts={hosts}", PATH=f"{tmp_path}:/usr/bin:/bin"
        )
    says(
        "-n is 3 but --hosts a:2 has 2 PEs",
        "-n",
        "3",
        "--hosts",
        "a:2",
        PATH=f"{tmp_path}:/usr/bin:/bin",
    )
    says("only this host reaches", "--hosts", "a:2", PATH=f"{tmp_path}:/usr/bin:/bin")
    says("are for --hosts", "-n", "2", "--dry-run")
    says("--nodes", "--hosts", "a:2", "--nodes", "2")


def test_page_shows_the_example_that_is_built():
    example = (ROOT / "examples/bootstrap_plugin.c").read_text()
    blocks = re.findall(
        r"```c\n(.*?)```", (ROOT / "docs/internals/bootstrap.md").read_text(), re.DOTALL
    )
    assert blocks
    for block in blocks:
        assert block in example, block
