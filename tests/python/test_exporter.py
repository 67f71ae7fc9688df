# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus, and the dashboard for Grafana."""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import numpy
import pytest
from test_observe import PES, own_records, pairs, worlds
from waits import wait_for

import shoal
import shoal.observe


@pytest.fixture
def options(settings):
    return {**settings, "symmetric_size": "16M"}


def scrape(url):
    """Samples by name."""
    parser = pytest.importorskip("prometheus_client.parser")
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    samples = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
    return samples


def scrape_here():
    """Like scrape(), from a server in this process."""
    pytest.importorskip("prometheus_client")
    port, stop = shoal.observe.serve(0)
    try:
        return scrape(f"http://127.0.0.1:{port}/metrics")
    finally:
        stop()


def sum_of(samples, name, **labels):
    return sum(s.value for s in samples[name] if labels.items() <= s.labels.items())


# Holds a record whose host name is no UTF-8 and drives a terminal, until its standard input ends.
FORGED_RECORD = """
import fcntl, os, struct, sys
fd = os.memfd_create("shoal-record", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(fd, 1 << 20)
words = lambda *values: struct.pack(f"<{len(values)}Q", *values)
os.pwrite(fd, words(0x53484F414C524543, 5, os.getpid(), 0, 1, 1 << 18, 1 << 18), 0)
pe = words(0xF01239ED, 0, 1, 4096) + b"\\xff\\x1b[31m\\n".ljust(64, b"\\0")
os.pwrite(fd, pe + words(*[0] * 75, 1), 1 << 18)  # one barrier has failed
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
print("ready", flush=True)
sys.stdin.read()
"""


