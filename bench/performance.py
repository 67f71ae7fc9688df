#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables and plots of docs/performance.md from docs/data. ./run performance runs it.

The page has a pair of comments around each generated part: <!-- begin NAME --> and <!-- end -->.
PARTS has a function for each NAME. Plots go to docs/plots. A table takes its figures from one file,
that is from one machine and one commit, and has one figure per cell.
"""

import argparse
import json
import pathlib
import re
import sys
import textwrap

from charts import Line, Marks, bar_chart, figure, line_chart

PARTS, PLOTS = {}, {}
OPERATIONS = {
    "dispatch fp8": ("FP8 dispatch", "blue"),
    "dispatch bf16": ("BF16 dispatch", "orange"),
    "combine bf16": ("BF16 combine", "green"),
}
SWEEP, PEERS = "2-gpus/gpu-normal-by-sms.json", "2-gpus/peers.json"
PROGRAMS, OVERHEAD = "4-gpus/peers.json", "2-gpus/python-overhead.json"
# bench/deep_ep_pairs.py over each library, in turns on one machine.
LAYER = "2-gpus/deep-ep-layer.json"
PAIRS = {"Shoal": "2-gpus/deep-ep-pairs.json", "DeepEP": "2-gpus/deep-ep-peer.json"}
COMBINES = "2-gpus/first-low-latency.json"
SIZES, FEW_TOKENS = (8, 128, 1024, 4096), (8, 64, 128)
# Subjects of bench/python_overhead.py: name, calls of a pair, row of the table.
CALLS = [
    ("deep_ep.Buffer", 2, "Buffer, low latency, hooks"),
    ("without hooks", 2, "Buffer, low latency"),
    ("shoal.ep.Group", 2, "shoal.ep.Group, low latency, deferred receive"),
    ("shoal.ep.Group, not deferred", 2, "shoal.ep.Group, low latency"),
    ("shoal.ep.Group, normal", 3, "shoal.ep.Group"),
    ("shoal.torch", 2, "shoal.torch"),
    ("shoal.torch, with gradients", 2, "shoal.torch, with gradients"),
    ("deep_ep.ElasticBuffer: pair", 1, "ElasticBuffer"),
    ("deep_ep.Buffer, normal: pair", 1, "Buffer"),
    ("ElasticBuffer: pair with events", 1, "ElasticBuffer, with events"),
    ("deep_ep.Buffer: pair with events", 1, "Buffer, with events"),
]


def part(function):
    PARTS[function.__name__.replace("_", "-")] = function
    return function


def plot(function):
    PLOTS[function.__name__.replace("_", "-") + ".svg"] = function
    return function


def source(data, name):
    """Where the figures of a file come from, for a caption."""
    file = data(name)
    if "machine" not in file or not {"commit", "published"} & file.keys():
        sys.exit(f"performance: {name} needs the keys machine, and commit or published")
    machine = file["machine"]
    if isinstance(machine, dict):
        machine = f"{machine['gpus']} x {machine['gpu']}"
    commit = f", commit {file['commit']}" if "commit" in file else ""
    return f"[{name}](data/{name}): {machine}, {file['date']}{commit}"


def code(name):
    """A row's name, `interface`, how: the interface as code."""
    return re.sub(r"^[\w.]+", lambda interface: f"`{interface[0]}`", name)


def table(head, rows, caption):
    look = {"break_long_words": False, "break_on_hyphens": False}
    wrapped = [textwrap.fill(f"{caption}.", 100, **look)] if caption else []
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    lines += ([one if isinstance(one, str) else figure(one) for one in row] for row in rows)
    return "\n".join([*("|" + "|".join(line) + "|" for line in lines), "", *wrapped])


def logical(peers):
    """{system: {operation: logical GB/s}} from the times of the kernels."""
    setup = peers["setup"]
    fp8 = setup["hidden"] + setup["hidden"] // 128 * 4
    row = {"fp8": fp8, "bf16": 2 * setup["hidden"]}
    return {
        system: {
            operation: setup["rows received"] * row[operation.split()[1]] / microseconds / 1e3
            for operation, microseconds in times.items()
            if operation.removesuffix(" with copies") in OPERATIONS
        }
        for system, times in peers["kernels, us"].items()
    }


def alone(file, operation, tokens=4096):
    """{SMs: GB/s} of chains of one operation."""
    kind = [*operation.split(), "alone", tokens]
    return {
        entry["sms"]: entry["gb_per_s"]
        for entry in file["results"]
        if [entry.get(key) for key in ("operation", "format", "launch", "tokens")] == kind
    }


