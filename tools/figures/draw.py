#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of README and docs: docs/images/*.svg.

Usage: draw.py GROUP_MAP FOLDER. GROUP_MAP is the program of group_map.cpp, which prints the memory
map of an example group from the layout code. `./run figures` builds it and calls this script.
"""

import sys
from pathlib import Path

import layers
import memory_map
import timelines


def main(program, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    layers.draw(folder / "layers.svg")
    timelines.normal(folder / "normal-mode.svg")
    timelines.low_latency(folder / "low-latency-mode.svg")
    memory_map.draw(folder / "group-memory.svg", program)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
