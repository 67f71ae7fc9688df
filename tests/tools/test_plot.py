# SPDX-License-Identifier: Apache-2.0
"""bench/plot.py draws the committed GPU results as the plots of docs/performance.md, with the limit
of the link."""

import itertools
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "docs/data"
BANDWIDTH = {"gpu-bandwidth-by-sms.png", "gpu-bandwidth-by-tokens.png"}
LATENCY = {"gpu-latency-by-tokens.png"}
LEGENDS = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import plot
finish = plot.finish
def finish_and_print_lines(figure, axes, path):
    finish(figure, axes, path)
    for line in axes.get_lines():
        values = [float(value) for value in line.get_ydata()]
        print(path.name, repr(line.get_label()), values, sep="|")
plot.finish = finish_and_print_lines
plot.main()
"""


def plot(*options):
    return subprocess.run(
        [sys.executable, "-c", LEGENDS, *map(str, [ROOT / "bench", *options])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("folder", "normal", "pes", "plots"),
    [
        pytest.param(DATA, "gpu-normal-8.json", 8, BANDWIDTH, marks=pytest.mark.soak),
        (DATA / "4-gpus", "gpu-normal.json", 4, BANDWIDTH | LATENCY),
    ],
)
def test_committed_results_are_drawn_with_their_limit(tmp_path, folder, normal, pes, plots):
    result = plot("--data", folder, "--output", tmp_path)
    assert result.returncode == 0, result.stderr
    assert {path.name for path in tmp_path.iterdir()} == plots
    assert all(
        path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000
        for path in tmp_path.iterdir()
    )

    lines = {
        tuple(line.split("|")[:2]): json.loads(line.split("|")[2])
        for line in result.stdout.splitlines()
        if "|" in line
    }
    peers = json.loads((DATA / "gpu-peers.json").read_text())
    for name, (operation, cost) in itertools.product(
        BANDWIDTH, peers["raw_bytes_per_payload_byte"].items()
    ):
        # One of so many rows is local.
        limit = peers["link_raw_gb_per_s"] / cost * pes / (pes - 1)
        drawn = [
            values
            for (path, label), values in lines.items()
            if path == name
            and f"limit of {operation}" in label
            and f"{limit:.0f} GB/s logical" in label
        ]
        assert drawn == [[limit, limit]]

    # The points are those of the raw file that docs/performance.md links to.
    entries = json.loads((folder / normal).read_text())["results"]
    alone = {
        entry["sms"]: entry["gb_per_s"]
        for entry in entries
        if (entry["operation"], entry.get("format"), entry.get("launch"), entry.get("tokens"))
        == ("combine", "bf16", "alone", 4096)
    }
    assert lines["gpu-bandwidth-by-sms.png", "'Shoal, BF16 combine'"] == [
        alone[sms] for sms in sorted(alone)
    ]


def test_a_folder_without_results_is_named(tmp_path):
    result = plot("--data", tmp_path, "--output", tmp_path / "out")
    assert result.returncode != 0
    assert f"{tmp_path} has no results of shoal-bench-gpu" in result.stderr
