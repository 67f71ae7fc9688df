# SPDX-License-Identifier: Apache-2.0
"""Records of running PEs in the formats of other tools: Prometheus, NCCL Inspector, Chrome's
traces, torch's flight recorder."""

import contextlib
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request

import numpy
import pytest

import shoal
import shoal.observe

PES = 3
TOKENS = 8


def pairs(world, count, before_last=None):
    """`count` pairs of a group; `before_last(pe)` runs before the last one. Returns the records."""
    group = shoal.ep.Group(
        world.team, hidden=128, top_k=2, experts=6, max_tokens=TOKENS, low_latency_max_tokens=0
    )
    topk = numpy.tile(numpy.array([[0, 5]], numpy.int64), (TOKENS, 1))
    x = numpy.ones((TOKENS, 128), numpy.float32).astype(numpy.float16)
    routing = group.route(topk)
    for i in range(count):
        if i == count - 1 and before_last is not None:
            before_last(world.my_pe)
        received = group.dispatch(x, routing)
        group.combine(received.x, received.handle)
        del received
    shoal.sync(world.team)
    records = own_records() if world.my_pe == 0 else None
    shoal.sync(world.team)
    group.close()
    return records


def own_records():
    """Those of the world with PES PEs; an earlier test of this process may have left others."""
    return [record for record in shoal.observe.read_process() if record["n_pes"] == PES]


def test_addresses_of_a_live_group_are_located(settings):
    def body(world):
        group = shoal.ep.Group(
            world.team, hidden=128, top_k=2, experts=6, low_latency_max_tokens=TOKENS
        )
        buffer = group.next_combine_buffer()
        address = numpy.asarray(buffer).__array_interface__["data"][0]
        mine = [
            place
            for place in shoal.observe.locate_address(address + 5)
            if f"as PE {world.my_pe} (pid {os.getpid()})" in place and "in group 1" in place
        ]
        assert len(mine) == 1 and "local expert 0, row 0, byte 5 of" in mine[0]
        assert mine[0] in shoal.observe.locate_address(address + 5, host=True)
        # As own_records().
        maps = [
            m
            for m in shoal.observe.read_process_memory()
            if m["pe"] == world.my_pe and len(m["pes"]) == PES
        ]
        assert [m["group"] for m in maps if m["group"]] == [1]
        assert any(region["name"] == "combine_rows" for region in maps[-1]["regions"])
        shoal.sync(world.team)
        group.close()

    shoal.run_threads(PES, body, settings={**settings, "symmetric_size": "16M"})


@pytest.fixture
def options(settings):
    return {**settings, "symmetric_size": "16M"}


@pytest.fixture
def records(options):
    return shoal.run_threads(PES, lambda world: pairs(world, 4), settings=options)[0]


def hung(options):
    """The records of a moment in which PEs 0 and 2 wait for PE 1, and the verdict then."""
    seen = {}

    def hold(pe):
        if pe != 1:
            return
        deadline = time.monotonic() + 10
        while "ranks 0 and 2 wait for it" not in shoal.observe.who_waits():
            assert time.monotonic() < deadline
        seen["records"] = own_records()
        seen["verdict"] = shoal.observe.who_waits()

    shoal.run_threads(PES, lambda world: pairs(world, 4, hold), settings=options)
    return seen["records"], seen["verdict"]


def test_records_have_operations_and_counters(records):
    assert [pe["pe"] for pe in records] == [0, 1, 2]
    assert all(pe["pid"] == os.getpid() for pe in records)
    for pe in records:
        (group,) = pe["groups"]
        assert group["pes"] == [0, 1, 2]
        assert len(group["operations"]) == 8
        assert {op["state"] for op in group["operations"]} == {"completed"}
        counted = {total["operation"]: total["operations"] for total in group["totals"]}
        assert counted["dispatch"] == counted["combine"] == 4
        assert [peer["rows"] for peer in group["peers"]] == [4 * TOKENS, 0, 4 * TOKENS]


def test_rows_that_cross_a_network_are_counted(options):
    settings = {**options, "node_size": "1"}
    records = shoal.run_threads(PES, lambda world: pairs(world, 4), settings=settings)[0]
    for pe in records:
        (group,) = pe["groups"]
        for rank, peer in enumerate(group["peers"]):
            rows = 0 if rank == group["rank"] else peer["rows"]
            assert (peer["network_rows"], peer["network_bytes"]) == (rows, rows * 128 * 2)


def test_the_verdict_names_the_pe_that_is_late(options):
    _, verdict = hung(options)
    assert "rank 1 (PE 1) is behind: ranks 0 and 2 wait for it" in verdict


def test_files(options, tmp_path):
    def pe(world):
        name = shoal.observe.write_flight_record(world, tmp_path)
        with pytest.raises(shoal.SystemFailureError, match="cannot write the flight record"):
            shoal.observe.write_flight_record(world, tmp_path / "missing")
        return name

    names = shoal.run_threads(2, pe, settings=options)
    assert names == [str(tmp_path / f"shoal_flight_{pe}.json") for pe in range(2)]
    assert [record["pe"] for record in shoal.observe.read_files(tmp_path)] == [0, 1]
    with pytest.raises(FileNotFoundError, match="SHOAL_FLIGHT_DIR"):
        shoal.observe.read_files(tmp_path.parent)


def test_lines_have_the_fields_of_nccl_inspector(records):
    lines = [json.loads(line) for line in shoal.observe.inspector_lines(records)]
    assert len(lines) == PES * 8
    for line in lines:
        assert line["header"].keys() == {"id", "rank", "n_ranks", "nnodes"}
        assert line["header"]["n_ranks"] == PES
        assert line["metadata"]["pid"] == os.getpid()
        performance = line["coll_perf"]
        assert performance["coll"] in ("dispatch", "combine")
        assert performance["coll_msg_size_bytes"] == 2 * TOKENS * 128 * 2
        assert performance["coll_exec_time_us"] > 0


