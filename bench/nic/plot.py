#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plots the results of shoal-bench-nic.

order: latency and bandwidth of the all-to-all by the quantum of a NIC's arbitration, for both
creation orders. claims: the times of signals, what a stalled peer stops, and the shares of queue
pairs.
"""

import argparse
import json
import statistics

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

TIERS = ["strict", "adaptive", "unordered"]  # by their number in the results
COLORS = {"naive": "#d9641e", "rotated": "#1f6fb4"}
STYLES = {0: "-", 1 << 20: "--"}  # by bytes of a switch port's buffer; 0: no limit
GREY = "#777777"  # readable on light and dark pages


def median(rows, field):
    return statistics.median(row[field] for row in rows)


def style(axes, label):
    axes.set_ylim(bottom=0)
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.tick_params(colors=GREY, labelcolor=GREY)
    axes.yaxis.label.set_color(GREY)
    axes.xaxis.label.set_color(GREY)
    for spine in axes.spines.values():
        spine.set_color(GREY)


def draw(axes, rows, field, label):
    for order, color in COLORS.items():
        for buffer, line in STYLES.items():
            of_line = [r for r in rows if r["order"] == order and r["port_bytes"] == buffer]
            quanta = sorted({row["quantum"] for row in of_line})
            values = [median([r for r in of_line if r["quantum"] == q], field) for q in quanta]
            name = f"{order}, {'1 MiB per port' if buffer else 'no limit'}"
            axes.plot(quanta, values, line, color=color, marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 16, 128], ["1", "16", "128"])
    style(axes, label)


def save(figure, picture, legend=None):
    if legend is not None:
        for text in legend.get_texts():
            text.set_color(GREY)
    figure.tight_layout(rect=(0, 0.05 if legend else 0, 1, 1))
    figure.savefig(picture, transparent=True, metadata={"Date": None})


def plot_order(results, picture, tier):
    rows = [row for row in results["order"] if row["ordering"] == TIERS.index(tier)]
    sizes = [n for n in (8, 32, 128, 256) if any(row["pes"] == n for row in rows)]
    fields = [
        ("makespan_us", "last signal, us"),
        ("gb_per_s_per_pe", "GB/s per PE"),
        ("jain", "Jain's index of pairs"),
    ]
    figure, panels = pyplot.subplots(
        len(fields), len(sizes), figsize=(2.8 * len(sizes), 6.6), squeeze=False
    )
    for column, pes in enumerate(sizes):
        of_size = [row for row in rows if row["pes"] == pes]
        for line, (field, label) in enumerate(fields):
            draw(panels[line][column], of_size, field, label if column == 0 else "")
        panels[0][column].set_title(f"{pes} PEs", color=GREY)
        panels[-1][column].set_xlabel("packets per turn of a queue pair")
    handles, labels = panels[0][0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False, fontsize=8)
    save(figure, picture, legend)


def bars(axes, groups, series, label):
    """``series``: name and one value per group."""
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series):
        places = [g + (i - (len(series) - 1) / 2) * width for g in range(len(groups))]
        drawn = axes.bar(places, values, width, label=name)
        axes.bar_label(
            drawn,
            [f"{value:.{2 if value < 10 else 0}f}" for value in values],
            fontsize=7,
            color=GREY,
        )
    axes.set_xticks(range(len(groups)), groups)
    legend = axes.legend(frameon=False, fontsize=7, loc="upper center", ncols=len(series))
    for text in legend.get_texts():
        text.set_color(GREY)
    style(axes, label)
    axes.set_ylim(top=1.25 * max(max(values) for _, values in series))


def plot_claims(results, picture):
    figure, (signals, receives, shares) = pyplot.subplots(1, 3, figsize=(11, 3.2))

    sizes = sorted({row["bytes"] for row in results["signals"]})
    times = {(row["bytes"], row["ordering"]): row["signal_us"] for row in results["signals"]}
    series = [(tier, [times[size, i] for size in sizes]) for i, tier in enumerate(TIERS)]
    bars(signals, sizes, series, "signal after its data, us")
    signals.set_xlabel("bytes")

    kinds = ["independent", "shared"]
    senders = sorted({row["senders"] for row in results["receives"]})
    least = {
        (row["senders"], row["receives"]): row["fewest_messages_of_another_peer"]
        for row in results["receives"]
    }
    series = [(kind, [least[count, kind] for count in senders]) for kind in kinds]
    bars(receives, senders, series, "messages of 2000 received")
    receives.set_xlabel("senders, one of them stalled")

    rows = [row for row in results["fairness"] if row["targets"] > 1 and row["quantum"] == 1]
    names = ["by number", "random", "oldest"]
    series = [
        ("256 B", [row["gb_per_s_short"] for row in rows]),
        ("7392 B", [row["gb_per_s_long"] for row in rows]),
    ]
    bars(shares, names, series, "GB/s of a queue pair")
    shares.set_xlabel("arbitration")
    save(figure, picture)


def main(arguments):
    with open(arguments.results) as file:
        results = json.load(file)
    if arguments.study == "order":
        plot_order(results, arguments.picture, arguments.tier)
    else:
        plot_claims(results, arguments.picture)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", help="what shoal-bench-nic --json wrote")
    parser.add_argument("picture", help="file to write, such as picture.svg")
    parser.add_argument("--study", choices=["order", "claims"], default="order")
    parser.add_argument("--tier", choices=["strict", "adaptive"], default="strict")
    main(parser.parse_args())
