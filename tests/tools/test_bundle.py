# SPDX-License-Identifier: Apache-2.0
"""The bundle runs where it is moved to, and its scripts report what happened: a test that was
skipped does not count as passed."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NO_GPU = not pathlib.Path("/dev/nvidiactl").exists()


@pytest.fixture(scope="module")
def bundle(bin_dir, tmp_path_factory):
    made = tmp_path_factory.mktemp("made") / "bundle"
    subprocess.run(
        [
            sys.executable,
            ROOT / "cmake/bundle/make_bundle.py",
            "--build",
            bin_dir.parent,
            "--output",
            made,
        ],
        check=True,
        timeout=120,
    )
    moved = tmp_path_factory.mktemp("moved") / "elsewhere"
    shutil.move(made, moved)
    return moved


def run(*command, first_path=None):
    environment = {
        "PATH": os.pathsep.join(str(part) for part in (first_path, os.environ["PATH"]) if part),
        "HOME": "/nonexistent",
    }
    return subprocess.run(
        [str(word) for word in command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def fake_test(bundle, name, body):
    """A test program of the bundle that is a script."""
    path = bundle / "bin" / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_programs_find_their_libraries_beside_them(bundle):
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert {"shoal-run", "shoal-info", "shoal-moe", "shoal-bench", "example_hello"} <= set(
        manifest["programs"]
    )
    assert {"libshoal.so.0", "libshoal_ep.so.0"} <= set(manifest["libraries"])
    assert sum(path.stat().st_size for path in bundle.rglob("*")) < 56 << 20
    loaded = run("ldd", bundle / "bin/shoal-bench").stdout
    assert "not found" not in loaded
    for name in manifest["libraries"]:
        for line in loaded.splitlines():
            if line.strip().startswith(name + " "):
                assert f"{bundle}/" in line
    hello = run(bundle / "bin/shoal-run", "-n", "2", bundle / "bin/example_hello")
    assert hello.returncode == 0, hello.stderr
    assert "PE 1 of 2 got 100" in hello.stdout


def test_refuses_to_replace_a_folder_that_is_no_bundle(bin_dir, tmp_path):
    (tmp_path / "precious").write_text("mine")
    result = run(
        sys.executable,
        ROOT / "cmake/bundle/make_bundle.py",
        "--build",
        bin_dir.parent,
        "--output",
        tmp_path,
    )
    assert result.returncode != 0
    assert "is no bundle" in result.stderr
    assert (tmp_path / "precious").exists()


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")
def test_gpu_tests_without_a_gpu_are_skipped_and_the_run_fails(bundle, tmp_path):
    programs = sorted((bundle / "bin").glob("gpu_*_test"))
    if not programs:
        pytest.skip("this build has no GPU tests (no CUDA compiler)")
    result = run(bundle / "run-gpu-tests", "gpu_", "--out", tmp_path)
    summary = json.loads((tmp_path / "gpu-tests-summary.json").read_text())
    assert result.returncode == 1, result.stdout
    assert summary["passed"] == 0 and summary["failed"] == 0 and summary["skipped"] > 0, (
        result.stdout
    )
    assert "no test on a GPU passed" in result.stdout
    assert len(list(tmp_path.iterdir())) <= 8


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")
def test_gpu_benchmark_without_a_gpu_measures_nothing(bundle, tmp_path):
    result = run(bundle / "run-gpu-bench", "--quick", "--out", tmp_path)
    assert result.returncode != 0
    assert "no GPU is visible" in result.stderr


# What GoogleTest prints; the scripts below stand for programs that crash, hang and report.
CRASHES = """for word in "$@"; do
  case "$word" in --gtest_output=xml:*) results=${word#--gtest_output=xml:};; esac
done
[ "$1" = --gtest_list_tests ] && { echo 'Case.'; echo '  First'; exit 0; }
case "$*" in *-Case.First:Case.Second*)
  { echo '<testsuites><testsuite><testcase classname="Case" name="Third" status="run"'
    echo 'result="completed" time="0.1"/></testsuite></testsuites>'; } >"$results"
  exit 0;; esac
