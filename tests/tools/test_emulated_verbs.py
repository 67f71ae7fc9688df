# SPDX-License-Identifier: Apache-2.0
"""Unmodified RDMA programs on the emulated libibverbs and libmlx5 (docs/guide/
test-rdma-without-a-nic.md). Programs that are not installed are skipped by name."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest

DEADLINE_S = 60
# The line that each program prints when it has finished its work.
PINGPONG = [
    ("ibv_rc_pingpong",),
    ("ibv_rc_pingpong", "-e"),  # sleeps until a completion event
    ("ibv_rc_pingpong", "-N"),  # the functions ibv_wr_*
    ("ibv_rc_pingpong", "-t"),  # the functions ibv_start_poll
    ("ibv_rc_pingpong", "-s", "300000", "-n", "100", "-m", "4096", "-c"),
    ("ibv_srq_pingpong",),
    ("ibv_srq_pingpong", "-e"),
]
PERFTEST = [
    ("ib_write_bw", "-n", "500"),
    ("ib_write_lat", "-n", "200"),
    ("ib_read_bw", "-n", "500"),
    ("ib_atomic_lat", "-n", "200"),
    ("ib_atomic_bw", "-n", "200", "-A", "CMP_AND_SWAP"),
    ("ib_send_bw", "-n", "500"),
    ("ib_send_bw", "-n", "500", "-e"),  # sleeps until a completion event
    ("ib_send_lat", "-n", "200", "-e"),
    ("ib_read_lat", "-n", "200", "-e"),
    ("ib_atomic_lat", "-n", "200", "-e"),
]
# Over the wire between hosts; a RoCE address is one of the GID table.
BETWEEN_HOSTS = [
    ("ibv_rc_pingpong", "-g", "0", "-c"),
    ("ibv_rc_pingpong", "-g", "0", "-e", "-s", "300000", "-n", "100", "-m", "4096"),
    ("ibv_srq_pingpong", "-g", "0"),
    ("ib_write_bw", "-n", "500", "-F", "-d", "mlx5_0"),
    ("ib_atomic_lat", "-n", "200", "-F", "-d", "mlx5_0", "-x", "0"),
]


def program(name):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture
def environment(bin_dir, tmp_path):
    """Selects the emulated libraries, and a wire of this test's own."""
    folder = bin_dir.parent / "lib" / "emulator"
    if not (folder / "libibverbs.so.1").exists():
        pytest.skip("the emulated libibverbs is not built: <infiniband/verbs.h> is not installed")
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "SHOAL_EMULATOR_DIRECTORY": str(tmp_path)}


def run(command, environment):
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def wait_for(condition):
    deadline = time.monotonic() + DEADLINE_S * max(1, os.getloadavg()[0] / os.cpu_count())
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def listens(port):
    rows = [line.split() for path in ("tcp", "tcp6") for line in open(f"/proc/net/{path}")]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows[1:])


def run_pair(command, environment, port):
    """Runs a server and a client of the same command; both must succeed. Returns their outputs."""
    command = [program(command[0]), *command[1:], "-p", str(port)]
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        wait_for(lambda: listens(port) or server.poll() is not None)
        client = run([*command, "localhost"], environment)
        output = server.communicate(timeout=DEADLINE_S)[0]
    finally:
        server.kill()
    assert client.returncode == 0, client.stdout + client.stderr + output
    assert server.returncode == 0, output
    return output, client.stdout


def port_of(worker_id, index):
    """A port for each test of each parallel worker."""
    worker = int(re.sub(r"\D", "", worker_id) or 0)
    return 21000 + 100 * worker + index


@pytest.fixture
def worker(request):
    return getattr(request.config, "workerinput", {}).get("workerid", "master")


def test_devinfo_shows_the_device(environment):
    shown = run([program("ibv_devinfo"), "-v"], environment)
    assert shown.returncode == 0, shown.stderr
    for line in ("hca_id:\tmlx5_0", "PORT_ACTIVE", "link_layer:\t\tInfiniBand", "4129"):
        assert line in shown.stdout
    lid = int(re.search(r"port_lid:\s+(\d+)", shown.stdout)[1])
    assert lid != 0


@pytest.mark.parametrize("index", range(len(PINGPONG)))
def test_pingpong(environment, worker, index):
    server, client = run_pair(PINGPONG[index], environment, port_of(worker, index))
    assert "iters in" in server
    assert "iters in" in client