@plot
def bandwidth_by_sms(data):
    lines = [
        Line(name, colour, sorted(alone(data(SWEEP), operation).items()))
        for operation, (name, colour) in OPERATIONS.items()
    ]
    shapes, automatic, marks = iter(("square", "triangle", "diamond")), 80, []
    for system, values in logical(data(PEERS)).items():
        if not system.startswith("Shoal"):
            sms = re.search(r"(\d+) SMs", system)
            name = re.match(r"DeepEP V\d|NCCL EP", system)[0]
            at = [(colour, values[key]) for key, (_, colour) in OPERATIONS.items() if key in values]
            marks.append(Marks(name, next(shapes), int(sms[1]) if sms else automatic, at))
    ticks = [*((sms, str(sms)) for sms, _ in lines[0].points if sms != 12), (automatic, "auto")]
    title = "Bandwidth of Shoal's kernels by SMs, with kernels of DeepEP and NCCL EP"
    return line_chart(
        title, "SMs", "GB/s per PE, logical (lines: Shoal)", ticks, 800, 200, lines, marks
    )


@part
def bandwidth(data):
    rows = []
    for system, values in logical(data(PEERS)).items():
        sms = re.search(r", (\d+) SMs", system)
        name = system.replace(sms[0], "") if sms else system
        for copies in ("", " with copies"):
            figures = [values.get(key + copies, "") for key in OPERATIONS]
            if any(figures):
                rows.append([name + copies, sms[1] if sms else "automatic", *figures])
    head = ["GB/s per PE, logical", "SMs", *(name for name, _ in OPERATIONS.values())]
    return table(head, rows, f"{source(data, PEERS)}. Lines of the plot: {source(data, SWEEP)}")


def low_latency_lines(data):
    times = data(PROGRAMS)["low-latency pair, FP8 in, BF16 out, us"]
    for launch in ("graph", "eager"):
        for system in ("Shoal", "DeepEP"):
            yield f"{system}, {launch}", dict(zip(times["tokens"], times[launch][system]))


@plot
def low_latency_by_tokens(data):
    lines = []
    for name, times in low_latency_lines(data):
        colour, shape = ("blue", "circle") if name.startswith("Shoal") else ("orange", "square")
        lines.append(Line(name, colour, list(times.items()), "eager" in name, shape))
    ticks = [(tokens, str(tokens)) for tokens in times]
    title = "Time of a low-latency pair by tokens: Shoal and DeepEP"
    return line_chart(title, "tokens per PE", "us per pair", ticks, 100, 20, lines, (), True)


def by_tokens(lines, caption):
    lines = list(lines)
    head = ["us", *(f"{tokens} tokens" for tokens in lines[0][1])]
    return table(head, [[row, *times.values()] for row, times in lines], caption)


@part
def low_latency(data):
    return by_tokens(low_latency_lines(data), source(data, PROGRAMS))


def both(data, key):
    """{library: figure} of bench/deep_ep_pairs.py."""
    return {library: data(file)["figures"][key] for library, file in PAIRS.items()}


def source_of_pairs(data):
    shoal, peer = (data(file) for file in PAIRS.values())
    if shoal["machine"] != peer["machine"] or shoal["date"] != peer["date"]:
        sys.exit(f"performance: {' and '.join(PAIRS.values())} are not of one run")
    return f"{source(data, PAIRS['Shoal'])}; DeepEP {peer['commit']}"


@part
def low_latency_combines(data):
    """Replayed combines through `Buffer`, also with hooks."""
    lines = [
        (
            f"combine{' with hooks' if hooks else ''}, {library.split()[0]}",
            {n: times["combine by tokens"][f"{n} combine{hooks}, graph us"] for n in FEW_TOKENS},
        )
        for hooks in ("", " hooks")
        for library, times in data(COMBINES)["libraries"].items()
    ]
    return by_tokens(lines, f"{source(data, COMBINES)}; DeepEP dd758ca")


def pairs_of(data):
    """(row, {library: us}) of pairs of 4096 tokens."""
    rows = {}
    for kind, how in (("with", "new dispatch"), ("without", "worst case")):
        for form in ("BF16", "FP8"):
            rows[f"Buffer, {how}, {form}"] = f"Buffer, {kind} CPU sync, {form}: new pair, us"
    for form in ("BF16", "FP8"):
        rows[f"Buffer, cached handle, {form}"] = f"Buffer, cached handle, {form}: pair, us"
    for kind in ("with", "without"):
        for form in ("BF16", "FP8"):
            key = f"ElasticBuffer, {kind} CPU sync"
            rows[f"{key}, {form}"] = f"{key}, {form}: new pair, us"
    return [(row, both(data, key)) for row, key in rows.items()]


