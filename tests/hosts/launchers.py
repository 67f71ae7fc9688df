# SPDX-License-Identifier: Apache-2.0
"""Ways to start a PE program on the hosts of a Network: directly, with torchrun's variables, with
mpirun, srun and shoal-run.

Each returns a Job. Every host runs `per_host` PEs, numbered host by host unless the caller asks for
another order.
"""

import itertools
import re
import shutil

from hosts import LOGIN, SHARED, NetworkError, wait_until

_ports = itertools.count(
    21000
)  # each job has its own address, so that consecutive worlds do not meet


class Job:
    """Running PEs: one program for each, or one launcher for all."""

    def __init__(self, programs):
        self.programs = programs

    def wait(self, limit_s=60):
        """The Results. Programs still running when none has made progress for limit_s are
        killed."""

        def ended():
            return all(program.ended() for program in self.programs)

        wait_until(
            ended,
            limit_s,
            lambda: [(program.printed(), program.ended()) for program in self.programs],
        )
        return [program.wait(0) for program in self.programs]

    def kill(self):
        for program in self.programs:
            program.kill()

    def lines(self, limit_s=60):
        """The lines of the PEs by PE. Fails unless all PEs succeeded."""
        results = self.wait(limit_s)
        assert all(result.ok for result in results), "\n".join(map(str, results))
        return pe_lines("".join(result.out for result in results))


def pe_lines(text):
    """The lines "PE 1 of 4 on host0...", as {1: (4, "host0", line)}."""
    found = re.findall(r"^(PE (\d+) of (\d+) on (\w+).*)$", text, re.MULTILINE)
    return {int(pe): (int(n), host, line) for line, pe, n, host in found}


def session(network, port=None):
    """An address on the first host for the bootstrap of one world."""
    return f"{network.hosts[0].address()}:{next(_ports) if port is None else port}"


def _seats(network, per_host, round_robin=False):
    if round_robin:
        return list(enumerate(list(network.hosts) * per_host))
    return list(enumerate(host for host in network.hosts for _ in range(per_host)))


def by_hand(network, command, per_host, env=None, own=None, round_robin=False):
    """Starts each PE directly, with its number and the session in the environment. `own` has
    further variables of single PEs, as {pe: {...}}. `round_robin`: PE i runs on host i modulo their
    number."""
    seats = _seats(network, per_host, round_robin)
    common = {"SHOAL_N_PES": len(seats), "SHOAL_SESSION_ID": session(network), **(env or {})}
    return Job(
        [
            host.popen(command, {**common, "SHOAL_PE": pe, **(own or {}).get(pe, {})})
            for pe, host in seats
        ]
    )


def with_torch_variables(network, command, per_host, env=None):
    """Starts each PE with the variables that torchrun sets."""
    seats = _seats(network, per_host)
    common = {
        "WORLD_SIZE": len(seats),
        "MASTER_ADDR": network.hosts[0].address(),
        "MASTER_PORT": next(_ports),
        **(env or {}),
    }
    return Job([host.popen(command, {**common, "RANK": rank}) for rank, host in seats])


def with_mpirun(network, command, per_host, env=None):
    """Open MPI's mpirun on the login node. An agent in place of ssh starts its daemons on the
    hosts."""
    env = env or {}
    launcher = [
        "mpirun",
        "--host",
        _host_list(network, per_host),
        "-np",
        per_host * len(network.hosts),
        *mpirun_options(network),
    ]
    for name in env:
        launcher += ["-x", name]
    return Job([network.login.popen([*launcher, *command], env)])


def with_shoal_run(network, command, per_host, env=None, launcher="mpirun"):
    """shoal-run --hosts on the login node, through mpirun, or through srun with Slurm's variables
    in `env`."""
    shoal_run = command[0].parent / "shoal-run"
    options = ["--hosts", _host_list(network, per_host), "--no-label", "--launcher", launcher]
    if launcher == "mpirun":
        options += ["--launcher-args", " ".join(map(str, mpirun_options(network)))]
    return Job([network.login.popen([shoal_run, *options, *command], env)])


def _host_list(network, per_host):
    return ",".join(f"{host.name}:{per_host}" for host in network.hosts)


