# SPDX-License-Identifier: Apache-2.0
"""The memory map of a group, from the areas that its layout code reports."""

import json
import subprocess

from svg import Canvas

COLOUR = {"control": "purple", "normal": "blue", "low_latency": "green"}
WIDTH, ROW, LEFT, TOP = 900, 21, 20, 64


def _bytes(count):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def draw(path, program):
    """`program` prints the map of one group in each kind of memory as JSON."""
    groups = json.loads(
        subprocess.run([program], check=True, capture_output=True, text=True).stdout
    )
    rows = max(len(group["areas"]) for group in groups["layouts"])
    canvas = Canvas(WIDTH, TOP + rows * ROW + 44, "The memory map of a group")
    canvas.text(LEFT, 24, groups["title"], 13, "ink", bold=True)
    column = (WIDTH - 2 * LEFT) / len(groups["layouts"])
    for index, group in enumerate(groups["layouts"]):
        x = LEFT + index * column
        canvas.text(
            x, 48, f"{group['name']}: {_bytes(group['total'])} per rank", 13, "ink", bold=True
        )
        for number, area in enumerate(group["areas"]):
            y = TOP + number * ROW
            canvas.box(x, y, column - 16, ROW - 3, COLOUR[area["part"]], 3)
            canvas.text(x + 8, y + 13, area["name"], 11, "ink", mono=True)
            canvas.text(x + column - 24, y + 13, _bytes(area["bytes"]), 11, "ink", "end", mono=True)
            canvas.text(
                x + column - 108, y + 13, f"+{area['offset']:#x}", 10, "soft", "end", mono=True
            )
    y = TOP + rows * ROW + 20
    x = LEFT
    for part, text in (
        ("control", "signals and counts"),
        ("normal", "normal mode"),
        ("low_latency", "low-latency mode"),
    ):
        canvas.box(x, y - 10, 14, 14, COLOUR[part], 3)
        canvas.text(x + 20, y + 1, text, 12, "ink")
        x += 170
    canvas.write(path)
