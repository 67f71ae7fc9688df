# SPDX-License-Identifier: Apache-2.0
"""Current and last operations of this host's PEs: records, metrics, traces.

    import shoal.observe

    for pe in shoal.observe.read_host():          # all running jobs of this user
        print(pe["pe"], pe["activity"])
    print(shoal.observe.who_waits())

Records have the fields of shoal/observe.hpp. From a shell (`python -m shoal.observe --help`):

    python -m shoal.observe serve                   # Prometheus, http://127.0.0.1:9465/metrics
    python -m shoal.observe lines                   # a JSON line per operation, as NCCL Inspector
    python -m shoal.observe page OUT.html           # the report of shoal-info --live
    python -m shoal.observe trace OUT.json          # for chrome://tracing and ui.perfetto.dev
    python -m shoal.observe torch OUT --from DIR    # for torch.distributed.flight_recorder
"""

import argparse
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import time

from . import _core

__all__ = [
    "chrome_trace",
    "inspector_lines",
    "locate_address",
    "locate_offset",
    "read_files",
    "read_host",
    "read_host_memory",
    "read_process",
    "read_process_memory",
    "serve",
    "torch_dump",
    "who_waits",
    "write_flight_record",
    "write_page",
]


def read_host():
    """The records of the PEs of this host whose processes belong to this user (for root: all)."""
    return [json.loads(text) for text in _core._host_records()]


def read_process():
    """The records of the PEs of this process."""
    return [json.loads(text) for text in _core._process_records()]


def read_host_memory():
    """Contents of the heaps and groups of this user's running jobs on this host: a dict per
    PE and block, with the fields of shoal/memory_map.hpp."""
    return [json.loads(text) for text in _core._host_memory()]


def read_process_memory():
    """The same for the PEs of this process."""
    return [json.loads(text) for text in _core._process_memory()]


def locate_address(address, host=False):
    """Contents of an address of this process, such as tensor.data_ptr(): a text per block.

    host: at this address of any running job of this user on this host.
    """
    return _core._locate_address(address, host)


def locate_offset(offset, host=False):
    """The same for an offset of the symmetric heaps."""
    return _core._locate_offset(offset, host)


def read_files(folder):
    """The records in the files shoal_flight_*.json of a folder (SHOAL_FLIGHT_DIR), by PE. A file
    that is no record is a warning while others are."""
    return [json.loads(text) for text in _core._file_records(os.fspath(folder))]


def who_waits(records=None):
    """Who waits for whom, as text: shoal-info --live prints it.

    records: of read_host, read_process or read_files, also of several hosts in one list; without,
    those of this host.
    """
    return _core._who_waits(
        [json.dumps(record) for record in (read_host() if records is None else records)]
    )


def write_flight_record(world, directory):
    """Writes the record of the world's PE to directory/shoal_flight_<PE>.json; returns the name."""
    return _core._write_flight_record(world, os.fspath(directory))


def write_page(file, folder=None, interval=1.0):
    """Writes a page for a browser: who waits for whom, heat maps of waits and network rates, loads
    of experts.

    folder: of flight records; without, of the jobs that run on this host, with rates over
    `interval` seconds. shoal-info makes the page: that of the installed package, else of PATH.
    Raises RuntimeError with its message where there is no job or no record.
    """
    program = pathlib.Path(__file__).resolve().parent / "bin" / "shoal-info"
    name = program if program.exists() else shutil.which("shoal-info")
    if name is None:
        raise RuntimeError("shoal-info is neither in this package nor in PATH")
    what = ["--live", "--interval", str(interval)] if folder is None else ["--flight", folder]
    ran = subprocess.run([name, *what, "--html", file], capture_output=True, text=True)
    if ran.returncode != 0:
        raise RuntimeError(f"shoal-info: {ran.stderr.strip() or ran.stdout.strip()}")


def _groups(records):
    for pe in records:
        for group in pe["groups"]:
            yield pe, group