def mpirun_options(network):
    rail = "10.99.1.0/24"
    options = ["--allow-run-as-root"]
    for name, value in {
        "plm_rsh_agent": _write_agent(network),
        "oob_tcp_if_include": rail,
        "btl_tcp_if_include": rail,
        "btl": "self,vader,tcp",
        "orte_keep_fqdn_hostnames": "1",
    }.items():
        options += ["--mca", name, value]
    return options


def _write_agent(network):
    """Writes a program that works like ssh: AGENT HOST COMMAND..."""
    agent = SHARED / "agent"
    cases = "".join(
        f"  {host.name}) pid={host.pid_seen_by(network.login)};;\n" for host in network.hosts
    )
    text = (
        "#!/bin/sh\n"
        f'case $1 in\n{cases}  *) echo "agent: no host $1" >&2; exit 1;;\nesac\n'
        "export TMPDIR=/run/$1/tmp\nshift\n"
        "exec nsenter --target=$pid --net --uts --ipc --pid --mount -- "
        'setpriv --pdeathsig KILL sh -c "$*"\n'
    )
    path = network.login.path(agent)
    path.write_text(text)
    path.chmod(0o755)
    return agent


class Slurm:
    """A private Slurm: munged and slurmctld on the login node, one slurmd per host. All its files
    are in the network's /run."""

    def __init__(self, network):
        self.network = network
        self.folder = SHARED / "slurm"
        self._daemons = []
        folder = network.login.path(self.folder)
        folder.mkdir()
        (folder / "slurm.conf").write_text(self._configuration())
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "key").write_bytes(bytes(range(256)) * 4)
        (folder / "key").chmod(0o400)
        (folder / "state").mkdir()
        self.env = {"SLURM_CONF": self.folder / "slurm.conf"}
        files = {
            "socket": "munge.socket",
            "key-file": "key",
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "munged.seed",
        }
        self._start(
            network.login,
            [
                "munged",
                "--foreground",
                "--force",
                *(f"--{k}={self.folder / v}" for k, v in files.items()),
            ],
        )
        self._start(network.login, ["slurmctld", "-D"])
        for host in network.hosts:
            network.login.path(f"/run/{host.name}/spool").mkdir()
            self._start(host, ["slurmd", "-D", "-N", host.name])
        self._wait_until_idle()

    def srun(self, command, per_host, mpi, env=None):
        launcher = [
            "srun",
            f"--mpi={mpi}",
            f"--nodes={len(self.network.hosts)}",
            f"--ntasks-per-node={per_host}",
        ]
        return Job([self.network.login.popen([*launcher, *command], {**(env or {}), **self.env})])

    def _start(self, host, command):
        self._daemons.append((command[0], host.popen(command, self.env)))

    def _wait_until_idle(self):
        wanted = [str(len(self.network.hosts)), "idle"]
        seen = None

        def idle():
            nonlocal seen
            seen = self.network.login.run(
                ["sinfo", "--noheader", "--format=%D %t"], self.env, limit_s=10
            )
            for name, daemon in self._daemons:
                if daemon.ended():
                    raise NetworkError(f"{name} {daemon.wait()}")
            return seen.out.split() == wanted

        if not wait_until(idle, 20, lambda: [daemon.printed() for _, daemon in self._daemons]):
            said = "\n".join(f"{name}: {daemon.err}" for name, daemon in self._daemons)
            raise NetworkError(f"Slurm did not start; sinfo says {seen}\n{said}")

    def _configuration(self):
        folder = self.folder
        nodes = "\n".join(
            f"NodeName={host.name} NodeAddr={host.address()} NodeHostname={host.name} "
            "CPUs=8 State=UNKNOWN"
            for host in self.network.hosts
        )
        names = ",".join(host.name for host in self.network.hosts)
        return f"""ClusterName=shoal
SlurmctldHost={LOGIN}(10.99.1.254)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir=/run/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile=/run/%n/slurmd.pid
TmpFS=/run/%n/tmp
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/linear
SlurmdParameters=config_overrides
SwitchType=switch/none
ReturnToService=2
MpiDefault=none
InactiveLimit=0
KillWait=2
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def missing(*programs):
    """A reason to skip: the first of these programs that is not installed. None if all are."""
    for program in programs:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return None
