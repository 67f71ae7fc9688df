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
# The list excludes the modules that scripts share.
SCRIPTS = sorted(
    path.name for path in (ROOT / "bench").glob("*.py") if "__main__" in path.read_text()
)


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


@pytest.mark.parametrize("command", ["shoal-bench rma", "shoal-bench-gpu normal"])
def test_a_wrong_setting_is_an_error(bin_dir, command):
    program, part = command.split()
    if not (bin_dir / program).exists():
        pytest.skip(f"this build has no {program}")
    result = subprocess.run(
        [bin_dir / program, part],
        env=os.environ | {"SHOAL_LOG": "loud"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 1, result.stderr
    assert f'{program}: SHOAL-N106: SHOAL_LOG is "loud"; allowed: ' in result.stderr


@pytest.mark.parametrize(("pes", "experts"), [(3, "10"), (4, "3")])
def test_experts_that_the_pes_do_not_divide(bin_dir, pes, experts):
    shape = ["--tokens", "32", "--hidden", "256", "--low-latency-tokens", "8", "--iterations", "2"]
    command = [bin_dir / "shoal-run", "-n", str(pes), bin_dir / "shoal-bench", "ep"]
    result = subprocess.run(
        [*command, *shape, "--experts", experts, "--top-k", "2"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr  # it checks the results


def test_first_pairs_of_an_interface_of_each_kind(bin_dir, tmp_path):
    pytest.importorskip("torch")
    report = tmp_path / "first.json"
    shape = ["--tokens", "16", "--low-latency-tokens", "8", "--experts", "16", "--top-k", "4"]
    names = ["Buffer, low latency", "shoal.ep.Group"]
    command = [
        sys.executable,
        ROOT / "bench/first_pairs.py",
        "--starts",
        "2",
        "--ahead",
        "1",
        *shape,
    ]
    packages = str(bin_dir.parent / "python")
    environment = os.environ | {"SHOAL_BIN_DIR": str(bin_dir), "PYTHONPATH": packages}
    environment |= {"CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(
        [*command, "--hidden", "512", "--only", *names, "--json", report],
        env=environment,
        check=True,
        timeout=240,
        capture_output=True,
    )
    results = json.loads(report.read_text())["results"]
    assert results.keys() == set(names)
    for row in results.values():
        assert row["starts"] == 2 and row["first, us"] > 0 < row["steady, us"]
        assert row["range"][0] <= row["first / steady"] <= row["range"][1]


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


def test_experiments_on_emulated_nics(bin_dir, tmp_path):
    report = tmp_path / "nic.json"
    command = [bin_dir / "shoal-bench-nic", "--pes", "4", "--seeds", "1", "--json", report]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    data = json.loads(report.read_text())
    assert {row["order"] for row in data["order"]} == {"naive", "rotated"}
    assert all(row["complete"] for row in data["order"] if row["port_bytes"] == 0)
    # In long turns all PEs of the naive order send to the same one: time is virtual, so exact.
    for port_bytes in (0, 256 << 10):
        naive, rotated = (
            row["makespan_us"]
            for order in ("naive", "rotated")
            for row in data["order"]
            if row["order"] == order
            and (row["ordering"], row["quantum"], row["port_bytes"]) == (0, 128, port_bytes)
        )
        assert naive > 1.04 * rotated, f"switch ports of {port_bytes} bytes"
    strict, adaptive, unordered = (row["signal_us"] for row in data["signals"][:3])
    assert adaptive > strict + 3.9  # a round trip of 4 us
    assert abs(unordered - strict) < 0.1
    outcome = {row["receives"]: row["others_complete"] for row in data["receives"]}
    assert outcome == {"independent": True, "shared": False}
    assert all(0 < row["jain_all"] <= 1 for row in data["fairness"])
    wrong = subprocess.run(
        [bin_dir / "shoal-bench-nic", "orders"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "study is 'orders'; allowed: order, signals, receives, fairness" in wrong.stderr
