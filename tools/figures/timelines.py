# SPDX-License-Identifier: Apache-2.0
"""One dispatch and one combine of three ranks, with the signals that order them."""

from svg import Canvas

RANKS = ("rank 0", "rank 1", "rank 2")
WIDTH, TOP, RANK_HEIGHT, BOX = 1000, 62, 92, 34
LEFT = 78


def _y(rank):
    return TOP + rank * RANK_HEIGHT


def _phases(canvas, phases):
    """Boxes (start, end, text, colour) on the line of every rank, over the arrows drawn before."""
    for rank, name in enumerate(RANKS):
        y = _y(rank)
        canvas.text(16, y + BOX / 2 + 5, name, 13, "ink", bold=True)
        canvas.line(LEFT, y + BOX / 2, WIDTH - 16, y + BOX / 2, "grid", 1)
        for start, end, text, colour in phases:
            canvas.box(start, y, end - start, BOX, colour)
            canvas.text((start + end) / 2, y + BOX / 2 + 4, text, 11.5, "ink", "middle")


def _all_to_all(canvas, x1, x2, colour, dashed=False):
    """An arrow from every rank to every other one: what each sends to all."""
    for source in range(3):
        for target in range(3):
            if source == target:
                continue
            down = target > source
            canvas.line(
                x1,
                _y(source) + (BOX if down else 0),
                x2,
                _y(target) + (0 if down else BOX),
                colour,
                1.3,
                arrow=True,
                dashed=dashed,
            )


def _legend(canvas, y, entries):
    x = LEFT
    for colour, dashed, text in entries:
        canvas.line(x, y, x + 30, y, colour, 1.6, arrow=True, dashed=dashed)
        canvas.text(x + 38, y + 4, text, 12, "ink")
        x += 52 + 6.6 * len(text)


def _heading(canvas, x1, x2, text):
    canvas.text((x1 + x2) / 2, 26, text, 14, "ink", "middle", bold=True)
    canvas.line(x1, 36, x2, 36, "soft", 1)


def normal(path):
    canvas = Canvas(
        WIDTH,
        TOP + 3 * RANK_HEIGHT + 34,
        "Normal mode: one dispatch and one combine of three ranks",
    )
    _heading(canvas, 84, 512, "dispatch (epoch n)")
    _heading(canvas, 612, 984, "combine (epoch n + 1)")
    _all_to_all(canvas, 202, 246, "purple-edge")
    _all_to_all(canvas, 300, 346, "blue-edge")
    _all_to_all(canvas, 392, 436, "orange-edge", dashed=True)
    _all_to_all(canvas, 672, 716, "purple-edge")
    _all_to_all(canvas, 820, 776, "green-edge")
    _all_to_all(canvas, 880, 924, "orange-edge", dashed=True)
    _phases(
        canvas,
        [
            (84, 140, "route", "grey"),
            (146, 202, "notify", "purple"),
            (246, 392, "send rows", "blue"),
            (436, 512, "receive", "blue"),
            (520, 604, "experts", "grey"),
            (612, 672, "notify", "purple"),
            (716, 880, "pull and sum rows", "green"),
            (924, 984, "done", "green"),
        ],
    )
    y = TOP + 3 * RANK_HEIGHT
    _legend(
        canvas,
        y,
        [
            ("purple-edge", False, "entered: counts, address of the region"),
            ("blue-edge", False, "rows, to their final place"),
            ("green-edge", False, "rows, fetched"),
        ],
    )
    _legend(
        canvas,
        y + 22,
        [
            (
                "orange-edge",
                True,
                "finished: all rows for you are written, or all of yours were fetched",
            )
        ],
    )
    canvas.write(path)


def low_latency(path):
    canvas = Canvas(
        WIDTH,
        TOP + 3 * RANK_HEIGHT + 34,
        "Low-latency mode: one dispatch and one combine of three ranks",
    )
    _heading(canvas, 84, 470, "dispatch (epoch n)")
    _heading(canvas, 570, 984, "combine (epoch n)")
    _all_to_all(canvas, 200, 262, "blue-edge")
    _all_to_all(canvas, 470, 568, "orange-edge", dashed=True)
    _all_to_all(canvas, 690, 752, "green-edge")
    _phases(
        canvas,
        [
            (84, 200, "dispatch send", "blue"),
            (264, 344, "other work", "grey"),
            (352, 470, "dispatch receive", "blue"),
            (478, 562, "experts", "grey"),
            (570, 690, "combine send", "green"),
            (754, 834, "other work", "grey"),
            (842, 984, "combine receive", "green"),
        ],
    )
    y = TOP + 3 * RANK_HEIGHT
    _legend(
        canvas,
        y,
        [
            ("blue-edge", False, "self-signalling rows, to the slot of (source, token)"),
            ("green-edge", False, "self-signalling combine rows"),
        ],
    )
    _legend(
        canvas,
        y + 22,
        [
            (
                "orange-edge",
                True,
                "slots read: this half of the slots may be written again (epoch n + 2)",
            )
        ],
    )
    canvas.write(path)