def test_text_of_a_forged_record_is_escaped():
    forger = subprocess.Popen(
        [sys.executable, "-c", FORGED_RECORD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with forger:
        assert forger.stdout.readline() == "ready\n"
        [record] = [one for one in shoal.observe.read_host() if one["pid"] == forger.pid]
        assert record["host"] == r"\xff\x1b[31m\x0a"
        samples = scrape_here()
        labels = {"node": record["host"], "operation": "barrier"}
        assert sum_of(samples, "shoal_world_failures_total", **labels) == 1


@pytest.fixture
def samples(options):
    """The metrics of a world during its last pair, without those of other tests' worlds."""
    seen = []

    def hold(pe):
        if pe == 0:
            worlds = {record["world"] for record in own_records()} | {None}
            seen.append(
                {
                    name: [s for s in samples if s.labels.get("world") in worlds]
                    for name, samples in scrape_here().items()
                }
            )

    settings = {**options, "metrics": "all"}
    shoal.run_threads(PES, lambda world: pairs(world, 4, hold), settings=settings)
    return seen[0]


def test_metrics_for_prometheus(samples):
    dispatches = [
        sample
        for sample in samples["shoal_operations_total"]
        if sample.labels["operation"] == "dispatch"
    ]
    assert max(sample.value for sample in dispatches) >= 3
    assert {sample.labels["pe"] for sample in dispatches} >= {"0", "1", "2"}
    for bucket in samples["shoal_phase_seconds_bucket"]:
        assert bucket.value >= 0
    infinite = [s for s in samples["shoal_phase_seconds_bucket"] if s.labels["le"] == "+Inf"]
    counts = samples["shoal_phase_seconds_count"]
    assert sum(s.value for s in infinite) == sum(s.value for s in counts) > 0
    for name in (
        "shoal_peer_wait_seconds_total",
        "shoal_peer_network_rows_total",
        "shoal_peer_network_bytes_total",
        "shoal_rows_total",
        "shoal_waiting_for",
    ):
        assert name in samples
    operations = sum_of(samples, "shoal_world_operations_total", operation="barrier")
    assert operations >= PES
    assert sum_of(samples, "shoal_collective_seconds_count", operation="barrier") == operations
    assert sum_of(samples, "shoal_world_peer_wait_seconds_total") > 0
    experts = samples["shoal_expert_rows_total"]
    assert {int(s.labels["expert"]) for s in experts} >= set(range(6))
    assert sum(s.value for s in experts) > 0


def test_metrics_count_operations_that_failed(options):
    """PE 1 does not call."""
    seen, others = {}, worlds()
    released = threading.Event()

    def body(world):
        group = shoal.ep.Group(
            world.team, hidden=128, top_k=1, experts=2, max_tokens=1, low_latency_max_tokens=0
        )
        if world.my_pe == 1:
            assert released.wait(30)
            return
        seen["world"] = own_records(2, others)[0]["world"]
        try:
            with pytest.raises(shoal.TimeoutError):
                group.dispatch(
                    numpy.ones((1, 128), numpy.float16),
                    group.route(numpy.ones((1, 1), numpy.int64)),
                )
            seen["samples"] = scrape_here()
        finally:
            released.set()

    shoal.run_threads(2, body, settings={**options, "timeout": 2.0})
    where = {"world": seen["world"], "pe": "0"}
    failures = sum_of(seen["samples"], "shoal_failures_total", operation="dispatch", **where)
    assert failures >= 1
    assert sum_of(seen["samples"], "shoal_group_failed", **where) == 1


PAIR = """
import pathlib, sys, time

import numpy

import shoal
import shoal.observe

folder = pathlib.Path(sys.argv[1])
with shoal.World.open() as world:
    group = shoal.ep.Group(
        world.team, hidden=128, top_k=1, experts=2, max_tokens=1, low_latency_max_tokens=0
    )
    routing = group.route(numpy.full((1, 1), 1 - world.my_pe, numpy.int64))
    received = group.dispatch(numpy.ones((1, 128), numpy.float16), routing)
    group.combine(received.x, received.handle)
    del received
    shoal.sync(world.team)
    (record,) = shoal.observe.read_process()
    (folder / str(world.my_pe)).write_text(record["world"])
    deadline = time.monotonic() + 60
    while not (folder / "end").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    group.close()
"""


def test_one_server_has_the_pes_of_all_processes_of_the_host(tmp_path):
    pytest.importorskip("prometheus_client")
    bin_dir = os.environ.get("SHOAL_BIN_DIR")
    if not bin_dir:
        pytest.skip("set SHOAL_BIN_DIR to the build's bin directory")
    command = [sys.executable, "-m", "shoal.observe", "serve", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    run = [pathlib.Path(bin_dir) / "shoal-run", "-n", "2", sys.executable, "-c", PAIR, tmp_path]
    environment = {**os.environ, "SHOAL_SYMMETRIC_SIZE": "16M"}
    processes = subprocess.Popen(run, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().strip()

        def world():
            assert processes.poll() is None, processes.stderr.read()
            names = [(tmp_path / str(pe)).read_text() for pe in range(2)]
            return names[0] if names[0] == names[1] else None

        where = {"world": wait_for(world)}
        samples = scrape(url)
        for operation in ("dispatch", "combine"):
            for pe in ("0", "1"):
                of_pe = {**where, "pe": pe, "operation": operation}
                assert sum_of(samples, "shoal_operations_total", **of_pe) == 1
                assert sum_of(samples, "shoal_rows_total", **of_pe) == 1
        # Other addresses of the host refuse.
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/metrics", url)
        assert match, url
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", int(match[1])))
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
        (tmp_path / "end").touch()
        _, errors = processes.communicate(timeout=60)
    assert processes.returncode == 0, errors


DASHBOARD = pathlib.Path(__file__).parents[2] / "docs/guide/grafana/shoal.json"


def targets():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target for panel in panels for target in panel["targets"]]


def test_metrics_of_the_dashboard_exist(samples):
    used = {name for t in targets() for name in re.findall(r"\bshoal_\w+", t["expr"])}
    assert len(used) > 5
    assert used <= samples.keys()


OPERATIONS = "sum by (pe) (shoal_operations_total{operation='dispatch'})"


def query(target):
    """Send the query as Grafana does, with any world and node selected."""
    text = target["expr"]
    for name, value in (("$__rate_interval", "1m"), ("$__range", "15m")):
        text = text.replace(name, value)
    return re.sub(r"\$(world|node)\b", ".+", text)


# The program is where ./run unpacks it, or where a package installs it.
PROMETHEUS = shutil.which(
    "prometheus", path=f"{sys.prefix}/prometheus/usr/bin:{os.environ.get('PATH', '')}"
)


@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus (./run setup --checks has it)")
def test_a_prometheus_server_answers_the_queries_of_the_dashboard(options, tmp_path):
    pytest.importorskip("prometheus_client")
    release = threading.Event()
    answers = {}

    def scraped():
        port, stop = shoal.observe.serve(0)
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "scrape_configs:\n- job_name: shoal\n  scrape_interval: 250ms\n  static_configs:\n"
            f"  - targets: ['127.0.0.1:{port}']\n"
        )
        log = (tmp_path / "log").open("w")
        server = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stderr=log,
        )
        try:
            ask(server, tmp_path / "log")
        finally:
            server.kill()
            server.wait()
            log.close()
            stop()
            release.set()

    def ask(server, log):
        def listening():
            assert server.poll() is None, log.read_text()
            for line in log.read_text().splitlines():
                if "Listening on" in line:
                    return line.split("address=")[1].split()[0]
            return None

        address = wait_for(listening)

        def answer(text):
            url = f"http://{address}/api/v1/query?query={urllib.request.quote(text)}"
            try:
                with urllib.request.urlopen(url) as reply:
                    found = json.load(reply)
            except urllib.error.HTTPError as refusal:
                if refusal.code == 503:  # it listens before it can answer
                    return None
                found = json.load(refusal)
            assert found["status"] == "success", found
            return found["data"]["result"]

        for text in (OPERATIONS, *map(query, targets())):
            answers[text] = wait_for(lambda text=text: answer(text))

    def hold(pe):
        if pe == 0:
            asked.append(pool.submit(scraped))
        assert release.wait(60)

    options |= {"timeout": 70.0, "metrics": "all"}
    asked = []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        shoal.run_threads(PES, lambda world: pairs(world, 4, hold), settings=options)
        asked[0].result()
    by_pe = {result["metric"]["pe"]: float(result["value"][1]) for result in answers[OPERATIONS]}
    assert by_pe.keys() >= {"0", "1", "2"}
    assert all(by_pe[pe] >= 3 for pe in ("0", "1", "2"))
    for target in targets():
        labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert all(labels <= result["metric"].keys() for result in answers[query(target)])
