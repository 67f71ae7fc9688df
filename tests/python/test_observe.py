# SPDX-License-Identifier: Apache-2.0
"""Records of running PEs in the formats of other tools: NCCL Inspector, Chrome's traces, torch's
flight recorder. test_exporter.py has Prometheus."""

import contextlib
import io
import json
import logging
import os
import queue
import subprocess
import sys
import threading

import numpy
import pytest
from waits import wait_for, wait_until_blocked

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
    shoal.barrier(world.team)
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


def worlds():
    """Those that earlier tests of this process have left, in exceptions for example."""
    return {record["world"] for record in shoal.observe.read_process()}


def own_records(pes=PES, others=frozenset()):
    """Those of the world with `pes` PEs that is none of `others`."""
    records = shoal.observe.read_process()
    return [one for one in records if one["n_pes"] == pes and one["world"] not in others]


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
        # These are the maps as own_records() takes the records.
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

        def both_wait():
            seen["records"] = own_records()  # who_waits() also reads the worlds of other tests
            return "ranks 0 and 2 wait for it" in shoal.observe.who_waits(seen["records"])

        wait_for(both_wait)
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
    records, verdict = hung(options)
    assert "rank 1 (PE 1) is behind: ranks 0 and 2 wait for it" in verdict
    assert "rank 1 (PE 1) is behind: ranks 0 and 2" in shoal.observe.who_waits(records)
    assert shoal.observe.who_waits([]) == "no groups\n"


def test_collectives_and_one_sided_operations_of_a_world_are_counted(options):
    def body(world):
        array = world.zeros((4,), "int64")
        if world.my_pe == 1:
            wait_until_blocked(os.getpid(), threads.get(timeout=60))
        else:
            threads.put(threading.get_native_id())
        for _ in range(3):
            shoal.barrier(world.team)
        if world.my_pe == 0:
            world.put(array.on(1), numpy.arange(4))
            world.quiet()
        shoal.barrier(world.team)
        shoal.sync(world.team)  # the barrier counts when the call ends
        records = own_records(2, others) if world.my_pe == 0 else None
        shoal.sync(world.team)
        return records

    threads = queue.Queue()  # PE 0's, which waits for PE 1
    for metrics in ("on", "all", "off"):
        others = worlds()
        records = shoal.run_threads(2, body, settings={**options, "metrics": metrics})[0]
        for pe in records:
            counted = {total["operation"]: total for total in pe["totals"]}
            if metrics == "off":
                assert not counted and not pe["histograms"]
                continue
            assert counted["barrier"]["operations"] == 4
            assert counted["barrier"]["failures"] == 0
            barriers = [h for h in pe["histograms"] if h["operation"] == "barrier"]
            if metrics == "all":
                assert barriers[0]["phase"] == "call" and barriers[0]["count"] == 4
                assert sum(barriers[0]["buckets"]) == 4
                assert barriers[0]["sum_ns"] == counted["barrier"]["time_ns"] > 0
            else:
                assert not barriers and counted["barrier"]["time_ns"] == 0
            puts = 1 if metrics == "all" and pe["pe"] == 0 else 0
            assert ("put" in counted) == (puts == 1)
            assert pe["peers"][1]["operations"] == puts
            assert pe["peers"][1]["bytes"] == 32 * puts
            if pe["pe"] == 0:
                assert pe["peers"][1]["wait_ns"] > 0, "PE 1 came late"


@pytest.fixture
def programs(monkeypatch):
    """PATH with the programs of the build."""
    bin_dir = os.environ.get("SHOAL_BIN_DIR")
    if not bin_dir:
        pytest.skip("set SHOAL_BIN_DIR to the build's bin directory")
    monkeypatch.setenv("PATH", bin_dir, prepend=os.pathsep)


def test_pages_show_running_jobs_and_flight_records(options, tmp_path, programs):
    page = tmp_path / "page.html"

    def hold(pe):
        if pe == 0:
            shoal.observe.write_page(page, interval=0.01)

    records = shoal.run_threads(PES, lambda world: pairs(world, 4, hold), settings=options)[0]
    assert "Running jobs" in page.read_text() and f"0 of {PES}" in page.read_text()
    (tmp_path / "shoal_flight_0.json").write_text(json.dumps(records[0]))
    shoal.observe._main(["page", str(page), "--from", str(tmp_path)])
    assert f"Flight records in {tmp_path}" in page.read_text()
    with pytest.raises(RuntimeError, match="no files shoal_flight"):
        shoal.observe.write_page(page, tmp_path.parent)


