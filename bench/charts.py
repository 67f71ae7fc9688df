# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG text for docs/performance.md: lines and markers over two axes, and grouped bars.

The output depends on the data alone, so a test can compare it byte by byte. A style sheet inside
each picture follows the reader's light or dark theme. The width of 480 units keeps text legible on
a phone.
"""

import math
from html import escape
from typing import NamedTuple

WIDTH, SIZE = 480, 14
# Okabe and Ito's colours, which colour-blind readers can tell apart: on light and on dark ground.
COLOURS = {
    "blue": ("#0072b2", "#56b4e9"),
    "orange": ("#c25400", "#f0883e"),
    "green": ("#00805d", "#2fc89b"),
    "grey": ("#59636e", "#9198a1"),
}
GROUND, TEXT, GRID = ("#ffffff", "#0d1117"), ("#1f2328", "#f0f6fc"), ("#d1d9e0", "#3d444d")


class Line(NamedTuple):
    name: str
    colour: str
    points: list[tuple[float, float]]
    dashed: bool = False
    shape: str = "circle"


class Marks(NamedTuple):
    """The values of one system at one x: (colour, value)."""

    name: str
    shape: str
    x: float
    values: list[tuple[str, float]]


def number(value):
    return f"{value:.2f}".rstrip("0").rstrip(".")


def figure(value):
    """A figure of a table or plot: three digits, whole numbers from 1000 on."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def text(x, y, words, kind="t", anchor="start", size=SIZE):
    at = f'x="{number(x)}" y="{number(y)}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {at}>{escape(words)}</text>'


def segment(x1, y1, x2, y2):
    ends = " ".join(
        f'{n}="{number(v)}"' for n, v in zip(("x1", "y1", "x2", "y2"), (x1, y1, x2, y2))
    )
    return f'<line class="g" {ends}/>'


def mark(shape, x, y, kind):
    if shape == "circle":
        return f'<circle class="{kind}" cx="{number(x)}" cy="{number(y)}" r="4"/>'
    corners = {
        "square": [(-5, -5), (5, -5), (5, 5), (-5, 5)],
        "triangle": [(0, -6.5), (6.5, 5), (-6.5, 5)],
        "diamond": [(0, -7), (7, 0), (0, 7), (-7, 0)],
    }[shape]
    points = " ".join(f"{number(x + dx)},{number(y + dy)}" for dx, dy in corners)
    return f'<polygon class="{kind}" points="{points}"/>'


def picture(height, title, parts):
    def rules(shade):
        yield f".b{{fill:{GROUND[shade]}}}.t{{fill:{TEXT[shade]}}}.g{{stroke:{GRID[shade]}}}"
        for name, shades in COLOURS.items():
            colour = shades[shade]
            yield f".{name}{{fill:{colour}}}.line-{name}{{stroke:{colour};fill:none;stroke-width:2.5}}"
            yield f".open-{name}{{fill:{GROUND[shade]};stroke:{colour};stroke-width:2}}"

    light, dark = ("\n".join(rules(shade)) for shade in (0, 1))
    style = f"text{{font-family:system-ui,sans-serif}}\n{light}\n@media(prefers-color-scheme:dark){{\n{dark}\n}}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="640" height="{height * 640 // WIDTH}" role="img">'
    ground = f'<rect class="b" width="{WIDTH}" height="{height}" rx="6"/>'
    lines = [head, f"<title>{escape(title)}</title>", f"<style>{style}</style>", ground, *parts]
    return "\n".join([*lines, "</svg>", ""])


def apart(wanted, distance):
    """Heights near the wanted ones, in their order, at least `distance` from each other."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    heights = list(wanted)
    for before, index in zip(order, order[1:]):
        heights[index] = max(heights[index], heights[before] + distance)
    return heights


def line_chart(title, x_label, y_label, ticks, top, step, lines, marks=(), logarithmic=False):
    """`ticks`: (x, label). The y axis runs from 0 to `top`. Lines are labelled at their ends."""
    height, left, right, above, below = 340, 44, 122, 40, 52
    position = math.log2 if logarithmic else float
    low, high = (position(edge(tick for tick, _ in ticks)) for edge in (min, max))
    bottom = height - below

    def x_of(value):
        return left + 12 + (position(value) - low) / (high - low) * (WIDTH - left - right - 12)

    def y_of(value):
        return bottom - value / top * (bottom - above)

    parts = [text(8, 22, y_label, size=SIZE)]
    for value in range(0, top + 1, step):
        parts.append(segment(left, y_of(value), WIDTH - right + 8, y_of(value)))
        parts.append(text(left - 6, y_of(value) + 5, str(value), "t", "end", 13))
    for value, label in ticks:
        parts.append(text(x_of(value), bottom + 20, label, "t", "middle", 13))
    parts.append(text((left + WIDTH - right) / 2, height - 10, x_label, "t", "middle"))
    for line in lines:
        points = " ".join(f"{number(x_of(x))},{number(y_of(y))}" for x, y in line.points)
        dash = ' stroke-dasharray="6 5"' if line.dashed else ""
        parts.append(f'<polyline class="line-{line.colour}" points="{points}"{dash}/>')
        kind = "open-" if line.dashed else ""
        parts += [mark(line.shape, x_of(x), y_of(y), kind + line.colour) for x, y in line.points]
    heights = apart([y_of(line.points[-1][1]) + 5 for line in lines], 17)
    for line, y in zip(lines, heights):
        parts.append(text(WIDTH - right + 12, y, line.name, line.colour))
    for group in marks:
        lowest = min(value for _, value in group.values)
        for colour, value in group.values:
            parts.append(mark(group.shape, x_of(group.x), y_of(value), f"open-{colour}"))
        parts.append(text(x_of(group.x), y_of(lowest) + 24, group.name, "t", "middle", 13))
    return picture(height, title, parts)


def bar_chart(title, x_label, top, step, groups, legend=()):
    """`groups`: (label, [(colour, value)]), from top to bottom. `legend`: (colour, name)."""
    label, bar, gap, left, right = 19, 15, 9, 8, 56
    above = 34 if legend else 10
    bottom = above + sum(label + bar * len(bars) + gap for _, bars in groups)
    height = bottom + 46

    def x_of(value):
        return left + value / top * (WIDTH - left - right)

    parts, x = [], left
    for colour, name in legend:
        parts.append(f'<rect class="{colour}" x="{number(x)}" y="9" width="13" height="13"/>')
        parts.append(text(x + 19, 21, name))
        x += 44 + 7.5 * len(name)
    for value in range(0, top + 1, step):
        parts.append(
            text(x_of(value), bottom + 17, str(value), "t", "middle" if value else "start", 13)
        )
    parts.append(text(left, height - 10, x_label))
    y = above
    for name, bars in groups:
        parts.append(text(left, y + 14, name))
        y += label
        for value in range(0, top + 1, step):
            parts.append(segment(x_of(value), y - 2, x_of(value), y + bar * len(bars)))
        for colour, value in bars:
            size = f'width="{number(x_of(value) - left)}" height="{bar - 2}"'
            parts.append(f'<rect class="{colour}" x="{left}" y="{number(y)}" {size}/>')
            parts.append(text(x_of(value) + 5, y + 11, figure(value), "t", "start", 13))
            y += bar
        y += gap
    return picture(height, title, parts)
