# SPDX-License-Identifier: Apache-2.0
"""Tests of the harness: hosts are separate machines, links can be cut, shaped and made lossy, and
nothing is left behind however the harness ends."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import hosts
import pytest
from hosts import wait_until
from launchers import by_hand

HERE = pathlib.Path(__file__).resolve().parent

# Arguments: address, bytes or packets. Each prints one number.
SEND_BYTES = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5000), 10) as s:
    start = time.monotonic()
    s.sendall(bytes(int(sys.argv[2])))
    s.shutdown(socket.SHUT_WR)
    s.recv(1)
    print(time.monotonic() - start)
"""
RECEIVE_BYTES = """
import socket, sys
with socket.create_server((sys.argv[1], 5000)) as server:
    print("listens", flush=True)
    s, _ = server.accept()
    while s.recv(1 << 16): pass
    s.sendall(b"x")
"""
SEND_PACKETS = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(int(sys.argv[2])):
    s.sendto(b"x", (sys.argv[1], 5000))
    if i % 100 == 0: time.sleep(0.001)
for i in range(60): s.sendto(b"end", (sys.argv[1], 5000))
"""
RECEIVE_PACKETS = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
SO_RCVBUFFORCE = 33  # room for all packets, however late this program runs
s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
s.bind((sys.argv[1], 5000))
s.settimeout(10)
print("listens", flush=True)
count = 0
while s.recv(8) != b"end": count += 1
print(count)
"""


def transfer(network, rail, sender, receiver, amount):
    """Runs `sender` on host 0 towards `receiver` on host 1; both results."""
    source, target = network.hosts
    address = target.address(rail)
    listening = target.popen([sys.executable, "-c", receiver, address])
    assert listening.wait_for("listens"), listening.wait(0)
    sent = source.run([sys.executable, "-c", sender, address, amount], limit_s=20)
    assert sent.ok, sent
    return sent, listening.wait(20)


class Clock:
    """A clock that a test moves, in place of the module time."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    moved = Clock()
    monkeypatch.setattr(hosts, "time", moved)
    return moved


@pytest.mark.parametrize(("speed", "expected_s"), [(1, 10), (0.25, 40)])
def test_a_wait_ends_after_its_limit_without_progress(monkeypatch, clock, speed, expected_s):
    monkeypatch.setattr(hosts, "machine_speed", lambda: speed)
    assert not wait_until(lambda: False, 10)
    assert expected_s <= clock.now <= expected_s + 0.1


def test_a_wait_continues_while_there_is_progress(monkeypatch, clock):
    monkeypatch.setattr(hosts, "machine_speed", lambda: 1)
    assert wait_until(lambda: clock.now > 50, 10, lambda: clock.now // 9)
    assert not wait_until(lambda: False, 10, lambda: clock.now // 9)
    assert 150 <= clock.now <= 152, "progress that never ends has a limit too"


def test_a_loaded_machine_is_slower(monkeypatch, clock):
    monkeypatch.setattr(hosts, "_speed", None)
    monkeypatch.setattr(
        hosts.subprocess, "run", lambda *_, **__: clock.sleep(hosts.REFERENCE_S)
    )  # ten times
    assert abs(hosts.machine_speed() - 0.1) < 1e-6
    assert hosts.scaled(5) == 5 / hosts.machine_speed()


def test_hosts_are_different_machines(make_network):
    a, b = make_network(hosts=2).hosts
    script = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id"
    seen = [host.run(["sh", "-c", script]).out.split() for host in (a, b)]
    assert [lines[0] for lines in seen] == ["host0", "host1"]
    assert all(x != y for x, y in zip(*seen, strict=True))
    here = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert here not in seen[0] + seen[1]


def test_hosts_share_no_memory_and_no_processes(make_network):
    a, b = make_network(hosts=2).hosts
    assert a.run(["sh", "-c", "echo secret > /dev/shm/mine"]).ok
    assert b.run(["ls", "/dev/shm"]).out == ""
    for kind in ("net", "uts", "ipc", "pid", "mnt"):
        seen = {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in (a.pid, b.pid, os.getpid())}
        assert len(seen) == 3, f"two of them share a {kind} namespace"
    assert a.run(["ls", f"/proc/{b.pid}"]).status != 0


def test_both_rails_carry_what_is_sent_on_them(make_network):
    network = make_network(hosts=2, rails=2)
    for rail in (0, 1):
        before = [network.hosts[1].traffic(r) for r in (0, 1)]
        transfer(network, rail, SEND_BYTES, RECEIVE_BYTES, 1_000_000)
        grown = [network.hosts[1].traffic(r) - before[r] for r in (0, 1)]
        assert grown[rail] > 1_000_000
        assert grown[1 - rail] < 10_000


def test_shaping_limits_the_rate(make_network):
    network = make_network(hosts=2)
    network.shape("100mbit")
    sent, _ = transfer(network, 0, SEND_BYTES, RECEIVE_BYTES, 4_000_000)
    assert float(sent.out) > 0.25, "4 MB at 100 Mbit/s take 0.32 s, less what the bucket holds"
    shaped = float(sent.out)
    network.shape(None)
    # On a loaded machine, a single transfer may be slow for other reasons.
    assert wait_until(
        lambda: (
            float(transfer(network, 0, SEND_BYTES, RECEIVE_BYTES, 4_000_000)[0].out) < 0.7 * shaped
        ),
        10,
    )


def test_loss_drops_the_share_that_was_asked_for(make_network):
    network = make_network(hosts=2)
    network.lose(300)
    _, received = transfer(network, 1, SEND_PACKETS, RECEIVE_PACKETS, 2000)
    assert 1200 < int(received.out.split()[-1]) < 1600
    network.lose(0)
    _, received = transfer(network, 1, SEND_PACKETS, RECEIVE_PACKETS, 2000)
    assert int(received.out.split()[-1]) == 2000


def test_a_cut_rail_is_whole_again_after_heal(make_network, host_checks, environment):
    network = make_network(hosts=2)
    environment["SHOAL_BOOTSTRAP_TIMEOUT_MS"] = 1500
    network.cut(network.hosts[1], rail=0)
    first, second = by_hand(network, [host_checks, "bootstrap"], 1, environment).wait(10)
    assert first.status == 1 and second.status == 1
    assert "PE 1" in first.out, first  # the PE that did not connect
    network.heal(network.hosts[1], rail=0)
    lines = by_hand(network, [host_checks, "bootstrap"], 1, environment).lines()
    assert lines[1][2] == "PE 1 of 2 on host1: hosts host0 host1"


# A Python process that the test kills. Its network has processes that have left their sessions.
KILLED = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
import hosts
network = hosts.Network(hosts=2, rails=2)
machines = [network.login, *network.hosts]
sleepers = ["setsid", "sh", "-c", "sleep 1000 & setsid sleep 1000"]
programs = [host.popen(sleepers) for host in machines]
kinds = ("net", "mnt", "pid")
namespaces = [os.readlink(f"/proc/{host.pid}/ns/{kind}") for host in machines for kind in kinds]
pids = [host.pid for host in network.hosts] + [program.pid for program in programs]
print(json.dumps({"namespaces": namespaces, "pids": pids}), flush=True)
time.sleep(1000)
"""