@part
def forms(data):
    """New pairs of both forms of ElasticBuffer by tokens."""
    lines = []
    kinds = (
        "with CPU sync: new pair",
        "without CPU sync: new pair",
        "without CPU sync: in a graph",
    )
    for form in ("expert-major", "rank-major"):
        for kind in kinds if form == "expert-major" else kinds[2:]:
            times = {
                tokens: both(data, f"ElasticBuffer, {tokens} tokens, {form}, {kind}, us")
                for tokens in SIZES
            }
            how = "graph" if "graph" in kind else "sync" if kind.startswith("with ") else "eager"
            for library in PAIRS:
                row = {tokens: time[library] for tokens, time in times.items()}
                lines.append((f"{form}, {how}, {library}", row))
    # The all-gather is timed in both runs; the table has that of Shoal.
    figures = data(PAIRS["Shoal"])["figures"]
    for name, kind in (("all-gather, permuted", ", with permutation"), ("all-gather", "")):
        key = f"{kind}: pair in a graph, us"
        row = {tokens: figures[f"all-gather, {tokens} tokens{key}"] for tokens in SIZES}
        lines.append((f"{name}, graph", row))
    return by_tokens(lines, source_of_pairs(data))


@plot
def pairs_by_interface(data):
    groups = [
        (name, [("blue", times["Shoal"]), ("orange", times["DeepEP"])])
        for name, times in pairs_of(data)
    ]
    legend = [("blue", "Shoal"), ("orange", "DeepEP")]
    return bar_chart("Time of a pair by interface", "us per pair", 1000, 200, groups, legend)


@part
def pairs(data):
    rows = [[code(name), times["Shoal"], times["DeepEP"]] for name, times in pairs_of(data)]
    return table(["us per pair", "Shoal", "DeepEP"], rows, source_of_pairs(data))


@part
def deep_ep_faster(data):
    programs, layer = data(PROGRAMS), data(LAYER)["layer, us"]
    layers = (
        (f"layer, {launch}, {library}", dict(zip(layer["tokens"], layer[launch][library])))
        for launch in ("with CPU sync", "without CPU sync", "graph")
        for library in ("Shoal", "DeepEP")
    )
    rows = [[name, one["Shoal"], one["DeepEP"]] for name, one in programs["GPU memory, MB"].items()]
    memory = table(["GPU memory, MB", "Shoal", "DeepEP"], rows, source(data, PROGRAMS))
    return "\n\n".join([by_tokens(layers, source(data, LAYER)), memory])


def host_times(data):
    figures = data(OVERHEAD)["figures"]
    return [(row, calls * figures[name]["median_us"]) for name, calls, row in CALLS]


@plot
def host_time(data):
    groups = [(name, [("blue", value)]) for name, value in host_times(data)]
    return bar_chart(
        "Host time of a pair by interface", "us of host time per pair", 150, 50, groups
    )


@part
def host(data):
    rows = [[code(name), time] for name, time in host_times(data)]
    return table(["interface", "us per pair"], rows, source(data, OVERHEAD))


def by_sms(data, name, operations):
    columns = {operation: alone(data(name), operation) for operation in operations}
    rows = [[str(sms), *(columns[key][sms] for key in operations)] for sms in (4, 8, 16, 32)]
    head = ["SMs", *(f"{OPERATIONS[key][0]}, GB/s" for key in operations)]
    return table(head, rows, source(data, name))


@part
def four_gpus(data):
    return by_sms(data, "4-gpus/gpu-normal.json", list(OPERATIONS))


@part
def eight_gpus(data):
    # The kernels of combine have changed since the file was written.
    return by_sms(data, "gpu-normal-8.json", ["dispatch fp8", "dispatch bf16"])


@part
def eight_gpus_peers(data):
    name = "gpu-peers.json"
    rows = [
        [
            system["system"],
            str(system["sms"] or "automatic"),
            *(system.get(key, "") for key in OPERATIONS),
        ]
        for system in data(name)["normal"]["systems"]
    ]
    head = ["GB/s per PE, logical", "SMs", *(label for label, _ in OPERATIONS.values())]
    return table(head, rows, source(data, name))


