# SPDX-License-Identifier: Apache-2.0
"""The committed figures are those that tools/figures draws from the code of this tree."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_figures_are_current(bin_dir, tmp_path):
    draw = ROOT / "tools/figures/draw.py"
    subprocess.run([sys.executable, draw, bin_dir / "shoal-group-map", tmp_path], check=True)
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert len(drawn) == 4
    for name, text in drawn.items():
        assert text == (ROOT / "docs/images" / name).read_text(), f"{name}: run ./run figures"


def test_figures_follow_the_theme():
    for path in (ROOT / "docs/images").glob("*.svg"):
        text = path.read_text()
        assert "prefers-color-scheme:dark" in text and "<title>" in text, path.name