def processes_in(namespaces):
    """The processes in these namespaces, with their commands."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                links = {os.readlink(entry / "ns" / kind) for kind in ("net", "mnt", "pid")}
                if links & set(namespaces):
                    found.append(f"{entry.name}: {(entry / 'cmdline').read_text()}")
            except OSError:
                continue
    return found


def is_running(pid):
    """Return true if the process exists and is not a zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # before and after the file is opened
        return False


def outside():
    """All that a network could leave behind: interfaces, mounts, named namespaces, files."""
    links = sorted(os.listdir("/sys/class/net"))
    places = [pathlib.Path(p) for p in ("/run/netns", "/dev/shm", "/run")]
    return (
        links,
        pathlib.Path("/proc/self/mounts").read_text(),
        [sorted(os.listdir(p)) for p in places if p.exists()],
    )


def test_nothing_is_left_when_the_harness_is_killed():
    before = outside()
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(HERE)], stdout=subprocess.PIPE, text=True
    )
    try:
        told = json.loads(child.stdout.readline())
        assert len(processes_in(told["namespaces"])) >= 9, "the test must see what it looks for"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()

    def left():  # processes that entered the namespaces end a moment after those that started there
        return processes_in(told["namespaces"]) + [pid for pid in told["pids"] if is_running(pid)]

    wait_until(lambda: not left(), 10, left)
    assert left() == []
    # The kernel frees namespaces and their interfaces once no process and no file refers to them.
    assert outside() == before


def test_a_program_ends_with_its_handle(make_network):
    (host,) = make_network(hosts=1, rails=1).hosts
    program = host.popen(["sh", "-c", "echo started; exec sleep 1000"])
    assert program.wait_for("started")
    program.kill()
    assert wait_until(lambda: "sleep 1000" not in host.run(["ps", "-e", "-o", "args"]).out, 5)


def test_says_in_one_line_why_it_is_skipped():
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable]
    pytest_run = [
        *without,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(HERE / "test_hosts.py"),
        "-k",
        "different_machines",
    ]
    done = subprocess.run(pytest_run, capture_output=True, text=True, timeout=hosts.scaled(60))
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("tests/hosts skipped:")]
    assert "namespaces are not allowed here" in line and "Operation not permitted" in line


def test_errors_of_the_set_up_name_the_command(make_network):
    network = make_network(hosts=1, rails=1)
    try:
        network.shape("fast")
    except hosts.NetworkError as error:
        assert "tbf rate fast" in str(error)
    else:
        raise AssertionError("a rate that tc does not know was accepted")
