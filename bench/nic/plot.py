#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plots the all-to-all of shoal-bench-nic: latency and bandwidth by the quantum of a NIC's
arbitration, for both creation orders.
"""

import argparse
import json
import statistics

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

STRICT = 0
COLORS = {"naive": "#d9641e", "rotated": "#1f6fb4"}
STYLES = {0: "-", 1 << 20: "--"}  # by bytes of a switch port's buffer; 0: no limit
GREY = "#777777"  # readable on light and dark pages


def median(rows, field):
    return statistics.median(row[field] for row in rows)


def draw(axes, rows, field, label):
    for order, color in COLORS.items():
        for buffer, style in STYLES.items():
            of_line = [r for r in rows if r["order"] == order and r["port_bytes"] == buffer]
            quanta = sorted({row["quantum"] for row in of_line})
            values = [median([r for r in of_line if r["quantum"] == q], field) for q in quanta]
            name = f"{order}, {'1 MiB per port' if buffer else 'no limit'}"
            axes.plot(quanta, values, style, color=color, marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 16, 128], ["1", "16", "128"])
    axes.set_ylim(bottom=0)
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.tick_params(colors=GREY, labelcolor=GREY)
    axes.yaxis.label.set_color(GREY)
    for spine in axes.spines.values():
        spine.set_color(GREY)


def main(results, picture):
    with open(results) as file:
        rows = [row for row in json.load(file)["order"] if row["ordering"] == STRICT]
    sizes = [n for n in (8, 32, 128) if any(row["pes"] == n for row in rows)]
    figure, panels = pyplot.subplots(2, len(sizes), figsize=(3.4 * len(sizes), 5.2), squeeze=False)
    for column, pes in enumerate(sizes):
        of_size = [row for row in rows if row["pes"] == pes]
        draw(panels[0][column], of_size, "makespan_us", "last signal, us")
        draw(panels[1][column], of_size, "gb_per_s_per_pe", "GB/s per PE")
        panels[0][column].set_title(f"{pes} PEs", color=GREY)
        panels[1][column].set_xlabel("packets per turn of a queue pair", color=GREY)
    handles, labels = panels[0][0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False, fontsize=8)
    for text in legend.get_texts():
        text.set_color(GREY)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(picture, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", help="what shoal-bench-nic --json wrote")
    parser.add_argument("picture", help="file to write, such as picture.svg")
    arguments = parser.parse_args()
    main(arguments.results, arguments.picture)