def test_a_trace_has_nested_spans_on_one_clock(records):
    events = shoal.observe.chrome_trace(records)["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    operations = [span for span in spans if "epoch" in span["args"]]
    assert len(operations) == PES * 8
    phases = {"dispatch": ["notify", "send", "receive"]}
    phases["combine"] = ["send", "notify", "receive", "finish"]
    for operation in operations:
        start, end = operation["ts"], operation["ts"] + operation["dur"]
        inside = [
            span
            for span in spans
            if span["pid"] == operation["pid"]
            and "epoch" not in span["args"]
            and start <= span["ts"]
            and span["ts"] + span["dur"] <= end + 0.5
        ]
        assert [span["name"] for span in inside] == phases[operation["name"]]
    # An operation begins on every PE before it ends on any.
    for epoch in range(1, 9):
        same = [span for span in operations if span["args"]["epoch"] == epoch]
        assert max(span["ts"] for span in same) <= min(span["ts"] + span["dur"] for span in same)


def test_a_trace_has_the_kernels_of_gpus_on_lines_of_their_own(records):
    group = {**records[0]["groups"][0], "operations": []}
    group["launches"] = [
        {
            "epoch": 4,
            "operation": "combine",
            "end_ns": 9000,
            "phases": [
                {"name": "notify", "start_ns": 5000},
                {"name": "receive", "start_ns": 6000},
                {"name": "finish", "start_ns": 8000},
            ],
        }
    ]
    events = shoal.observe.chrome_trace([{**records[0], "groups": [group]}])["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [(span["name"], span["ts"], span["dur"]) for span in spans] == [
        ("combine", 5, 4),
        ("notify", 5, 1),
        ("receive", 6, 2),
        ("finish", 8, 1),
    ]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names == ["group 1, rank 0", "GPU, group 1, rank 0"]
    assert {span["tid"] for span in spans} == {shoal.observe._GPU_THREADS + 1}


def test_torchs_analyzer_reads_the_records(options, tmp_path, caplog):
    fr_trace = pytest.importorskip("torch.distributed.flight_recorder.fr_trace")
    records, _ = hung(options)
    record_folder, out = tmp_path / "records", tmp_path / "torch"
    record_folder.mkdir()
    for pe in records:
        (record_folder / f"shoal_flight_{pe['pe']}.json").write_text(json.dumps(pe))
    shoal.observe._main(["torch", str(out), "--from", str(record_folder)])
    assert len(list(out.iterdir())) == PES
    with caplog.at_level(logging.INFO), contextlib.redirect_stdout(io.StringIO()) as printed:
        fr_trace.main([str(out)])
    text = printed.getvalue() + caplog.text
    # Six operations match; rank 1 has not begun the seventh.
    assert "missing ranks: {1}" in text
    assert "7" in text


def exposition(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return answer.read().decode()


def test_metrics_for_prometheus(options):
    parser = pytest.importorskip("prometheus_client.parser")
    texts = []

    def pe(world):
        def scrape(pe):
            if pe == 0:
                port, stop = shoal.observe.serve(0)
                texts.append(exposition(port))
                stop()

        pairs(world, 4, scrape)

    shoal.run_threads(PES, pe, settings=options)
    samples = {}
    for family in parser.text_string_to_metric_families(texts[0]):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
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
    experts = samples["shoal_expert_rows_total"]
    assert {int(s.labels["expert"]) for s in experts} >= set(range(6))
    assert sum(s.value for s in experts) > 0


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if found := condition():
                return found
        time.sleep(0.05)
    raise AssertionError("it did not come")


# Where ./run unpacks it, or where a package has it.
PROMETHEUS = shutil.which(
    "prometheus", path=f"{sys.prefix}/prometheus/usr/bin:{os.environ.get('PATH', '')}"
)


@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus (./run setup --checks has it)")
def test_a_prometheus_server_scrapes_the_metrics(options, tmp_path):
    pytest.importorskip("prometheus_client")
    release = threading.Event()
    answers = []

    def scrape():
        port, stop = shoal.observe.serve(0)
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "scrape_configs:\n- job_name: shoal\n  scrape_interval: 1s\n  static_configs:\n"
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
            answers.append(query(server, tmp_path / "log"))
        finally:
            server.kill()
            server.wait()
            stop()
            release.set()

    def query(server, log):
        def listening():
            assert server.poll() is None, log.read_text()
            for line in log.read_text().splitlines():
                if "Listening on" in line:
                    return line.split("address=")[1].split()[0]
            return None

        address = wait_for(listening)
        text = "sum by (pe) (shoal_operations_total{operation='dispatch'})"
        url = f"http://{address}/api/v1/query?query={urllib.request.quote(text)}"

        def answered():
            with urllib.request.urlopen(url) as answer:
                return json.load(answer)["data"]["result"]

        return wait_for(answered)

    def hold(pe):
        if pe == 0:
            threading.Thread(target=scrape).start()
        assert release.wait(60)

    options["timeout"] = 70.0
    shoal.run_threads(PES, lambda world: pairs(world, 4, hold), settings=options)
    by_pe = {result["metric"]["pe"]: float(result["value"][1]) for result in answers[0]}
    assert by_pe.keys() >= {"0", "1", "2"}
    assert all(by_pe[pe] >= 3 for pe in ("0", "1", "2"))


def test_command_without_records(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "shoal.observe", "lines", "--from", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1
    assert "SHOAL_FLIGHT_DIR" in ran.stderr
