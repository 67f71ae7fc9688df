# SPDX-License-Identifier: Apache-2.0
"""A small cluster on one machine: hosts are sets of namespaces, rails are bridges.

    with Network(hosts=2, rails=2) as network:
        network.hosts[0].run(["ping", "-c1", network.hosts[1].address(rail=0)])
        network.cut(network.hosts[1], rail=0)

A host has its own net, uts, ipc, pid and mount namespaces, and its own /dev/shm, host name, machine
id and boot id. Two hosts share no memory, and programs see two machines. All hosts are children of
a *login node*, which holds the bridges and runs launchers. The first process of the login node
reads a pipe that only this Python process can write to. When Python ends for any reason, the kernel
ends every process of every host, then the namespaces, interfaces and file systems. None of them
exist outside.

Limits of waits are seconds without progress on an unloaded machine: see wait_until.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import uuid

# /run is one file system for all hosts, empty at the start.
SHARED = pathlib.Path("/run/shared")
LOGIN = "login"
NAMESPACES = ("--net", "--uts", "--ipc", "--pid", "--mount")
START_LIMIT_S = 20
POLL_S = 0.01
# The probe of machine_speed takes this long on the unloaded machine for which limits are chosen.
REFERENCE_S = 0.04
SPEED_AGE_S = 2  # a measured speed is used for so long
TOTAL_FACTOR = 10  # a wait with progress may take this many times its limit


_speed = None  # (when measured, speed)


def machine_speed():
    """The speed of this machine at present: 1 as the reference machine or faster, 0.25 for a
    quarter of it. Load lowers it. The probe starts processes and computes for a moment."""
    global _speed
    start = time.monotonic()
    if _speed is None or start - _speed[0] > SPEED_AGE_S:
        for _ in range(10):
            subprocess.run(["true"], check=True)
        sum(i * i for i in range(300_000))
        end = time.monotonic()
        _speed = (end, min(1.0, REFERENCE_S / (end - start)))
    return _speed[1]


def scaled(limit_s):
    """The limit for the present speed of the machine, where a wait cannot observe progress."""
    return limit_s / machine_speed()


def wait_until(done, limit_s, progress=lambda: None):
    """Waits until done() holds; returns whether it does.

    Gives up after limit_s without progress: the limit starts again whenever progress() returns
    another value, up to TOTAL_FACTOR times the limit in all. Time counts at the speed of the
    machine, so a loaded or slow machine has proportionally longer.
    """
    left, left_in_all, seen = limit_s, TOTAL_FACTOR * limit_s, progress()
    last = time.monotonic()
    while not done():
        if min(left, left_in_all) <= 0:
            return done()
        time.sleep(POLL_S)
        if (state := progress()) != seen:
            seen, left = state, limit_s
        speed, now = machine_speed(), time.monotonic()
        left, left_in_all, last = (
            left - (now - last) * speed,
            left_in_all - (now - last) * speed,
            now,
        )
    return True


class NetworkError(RuntimeError):
    """A command that makes or changes the network failed. The text has the command and its
    output."""


@dataclasses.dataclass(frozen=True)
class Result:
    """How a program ended. `status` is negative if a signal ended it, and None if it ran past its
    limit and was killed."""

    status: int | None
    out: str
    err: str

    @property
    def ok(self):
        return self.status == 0

    def __str__(self):
        how = "ran past its limit" if self.status is None else f"ended with status {self.status}"
        return f"{how}\n--- output\n{self.out}\n--- errors\n{self.err}"


class Program:
    """A program that runs in a host. It ends by kill(), with its host, or with this Python
    process."""

    def __init__(self, command, environment, pass_stdin=subprocess.DEVNULL):
        # Unnamed files leave nothing behind, and a program never blocks on a full pipe.
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command, stdin=pass_stdin, stdout=self._out, stderr=self._err, env=environment
        )

    @property
    def out(self):
        return self._read(self._out)

    @property
    def err(self):
        return self._read(self._err)

    @staticmethod
    def _read(file):
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")

    @property
    def pid(self):
        return self._process.pid

    def ended(self):
        return self._process.poll() is not None

    def printed(self):
        """Number of bytes that the program has printed: its progress."""
        return sum(os.fstat(file.fileno()).st_size for file in (self._out, self._err))

    def wait_for(self, text, limit_s=30):
        """Waits until the program has printed `text`. False if it ended or made no progress for
        limit_s before."""

        def found():
            return text in self.out or text in self.err

        wait_until(lambda: self.ended() or found(), limit_s, self.printed)
        return found()

    def wait(self, limit_s=60):
        """The Result. A program that makes no progress for limit_s is killed."""
        ended = wait_until(self.ended, limit_s, self.printed)
        if not ended:
            self.kill()
        return Result(self._process.returncode if ended else None, self.out, self.err)

    def kill(self):
        if self.ended():
            return
        # The program first, so that nsenter reaps it. A program that has not started yet ends with
        # its parent.
        for pid in _children(self.pid) or [self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Host:
    """One machine of a Network. Rail r of it is the interface "rail<r>"."""

    def __init__(self, network, number, name, pid):
        self.network, self.number, self.name = network, number, name
        self.pid = pid  # of its first process, in the pid namespace of this Python process

    def pid_seen_by(self, other):
        """The pid of this host's first process in `other`: the login node or this host."""
        return _pid_in(other.pid, self.pid)

    def address(self, rail=0):
        return f"10.99.{rail + 1}.{self.number + 1}"

    def popen(self, command, env=None):
        """Starts a program; `env` is added to this process's environment."""
        environment = {
            **os.environ,
            "TMPDIR": f"/run/{self.name}/tmp",
            **{k: str(v) for k, v in (env or {}).items()},
        }
        entered = [
            "nsenter",
            f"--target={self.pid}",
            *NAMESPACES,
            "--",
            "setpriv",
            "--pdeathsig",
            "KILL",
            *map(str, command),
        ]
        return Program(entered, environment)

    def run(self, command, env=None, limit_s=60):
        return self.popen(command, env).wait(limit_s)

    def die(self):
        """Ends all processes of the host at once. Its links are cut first, so other hosts receive
        nothing."""
        for rail in range(self.network.rails):
            self.network.cut(self, rail)
        os.kill(self.pid, signal.SIGKILL)

    def check(self, command, input_text=None):
        """Runs a command of the set-up. Returns its output or raises NetworkError."""
        return _check(
            ["nsenter", f"--target={self.pid}", *NAMESPACES, "--", *map(str, command)], input_text
        )

    def path(self, path):
        """A path inside this host, as this process can open it."""
        return pathlib.Path(f"/proc/{self.pid}/root") / str(path).lstrip("/")

    def traffic(self, rail):
        """Bytes that this host has sent and received on a rail so far."""
        counters = self.path(f"/sys/class/net/rail{rail}/statistics")
        return sum(int((counters / name).read_text()) for name in ("tx_bytes", "rx_bytes"))


