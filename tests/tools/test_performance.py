# SPDX-License-Identifier: Apache-2.0
"""docs/performance.md and its plots are those that bench/performance.py writes from docs/data."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def regenerate(docs):
    command = [sys.executable, ROOT / "bench/performance.py", "--docs", docs]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def docs(tmp_path):
    shutil.copytree(DOCS / "data", tmp_path / "data")
    shutil.copy(DOCS / "performance.md", tmp_path)
    return tmp_path


def test_page_and_plots_are_generated_from_the_data(docs):
    result = regenerate(docs)
    assert result.returncode == 0, result.stderr
    plots = sorted(path.name for path in (docs / "plots").iterdir())
    assert plots == sorted(path.name for path in (DOCS / "plots").iterdir())
    for name in ["performance.md", *(f"plots/{plot}" for plot in plots)]:
        assert (docs / name).read_text() == (DOCS / name).read_text(), f"{name}: ./run performance"
    page = (DOCS / "performance.md").read_text()
    assert sorted(re.findall(r"\(plots/([\w.-]+)\)", page)) == plots


def test_a_changed_figure_reaches_table_and_plot(docs):
    file = docs / "data/2-gpus/deep-ep-pairs.json"
    data = json.loads(file.read_text())
    data["figures"]["Buffer, cached handle, BF16: pair, us"] = 123.4
    data["commit"] = "0123abcd"
    file.write_text(json.dumps(data))
    assert regenerate(docs).returncode == 0
    page = (docs / "performance.md").read_text()
    assert re.search(r"\|`Buffer`, cached handle, BF16\|123\|\d+\|", page)
    assert re.search(r"commit\s0123abcd", page)
    assert ">123<" in (docs / "plots/pairs-by-interface.svg").read_text()


def test_libraries_of_different_runs_are_an_error(docs):
    file = docs / "data/2-gpus/deep-ep-peer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"date": "2026-01-01"}))
    assert "are not of one run" in regenerate(docs).stderr


def test_a_page_without_a_part_is_an_error(docs):
    page = docs / "performance.md"
    text = page.read_text()
    page.write_text(text.replace("<!-- begin host -->", "<!-- begin guest -->"))
    result = regenerate(docs)
    assert result.returncode != 0 and "unknown part, guest" in result.stderr
    assert "<!-- begin guest -->" in page.read_text()


def test_cells_hold_one_figure_and_the_page_is_short():
    page = (DOCS / "performance.md").read_text()
    assert len(page.split()) <= 1500
    parts = "".join(re.findall(r"<!-- begin [\w-]+ -->\n(.*?)<!-- end -->", page, re.DOTALL))
    tables = re.findall(r"^\|---.*\|\n((?:\|.*\|\n)+)", parts, re.MULTILINE)
    cells = [
        cell for table in tables for row in table.splitlines() for cell in row.split("|")[2:-1]
    ]
    assert len(cells) > 100
    assert all(re.fullmatch(r"(\d+(\.\d+)?|automatic)?", cell) for cell in cells)
    assert "target" not in page


@pytest.mark.parametrize("plot", sorted((DOCS / "plots").iterdir()), ids=lambda path: path.stem)
def test_texts_of_a_plot_lie_inside_and_do_not_overlap(plot):
    """Widths are those of a wide sans-serif font, 0.6 of its size per character."""
    root = xml.etree.ElementTree.parse(plot).getroot()
    width, height = (float(value) for value in root.get("viewBox").split()[2:])
    boxes = []
    for node in root.iter("{http://www.w3.org/2000/svg}text"):
        size, x, y = (float(node.get(key)) for key in ("font-size", "x", "y"))
        long = 0.6 * size * len(node.text)
        x -= {"start": 0, "middle": long / 2, "end": long}[node.get("text-anchor")]
        assert 0 <= x and x + long <= width and size <= y <= height, node.text
        boxes.append((x, y - 0.75 * size, x + long, y, node.text))
    assert len(boxes) > 8
    for index, (left, top, right, bottom, name) in enumerate(boxes):
        for other in boxes[index + 1 :]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, f"{name} and {other[4]}"
    assert "prefers-color-scheme:dark" in plot.read_text()
