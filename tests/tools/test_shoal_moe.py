# SPDX-License-Identifier: Apache-2.0
"""shoal-moe as a user runs it: its results against NumPy, its JSON, its errors."""

import json
import re
import subprocess
import threading

import moe_reference as reference
import numpy as np
import pytest

HIDDEN, FFN, EXPERTS = 256, 32, 32
DEADLINE_S = 60
GATE = ["--groups", "4", "--groups-kept", "2", "--top-k", "4"]
GATE += ["--hidden", str(HIDDEN), "--ffn", str(FFN), "--experts", str(EXPERTS)]


@pytest.fixture
def inputs(tmp_path):
    """inputs(tokens): arrays of a layer, their files, and the options that name the files."""

    def make(tokens, seed=0):
        arrays = reference.make_inputs(seed, tokens, HIDDEN, FFN, EXPERTS)
        return arrays, reference.save_inputs(tmp_path, arrays)

    return make


def expected(arrays, dtype):
    x = arrays["tokens"] if dtype == "bf16" else reference.through_fp8(arrays["tokens"])
    index, weight = reference.gate(arrays["router"], arrays["bias"], 4, 2, 4)
    result, magnitude = reference.moe(x, index, weight, arrays["weights"])
    return result, magnitude, index


@pytest.mark.parametrize("mode", ["normal", "low-latency"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
# 37 tokens, 3 PEs: uneven; 3 tokens: a PE without any. Node size 2: two nodes.
@pytest.mark.parametrize(
    "pes, tokens, node_size", [(None, 24, 0), (4, 37, 0), (4, 3, 0), (4, 37, 2), (3, 20, 0)]
)
def test_output_is_that_of_numpy(
    run_program, inputs, tmp_path, monkeypatch, mode, dtype, pes, tokens, node_size
):
    monkeypatch.setenv("SHOAL_NODE_SIZE", str(node_size))
    arrays, options = inputs(tokens)
    options += ["--mode", mode, "--dtype", dtype, "--output", tmp_path / "out.f32"]
    result = run_program("shoal-moe", *options, *GATE, pes=pes)
    assert result.returncode == 0, result.stderr + result.stdout
    output = reference.load_output(tmp_path / "out.f32", HIDDEN)
    want, magnitude, _ = expected(arrays, dtype)
    assert output.shape == want.shape
    # Each PE's sum is rounded and, between nodes, each node's; in low latency, each expert's output
    # and each PE's sum.
    roundings = 2 if mode == "low-latency" or node_size else 1
    bound = 2.0**-8 * 1.02 * (roundings * magnitude + np.abs(want)) + 1e-5
    assert np.all(np.abs(output - want) <= bound)
    assert np.array_equal(output, reference.to_bf16(output)), "the result is bfloat16"
    assert "check: passed" in result.stdout


@pytest.mark.parametrize("mode", ["normal", "low-latency"])
@pytest.mark.parametrize("pes", [3, 4])
def test_json_figures_add_up(run_program, inputs, tmp_path, mode, pes):
    tokens, top_k = 37, 4
    tokens_of = [37 // pes + (pe < 37 % pes) for pe in range(pes)]
    experts_of = [EXPERTS // pes + (pe < EXPERTS % pes) for pe in range(pes)]
    arrays, options = inputs(tokens)
    result = run_program(
        "shoal-moe", *options, *GATE, "--mode", mode, "--json", tmp_path / "run.json", pes=pes
    )
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "run.json").read_text())
    per_pe = report["per_pe"]
    assert [pe["pe"] for pe in per_pe] == list(range(pes))
    assert [pe["tokens"] for pe in per_pe] == tokens_of
    assert [len(pe["expert_load"]) for pe in per_pe] == experts_of

    index = expected(arrays, "bf16")[2]
    owner = np.repeat(np.arange(pes), experts_of)[index]
    source = np.repeat(np.arange(pes), tokens_of)
    reaches = np.array([(owner == d).any(axis=1) for d in range(pes)])  # [PE, token]
    copies = np.array([[reaches[d, source == s].sum() for d in range(pes)] for s in range(pes)])
    assert [pe["rows_sent"] for pe in per_pe] == copies.sum(axis=1).tolist()
    assert [pe["rows_received"] for pe in per_pe] == copies.sum(axis=0).tolist()
    assert report["rows"] == copies.sum()
    load = np.bincount(index.ravel(), minlength=EXPERTS)
    assert (
        sum((pe["expert_load"] for pe in per_pe), []) == load.tolist()
        and load.sum() == tokens * top_k
    )

    assert report["passed"] is True and 0 < report["check"]["error_of_bound"] <= 1
    assert max(pe["error_of_bound"] for pe in per_pe) == report["check"]["error_of_bound"]
    for pe in per_pe:
        assert all(time > 0 for time in pe["phase_milliseconds"].values())
        assert {"gate", "experts"} < set(pe["phase_milliseconds"])


def test_seed_gives_the_same_result_on_any_number_of_pes(run_program, tmp_path):
    small = ["--tokens-per-pe", "12", "--hidden", "256", "--ffn", "16", "--experts", "32"]
    for name, pes, tokens in [("one", None, "12"), ("four", 4, "3"), ("again", 4, "3")]:
        small[1] = tokens
        assert (
            run_program(
                "shoal-moe", *small, "--output", tmp_path / f"{name}.f32", pes=pes
            ).returncode
            == 0
        )
    one, four, again = (
        reference.load_output(tmp_path / f"{name}.f32", 256) for name in ("one", "four", "again")
    )
    assert np.array_equal(four, again), "the same bits every time"
    assert np.linalg.norm(one - four) < 2.0**-7 * np.linalg.norm(one)


def test_skew_unbalances_the_load(run_program):
    largest = []
    for skew in ["0", "1"]:
        options = ["--skew", skew, "--hidden", "256", "--ffn", "8", "--no-check"]
        # Without a file, the document is all that is printed.
        result = run_program("shoal-moe", *options, "--json")
        assert result.returncode == 0, result.stderr
        largest.append(max(json.loads(result.stdout)["per_pe"][0]["expert_load"]))
    assert largest[1] > 3 * largest[0]


@pytest.mark.parametrize("pes", [None, 4])
@pytest.mark.parametrize("mode", ["normal", "low-latency"])
def test_failing_check_is_reported(run_program, inputs, pes, mode):
    result = run_program(
        "shoal-moe", *inputs(16)[1], *GATE, "--mode", mode, "--inject-error", pes=pes
    )
    assert result.returncode == 1
    assert "check: FAILED" in result.stdout


def own_lines(text):
    """Lines of standard error that are not shoal-run's own."""
    return [line for line in text.splitlines() if line and not line.startswith("shoal-run:")]


@pytest.mark.parametrize("pes", [None, 4])
@pytest.mark.parametrize(
    "spoil, message",
    [
        (
            lambda a: a.update(router=a["router"][:-1]),
            "router.f32: 1920 bytes; allowed: 2048 bytes, float32 rows of 32 values (--hidden, --ffn",
        ),
        (
            lambda a: a.update(bias=a["bias"][:-1]),
            "bias.f32: 124 bytes; allowed: 128 bytes, float32 rows of 32 values",
        ),
        (
            lambda a: a.update(tokens=a["tokens"][:, :-1]),
            "tokens.f32: 16320 bytes; allowed: multiples of 1024 bytes, float32 rows of 256 values",
        ),
        (lambda a: a["tokens"].__setitem__((13, 5), np.nan), "tokens.f32: element [13, 5] is nan"),
        (lambda a: a["router"].__setitem__((2, 31), np.inf), "router.f32: element [2, 31] is inf"),
        (lambda a: a["bias"].__setitem__(7, np.nan), "bias.f32: element [0, 7] is nan"),
        (lambda a: a["weights"].__setitem__((9, 1, 0), np.nan), "weights.f32: element [9, 8192]"),
        (
            lambda a: a.update(weights=a["weights"][:, :2]),
            "weights.f32: 2097152 bytes; allowed: 3145728 bytes, float32 rows of 24576 values",
        ),
    ],
)
def test_wrong_inputs_are_named_in_one_line(run_program, inputs, tmp_path, pes, spoil, message):
    arrays, options = inputs(16)
    spoil(arrays)
    reference.save_inputs(tmp_path, arrays)
    result = run_program("shoal-moe", *options, *GATE, pes=pes)
    assert result.returncode == 2
    lines = own_lines(result.stderr)
    assert len(lines) == 1 and message in lines[0], result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("pes", [None, 4])
@pytest.mark.parametrize(
    "options, message",
    [
        (["--tokens", "missing.f32"], "missing.f32: cannot be read: No such file or directory"),
        (["--tokens", "/"], "/: cannot be read: Is a directory"),
        (["--hidden", "252"], "--hidden is 252; allowed: multiples of 8"),
        (["--hidden", "264", "--dtype", "fp8"], "--hidden is 264; allowed: multiples of 16"),
        (["--ffn", "0"], "--ffn is 0; allowed: 1 to"),
        (["--mode", "fast"], "--mode: fast not in {normal,low-latency}"),
        (["--groups", "5"], "groups is 5"),
        (["--top-k", "129"], "top_k is 129"),
        (
            ["--json", "/nonexistent/a.json"],
            "--json /nonexistent/a.json: no file can be written there",
        ),
        (
            ["--output", "/nonexistent/a.f32"],
            "--output /nonexistent/a.f32: no file can be written there",
        ),
        (["--iterations", "0"], "--iterations"),
        (["--unknown"], "--unknown"),
    ],
)
def test_wrong_options_are_named_in_one_line(run_program, pes, options, message):
    result = run_program("shoal-moe", *options, pes=pes)
    assert result.returncode == 2
    lines = own_lines(result.stderr)
    assert len(lines) == 1 and message in lines[0], result.stderr


@pytest.mark.parametrize("mode", ["normal", "low-latency"])
def test_pes_may_have_no_experts(run_program, mode):
    gate = ["--experts", "3", "--groups", "1", "--groups-kept", "1", "--top-k", "2"]
    small = ["--mode", mode, "--hidden", "256", "--ffn", "8", "--ascii", "--pes", "4"]
    result = run_program("shoal-moe", *gate, *small)
    assert result.returncode == 0, result.stderr
    assert "3 experts (1 or 0 per PE)" in result.stdout and "check: passed" in result.stdout
    lines = result.stdout.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith(" PE"))
    assert len({len(line) for line in lines[head + 1 : head + 6]}) == 1, "columns are aligned"


def test_table_has_a_line_per_pe(run_program):
    result = run_program(
        "shoal-moe", "--tokens-per-pe", "8", "--hidden", "256", "--ffn", "8", "--ascii", pes=4
    )
    assert result.returncode == 0
    lines = [line.removeprefix("[0] ") for line in result.stdout.splitlines()]
    head = next(i for i, line in enumerate(lines) if line.startswith(" PE"))
    assert [line.split()[0] for line in lines[head + 1 : head + 6]] == ["0", "1", "2", "3", "all"]
    assert result.stdout.isascii()


def test_default_run_is_deepseek_v3_like(run_program, tmp_path):
    """The demo's own command line: 256 experts in 8 groups of which 4, top-8."""
    result = run_program("shoal-moe", "--json", tmp_path / "moe.json", pes=8)
    assert result.returncode == 0, result.stderr
    setup = json.loads((tmp_path / "moe.json").read_text())
    assert {key: setup[key] for key in ["experts", "groups", "groups_kept", "top_k"]} == {
        "experts": 256,
        "groups": 8,
        "groups_kept": 4,
        "top_k": 8,
    }
    for head in [
        "tokens",
        "sent",
        "recv",
        "load per expert",
        "dispatch",
        "experts",
        "combine",
        "GB/s",
        "error",
    ]:
        assert head in result.stdout, head
    assert "█" in result.stdout, "the fullest expert has a full bar"


def test_long_runs_show_progress(bin_dir):
    """Ends the run at the first line of progress: how many iterations take that long depends on
    the machine."""
    command = [bin_dir / "shoal-run", "-n", "2", bin_dir / "shoal-moe", "--tokens-per-pe", "64"]
    command += ["--hidden", "1024", "--iterations", "100000", "--no-check"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        overdue = threading.Timer(DEADLINE_S, run.terminate)
        overdue.start()
        line = run.stderr.readline()
        overdue.cancel()
        run.terminate()
    assert re.search(r"iteration: \d+ of 100000", line), line
