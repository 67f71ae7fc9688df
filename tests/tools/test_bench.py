# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs, checks its results, and writes what it says. Figures are
not judged here: docs/performance.md."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "bench").glob("*.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_find_what_they_import(bin_dir, name):
    packages = bin_dir.parent / "python"
    if name in ("deep_ep_pairs.py", "python_overhead.py"):
        pytest.importorskip("torch")
        if not packages.exists():
            pytest.skip("this build has no Python packages")
    result = subprocess.run(
        [sys.executable, ROOT / "bench" / name, "--help"],
        env=os.environ | {"PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0 and "usage: " + name in result.stdout, result.stderr


def test_bench_runs_on_a_small_shape(bin_dir, tmp_path):
    report = tmp_path / "bench.json"
    shape = [
        "--tokens",
        "16",
        "--hidden",
        "256",
        "--low-latency-tokens",
        "4",
        "--experts",
        "16",
        "--top-k",
        "4",
    ]
    result = subprocess.run(
        [
            sys.executable,
            ROOT / "bench/run_bench.py",
            "--bin",
            bin_dir,
            "--pes",
            "2",
            "--quick",
            "--json",
            report,
            "--",
            *shape,
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    data = json.loads(report.read_text())
    assert data["setup"]["tokens"] == "16"
    for name in [
        "dispatch bf16",
        "combine bf16",
        "memcpy of the dispatch bytes",
        "low-latency pair fp8 per rank",
    ]:
        assert data["shoal"][name]["seconds"] > 0
        assert name in result.stdout
    assert any(entry["name"] == "signal round trip" for entry in data["rma"]["results"])
    if (bin_dir / "shoal-bench-mpi").exists():
        assert {entry["what"] for entry in data["ratios"]} >= {
            "dispatch + combine bf16, times as fast as MPI"
        }