def inspector_lines(records):
    """A JSON line per completed operation, with the field names of NCCL Inspector. Those of
    low-latency kernels have neither size nor bandwidths, which are not known per operation."""
    for pe, group in _groups(records):
        header = {
            "id": f"{pe['world']}-{group['number']}",
            "rank": group["rank"],
            "n_ranks": len(group["pes"]),
            "nnodes": group["n_hosts"],
        }
        metadata = {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "shoal",
            "dump_timestamp_us": pe["read_ns"] // 1000,
            "hostname": pe["host"],
            "pid": pe["pid"],
        }
        for performance in (*_host_performance(group), *_kernel_performance(group)):
            yield json.dumps({"header": header, "metadata": metadata, "coll_perf": performance})


def _performance(operation, epoch, took_ns, size, ranks, source):
    """size: bytes; None: unknown."""
    line = {
        "coll": operation,
        "coll_sn": epoch,
        "coll_exec_time_us": max(took_ns, 1) / 1000,
        "coll_timing_source": source,
    }
    if size is not None:
        speed = size / max(took_ns, 1)  # bytes per nanosecond are GB/s
        line["coll_msg_size_bytes"] = size
        line["coll_algobw_gbs"] = speed
        line["coll_busbw_gbs"] = speed * (ranks - 1) / ranks
    return line


def _host_performance(group):
    ranks = len(group["pes"])
    for op in group["operations"]:
        if op["state"] == "completed" and not _is_queued(op):
            took = op["end_ns"] - op["start_ns"]
            yield _performance(
                op["operation"], op["epoch"], took, op["bytes"], ranks, "collective_cpu"
            )


def _kernel_performance(group):
    for (operation, epoch), launches in _ended_kernels(group).items():
        # Other kernels run between the two of a low-latency operation.
        took = sum(launch["end_ns"] - launch["phases"][0]["start_ns"] for launch in launches)
        size = None if operation.startswith("low_latency") else launches[0]["bytes"]
        yield _performance(operation, epoch, took, size, len(group["pes"]), "kernel_gpu")


def _is_queued(op):
    """True if kernels run the operation. Each call that queued some ends with a phase of that name,
    and the phases of its kernels follow where their launches are known."""
    return bool(op["phases"]) and op["phases"][0]["name"] == "queued"


def _last_queued(op):
    return max(i for i, phase in enumerate(op["phases"]) if phase["name"] == "queued")


def _phases_of_kernels(op):
    after = op["phases"][_last_queued(op) + 1 :]
    return [phase for phase in after if phase["name"] != "between"]


def _is_last(launch):
    """True if the operation ends with this launch: low-latency operations have one per phase."""
    return launch["phases"][-1]["name"] != "send"


def _ended_kernels(group):
    """The launches of each operation that has ended, by operation and epoch. Operations of whose
    two launches the record has lost one are omitted."""
    launches = {}
    for launch in group["launches"]:
        launches.setdefault((launch["operation"], launch["epoch"]), []).append(launch)
    return {
        key: found
        for key, found in launches.items()
        if any(map(_is_last, found))
        and len(found) == (2 if key[0].startswith("low_latency") else 1)
    }


def chrome_trace(records):
    """A document in Chrome's trace format: a process per PE, a thread per group, a span per
    operation and phase; ranks waited for are arguments. Kernels of a group on a GPU are on a thread
    of their own, on the same clock."""
    events = []
    for pe, group in _groups(records):
        process = pe["pe"]
        name = f"PE {pe['pe']} of world {pe['world']}, pid {pe['pid']} on {pe['host']}"
        where = {"pid": process, "tid": group["number"]}
        events.append({"ph": "M", "name": "process_name", "args": {"name": name}, **where})
        thread = f"group {group['number']}, rank {group['rank']}"
        events.append({"ph": "M", "name": "thread_name", "args": {"name": thread}, **where})
        for op in group["operations"]:
            end = op["end_ns"] or pe["read_ns"]
            phases = op["phases"]
            if _is_queued(op):  # its kernels have spans of their own
                phases = phases[: _last_queued(op) + 1]
                end = phases[-1]["start_ns"]
            details = {
                key: op[key] for key in ("epoch", "state", "rows", "bytes", "wait_ns", "awaited")
            }
            events.append(_span(op["operation"], op["start_ns"], end, details, where))
            events.extend(_phases(phases, end, where))
        if not group["launches"]:
            continue
        where = {"pid": process, "tid": _GPU_THREADS + group["number"]}
        thread = f"GPU, group {group['number']}, rank {group['rank']}"
        events.append({"ph": "M", "name": "thread_name", "args": {"name": thread}, **where})
        for launch in group["launches"]:
            start, end = launch["phases"][0]["start_ns"], launch["end_ns"]
            details = {key: launch[key] for key in ("epoch", "rows", "bytes")}
            events.append(_span(launch["operation"], start, end, details, where))
            events.extend(_phases(launch["phases"], end, where))
    return {"traceEvents": events, "displayTimeUnit": "ns"}


