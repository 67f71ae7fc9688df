# SPDX-License-Identifier: Apache-2.0
"""shoal-moe --backend cuda as a user runs it. Tests with the fixture `gpu` need a GPU, and are
skipped with the reason where there is none; the others need none."""

import json

import moe_reference as reference
import numpy as np
import pytest

HIDDEN, FFN, EXPERTS = 256, 40, 32  # 40: no multiple of the kernels' tiles
GATE = ["--groups", "4", "--groups-kept", "2", "--top-k", "4"]
GATE += ["--hidden", str(HIDDEN), "--ffn", str(FFN), "--experts", str(EXPERTS)]
CUDA = ["--backend", "cuda"]
SMALL = [
    "--tokens-per-pe",
    "4",
    "--hidden",
    "64",
    "--ffn",
    "16",
    "--experts",
    "8",
    "--groups",
    "1",
    "--groups-kept",
    "1",
    "--top-k",
    "2",
]
NO_GPU = "--backend cuda is not possible here: "


def own_lines(text):
    """Lines of standard error that are not shoal-run's own."""
    return [line for line in text.splitlines() if line and not line.startswith("shoal-run:")]


@pytest.fixture
def gpu(run_program):
    """Skips unless this machine can run experts on a GPU. Any other failure of the run below is one
    of the tests'."""
    result = run_program("shoal-moe", *CUDA, *SMALL, "--no-check")
    if result.returncode == 2 and NO_GPU in result.stderr:
        pytest.skip(own_lines(result.stderr)[-1])


def without_gpu(run_program):
    result = run_program("shoal-info")
    return result.returncode == 0 and "GPUs: none" in result.stdout


@pytest.mark.parametrize("start", [{}, {"pes": 3}, {"threads": 3}])
def test_missing_gpu_is_named_in_one_line(run_program, start):
    if not without_gpu(run_program):
        pytest.skip("this machine has a GPU")
    threads = ["--pes", str(start["threads"])] if "threads" in start else []
    result = run_program("shoal-moe", *CUDA, *SMALL, *threads, pes=start.get("pes"))
    assert result.returncode == 2 and result.stdout == ""
    lines = own_lines(result.stderr)
    assert len(lines) == 1 and NO_GPU in lines[0] and "--backend host" in lines[0], result.stderr


def test_pes_as_threads_give_the_bits_of_processes(run_program, tmp_path):
    for name, options, pes in [("threads", ["--pes", "4"], None), ("processes", [], 4)]:
        result = run_program(
            "shoal-moe", *SMALL, *options, "--output", tmp_path / f"{name}.f32", pes=pes
        )
        assert result.returncode == 0, result.stderr
        assert "4 PEs" in result.stdout and "check: passed" in result.stdout
    assert (tmp_path / "threads.f32").read_bytes() == (tmp_path / "processes.f32").read_bytes()


def test_threads_and_shoal_run_exclude_each_other(run_program):
    result = run_program("shoal-moe", *SMALL, "--pes", "2", pes=2)
    assert result.returncode == 2
    lines = own_lines(result.stderr)
    assert len(lines) == 1 and "choose one of them" in lines[0], result.stderr


def test_a_failing_thread_ends_all(run_program):
    result = run_program("shoal-moe", *SMALL, "--pes", "3", "--output", "/nonexistent/a.f32")
    assert result.returncode == 2
    lines = own_lines(result.stderr)
    assert len(lines) == 1 and "no file can be written there" in lines[0], result.stderr


# With a GPU.


@pytest.fixture
def inputs(tmp_path):
    """inputs(tokens): arrays of a layer, and the options of their files."""

    def make(tokens):
        arrays = reference.make_inputs(tokens, tokens, HIDDEN, FFN, EXPERTS)
        return arrays, reference.save_inputs(tmp_path, arrays)

    return make


@pytest.mark.parametrize("mode", ["normal", "low-latency"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("start", ["one", "threads", "uneven", "processes"])
# 37: uneven; 3: a PE without tokens where there are four.
@pytest.mark.parametrize("tokens", [37, 3])
def test_output_on_gpus_is_that_of_numpy(
    gpu, run_program, inputs, tmp_path, mode, dtype, start, tokens
):
    arrays, options = inputs(tokens)
    options += [
        *CUDA,
        "--mode",
        mode,
        "--dtype",
        dtype,
        "--output",
        tmp_path / "out.f32",
        "--json",
        tmp_path / "run.json",
    ]
    threads = {"threads": "4", "uneven": "3"}  # 3: 32 experts as 11, 11 and 10
    options += ["--pes", threads[start]] if start in threads else []
    result = run_program("shoal-moe", *options, *GATE, pes=4 if start == "processes" else None)
    assert result.returncode == 0, result.stderr + result.stdout
    output = reference.load_output(tmp_path / "out.f32", HIDDEN)

    x = arrays["tokens"] if dtype == "bf16" else reference.through_fp8(arrays["tokens"])
    index, weight = reference.gate(arrays["router"], arrays["bias"], 4, 2, 4)
    want, magnitude = reference.moe(x, index, weight, arrays["weights"])
    # Each expert's output and each PE's sum are rounded to bfloat16.
    bound = 2.0**-8 * 1.02 * (2 * magnitude + np.abs(want)) + 1e-5
    assert np.all(np.abs(output - want) <= bound)
    assert np.linalg.norm(output - want) < 2.0**-7 * np.linalg.norm(want)

    report = json.loads((tmp_path / "run.json").read_text())
    assert report["backend"] == "cuda"
    assert report["passed"] is True and report["check"]["differing_values"] == 0
    load = np.bincount(index.ravel(), minlength=EXPERTS)
    assert sum((pe["expert_load"] for pe in report["per_pe"]), []) == load.tolist()
    phases = (
        ["dispatch_send", "dispatch_receive", "combine_send", "combine_receive"]
        if mode == "low-latency"
        else ["route", "dispatch", "combine"]
    )
    for pe in report["per_pe"]:
        assert {"gate", "experts", *phases} == set(pe["phase_milliseconds"])
        assert all(time > 0 for time in pe["phase_milliseconds"].values())


def test_gpus_give_the_same_bits_every_time(gpu, run_program, tmp_path):
    for name in ("one", "again"):
        result = run_program(
            "shoal-moe",
            *CUDA,
            "--pes",
            "8",
            "--output",
            tmp_path / f"{name}.f32",
            "--iterations",
            "1",
            "--no-check",
        )
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "one.f32").read_bytes() == (tmp_path / "again.f32").read_bytes()


@pytest.mark.parametrize("mode", ["normal", "low-latency"])
def test_failing_check_on_gpus_is_reported(gpu, run_program, inputs, mode):
    result = run_program(
        "shoal-moe", *CUDA, *inputs(16)[1], *GATE, "--mode", mode, "--inject-error", "--pes", "4"
    )
    assert result.returncode == 1, result.stderr
    assert "check: FAILED" in result.stdout