def test_files(options, tmp_path):
    def pe(world):
        name = shoal.observe.write_flight_record(world, tmp_path)
        with pytest.raises(shoal.SystemFailureError, match="cannot write the flight record"):
            shoal.observe.write_flight_record(world, tmp_path / "missing")
        return name

    names = shoal.run_threads(2, pe, settings=options)
    assert names == [str(tmp_path / f"shoal_flight_{pe}.json") for pe in range(2)]
    assert [record["pe"] for record in shoal.observe.read_files(tmp_path)] == [0, 1]
    with pytest.raises(shoal.InvalidArgumentError, match="SHOAL_FLIGHT_DIR"):
        shoal.observe.read_files(tmp_path.parent)
    older = json.loads((tmp_path / "shoal_flight_1.json").read_text())
    older["shoal_record"] = 2
    (tmp_path / "shoal_flight_1.json").write_text(json.dumps(older))
    assert [record["pe"] for record in shoal.observe.read_files(tmp_path)] == [0]
    (tmp_path / "shoal_flight_0.json").unlink()
    with pytest.raises(
        shoal.InvalidArgumentError, match="shoal_flight_1.json: SHOAL-N184: it has format 2"
    ):
        shoal.observe.read_files(tmp_path)


HEADER = {"id", "rank", "n_ranks", "nnodes"}
METADATA = {
    "inspector_output_format_version",
    "git_rev",
    "rec_mechanism",
    "dump_timestamp_us",
    "hostname",
    "pid",
}
TIMES = {"coll", "coll_sn", "coll_exec_time_us", "coll_timing_source"}
SIZES = {"coll_msg_size_bytes", "coll_algobw_gbs", "coll_busbw_gbs"}


def test_lines_have_the_fields_of_nccl_inspector(records):
    lines = [json.loads(line) for line in shoal.observe.inspector_lines(records)]
    assert len(lines) == PES * 8
    for line in lines:
        assert line.keys() == {"header", "metadata", "coll_perf"}
        assert line["header"].keys() == HEADER
        assert line["metadata"].keys() == METADATA
        performance = line["coll_perf"]
        assert performance.keys() == TIMES | SIZES
        assert line["header"]["n_ranks"] == PES
        assert line["header"]["nnodes"] == 1
        assert line["metadata"]["pid"] == os.getpid()
        assert performance["coll"] in ("dispatch", "combine")
        assert performance["coll_msg_size_bytes"] == 2 * TOKENS * 128 * 2
        assert performance["coll_exec_time_us"] > 0
        assert performance["coll_timing_source"] == "collective_cpu"


def on_gpu(record, operations, launches):
    """`record` with a group whose kernels ran `launches`: operation, epoch, phases and their starts
    in microseconds, end, bytes. `operations`: operation, epoch, what differs from a queued one, and
    the phases of its kernels."""

    def phases(starts):
        return [{"name": name, "start_ns": start * 1000} for name, start in starts.items()]

    group = {**record["groups"][0], "operations": [], "launches": []}
    group["launches"] = [
        {
            "operation": name,
            "epoch": epoch,
            "phases": phases(starts),
            "end_ns": end * 1000,
            "rows": size // 100,
            "bytes": size,
        }
        for name, epoch, starts, end, size in launches
    ]
    shown = {"state": "queued", "waiting": False, "awaited": -1, "wait_ns": 0}
    for i, (name, epoch, differs, starts) in enumerate(operations, 1):
        entry = {"id": i, "epoch": epoch, "operation": name, "start_ns": 100 * i, "end_ns": 1000}
        entry.update({"rows": 3, "bytes": 300, "phases": phases({"queued": 1, **starts})})
        group["operations"].append({**entry, **shown, **differs})
    return {**record, "groups": [group]}