echo '[ RUN      ] Case.First'; echo '[       OK ] Case.First (3 ms)'
echo '[ RUN      ] Case.Second'; echo 'about to crash'; kill -SEGV $$"""
HANGS = """[ "$1" = --gtest_list_tests ] && { echo 'Case.'; echo '  Waits'; exit 0; }
echo '[ RUN      ] Case.Waits'; echo 'still waiting'; exec sleep 60"""


def test_programs_of_nvshmem_have_two_pes(bundle, tmp_path):
    program = fake_test(bundle, "nvshmem_gpu_of_two", "echo a PE is here")
    result = run(bundle / "run-gpu-tests", program.name, "--out", tmp_path)
    program.unlink()
    assert result.returncode == 0, result.stdout
    assert (tmp_path / "gpu-tests.log").read_text().count("a PE is here") == 2


def test_a_crash_is_reported_and_the_other_tests_still_run(bundle, tmp_path):
    program = fake_test(bundle, "gpu_crashing_test", CRASHES)
    result = run(bundle / "run-gpu-tests", program.name, "--out", tmp_path)
    assert result.returncode == 1
    assert (
        "FAILED Case.Second" in result.stdout
        and "SIGSEGV" in result.stdout
        and "about to crash" in result.stdout
    )
    tests = json.loads((tmp_path / "gpu-tests-summary.json").read_text())["programs"][0]["tests"]
    assert [(test["name"], test["result"]) for test in tests] == [
        ("Case.First", "passed"),
        ("Case.Second", "failed"),
        ("Case.Third", "passed"),
    ]


def test_a_hang_is_ended_and_named(bundle, tmp_path):
    program = fake_test(bundle, "gpu_hanging_test", HANGS)
    result = run(bundle / "run-gpu-tests", program.name, "--out", tmp_path, "--timeout", "2")
    assert result.returncode == 1
    assert (
        "FAILED Case.Waits" in result.stdout
        and "killed at its deadline" in result.stdout
        and "still waiting" in result.stdout
    )
    assert "still waiting" in (tmp_path / "gpu-tests.log").read_text()


# Imitates shoal-moe: the layer is right except for one form; and its exit status if it cannot run.
MOE = """for word in "$@"; do [ "$before" = --json ] && results=$word; before=$word; done
case "$*" in *"--mode low-latency --dtype fp8"*) echo 'check: FAILED'; exit 1;; esac
echo '{"check": {"worst_error": 0.5}}' > "$results" """
MOE_WITHOUT_GPU = "echo 'shoal: --backend cuda is not possible here: none'; exit 2"


@pytest.mark.parametrize(
    "body, results",
    [(MOE, ["passed", "passed", "passed", "failed"]), (MOE_WITHOUT_GPU, ["skipped"] * 4)],
)
def test_the_layer_is_a_step_of_the_gpu_tests(bundle, tmp_path, body, results):
    copy = tmp_path / "bundle"
    shutil.copytree(bundle, copy, ignore=shutil.ignore_patterns("*_test", "shoal-*"))
    fake_test(copy, "shoal-moe", body)
    result = run(copy / "run-gpu-tests", "shoal-moe", "--out", tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    summary = json.loads((tmp_path / "gpu-tests-summary.json").read_text())
    tests = summary["programs"][0]["tests"]
    assert [test["result"] for test in tests] == results
    assert [test["name"] for test in tests] == [
        "normal bf16",
        "normal fp8",
        "low-latency bf16",
        "low-latency fp8",
    ]
    assert tests[0]["check"] == ({"worst_error": 0.5} if results[0] == "passed" else None)
    # Nothing of that name in it.
    assert (
        run(
            copy / "run-gpu-tests", "shoal-moe", "--gtest_filter=Case.*", "--out", tmp_path
        ).returncode
        == 1
    )


SANITIZER = """case "$*" in *--version*) exit 0;; esac
for word in "$@"; do
  case "$word" in --gtest_filter=*) echo "filter ${word#--gtest_filter=}";; esac
done
case "$*" in *DISABLED_Control*)
  echo 'Invalid __global__ read of size 16'; echo 'ERROR SUMMARY: 1 error'; exit 86;; esac
echo '[       OK ] Case.First (3 ms)'; echo 'ERROR SUMMARY: 0 errors'"""


def script(bundle):
    """run-gpu-tests as a module."""
    sys.path.insert(0, str(bundle))
    try:
        loader = importlib.machinery.SourceFileLoader(
            "run_gpu_tests", str(bundle / "run-gpu-tests")
        )
        module = importlib.util.module_from_spec(
            importlib.util.spec_from_loader(loader.name, loader)
        )
        loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(bundle))


def test_the_sanitizer_takes_tests_that_exist(bundle, tmp_path):
    wanted = script(bundle).SANITIZER_TESTS
    programs = {path.name: path for path in (bundle / "bin").glob("gpu_*_test")}
    if not wanted.keys() <= programs.keys():
        pytest.skip("this build has no GPU tests (no CUDA compiler)")
    for name, pattern in wanted.items():
        listing = run(programs[name], "--gtest_list_tests", f"--gtest_filter={pattern}").stdout
        assert any(line.startswith("  ") for line in listing.splitlines()), (
            f"{name} has no test {pattern}"
        )
    tool = tmp_path / "tools" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{SANITIZER}\n")
    tool.chmod(0o755)
    result = run(bundle / "run-gpu-tests", "--sanitizer", "--out", tmp_path, first_path=tool.parent)
    assert result.returncode == 0, result.stdout + result.stderr
    runs = json.loads((tmp_path / "gpu-sanitizer-summary.json").read_text())["programs"]
    assert sorted(run["program"] for run in runs) == sorted(
        [
            "gpu_ep_processes_test control",
            *(f"{name} {tool}" for name in wanted for tool in ("memcheck", "racecheck")),
        ]
    )
    log = (tmp_path / "gpu-sanitizer.log").read_text()
    assert all(f"filter {pattern}\n" in log for pattern in wanted.values())