@pytest.mark.parametrize("index", range(len(PERFTEST)))
def test_perftest(environment, worker, index):
    command = (*PERFTEST[index], "-F", "-d", "mlx5_0")
    _, client = run_pair(command, environment, port_of(worker, 20 + index))
    result = re.search(r"^\s*\d+\s+\d+((?:\s+[\d.]+){2,})", client, re.MULTILINE)
    assert result, client
    # On a loaded machine 8 bytes at a time are 0.00 MB/s; the last column is the rate of messages.
    assert any(float(value) > 0 for value in result[1].split()), client


@pytest.fixture
def over_udp(environment):
    """The wire between hosts, on the loopback interface."""
    return environment | {"SHOAL_EMULATOR_WIRE": "udp", "SHOAL_EMULATOR_UDP_INTERFACE": "lo"}


@pytest.mark.parametrize("index", range(len(BETWEEN_HOSTS)))
def test_programs_over_udp(over_udp, worker, index):
    server, client = run_pair(BETWEEN_HOSTS[index], over_udp, port_of(worker, 60 + index))
    assert "invalid data" not in server
    assert "iters in" in client or re.search(r"^\s*\d+\s+\d+\s+[\d.]+", client, re.MULTILINE), (
        client
    )


def test_devinfo_shows_a_roce_port(over_udp):
    shown = run([program("ibv_devinfo"), "-v"], over_udp)
    assert shown.returncode == 0, shown.stderr
    assert "link_layer:\t\tEthernet" in shown.stdout
    assert re.search(r"GID\[\s*0\]:\s+(::ffff:127.0.0.1|0{4}:.*:ffff:7f00:0001)", shown.stdout)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SHOAL_EMULATOR_WIRE", "tcp", 'is "tcp"; allowed: shared_memory, udp'),
        ("SHOAL_EMULATOR_UDP_INTERFACE", "nope0", 'no interface is or has "nope0"; interfaces'),
        ("SHOAL_EMULATOR_UDP_PORT", "80", 'is "80"; allowed: 1024 to 65472'),
        ("SHOAL_EMULATOR_UDP_BUFFER_BYTES", "1", 'is "1"; allowed: 65536 to'),
    ],
)
def test_a_bad_setting_of_the_udp_wire_is_named(over_udp, name, value, message):
    shown = run([program("ibv_devinfo")], over_udp | {name: value})
    assert shown.returncode != 0
    assert message in shown.stderr


@pytest.mark.parametrize("ordering", ["adaptive", "unordered"])
def test_orderings_and_loss(environment, worker, ordering):
    environment["SHOAL_EMULATOR_ORDERING"] = ordering
    environment["SHOAL_EMULATOR_LOSS"] = "0.01"
    environment["SHOAL_EMULATOR_REORDERING"] = "0.05"
    environment["SHOAL_EMULATOR_DUPLICATION"] = "0.01"
    command = ("ibv_rc_pingpong", "-s", "20000", "-n", "100", "-c")
    port = port_of(worker, 40 + ["adaptive", "unordered"].index(ordering))
    # The client ends once it has everything. If its last acknowledgement is lost, no queue pair is
    # left that would repeat it, as with hardware, and the server reports that.
    for attempt in range(3):
        try:
            server, _ = run_pair(command, environment, port)
            break
        except AssertionError as error:
            if attempt == 2 or "retry count exceeded" not in str(error):
                raise
    assert "invalid data" not in server


def test_a_setting_out_of_range_is_named(environment):
    environment["SHOAL_EMULATOR_LOSS"] = "2"
    shown = run([program("ibv_devinfo")], environment)
    assert shown.returncode != 0
    assert 'SHOAL_EMULATOR_LOSS is "2"; allowed: 0 to less than 1' in shown.stderr


def test_a_trace_for_perfetto_is_written(environment, tmp_path, worker):
    environment["SHOAL_EMULATOR_TRACE"] = str(tmp_path / "trace.%p.json")
    run_pair(("ibv_rc_pingpong", "-n", "10"), environment, port_of(worker, 51))
    traces = [json.loads(path.read_text()) for path in tmp_path.glob("trace.*.json")]
    assert len(traces) >= 2
    events = [event for trace in traces for event in trace["traceEvents"]]
    names = {event["name"] for event in events}
    assert {"sent send", "received send", "completion"} <= names, names
    assert all(event["ts"] > 0 for event in events if event["ph"] != "M")


