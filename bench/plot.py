#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plots the results of the GPU benchmark: bandwidth by SMs, bandwidth by tokens, latency by tokens.
./run bench --plot runs it.

Reads the results of shoal-bench-gpu and run-gpu-bench from every *.json of the data folder, skips
other files, and uses the results of PEs as threads. Writes one PNG per plot into the folder, with
the limit of the link and the figures of other systems (gpu-peers.json). Where several files have
the same point, the last by name counts.
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
MARKERS = "sD^vP"
LAUNCH = "alone"  # chains of one kind of operation
GREY = "#555555"


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        default=pathlib.Path("docs/data"),
        help="folder of the raw results (%(default)s)",
    )
    parser.add_argument(
        "--output", type=pathlib.Path, help="folder of the pictures (default: that of the data)"
    )
    parser.add_argument(
        "--peers",
        type=pathlib.Path,
        default=pathlib.Path("docs/data/gpu-peers.json"),
        help="other systems (%(default)s)",
    )
    return parser.parse_args()


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

    None without results of that part. Skips results with load_of: they emulate a larger group."""
    points, setup = {}, None
    for document in documents(folder):
        if document["program"] != f"shoal-bench-gpu {part}" or document["setup"].get("load_of"):
            continue
        mine = {**document["setup"], "pes": document["pes"], "gpu": document["machine"]["gpu"]}
        if setup and any(
            setup[key] != mine[key] for key in ("hidden", "top_k", "experts", "pes", "gpu")
        ):
            sys.exit(
                f"plot: {folder} mixes shapes or machines for {part}: {setup} and {mine}; keep one"
            )
        setup = {**mine, "date": document["date"]}
        for entry in document["results"]:
            points[
                entry["operation"],
                entry.get("format"),
                entry.get("launch"),
                entry.get("tokens"),
                entry.get("sms"),
            ] = entry
    return (setup, points) if setup else None


def ranks_per_token(setup):
    """The average number of ranks with experts of a token, for random experts."""
    none_of_one = math.comb(
        setup["experts"] - setup["experts"] // setup["pes"], setup["top_k"]
    ) / math.comb(setup["experts"], setup["top_k"])
    return setup["pes"] * (1 - none_of_one)


def title(axes, text, setup):
    axes.set_title(text, loc="left", fontsize=12, fontweight="bold", pad=26)
    line = f"{setup['pes']} PEs, {setup['gpu']}; hidden {setup['hidden']}, top-{setup['top_k']} of {setup['experts']} experts; {setup['date']}"
    axes.text(0, 1.025, line, transform=axes.transAxes, fontsize=8.5, color=GREY)


def finish(figure, axes, path):
    axes.grid(True, which="major", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=8, frameon=False)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    pyplot.close(figure)
    print(path)


def bandwidth_limits(axes, setup, peers):
    """Draws the limit of each operation. The link carries only rows to other ranks, and more bytes
    than their payload: pushed rows of a dispatch need fewer than rows that a combine pulls."""
    logical = setup["pes"] / (setup["pes"] - 1)
    raw = peers["link_raw_gb_per_s"]
    highest = 0
    for operation, style in (("dispatch", "--"), ("combine", ":")):
        cost = peers["raw_bytes_per_payload_byte"][operation]
        limit = raw / cost * logical
        highest = max(highest, limit)
        axes.axhline(
            limit,
            color=GREY,
            linestyle=style,
            linewidth=1.2,
            label=f"limit of {operation}: {raw} GB/s raw / {cost}\nx {setup['pes']}/{setup['pes'] - 1} = {limit:.0f} GB/s logical",
        )
    axes.set_ylim(0, highest * 1.1)


def peer_markers(axes, peers, at):
    """Draws each system's figures at `at(system)`, with one marker per system and one colour per
    operation."""
    for marker, system in zip(MARKERS, peers["normal"]["systems"]):
        label = system["system"] + (
            f" ({system['sms']} SMs)" if system["sms"] else " (SMs: automatic)"
        )
        for operation, form, _, colour in SERIES:
            value = system.get(f"{operation} {form}")
            if value:
                axes.plot(
                    [at(system)],
                    [value],
                    marker,
                    markerfacecolor="white",
                    markeredgecolor=colour,
                    markersize=6.5,
                    zorder=4,
                )
        axes.plot(
            [],
            [],
            marker,
            markerfacecolor="white",
            markeredgecolor=GREY,
            linestyle="none",
            label=label,
        )


def same_shape(setup, peers_setup):
    return all(
        setup[key] == value
        for key, value in peers_setup.items()
        if key in setup and key != "tokens"
    )


def plot_by_sms(data, peers, folder):
    setup, points = data
    counts = {}  # tokens: SM counts measured there; the sweep has the most
    for _, _, launch, tokens, sms in points:
        if launch == LAUNCH:
            counts.setdefault(tokens, set()).add(sms)
    tokens = max(counts, key=lambda key: len(counts[key]))
    figure, axes = pyplot.subplots(figsize=(7.5, 4.6))
    for operation, form, name, colour in SERIES:
        line = sorted(
            (key[4], entry["gb_per_s"])
            for key, entry in points.items()
            if key[:4] == (operation, form, LAUNCH, tokens)
        )
        axes.plot(*zip(*line), "o-", color=colour, label=f"Shoal, {name}", markersize=5, zorder=5)
    bandwidth_limits(axes, setup, peers)
    last = max(counts[tokens])
    automatic = max([last, *(system["sms"] or 0 for system in peers["normal"]["systems"])]) + 6
    # Labels must not touch.
    ticks = [tick for tick in sorted(counts[tokens]) if tick - 1 not in counts[tokens]]
    ticks = [tick for tick in ticks if tick - 2 not in ticks or tick % 4 == 0]
    if same_shape(setup, peers["normal"]["setup"]) and tokens == peers["normal"]["setup"]["tokens"]:
        peer_markers(axes, peers, lambda system: system["sms"] or automatic)
        ticks = sorted(
            {*ticks, *(system["sms"] for system in peers["normal"]["systems"] if system["sms"])}
        )
        axes.set_xticks([*ticks, automatic], [*map(str, ticks), "auto"])
    else:
        axes.set_xticks(ticks)
    axes.set_xlabel("SMs that the operation holds")
    axes.set_ylabel("GB/s per PE, logical bytes")
    title(axes, f"Normal mode: bandwidth by SM count, {tokens} tokens per PE", setup)
    finish(figure, axes, folder / "gpu-bandwidth-by-sms.png")


def plot_by_tokens(data, peers, folder):
    setup, points = data
    counts = {}
    for _, _, launch, tokens, sms in points:
        if launch == LAUNCH:
            counts.setdefault(sms, set()).add(tokens)
    sms = max(counts, key=lambda key: (len(counts[key]), key))
    figure, axes = pyplot.subplots(figsize=(7.5, 4.6))
    for operation, form, name, colour in SERIES:
        line = sorted(
            (key[3], entry["gb_per_s"])
            for key, entry in points.items()
            if key[:3] == (operation, form, LAUNCH) and key[4] == sms
        )
        axes.plot(*zip(*line), "o-", color=colour, label=f"Shoal, {name}", markersize=5, zorder=5)
    bandwidth_limits(axes, setup, peers)
    if same_shape(setup, peers["normal"]["setup"]):
        # All have the same token count; drawn side by side to be distinguishable.
        order = [system["system"] for system in peers["normal"]["systems"]]
        peer_markers(
            axes,
            peers,
            lambda system: (
                peers["normal"]["setup"]["tokens"]
                * 2 ** (0.16 * (order.index(system["system"]) - 1.5))
            ),
        )
    tokens_axis(axes, counts[sms])
    axes.set_ylabel("GB/s per PE, logical bytes")
    title(axes, f"Normal mode: bandwidth by tokens, {sms} SMs", setup)
    finish(figure, axes, folder / "gpu-bandwidth-by-tokens.png")


def tokens_axis(axes, tokens):
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ticker.ScalarFormatter())
    axes.set_xticks(sorted(tokens), [str(count) for count in sorted(tokens)], fontsize=8)
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlabel("tokens per PE")


# Series of plot_latency: operation, format, launch, name, colour, style of the line.
LATENCY_PAIRS = [
    ("pair", "fp8", "graph", "FP8 pair, graph", "#7a3fa0", "-"),
    ("pair", "fp8", "plain", "FP8 pair, plain launches", "#7a3fa0", ":"),
    ("pair", "bf16", "graph", "BF16 pair, graph", "#b0467f", "-"),
]
LATENCY_SINGLES = [
    (operation, form, "in pair", name, colour, "-") for operation, form, name, colour in SERIES
]


def plot_measured_latency(axes, points):
    for operation, form, launch, name, colour, style in [*LATENCY_PAIRS, *LATENCY_SINGLES]:
        line = sorted(
            (key[3], entry["seconds"]["max"] * 1e6)
            for key, entry in points.items()
            if key[:3] == (operation, form, launch)
        )
        if line:
            axes.plot(
                *zip(*line),
                f"o{style}",
                color=colour,
                label=f"Shoal, {name}",
                markersize=4,
                zorder=5,
            )


def plot_latency_limits(axes, setup, all_tokens, link_gb_per_s):
    remote = ranks_per_token(setup) * (setup["pes"] - 1) / setup["pes"]
    scales = -(-setup["hidden"] // 128) * 4
    for form, row, colour in [
        ("FP8", setup["hidden"] + scales, "#7a3fa0"),
        ("BF16", 2 * setup["hidden"], "#b0467f"),
    ]:
        bound = [
            count * remote * (row + 2 * setup["hidden"]) / link_gb_per_s * 1e-3
            for count in all_tokens
        ]
        axes.plot(
            all_tokens,
            bound,
            "--",
            color=colour,
            linewidth=1.1,
            label=f"limit, {form} pair: its bytes at {link_gb_per_s} GB/s,\none copy per rank, no launch or signal",
        )


def plot_peers_latency(axes, low_latency):
    for marker, system in zip(MARKERS, low_latency["systems"]):
        colours = {
            "dispatch": SERIES[0][3] if system["format"] == "fp8" else SERIES[1][3],
            "combine": SERIES[2][3],
            "pair": LATENCY_PAIRS[0][4] if system["format"] == "fp8" else LATENCY_PAIRS[2][4],
        }
        for operation, colour in colours.items():
            axes.plot(
                [low_latency["setup"]["tokens"]],
                [system[operation]],
                marker,
                markerfacecolor="white",
                markeredgecolor=colour,
                markersize=6.5,
                zorder=6,
            )
        words = system["system"].replace(" (", "\n(")
        axes.plot(
            [],
            [],
            marker,
            markerfacecolor="white",
            markeredgecolor=GREY,
            linestyle="none",
            label=words,
        )


def plot_latency(data, peers, folder):
    setup, points = data
    figure, axes = pyplot.subplots(figsize=(7.5, 5.2))
    all_tokens = sorted({key[3] for key in points})
    plot_measured_latency(axes, points)
    plot_latency_limits(axes, setup, all_tokens, peers["link_gb_per_s"])
    without_experts = {key: value for key, value in setup.items() if key != "experts"}
    if same_shape(without_experts, peers["low_latency"]["setup"]):
        plot_peers_latency(axes, peers["low_latency"])
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylim(bottom=1)
    tokens_axis(axes, all_tokens)
    axes.set_ylabel("microseconds, slowest PE")
    title(axes, "Low latency: time by tokens", setup)
    finish(figure, axes, folder / "gpu-latency-by-tokens.png")


def main():
    arguments = parse_arguments()
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
            f"plot: {arguments.data} has no results of shoal-bench-gpu; run-gpu-bench writes them (./run bundle)"
        )


if __name__ == "__main__":
    main()