COMPLETED = {"state": "completed"}
OPERATIONS = [
    ("dispatch", 1, COMPLETED, {}),  # its launch is no longer in the record
    ("dispatch", 3, {**COMPLETED, "end_ns": 14000}, {"notify": 10, "send": 11, "receive": 12}),
    ("dispatch", 5, {}, {}),
    (
        "combine",
        6,
        {"state": "started", "end_ns": 0, "waiting": True, "awaited": 1},
        {"notify": 77},
    ),
    ("dispatch", 7, {"state": "failed"}, {}),
    ("low_latency_dispatch", 1, {"state": "sent"}, {"between": 80}),
]
LAUNCHES = [
    ("dispatch", 3, {"notify": 10, "send": 11, "receive": 12}, 14, 3000),
    ("combine", 4, {"notify": 20, "receive": 21, "finish": 22}, 25, 6000),
    ("low_latency_dispatch", 1, {"send": 30}, 31, 0),
    ("low_latency_dispatch", 1, {"receive": 40}, 42, 0),
    ("low_latency_combine", 1, {"receive": 50}, 55, 0),  # its send is no longer in the record
    ("low_latency_combine", 2, {"send": 60}, 61, 0),
]


def test_lines_of_kernels_have_their_times(records):
    host = {**COMPLETED, "bytes": 4096, "phases": [{"name": "notify", "start_ns": 1}]}
    on_host = [("dispatch", 8, host, {}), ("combine", 9, {**host, "state": "failed"}, {})]
    record = on_gpu(records[0], [*OPERATIONS, *on_host], LAUNCHES)
    lines = [json.loads(line)["coll_perf"] for line in shoal.observe.inspector_lines([record])]
    of_host, *of_kernels = lines
    assert (of_host["coll_sn"], of_host["coll_timing_source"]) == (8, "collective_cpu")
    assert of_host["coll_msg_size_bytes"] == 4096
    assert {line["coll_timing_source"] for line in of_kernels} == {"kernel_gpu"}
    # A low-latency operation took as long as its two kernels.
    assert [(line["coll"], line["coll_sn"], line["coll_exec_time_us"]) for line in of_kernels] == [
        ("dispatch", 3, 4),
        ("combine", 4, 5),
        ("low_latency_dispatch", 1, 3),
    ]
    assert of_kernels[0]["coll_msg_size_bytes"] == 3000
    assert of_kernels[0]["coll_algobw_gbs"] == 0.75
    assert of_kernels[0].keys() == TIMES | SIZES
    assert of_kernels[2].keys() == TIMES, "no size is known"


def test_operations_of_kernels_have_their_states_and_times_for_torch(records):
    dump = shoal.observe.torch_dump(on_gpu(records[0], OPERATIONS, LAUNCHES))
    shown = [
        (
            entry["frames"][0]["name"],
            entry["state"],
            entry["time_discovered_started_ns"],
            entry["time_discovered_completed_ns"],
            entry["duration_ms"],
        )
        for entry in dump["entries"]
    ]
    moved = "3 rows, 300 bytes"
    assert shown == [
        (f"dispatch 1: completed on the GPU, {moved}", "completed", None, None, None),
        (f"dispatch 3: completed on the GPU, {moved}", "completed", 10000, 14000, 0.004),
        (f"dispatch 5: queued, phase queued, {moved}", "scheduled", None, None, None),
        (
            f"combine 6: started, phase notify, waits for rank 1, {moved}",
            "started",
            77000,
            None,
            None,
        ),
        (f"dispatch 7: failed, phase queued, {moved}", "started", None, None, None),
        (f"low_latency_dispatch 1: sent, phase between, {moved}", "started", None, None, None),
    ]
    assert all(e["retired"] == (e["state"] == "completed") for e in dump["entries"])


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
    kernel = {"notify": 5, "receive": 6, "finish": 8}
    launches = [("combine", 4, kernel, 9, 6000)]
    ended = {**COMPLETED, "start_ns": 400, "end_ns": 9000}
    record = on_gpu(records[0], [("combine", 4, ended, kernel)], launches)
    events = shoal.observe.chrome_trace([record])["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [(span["name"], span["ts"], span["dur"]) for span in spans] == [
        ("combine", 0.4, 0.6),  # the call, until the operation is queued
        ("combine", 5, 4),
        ("notify", 5, 1),
        ("receive", 6, 2),
        ("finish", 8, 1),
    ]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names == ["group 1, rank 0", "GPU, group 1, rank 0"]
    assert {span["tid"] for span in spans[1:]} == {shoal.observe._GPU_THREADS + 1}
    assert spans[1]["args"] == {"epoch": 4, "rows": 60, "bytes": 6000}


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


def test_command_without_records(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "shoal.observe", "lines", "--from", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1
    assert "SHOAL_FLIGHT_DIR" in ran.stderr