@part
def first_pairs(data):
    name = "2-gpus/first-pairs.json"
    keys = ("first, us", "after a pause, us", "steady, us")
    rows = [
        [code(row), *(values[key] for key in keys)] for row, values in data(name)["results"].items()
    ]
    return table(
        ["us per pair", "first", "after 2 ms without calls", "steady"], rows, source(data, name)
    )


def against_mpi(data, name):
    shoal, mpi = data(name)["shoal"], data(name)["mpi"]
    pairs_of_both = {
        "dispatch + combine bf16": "normal, BF16",
        "low-latency pair bf16 per rank": "low latency, BF16",
        "low-latency pair fp8 per rank": "low latency, FP8",
    }
    rows = [
        [label, shoal[key]["seconds"] * 1e6, mpi[key]["seconds"] * 1e6]
        for key, label in pairs_of_both.items()
    ]
    return table(["us per pair", "Shoal", "MPI"], rows, source(data, name))


@part
def host_backend(data):
    return against_mpi(data, "host-bench.json")


@part
def two_hosts(data):
    return against_mpi(data, "hosts-2x1.json")


@part
def two_hosts_two_pes(data):
    return against_mpi(data, "hosts-2x2.json")


@part
def one_sided(data):
    name = "network.json"
    shoal, libfabric = (data(name)["seconds"][key] for key in ("shoal ofi", "libfabric"))
    rows = [
        [f"{kind} {size}", shoal[f"{kind} {size}"] * 1e6, libfabric[f"{kind} {size}"] * 1e6]
        for kind in ("put + quiet", "get")
        for size in ("8 B", "64 KiB", "1 MiB", "4 MiB")
        if libfabric[f"{kind} {size}"] < shoal[f"{kind} {size}"]
    ]
    return table(["us per operation", "Shoal", "libfabric"], rows, source(data, name))


@part
def open_mpi_faster(data):
    name = "openshmem.json"
    sections = {"inside a host": "host", "over TCP": "libfabric", "over TCP, UCX": "UCX"}
    rows = [
        [f"{label}: {operation}, {size} B", shoal, other]
        for section, label in sections.items()
        for operation, size, shoal, other, ratio in data(name)[section]["rows"]
        if ratio and ratio < 0.85 and size in (8, 4096, 32768, 4194304)
    ]
    return table(["us per call", "Shoal", "Open MPI"], rows, source(data, name))


@part
def nccl_faster(data):
    name = "4-gpus/collectives.json"
    best = {}
    for entry in data(name)["results"]:
        kind = (entry["operation"].split(",")[0], entry["bytes"], entry["launch"])
        library = entry["library"].split(",")[0]
        times = best.setdefault(kind, {})
        times[library] = min(times.get(library, 1e9), entry["seconds"]["max"])
    rows = [
        [f"{operation}, {size >> 20} MiB", times["Shoal"] * 1e6, times["NCCL"] * 1e6]
        for (operation, size, launch), times in best.items()
        if launch == "plain" and "NCCL" in times and times["NCCL"] < 0.95 * times["Shoal"]
    ]
    return table(["us per call", "Shoal", "NCCL"], rows, source(data, name))


def fill(page, data):
    """The page with each generated part replaced."""
    found = []

    def replace(match):
        found.append(match[2])
        if match[2] not in PARTS:
            sys.exit(
                f"performance: the page has an unknown part, {match[2]}; allowed: {', '.join(PARTS)}"
            )
        return f"{match[1]}\n{PARTS[match[2]](data)}\n\n{match[3]}"

    text = re.sub(
        r"(<!-- begin ([\w-]+) -->\n)(?:.*?)(<!-- end -->)", replace, page, flags=re.DOTALL
    )
    if sorted(found) != sorted(PARTS):
        sys.exit(
            f"performance: the page has the parts {sorted(found)}, not one each of {sorted(PARTS)}"
        )
    return text


def main():
    root = pathlib.Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--docs", type=pathlib.Path, default=root / "docs", help="%(default)s")
    docs = parser.parse_args().docs
    files = {}

    def data(name):
        if name not in files:
            files[name] = json.loads((docs / "data" / name).read_text())
        return files[name]

    (docs / "plots").mkdir(exist_ok=True)
    for name, draw in PLOTS.items():
        (docs / "plots" / name).write_text(draw(data))
    page = docs / "performance.md"
    page.write_text(fill(page.read_text(), data))


if __name__ == "__main__":
    main()