_GPU_THREADS = 1 << 20  # thread ids of groups on a GPU start here


def _phases(phases, end, where):
    starts = [phase["start_ns"] for phase in phases[1:]] + [end]
    for phase, until in zip(phases, starts):
        if phase["name"] not in ("between", "queued"):
            yield _span(phase["name"], phase["start_ns"], until, {}, where)


def _span(name, start, end, details, where):
    times = {"ts": start / 1000, "dur": max(end - start, 0) / 1000}
    return {"ph": "X", "name": name, "cat": "shoal", "args": details, **times, **where}


_TORCH_STATES = {"completed": "completed", "queued": "scheduled"}


def torch_dump(pe):
    """The record of a PE as torch's flight recorder writes it (version 2.10). Every operation
    counts as NCCL's all_to_all: torch's analyzer refuses other names. `frames` has its own."""
    names = {}
    entries = []
    for group in pe["groups"]:
        name = f"{pe['world']}-{group['number']}-{group['pes'][0]}"
        names[name] = {
            "name": name,
            "desc": f"shoal group {group['number']}",
            "ranks": str(group["pes"]),
        }
        entries.extend(
            {
                "record_id": op["id"] - 1,
                "pg_id": group["number"],
                "process_group": (name, names[name]["desc"]),
                "collective_seq_id": op["id"],
                "p2p_seq_id": 0,
                "op_id": op["id"],
                "is_p2p": False,
                "profiling_name": "nccl:all_to_all",
                # Equal on all ranks: sizes differ by rank, which the analyzer would report.
                "input_sizes": [[0]],
                "input_dtypes": ["Byte"],
                "output_sizes": [[0]],
                "output_dtypes": ["Byte"],
                "time_created_ns": op["start_ns"],
                "timeout_ms": 0,
                **progress,
                "frames": [
                    {
                        "name": f"{op['operation']} {op['epoch']}: {where}",
                        "filename": "shoal",
                        "line": 0,
                    }
                ],
            }
            for op, progress, where in _torch_operations(group)
        )
    return {
        "version": "2.10",
        "entries": entries,
        "pg_config": names,
        "pg_status": {},
        "comm_lib_version": "shoal",
    }


def _torch_operations(group):
    """Yield for each operation its record, its state and times as torch names them, and a text."""
    for op in group["operations"]:
        phases = _phases_of_kernels(op) if _is_queued(op) else op["phases"]
        started = phases[0]["start_ns"] if phases else None
        ended = op["end_ns"] if op["state"] == "completed" else None
        begin = op["start_ns"]
        if _is_queued(op):
            begin = started
            if started is None:
                ended = None
        state = _TORCH_STATES.get(op["state"], "started")
        progress = {
            "state": state,
            "time_discovered_started_ns": started,
            "time_discovered_completed_ns": ended,
            "duration_ms": None if ended is None else (ended - begin) / 1e6,
            "retired": state == "completed",
        }
        yield op, progress, _where(op)


def _where(op):
    phase = op["phases"][-1]["name"] if op["phases"] else "none"
    waits = f", waits for rank {op['awaited']}" if op["waiting"] else ""
    on_gpu = _is_queued(op) and op["state"] == "completed"
    place = " on the GPU" if on_gpu else f", phase {phase}"
    return f"{op['state']}{place}{waits}, {op['rows']} rows, {op['bytes']} bytes"


