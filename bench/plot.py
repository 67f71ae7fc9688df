#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plots the results of the GPU benchmark: bandwidth by SMs, bandwidth by tokens, latency by tokens.
./run bench --plot runs it.

Reads the results of shoal-bench-gpu, and those that run-gpu has collected, from every *.json of the
data folder, skips other files, and uses the results of PEs as threads. Writes one PNG per plot into
the folder, with the limit of the link and the figures of other systems (gpu-peers.json). Where
several files have the same point, the last by name counts.
"""

import argparse
import json
import math
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot, ticker  # noqa: E402  (after the backend is chosen)

SERIES = [
    ("dispatch", "fp8", "FP8 dispatch", "#1f6fb4"),
    ("dispatch", "bf16", "BF16 dispatch", "#d9641e"),
    ("combine", "bf16", "BF16 combine", "#2c8c4a"),
]
# Lines of the latency plot: operation, format, launch, name, colour, style.
LATENCY_SERIES = [
    ("pair", "fp8", "graph", "FP8 pair, graph", "#7a3fa0", "-"),
    ("pair", "fp8", "plain", "FP8 pair, plain launches", "#7a3fa0", ":"),
    ("pair", "bf16", "graph", "BF16 pair, graph", "#b0467f", "-"),
    *((operation, form, "in pair", name, colour, "-") for operation, form, name, colour in SERIES),
]
COLOURS = {key[:2]: key[-2] for key in reversed(LATENCY_SERIES)}  # by operation and format
MARKERS = "sD^vP"
LAUNCH = "alone"  # chains of one kind of operation
GREY = "#555555"


def documents(folder):
    """Every result document of shoal-bench-gpu in the folder, in the order of the files' names."""
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text())
        if not isinstance(data, dict):
            continue
        if str(data.get("program", "")).startswith("shoal-bench-gpu"):
            yield data
        for run in data.get("runs", []) if isinstance(data.get("runs"), list) else []:
            if run.get("result") and "threads" in run["name"]:
                yield run["result"]


def collect(folder, part):
    """(setup with pes and gpu, {(operation, format, launch, tokens, sms): entry}) of one part.

    None without results of that part. Skips results with load_of, which emulate a
    larger group."""
    points, setup = {}, None
    for document in documents(folder):
        if document["program"] != f"shoal-bench-gpu {part}" or document["setup"].get("load_of"):
            continue
        mine = {**document["setup"], "pes": document["pes"], "gpu": document["machine"]["gpu"]}
        keys = ("hidden", "top_k", "experts", "pes", "gpu")
        if setup and any(setup[key] != mine[key] for key in keys):
            sys.exit(
                f"plot: {folder} mixes shapes or machines for {part}: {setup} and {mine}; keep one"
            )
        setup = {**mine, "date": document["date"]}
        for entry in document["results"]:
            key = (entry.get(name) for name in ("operation", "format", "launch", "tokens", "sms"))
            points[tuple(key)] = entry
    return (setup, points) if setup else None


def ranks_per_token(setup):
    """The average number of ranks with experts of a token, for random experts."""
    others = setup["experts"] - setup["experts"] // setup["pes"]
    none_of_one = math.comb(others, setup["top_k"]) / math.comb(setup["experts"], setup["top_k"])
    return setup["pes"] * (1 - none_of_one)


def finish(figure, axes, path):
    axes.grid(True, which="major", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=8, frameon=False)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    pyplot.close(figure)
    print(path)


def close_plot(figure, axes, path, text, label, setup):
    axes.set_ylabel(label)
    axes.set_title(text, loc="left", fontsize=12, fontweight="bold", pad=26)
    shape = f"hidden {setup['hidden']}, top-{setup['top_k']} of {setup['experts']} experts"
    line = f"{setup['pes']} PEs, {setup['gpu']}; {shape}; {setup['date']}"
    axes.text(0, 1.025, line, transform=axes.transAxes, fontsize=8.5, color=GREY)
    finish(figure, axes, path)