def test_every_packet_has_the_delay_that_is_set(environment, worker):
    environment["SHOAL_EMULATOR_DELAY_US"] = "20000"
    start = time.monotonic()
    run_pair(("ibv_rc_pingpong", "-n", "10"), environment, port_of(worker, 52))
    # A round is a message in each direction.
    assert time.monotonic() - start > 10 * 2 * 0.020


def test_a_trace_is_written(environment, tmp_path, worker):
    environment["SHOAL_EMULATOR_TRACE"] = str(tmp_path / "trace.%p")
    run_pair(("ibv_rc_pingpong", "-n", "10"), environment, port_of(worker, 50))
    traces = [path.read_text() for path in tmp_path.glob("trace.*")]
    assert len(traces) >= 2
    for trace in traces:
        if " state " in trace:  # a program may open the device more than once
            assert re.search(r" sent \d+ send 1024\n", trace)
            assert " completion 0 " in trace
            assert re.search(r" destroyed 0 - 0 doorbells=\d+ requests=\d+ ", trace)


def test_libfabric_lists_the_device(environment):
    shown = run([program("fi_info"), "-p", "verbs"], environment)
    if "No data available" in shown.stderr + shown.stdout:
        pytest.skip("this libfabric has no verbs provider")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "domain: mlx5_0" in shown.stdout
    assert "FI_PROTO_RDMA_CM_IB_RC" in shown.stdout


# UCX uses a device only where /dev/infiniband/NAME is a character device.
WITH_DEVICE_FILE = """
old=$(mktemp -d) && mount --rbind /dev "$old" && mount -t tmpfs none /dev || exit 77
for name in null zero random urandom tty; do
  touch /dev/$name && mount --bind "$old/$name" /dev/$name
done
mkdir /dev/shm /dev/infiniband && mount --bind "$old/shm" /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s /dev/null /dev/infiniband/uverbs0
exec "$@"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mount namespaces")
@pytest.mark.parametrize("test", ["am_lat", "put_lat", "put_bw", "get"])
def test_ucx_reliable_connection(environment, worker, test):
    isolated = [program("unshare"), "-rm", "sh", "-c", WITH_DEVICE_FILE, "sh"]
    probe = run([*isolated, "true"], environment)
    if probe.returncode != 0:
        pytest.skip("mount namespaces are not available")
    perftest = [program("ucx_perftest"), "-d", "mlx5_0:1", "-x", "rc_verbs", "-n", "500"]
    layout = ["-D", "zcopy", "-s", "4096"] if test == "get" else []
    index = 60 + ["am_lat", "put_lat", "put_bw", "get"].index(test)
    command = (*isolated, *perftest, "-w", "10", "-t", test, *layout)
    _, client = run_pair(command, environment, port_of(worker, index))
    assert "Final:" in client


def test_ucx_uses_the_atomics_of_the_device(environment):
    isolated = [program("unshare"), "-rm", "sh", "-c", WITH_DEVICE_FILE, "sh"]
    if run([*isolated, "true"], environment).returncode != 0:
        pytest.skip("mount namespaces are not available")
    shown = run([*isolated, program("ucx_info"), "-d", "-t", "rc_verbs"], environment)
    assert "mlx5_0:1" in shown.stdout, shown.stdout + shown.stderr
    for atomic in ("atomic_add", "atomic_fadd", "atomic_cswap"):
        assert re.search(rf"{atomic}: +64 bit", shown.stdout), shown.stdout


def test_a_killed_peer_is_a_retry_error(environment, worker):
    """The kernel releases the slot of a killed process; the others continue."""
    port = port_of(worker, 70)
    command = [program("ib_write_bw"), "-F", "-D", "30", "-p", str(port), "-u", "17"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env=environment, **quiet)
    wait_for(lambda: listens(port))
    client = subprocess.Popen(
        [*command, "localhost"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    stat = pathlib.Path(f"/proc/{client.pid}/stat")
    try:
        # It polls for completions: 0.2 s of processor time.
        wait_for(lambda: int(stat.read_text().split()[13]) > 0.2 * os.sysconf("SC_CLK_TCK"))
        assert client.poll() is None, client.communicate()[0]
        server.kill()
        output = client.communicate(timeout=25)[0]
        assert "status 12" in output, output  # IBV_WC_RETRY_EXC_ERR
    finally:
        server.kill()
        client.kill()
    run_pair(("ibv_rc_pingpong",), environment, port_of(worker, 71))