class _Collector:
    """Reads the records of this host at every scrape."""

    def __init__(self, read):
        self._read = read

    def collect(self):
        from prometheus_client.core import CounterMetricFamily as Counter
        from prometheus_client.core import GaugeMetricFamily as Gauge
        from prometheus_client.core import HistogramMetricFamily

        where = ["node", "world", "pe", "group", "rank"]
        of_operation, of_peer = [*where, "operation"], [*where, "peer"]
        totals = {
            "operations": Counter("shoal_operations", "Operations that ended", labels=of_operation),
            "failures": Counter("shoal_failures", "Operations that failed", labels=of_operation),
            "rows": Counter(
                "shoal_rows", "Rows sent by dispatches, fetched by combines", labels=of_operation
            ),
            "bytes": Counter("shoal_bytes", "Bytes of these rows", labels=of_operation),
        }
        spent = Counter(
            "shoal_operation_seconds", "Time in operations, with waits", labels=of_operation
        )
        peers = {
            "rows": Counter("shoal_peer_rows", "Rows sent to a rank", labels=of_peer),
            "bytes": Counter("shoal_peer_bytes", "Bytes sent to a rank", labels=of_peer),
            "waits": Counter("shoal_peer_waits", "Waits for a rank", labels=of_peer),
            "network_rows": Counter(
                "shoal_peer_network_rows", "Rows sent to a rank over a network", labels=of_peer
            ),
            "network_bytes": Counter(
                "shoal_peer_network_bytes", "Bytes of these rows", labels=of_peer
            ),
        }
        waited = Counter("shoal_peer_wait_seconds", "Time spent waiting for a rank", labels=of_peer)
        experts = Counter(
            "shoal_expert_rows", "Rows received for an expert", labels=[*where, "expert"]
        )
        phases = HistogramMetricFamily(
            "shoal_phase_seconds", "Durations of phases", labels=[*of_operation, "phase"]
        )
        waiting = Gauge("shoal_waiting_for", "Rank that is waited for; -1: none", labels=where)
        failed = Gauge("shoal_group_failed", "1: the group is unusable", labels=where)
        records = self._read()
        for pe, group in _groups(records):
            labels = [pe["host"], pe["world"], pe["pe"], group["number"], group["rank"]]
            labels = [str(label) for label in labels]
            for total in group["totals"]:
                for key, family in totals.items():
                    family.add_metric([*labels, total["operation"]], total[key])
                spent.add_metric([*labels, total["operation"]], total["time_ns"] / 1e9)
            for rank, peer in enumerate(group["peers"]):
                for key, family in peers.items():
                    family.add_metric([*labels, str(rank)], peer[key])
                waited.add_metric([*labels, str(rank)], peer["wait_ns"] / 1e9)
            for expert, rows in enumerate(group["expert_rows"], group["first_expert"]):
                experts.add_metric([*labels, str(expert)], rows)
            for histogram in group["histograms"]:
                phases.add_metric(
                    [*labels, histogram["operation"], histogram["phase"]],
                    buckets=_cumulative(histogram["buckets"]),
                    sum_value=histogram["sum_ns"] / 1e9,
                )
            in_wait = [op["awaited"] for op in group["operations"] if op["waiting"]]
            waiting.add_metric(labels, in_wait[-1] if in_wait else -1)
            failed.add_metric(labels, 1 if group["failure"] else 0)
        yield from (*totals.values(), spent, *peers.values(), waited, experts)
        yield from (phases, waiting, failed)
        yield from _world_metrics(records)