def bandwidth_limits(axes, setup, peers):
    """Draws the limit of each operation. The link carries only rows to other ranks, and more bytes
    than their payload: pushed rows of a dispatch need fewer than rows that a combine pulls."""
    raw, others = peers["link_raw_gb_per_s"], setup["pes"] - 1
    highest = 0
    for operation, style in (("dispatch", "--"), ("combine", ":")):
        cost = peers["raw_bytes_per_payload_byte"][operation]
        limit = raw / cost * (setup["pes"] / others)
        highest = max(highest, limit)
        factor = f"x {setup['pes']}/{others} = {limit:.0f} GB/s logical"
        label = f"limit of {operation}: {raw} GB/s raw / {cost}\n{factor}"
        axes.axhline(limit, color=GREY, linestyle=style, linewidth=1.2, label=label)
    axes.set_ylim(0, highest * 1.1)


def draw_peers(axes, systems, at, values_of, name_of):
    """Each system's figures {(operation, format): value} at `at(system)`, with one marker per
    system and one colour per operation."""
    for marker, system in zip(MARKERS, systems):
        look = {"marker": marker, "markerfacecolor": "white", "linestyle": "none"}
        for kind, value in values_of(system).items():
            colour = COLOURS[kind]
            axes.plot(
                [at(system)], [value], markeredgecolor=colour, markersize=6.5, zorder=6, **look
            )
        axes.plot([], [], markeredgecolor=GREY, label=name_of(system), **look)


def draw_normal_peers(axes, peers, at):
    def values_of(system):
        kinds = [key[:2] for key in SERIES]
        return {kind: system[" ".join(kind)] for kind in kinds if system.get(" ".join(kind))}

    def name_of(system):
        return f"{system['system']} ({system['sms']} SMs)".replace("(None SMs)", "(SMs: automatic)")

    draw_peers(axes, peers["normal"]["systems"], at, values_of, name_of)


def same_shape(setup, peers_setup):
    return all(
        setup[key] == value
        for key, value in peers_setup.items()
        if key in setup and key != "tokens"
    )


def draw_bandwidth(axes, points, by, fixed):
    """The bandwidth of each series by "tokens" or "sms"; `fixed`: the value of the other one."""
    for operation, form, name, colour in SERIES:
        line = sorted(
            (tokens if by == "tokens" else sms, entry["gb_per_s"])
            for (*kind, tokens, sms), entry in points.items()
            if kind == [operation, form, LAUNCH] and (sms if by == "tokens" else tokens) == fixed
        )
        axes.plot(*zip(*line), "o-", color=colour, label=f"Shoal, {name}", markersize=5, zorder=5)


def counts_by(points, by):
    """{tokens: SM counts measured there}, or {SMs: token counts}; the sweep has the most."""
    counts = {}
    for _, _, launch, tokens, sms in points:
        if launch == LAUNCH:
            key, value = (tokens, sms) if by == "tokens" else (sms, tokens)
            counts.setdefault(key, set()).add(value)
    return counts


def plot_by_sms(data, peers, folder):
    setup, points = data
    counts = counts_by(points, "tokens")
    tokens = max(counts, key=lambda key: len(counts[key]))
    figure, axes = pyplot.subplots(figsize=(7.5, 4.6))
    draw_bandwidth(axes, points, "sms", tokens)
    bandwidth_limits(axes, setup, peers)
    of_peers = {system["sms"] for system in peers["normal"]["systems"] if system["sms"]}
    automatic = max(counts[tokens] | of_peers) + 6
    # Labels must not touch.
    ticks = [tick for tick in sorted(counts[tokens]) if tick - 1 not in counts[tokens]]
    ticks = [tick for tick in ticks if tick - 2 not in ticks or tick % 4 == 0]
    of_setup = peers["normal"]["setup"]
    if same_shape(setup, of_setup) and tokens == of_setup["tokens"]:
        draw_normal_peers(axes, peers, lambda system: system["sms"] or automatic)
        ticks = sorted({*ticks, *of_peers})
        axes.set_xticks([*ticks, automatic], [*map(str, ticks), "auto"])
    else:
        axes.set_xticks(ticks)
    axes.set_xlabel("SMs that the operation holds")
    text = f"Normal mode: bandwidth by SM count, {tokens} tokens per PE"
    path = folder / "gpu-bandwidth-by-sms.png"
    close_plot(figure, axes, path, text, "GB/s per PE, logical bytes", setup)


