# SPDX-License-Identifier: Apache-2.0
"""shoal-moe and shoal-bench ep between nodes pass their own checks, in every mode and format."""

import json

import pytest

# Nodes and PEs of each; 2 x 1: no sums of a node.
TOPOLOGIES = [(2, 1), (2, 2), (2, 4), (3, 2), (4, 2)]
# Every topology divides the experts.
SHAPE = ["--hidden", "512", "--experts", "48"]


@pytest.fixture(params=TOPOLOGIES, ids=lambda topology: "x".join(map(str, topology)))
def topology(request, monkeypatch):
    """Nodes and PEs. Programs that the test starts are on emulated nodes."""
    nodes, size = request.param
    monkeypatch.setenv("SHOAL_NODE_SIZE", str(size))
    return nodes, nodes * size


@pytest.mark.parametrize("mode", ["normal", "low-latency"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_demo_passes_its_check(run_program, topology, tmp_path, mode, dtype):
    nodes, pes = topology
    options = [
        "--top-k",
        "8",
        "--tokens-per-pe",
        "64",
        "--ffn",
        "16",
        "--groups",
        "4",
        "--iterations",
        "1",
    ]
    options += ["--mode", mode, "--dtype", dtype, "--json", tmp_path / "run.json"]
    result = run_program("shoal-moe", *SHAPE, *options, pes=pes)
    assert result.returncode == 0, result.stderr + result.stdout
    assert f"{pes} PEs on {nodes} nodes" in result.stdout
    report = json.loads((tmp_path / "run.json").read_text())
    assert report["nodes"] == nodes and report["check"]["tokens"] == report["tokens"]
    # A bound that is far above the errors would not notice an additional rounding.
    assert 0.4 < report["check"]["error_of_bound"] <= 1
    assert "sample" not in result.stdout


def test_benchmark_passes_its_checks(run_program, topology):
    # Few terms, so that roundings do not average out.
    options = ["--top-k", "3", "--tokens", "64", "--low-latency-tokens", "16", "--iterations", "2"]
    result = run_program("shoal-bench", "ep", *SHAPE, *options, pes=topology[1])
    assert result.returncode == 0, result.stderr + result.stdout
    assert "low-latency pair fp8" in result.stdout


@pytest.mark.parametrize("wrong", [False, True])
def test_large_shapes_are_checked_by_a_sample(run_program, tmp_path, wrong):
    options = ["--tokens-per-pe", "512", "--experts", "16", "--groups", "1", "--groups-kept", "1"]
    options += ["--iterations", "1", "--json", tmp_path / "run.json"]
    result = run_program("shoal-moe", *options, *["--inject-error"] * wrong, pes=2)
    assert result.returncode == int(wrong), result.stderr + result.stdout
    report = json.loads((tmp_path / "run.json").read_text())
    assert 0 < report["check"]["tokens"] < report["tokens"]
    sample = f"a sample: {report['check']['tokens']} of {report['tokens']} tokens"
    assert sample in result.stdout