class Network:
    """`hosts` hosts named host0, host1, ... on `rails` rails. Use it as a context manager.
    one_machine: all have the machine id and boot id of one machine, as containers on it."""

    def __init__(self, hosts=2, rails=2, one_machine=False):
        self.rails = rails
        self._boot_id = uuid.uuid4() if one_machine else None
        self.hosts = []
        self._holders = []  # the programs that hold the namespaces
        self._read_end, self._write_end = os.pipe()
        try:
            self.login = self._start_login(hosts)
            for number in range(hosts):
                self.hosts.append(self._start_host(number))
            self._connect()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends every process of every host and waits until they have ended."""
        if self._write_end is not None:
            os.close(self._write_end)
            os.close(self._read_end)
            self._write_end = None
        for holder in self._holders:
            if holder.wait(START_LIMIT_S).status is None:
                raise NetworkError(
                    f"the holder of a host, process {holder.pid}, did not end with its network"
                )
        self._holders = []

    def cut(self, host, rail):
        """Cuts the link of a host on one rail. Packets in flight are lost."""
        self._ip(self.login, [f"link set h{host.number}r{rail} down"])

    def heal(self, host, rail):
        self._ip(self.login, [f"link set h{host.number}r{rail} up"])

    def set_mtu(self, bytes_):
        """Sets the largest packet of all rails."""
        for rail in range(self.rails):
            ends = [f"link set h{host.number}r{rail} mtu {bytes_}" for host in self.hosts]
            self._ip(self.login, [*ends, f"link set switch{rail} mtu {bytes_}"])
            for host in self.hosts:
                self._ip(host, [f"link set rail{rail} mtu {bytes_}"])

    def shape(self, rate, hosts=None):
        """Limits the rate at which each host sends on each rail, such as "1gbit"; None: no
        limit."""
        for host, device in self._interfaces(hosts):
            host.check(["sh", "-c", f"tc qdisc del dev {device} root 2>&1 || true"])
            if rate is not None:
                host.check(
                    [
                        "tc",
                        "qdisc",
                        "add",
                        "dev",
                        device,
                        "root",
                        "tbf",
                        "rate",
                        rate,
                        "burst",
                        "256kb",
                        "latency",
                        "50ms",
                    ]
                )

    def lose(self, per_thousand, hosts=None):
        """Drops this many of 1000 arriving packets at each host."""
        for host in hosts or self.hosts:
            rules = (
                "table inet loss {}\ndelete table inet loss\n"  # deletes one that need not exist
            )
            if per_thousand > 0:
                rules += "table inet loss {\nchain arrive {\ntype filter hook input priority 0;\n"
                rules += f'iifname "rail*" numgen random mod 1000 < {per_thousand} drop\n}}\n}}\n'
            host.check(["nft", "-f", "-"], rules)

    def _interfaces(self, hosts):
        return [(host, f"rail{rail}") for host in hosts or self.hosts for rail in range(self.rails)]

    def _names(self, hosts):
        lines = ["127.0.0.1 localhost", f"10.99.1.254 {LOGIN}"]
        return (
            "\n".join(lines + [f"10.99.1.{number + 1} host{number}" for number in range(hosts)])
            + "\n"
        )

    def _start_login(self, hosts):
        prepare = [
            "mount -t tmpfs -o mode=755 tmpfs /run",
            f"mkdir -p {SHARED}",
            f"printf '{self._names(hosts)}' > {SHARED}/hosts",
            f"mount --bind {SHARED}/hosts /etc/hosts",
            *_prepare_machine(LOGIN),
        ]
        # Ends when the pipe has no writer left. It is the first process of its pid namespace, so
        # the kernel then ends all processes below it.
        return self._hold(LOGIN, -1, ["unshare"], [*prepare, "echo ready", "read nothing"])

    def _start_host(self, number):
        name = f"host{number}"
        inside = ["nsenter", f"--target={self.login.pid}", *NAMESPACES, "--", "unshare"]
        return self._hold(
            name,
            number,
            inside,
            [*_prepare_machine(name, self._boot_id), "echo ready", "exec sleep infinity"],
        )

    def _hold(self, name, number, command, script):
        # The first process of a pid namespace ignores SIGTERM and SIGINT, since it has no handlers.
        holder = Program(
            [*command, *NAMESPACES, "--fork", "--mount-proc", "sh", "-ec", "\n".join(script)],
            dict(os.environ),
            pass_stdin=self._read_end,
        )
        self._holders.append(holder)
        if not holder.wait_for("ready", START_LIMIT_S):
            raise NetworkError(f"{name} did not start: {holder.wait(0)}")
        pid = holder.pid
        while children := _children(pid):
            pid = children[0]
        return Host(self, number, name, pid)

    def _connect(self):
        wires, inside = [], {host: [] for host in self.hosts}
        for rail in range(self.rails):
            wires += [f"link add switch{rail} type bridge", f"link set switch{rail} up"]
            wires += [f"addr add 10.99.{rail + 1}.254/24 dev switch{rail}"]
            for host in self.hosts:
                end, seen_by_login = f"h{host.number}r{rail}", host.pid_seen_by(self.login)
                wires += [f"link add {end} type veth peer name rail{rail} netns {seen_by_login}"]
                wires += [f"link set {end} master switch{rail}", f"link set {end} up"]
                inside[host] += [
                    f"addr add {host.address(rail)}/24 dev rail{rail}",
                    f"link set rail{rail} up",
                ]
        self._ip(self.login, ["link set lo up", *wires])
        for host, commands in inside.items():
            self._ip(host, ["link set lo up", *commands])

    @staticmethod
    def _ip(host, commands):
        host.check(["ip", "-batch", "-"], "\n".join(commands) + "\n")


def _prepare_machine(name, boot_id=None):
    """Shell commands that make a fresh set of namespaces look like a separate machine, or as one
    of the machine with this boot id."""
    own, boot_id = f"/run/{name}", boot_id or uuid.uuid4()
    return [
        f"mkdir -p {own}/tmp",
        f"echo {name} > /proc/sys/kernel/hostname",
        "mount -t sysfs sysfs /sys",
        "mount -t tmpfs tmpfs /dev/shm",
        f"echo {boot_id} > {own}/boot_id",
        f"mount --bind {own}/boot_id /proc/sys/kernel/random/boot_id",
        f"echo {boot_id.hex} > {own}/machine-id",
        f"if [ -e /etc/machine-id ]; then mount --bind {own}/machine-id /etc/machine-id; fi",
        # Libfabric reads all of it in each process, which takes a tenth of a second.
        "mount --bind /dev/null /proc/kallsyms",
    ]


def _check(command, input_text=None):
    done = subprocess.run(
        command,
        input=input_text,
        capture_output=True,
        text=True,
        timeout=scaled(START_LIMIT_S),
        env=os.environ,
    )
    if done.returncode != 0:
        given = f"\n--- given\n{input_text}" if input_text else ""
        raise NetworkError(
            f"{' '.join(command)} failed with {done.returncode}: {done.stderr}{given}"
        )
    return done.stdout


def _children(pid):
    """Processes whose parent is `pid`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def _pid_in(holder, pid):
    """The pid of process `pid` in the pid namespace whose first process is `holder`."""

    def numbers(of):
        lines = pathlib.Path(f"/proc/{of}/status").read_text().splitlines()
        return next(line.split()[1:] for line in lines if line.startswith("NSpid:"))

    return numbers(pid)[len(numbers(holder)) - 1]


@functools.cache
def why_not():
    """One line that says why networks cannot be made here; None if they can."""
    for program, package in (
        ("unshare", "util-linux"),
        ("nsenter", "util-linux"),
        ("setpriv", "util-linux"),
        ("ip", "iproute2"),
        ("tc", "iproute2"),
        ("nft", "nftables"),
    ):
        if shutil.which(program) is None:
            return f"{program} is not installed (package {package})"
    if os.geteuid() != 0:
        return "network namespaces with interfaces need root"
    try:
        with Network(hosts=1, rails=1):
            return None
    except NetworkError as error:
        return f"namespaces are not allowed here: {' '.join(str(error).split())}"