def plot_by_tokens(data, peers, folder):
    setup, points = data
    counts = counts_by(points, "sms")
    sms = max(counts, key=lambda key: (len(counts[key]), key))
    figure, axes = pyplot.subplots(figsize=(7.5, 4.6))
    draw_bandwidth(axes, points, "tokens", sms)
    bandwidth_limits(axes, setup, peers)
    of_setup = peers["normal"]["setup"]
    if same_shape(setup, of_setup):
        # All have the same token count; drawn side by side to be distinguishable.
        order = [system["system"] for system in peers["normal"]["systems"]]

        def at(system):
            return of_setup["tokens"] * 2 ** (0.16 * (order.index(system["system"]) - 1.5))

        draw_normal_peers(axes, peers, at)
    tokens_axis(axes, counts[sms])
    text = f"Normal mode: bandwidth by tokens, {sms} SMs"
    path = folder / "gpu-bandwidth-by-tokens.png"
    close_plot(figure, axes, path, text, "GB/s per PE, logical bytes", setup)


def tokens_axis(axes, tokens):
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ticker.ScalarFormatter())
    axes.set_xticks(sorted(tokens), [str(count) for count in sorted(tokens)], fontsize=8)
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlabel("tokens per PE")


def latency_limits(axes, setup, all_tokens, speed):
    """The bytes of a pair at the rate of the link, `speed` GB/s."""
    remote = ranks_per_token(setup) * (setup["pes"] - 1) / setup["pes"]
    scales = -(-setup["hidden"] // 128) * 4
    for form, row in (("fp8", setup["hidden"] + scales), ("bf16", 2 * setup["hidden"])):
        of_token = remote * (row + 2 * setup["hidden"]) / speed * 1e-3
        bound = [count * of_token for count in all_tokens]
        label = f"limit, {form.upper()} pair: its bytes at {speed} GB/s,\none copy per rank, no launch or signal"
        look = {"color": COLOURS["pair", form], "linewidth": 1.1}
        axes.plot(all_tokens, bound, "--", label=label, **look)


def plot_latency(data, peers, folder):
    setup, points = data
    figure, axes = pyplot.subplots(figsize=(7.5, 5.2))
    all_tokens = sorted({key[3] for key in points})
    for *kind, name, colour, style in LATENCY_SERIES:
        line = sorted(
            (key[3], entry["seconds"]["max"] * 1e6)
            for key, entry in points.items()
            if list(key[:3]) == kind
        )
        if line:
            look = {"color": colour, "markersize": 4, "zorder": 5}
            axes.plot(*zip(*line), f"o{style}", label=f"Shoal, {name}", **look)
    latency_limits(axes, setup, all_tokens, peers["link_gb_per_s"])
    others = peers["low_latency"]
    if same_shape(
        {key: value for key, value in setup.items() if key != "experts"}, others["setup"]
    ):

        def values_of(system):
            form = system["format"]
            kinds = [("dispatch", form), ("combine", "bf16"), ("pair", form)]
            return {kind: system[kind[0]] for kind in kinds}

        def name_of(system):
            return system["system"].replace(" (", "\n(")

        at = others["setup"]["tokens"]
        draw_peers(axes, others["systems"], lambda system: at, values_of, name_of)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylim(bottom=1)
    tokens_axis(axes, all_tokens)
    path = folder / "gpu-latency-by-tokens.png"
    label = "microseconds, slowest PE"
    close_plot(figure, axes, path, "Low latency: time by tokens", label, setup)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = pathlib.Path("docs/data")
    parser.add_argument(
        "--data", type=pathlib.Path, default=data, help="folder of the raw results (%(default)s)"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, help="folder of the pictures (default: that of the data)"
    )
    parser.add_argument(
        "--peers",
        type=pathlib.Path,
        default=data / "gpu-peers.json",
        help="other systems (%(default)s)",
    )
    arguments = parser.parse_args()
    folder = arguments.output or arguments.data
    folder.mkdir(parents=True, exist_ok=True)
    peers = json.loads(arguments.peers.read_text())
    normal, low_latency = collect(arguments.data, "normal"), collect(arguments.data, "low-latency")
    if normal and normal[0]["pes"] > 1:
        plot_by_sms(normal, peers, folder)
        plot_by_tokens(normal, peers, folder)
    if low_latency and low_latency[0]["pes"] > 1:
        plot_latency(low_latency, peers, folder)
    if not normal and not low_latency:
        sys.exit(
            f"plot: {arguments.data} has no results of shoal-bench-gpu; "
            "run-gpu writes them (./run bundle)"
        )


if __name__ == "__main__":
    main()
