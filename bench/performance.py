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

from charts import Line, Marks, bar_chart, line_chart

PARTS, PLOTS = {}, {}
OPERATIONS = {
    "dispatch fp8": ("FP8 dispatch", "blue"),
    "dispatch bf16": ("BF16 dispatch", "orange"),
    "combine bf16": ("BF16 combine", "green"),
}
SWEEP, PEERS = "2-gpus/gpu-normal-by-sms.json", "2-gpus/peers.json"
PAIRS, OVERHEAD = "2-gpus/deep-ep-pairs.json", "2-gpus/python-overhead.json"
HANDLES = {
    "Buffer, cached handle": "Buffer, cached handle",
    "Buffer, new dispatch": "Buffer, with CPU sync",
}
HANDLES["ElasticBuffer, new dispatch"] = "ElasticBuffer, with CPU sync"
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
    commit = f"commit {file['commit']}" if "commit" in file else f"published in {file['published']}"
    return f"[{name}](data/{name}): {machine}, {file['date']}, {commit}"


def code(name):
    """A row's name, `interface`, how: the interface as code."""
    return re.sub(r"^[\w.]+", lambda interface: f"`{interface[0]}`", name)


def table(head, rows, caption):
    def cell(value):
        return (
            value if isinstance(value, str) else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
        )

    wrapped = textwrap.fill(f"{caption}.", 100, break_long_words=False, break_on_hyphens=False)
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    lines += ([cell(value) for value in row] for row in rows)
    return "\n".join([*("|" + "|".join(line) + "|" for line in lines), "", wrapped])


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
    peers = data(PEERS)
    for launch, key in (("graph", "FP8 in, BF16 out, graph, us"), ("eager", "the same, eager, us")):
        times = peers[f"low-latency pair, {key}"]
        for system in ("Shoal", "DeepEP V1"):
            yield f"{system}, {launch}", dict(zip(times["tokens"], times[system]))


@plot
def low_latency_by_tokens(data):
    lines = []
    for name, times in low_latency_lines(data):
        shoal = name.startswith("Shoal")
        look = ("blue", "circle") if shoal else ("orange", "square")
        short = name.replace("DeepEP V1", "DeepEP")
        lines.append(Line(short, look[0], list(times.items()), "eager" in name, look[1]))
    ticks = [(tokens, str(tokens)) for tokens in times]
    title = "Time of a low-latency pair by tokens: Shoal and DeepEP"
    return line_chart(title, "tokens per PE", "us per pair", ticks, 80, 20, lines, (), True)


@part
def low_latency(data):
    lines = list(low_latency_lines(data))
    head = ["us per pair", *(f"{tokens} tokens" for tokens in lines[0][1])]
    rows = [[name, *times.values()] for name, times in lines]
    return table(head, rows, source(data, PEERS))


def pairs_of(data, form, name=PAIRS):
    """(interface, Shoal's time, DeepEP's on H200 or None) of pairs in one format."""
    shoal, deep_ep = data(name)["figures"], data(PEERS)["pairs through Python, us"]
    for peer, interface in HANDLES.items():
        kind = "pair" if "cached" in interface else "new pair"
        figure = shoal[f"{interface}, {form.upper()}: {kind}, us"]
        yield interface, figure, min(deep_ep[f"{peer}, {form}"]["DeepEP"])
        if kind == "new pair":
            without = interface.replace("with CPU sync", "without CPU sync")
            yield without, shoal[f"{without}, {form.upper()}: {kind}, us"], None


@plot
def pairs_by_interface(data):
    groups = [
        (f"{name}, {form.upper()}", [("blue", shoal), *([("orange", peer)] if peer else [])])
        for form in ("bf16", "fp8")
        for name, shoal, peer in pairs_of(data, form)
    ]
    legend = [("blue", "Shoal"), ("orange", "DeepEP")]
    return bar_chart("Time of a pair by interface", "us per pair", 900, 300, groups, legend)


def pairs_of_shoal(data, name):
    rows = zip(pairs_of(data, "bf16", name), pairs_of(data, "fp8", name))
    return table(
        ["Shoal, us per pair", "BF16", "FP8"],
        [[code(interface), bf16, fp8] for (interface, bf16, _), (_, fp8, _) in rows],
        source(data, name),
    )


@part
def pairs_h100(data):
    return pairs_of_shoal(data, "2-h100/deep-ep-pairs.json")


@part
def pairs(data):
    shoal = pairs_of_shoal(data, PAIRS)
    times = data(PEERS)["pairs through Python, us"]
    deep_ep = table(
        ["DeepEP, us per pair", "BF16", "FP8"],
        [
            [code(name)] + [min(times[f"{name}, {form}"]["DeepEP"]) for form in ("bf16", "fp8")]
            for name in HANDLES
        ],
        source(data, PEERS),
    )
    return f"{shoal}\n\n{deep_ep}"


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
def four_gpus_low_latency(data):
    name = "4-gpus/gpu-low-latency.json"
    rows = [
        [str(entry["tokens"]), entry["seconds"]["max"] * 1e6]
        for entry in data(name)["results"]
        if (entry["operation"], entry["format"], entry["launch"]) == ("pair", "fp8", "graph")
    ]
    return table(["tokens per PE", "us per pair"], rows, source(data, name))


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
        if ratio and ratio < 0.9 and size in (8, 4096, 32768, 4194304)
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
        [f"{operation}, {size >> 20} MiB, {launch}", times["Shoal"] * 1e6, times["NCCL"] * 1e6]
        for (operation, size, launch), times in best.items()
        if "NCCL" in times and times["NCCL"] < 0.95 * times["Shoal"]
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
