# SPDX-License-Identifier: Apache-2.0
"""examples/train_moe.py and train_hf_moe.py: the losses on four and two ranks equal those of one
process without Shoal."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def run(*arguments, example="train_moe.py"):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, EXAMPLES / example, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=400,
        env=environment,
    )


def losses_of(output, name):
    (line,) = [line for line in output.splitlines() if line.startswith(f"{name}: loss ")]
    words = line.split()
    return [float(word) for word in words if word.replace(".", "").isdigit()]


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.soak), 4])
def test_loss_is_that_of_one_process(ranks, tmp_path):
    plot, losses = tmp_path / "loss.png", tmp_path / "loss.json"
    files = ["--plot", plot, "--losses", losses] if ranks == 4 else []
    result = run("--ranks", ranks, "--steps", 12, "--single", *files)
    assert result.returncode == 0, result.stderr
    first, last, steps = losses_of(result.stdout, f"{ranks} ranks")[-3:]
    assert steps == 12
    assert last < 0.9 * first, "it learns"
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("largest difference")]
    # Rounding has not accumulated yet.
    assert float(line.split(":")[1].split(",")[0]) < 2e-4
    if ranks == 4:
        assert plot.read_bytes().startswith(b"\x89PNG")
        curves = json.loads(losses.read_text())
        assert list(curves) == ["4 ranks", "one process"] and {
            len(curve) for curve in curves.values()
        } == {12}
        assert f"{curves['4 ranks'][-1]:.4f}" == f"{last:.4f}"
    assert "12/12" in result.stderr, "a progress bar"


def test_steps_must_be_positive():
    result = run("--steps", 0)
    assert result.returncode == 2
    assert "--steps is 0; at least 1 is allowed" in result.stderr


@pytest.mark.soak
def test_model_of_transformers(tmp_path):
    pytest.importorskip("transformers", minversion="5.24")
    pytest.importorskip("accelerate")
    plot = tmp_path / "loss.png"
    result = run("--steps", 20, "--single", "--plot", plot, example="train_hf_moe.py")
    assert result.returncode == 0, result.stderr
    first, last, steps = losses_of(result.stdout, "4 ranks")[-3:]
    assert steps == 20
    assert last < 0.9 * first, "it learns"
    assert plot.read_bytes().startswith(b"\x89PNG")