def _world_metrics(records):
    """Metrics of operations outside of groups."""
    from prometheus_client.core import CounterMetricFamily as Counter
    from prometheus_client.core import HistogramMetricFamily

    where = ["node", "world", "pe"]
    of_operation, of_peer = [*where, "operation"], [*where, "peer"]
    totals = {
        "operations": Counter(
            "shoal_world_operations", "Operations outside of groups", labels=of_operation
        ),
        "failures": Counter(
            "shoal_world_failures", "Operations of these that failed", labels=of_operation
        ),
        "bytes": Counter("shoal_world_bytes", "Bytes of these operations", labels=of_operation),
    }
    peers = {
        "operations": Counter(
            "shoal_world_peer_operations", "One-sided operations with a PE", labels=of_peer
        ),
        "bytes": Counter("shoal_world_peer_bytes", "Bytes of these operations", labels=of_peer),
        "waits": Counter("shoal_world_peer_waits", "Waits of collectives for a PE", labels=of_peer),
    }
    waited = Counter(
        "shoal_world_peer_wait_seconds", "Time that collectives waited for a PE", labels=of_peer
    )
    calls = HistogramMetricFamily(
        "shoal_collective_seconds", "Durations of collectives", labels=of_operation
    )
    for record in records:
        labels = [record["host"], record["world"], str(record["pe"])]
        for total in record["totals"]:
            for key, family in totals.items():
                family.add_metric([*labels, total["operation"]], total[key])
        for pe, peer in enumerate(record["peers"]):
            if not any(peer.values()):
                continue  # most, in a large world
            for key, family in peers.items():
                family.add_metric([*labels, str(pe)], peer[key])
            waited.add_metric([*labels, str(pe)], peer["wait_ns"] / 1e9)
        for histogram in record["histograms"]:
            calls.add_metric(
                [*labels, histogram["operation"]],
                buckets=_cumulative(histogram["buckets"]),
                sum_value=histogram["sum_ns"] / 1e9,
            )
    yield from (*totals.values(), *peers.values(), waited, calls)


_FIRST_BUCKET, _LAST_BUCKET = 9, 34  # bounds of 1 us to 34 s


def _cumulative(counts):
    """Pairs of an upper bound in seconds, as text, and the count of durations below it."""
    pairs = [
        (repr(2 ** (index + 1) / 1e9), sum(counts[: index + 1]))
        for index in range(_FIRST_BUCKET, _LAST_BUCKET + 1)
    ]
    return [*pairs, ("+Inf", sum(counts))]


def serve(port=9465, host="127.0.0.1"):
    """Starts an HTTP server, on a thread of its own, whose /metrics has the counters of all PEs of
    this host in Prometheus' text format. Needs the package prometheus-client. port 0: any free
    one. Returns (port, stop); stop() ends the server."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(read_host))
    server, thread = start_http_server(port, addr=host, registry=registry)

    def stop():
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, stop


def _own_file(name, flags):
    """An opener for open() that follows no link: names are known in advance, and another user may
    have put one there."""
    return os.open(name, flags | os.O_NOFOLLOW, 0o666)


def _main(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m shoal.observe", description="Records of the PEs of this host."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("serve", help="metrics for Prometheus, over HTTP")
    command.add_argument("--port", type=int, default=9465, help="0: any free port")
    command.add_argument("--host", default="127.0.0.1", help="address to listen at")
    for name, what in (
        ("lines", "a JSON line per completed operation, with the field names of NCCL Inspector"),
        ("page", "the report of shoal-info --live as a page for a browser"),
        ("trace", "the operations as a trace for chrome://tracing and ui.perfetto.dev"),
        ("torch", "files for torch.distributed.flight_recorder, one per PE"),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument(
            "--from", dest="folder", help="flight records in this folder instead of running jobs"
        )
        if name != "lines":
            command.add_argument("out", help="a folder" if name == "torch" else "a file")
    given = parser.parse_args(arguments)
    if given.command == "serve":
        try:
            port, stop = serve(given.port, given.host)
        except ModuleNotFoundError as error:
            parser.exit(1, f"{error}: pip install prometheus-client\n")
        print(f"http://{given.host}:{port}/metrics", flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            stop()
        return
    if given.command == "page":
        try:
            write_page(given.out, given.folder)
        except RuntimeError as error:
            parser.exit(1, f"{error}\n")
        return
    try:
        records = read_files(given.folder) if given.folder else read_host()
    except ValueError as error:
        parser.exit(1, f"{error}\n")
    if given.command == "lines":
        for line in inspector_lines(records):
            print(line)
    elif given.command == "trace":
        with open(given.out, "w", encoding="utf-8") as file:
            json.dump(chrome_trace(records), file)
    else:
        os.makedirs(given.out, exist_ok=True)
        for pe in records:
            name = os.path.join(given.out, f"shoal_rank_{pe['pe']}")
            with open(name, "wb", opener=_own_file) as file:
                pickle.dump(torch_dump(pe), file)


if __name__ == "__main__":
    _main(sys.argv[1:])
