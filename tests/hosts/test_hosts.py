# SPDX-License-Identifier: Apache-2.0
"""The harness itself: hosts are separate machines, links can be cut, shaped and made lossy, and nothing is left however it ends."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import hosts
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
SO_RCVBUFFORCE = 33  # room for all of them, however late this program gets to run
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
    network.shape(None)
    sent, _ = transfer(network, 0, SEND_BYTES, RECEIVE_BYTES, 4_000_000)
    assert float(sent.out) < 0.25


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
    start = time.monotonic()
    first, second = by_hand(network, [host_checks, "bootstrap"], 1, environment).wait(20)
    assert time.monotonic() - start < 10
    assert first.status == 1 and second.status == 1
    assert "PE 1" in first.out, first  # D9: who did not come
    network.heal(network.hosts[1], rail=0)
    lines = by_hand(network, [host_checks, "bootstrap"], 1, environment).lines()
    assert lines[1][2] == "PE 1 of 2 on host1: hosts host0 host1"


# What another Python process does that will be killed: a network, and processes in it that have left their sessions.
KILLED = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
import hosts
network = hosts.Network(hosts=2, rails=2)
programs = [host.popen(["setsid", "sh", "-c", "sleep 1000 & setsid sleep 1000"]) for host in [network.login, *network.hosts]]
namespaces = [os.readlink(f"/proc/{host.pid}/ns/{kind}") for host in [network.login, *network.hosts] for kind in ("net", "mnt", "pid")]
print(json.dumps({"namespaces": namespaces, "pids": [h.pid for h in network.hosts] + [p.pid for p in programs]}), flush=True)
time.sleep(1000)
"""


def processes_in(namespaces):
    """Processes that lie in one of these namespaces, with their commands."""
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
    """Whether there is such a process, other than one that only waits to be reaped."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # before and after the file is opened
        return False


def outside():
    """What a network could leave behind: interfaces, mounts, named namespaces, files."""
    links = sorted(os.listdir("/sys/class/net"))
    places = [pathlib.Path(p) for p in ("/run/netns", "/dev/shm", "/run")]
    return links, pathlib.Path("/proc/self/mounts").read_text(), [sorted(os.listdir(p)) for p in places if p.exists()]


def test_nothing_is_left_when_the_harness_is_killed():
    before = outside()
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(HERE)], stdout=subprocess.PIPE, text=True)
    try:
        told = json.loads(child.stdout.readline())
        assert len(processes_in(told["namespaces"])) >= 9, "the test must see what it looks for"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    deadline = time.monotonic() + 10

    def left():  # those who entered the namespaces end a moment after those who live there
        return processes_in(told["namespaces"]) + [pid for pid in told["pids"] if is_running(pid)]

    while left() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left() == []
    # Without processes, and with no file that holds them, the kernel frees the namespaces and their interfaces.
    assert outside() == before


def test_a_program_ends_with_its_handle(make_network):
    (host,) = make_network(hosts=1, rails=1).hosts
    program = host.popen(["sh", "-c", "echo started; exec sleep 1000"])
    assert program.wait_for("started")
    program.kill()
    deadline = time.monotonic() + 5
    while "sleep 1000" in (seen := host.run(["ps", "-e", "-o", "args"]).out) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "sleep 1000" not in seen


def test_says_in_one_line_why_it_is_skipped():
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable]
    pytest_run = [*without, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "test_hosts.py"), "-k", "different_machines"]
    done = subprocess.run(pytest_run, capture_output=True, text=True, timeout=60)
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
