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


@pytest.fixture
def empty_bundle(bundle, tmp_path):
    """A copy of the bundle without programs but shoal-run."""
    copy = tmp_path / "bundle"
    (copy / "bin").mkdir(parents=True)
    for name in ("run-gpu", "gpu_programs.py", "manifest.json", "bin/shoal-run"):
        shutil.copy(bundle / name, copy / name)
    (copy / "lib").symlink_to(bundle / "lib")
    return copy


def runs_in(path):
    """{name of a step: what the result file has of it}"""
    return {run["name"]: run for run in json.loads(path.read_text())["runs"]}


def test_programs_find_their_libraries_next_to_them(bundle):
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert {"shoal-run", "shoal-info", "shoal-moe", "shoal-bench", "example_hello"} <= set(
        manifest["programs"]
    )
    abi = (ROOT / "VERSION").read_text().rpartition(".")[0]
    assert {f"libshoal.so.{abi}", f"libshoal_ep.so.{abi}"} <= set(manifest["libraries"])
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


def test_python_packages_and_drivers_are_in_it(bundle, bin_dir):
    if not (bin_dir.parent / "python/shoal").exists():
        pytest.skip("this build has no Python packages")
    assert (bundle / "python/deep_ep/__init__.py").is_file()
    assert (bundle / "bench/deep_ep_pairs.py").is_file()
    assert not [path for path in bundle.rglob("*") if path.is_symlink()]
    code = "import shoal, pytest; print(shoal.__file__, pytest.__file__)"
    environment = {"PYTHONPATH": str(bundle / "python"), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert all(path.startswith(f"{bundle}/python/") for path in done.stdout.split())


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
def test_without_a_gpu_steps_are_skipped_and_the_run_fails(bundle, tmp_path):
    if not list((bundle / "bin").glob("gpu_*_test")):
        pytest.skip("this build has no GPU tests (no CUDA compiler)")
    out = tmp_path / "results.json"
    result = run(bundle / "run-gpu", "gpu_", "bench", "--out", out)
    assert result.returncode == 1, result.stdout + result.stderr
    tests = [test for one in runs_in(out).values() for test in one["tests"]]
    assert {test["result"] for test in tests} == {"skipped"}
    assert "no test on a GPU passed" in result.stdout
    assert "no GPU is visible" in result.stdout
    assert list(tmp_path.iterdir()) == [out]


# Output of GoogleTest: the scripts stand for programs that crash, hang and report.
CRASHES = """case "$*" in *-Case.First:Case.Second*)
  echo '[ RUN      ] Case.Third'; echo '[       OK ] Case.Third (100 ms)'
  exit 0;; esac
echo '[ RUN      ] Case.First'; echo '[       OK ] Case.First (3 ms)'
echo '[ RUN      ] Case.Second'; echo 'about to crash'; kill -SEGV $$"""
HANGS = """echo '[ RUN      ] Case.Waits'; echo 'still waiting'; exec sleep 60"""
PASSES = """echo '[ RUN      ] Case.Passes'; echo '[       OK ] Case.Passes (3 ms)'"""
FAILS = """echo '[ RUN      ] Case.Fails'; echo 'why it failed'
echo '[  FAILED  ] Case.Fails (3 ms)'; exit 1"""
ENDS_BADLY = PASSES + "; exit 3"


def test_programs_of_nvshmem_have_two_pes(empty_bundle, tmp_path):
    out = tmp_path / "results.json"
    fake_test(empty_bundle, "nvshmem_gpu_of_two", "echo a PE is here")
    result = run(empty_bundle / "run-gpu", "nvshmem_gpu_of_two", "--out", out)
    assert result.returncode == 0, result.stdout
    assert runs_in(out)["nvshmem_gpu_of_two"]["output"].count("a PE is here") == 2


def test_a_crash_is_reported_and_the_other_tests_still_run(empty_bundle, tmp_path):
    out = tmp_path / "results.json"
    fake_test(empty_bundle, "gpu_crashing_test", CRASHES)
    result = run(empty_bundle / "run-gpu", "gpu_crashing_test", "--out", out)
    assert result.returncode == 1
    for words in ("FAILED Case.Second", "SIGSEGV", "about to crash"):
        assert words in result.stdout
    tests = runs_in(out)["gpu_crashing_test"]["tests"]
    assert [(test["name"], test["result"], test["seconds"]) for test in tests] == [
        ("Case.First", "passed", 0.003),
        ("Case.Second", "failed", 0),
        ("Case.Third", "passed", 0.1),
    ]


def test_a_hang_is_ended_and_named(empty_bundle, tmp_path):
    out = tmp_path / "results.json"
    fake_test(empty_bundle, "gpu_hanging_test", HANGS)
    result = run(empty_bundle / "run-gpu", "gpu_hanging_test", "--out", out, "--timeout", "2")
    assert result.returncode == 1
    for words in ("FAILED Case.Waits", "killed at its deadline", "still waiting"):
        assert words in result.stdout
    assert "still waiting" in runs_in(out)["gpu_hanging_test"]["output"]


def test_failures_keep_their_output_and_a_bad_end_is_a_failure(empty_bundle, tmp_path):
    out = tmp_path / "results.json"
    fake_test(empty_bundle, "gpu_failing_test", FAILS)
    fake_test(empty_bundle, "gpu_ending_test", ENDS_BADLY)
    result = run(empty_bundle / "run-gpu", "gpu_", "--out", out)
    assert result.returncode == 1
    runs = runs_in(out)
    assert "why it failed" in runs["gpu_failing_test"]["tests"][0]["message"]
    passed, program = runs["gpu_ending_test"]["tests"]
    assert passed["result"] == "passed"
    assert program["result"] == "failed" and "exit status 3" in program["message"]


def test_a_run_continues_where_its_time_ended(empty_bundle, tmp_path):
    """Steps that are finished are not repeated; one that the end of the time has cut short is."""
    out, counts = tmp_path / "results.json", tmp_path / "counts"
    counts.mkdir()
    again = f"echo >> {counts}/$(basename $0)"
    fake_test(empty_bundle, "gpu_a_test", f"{again}\n{PASSES}")
    slow = tmp_path / "slow"
    slow.touch()
    fake_test(empty_bundle, "gpu_b_test", f"{again}\n[ -e {slow} ] && exec sleep 60\n{PASSES}")
    fake_test(empty_bundle, "gpu_c_test", f"{again}\n{PASSES}")
    command = [empty_bundle / "run-gpu", "gpu_", "--out", out]
    result = run(*command, "--seconds", "8")
    assert result.returncode == 75, result.stdout + result.stderr
    assert "2 of 3 steps are left" in result.stdout
    assert list(runs_in(out)) == ["gpu_a_test"]
    slow.unlink()
    result = run(*command)
    assert result.returncode == 0, result.stdout + result.stderr
    assert list(runs_in(out)) == ["gpu_a_test", "gpu_b_test", "gpu_c_test"]
    calls = {path.name: len(path.read_text().splitlines()) for path in counts.iterdir()}
    assert calls == {"gpu_a_test": 1, "gpu_b_test": 2, "gpu_c_test": 1}
    # Nothing is left; the result is that of both commands.
    result = run(*command)
    assert result.returncode == 0 and "3 passed, 0 failed" in result.stdout
    # A step that had all of the time is not tried for ever.
    out.unlink()
    fake_test(empty_bundle, "gpu_a_test", HANGS)
    result = run(*command, "--seconds", "2")
    assert result.returncode == 75
    assert runs_in(out)["gpu_a_test"]["tests"][0]["result"] == "failed"


def test_results_of_another_bundle_are_refused(empty_bundle, tmp_path):
    out = tmp_path / "results.json"
    out.write_text(json.dumps({"bundle": "another", "runs": []}))
    result = run(empty_bundle / "run-gpu", "gpu_", "--out", out)
    assert result.returncode == 1
    assert f"{out} is of another bundle" in result.stderr


def test_results_of_pytest_are_those_of_its_tests(bundle, tmp_path):
    pytest_file = tmp_path / "test_some.py"
    pytest_file.write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('word', ['a b', 'c'])\n"
        "def test_passes(word): print('::noise PASSED')\n"
        "def test_skips(): pytest.skip('needs a (large) GPU')\n"
        "def test_fails(): assert 1 == 2\n"
    )
    tests = programs_of(bundle).run_pytest(pytest_file, float("inf"))["tests"]
    assert [(test["name"], test["result"]) for test in tests] == [
        ("test_passes[a b]", "passed"),
        ("test_passes[c]", "passed"),
        ("test_skips", "skipped"),
        ("test_fails", "failed"),
    ]
    assert tests[2]["message"] == "needs a (large) GPU"
    assert "assert 1 == 2" in tests[3]["message"]


# Imitates shoal-moe: the layer is right except for one form; and its exit status if it cannot run.
MOE = """for word in "$@"; do [ "$before" = --json ] && results=$word; before=$word; done
case "$*" in *"--mode low-latency --dtype fp8"*) echo 'check: FAILED'; exit 1;; esac
echo '{"check": {"worst_error": 0.5}}' > "$results" """
MOE_WITHOUT_GPU = "echo 'shoal: --backend cuda is not possible here: none'; exit 2"


@pytest.mark.parametrize(
    "body, results",
    [(MOE, ["passed", "passed", "passed", "failed"]), (MOE_WITHOUT_GPU, ["skipped"] * 4)],
)
def test_the_layer_is_a_step_of_the_gpu_tests(empty_bundle, tmp_path, body, results):
    out = tmp_path / "results.json"
    fake_test(empty_bundle, "shoal-moe", body)
    result = run(empty_bundle / "run-gpu", "shoal-moe", "--out", out)
    assert result.returncode == 1, result.stdout + result.stderr
    runs = runs_in(out)
    layers = ["normal bf16", "normal fp8", "low-latency bf16", "low-latency fp8"]
    assert list(runs) == [f"shoal-moe {layer}" for layer in layers]
    tests = [test for one in runs.values() for test in one["tests"]]
    assert [test["result"] for test in tests] == results
    assert tests[0]["check"] == ({"worst_error": 0.5} if results[0] == "passed" else None)
    # No test of GoogleTest is in it.
    filtered = run(empty_bundle / "run-gpu", "shoal-moe", "--gtest_filter=Case.*", "--list")
    assert filtered.stdout.strip() == ""


SANITIZER = """for word in "$@"; do
  case "$word" in --gtest_filter=*) echo "filter ${word#--gtest_filter=}";; esac
done
case "$*" in *DISABLED_Control*)
  echo 'Invalid __global__ read of size 16'; echo 'ERROR SUMMARY: 1 error'; exit 86;; esac
echo '[       OK ] Case.First (3 ms)'; echo 'ERROR SUMMARY: 0 errors'"""


def module_of(bundle, name):
    """A script of the bundle as a module."""
    sys.path.insert(0, str(bundle))
    try:
        loader = importlib.machinery.SourceFileLoader(
            name.replace("-", "_").removesuffix(".py"), str(bundle / name)
        )
        module = importlib.util.module_from_spec(
            importlib.util.spec_from_loader(loader.name, loader)
        )
        loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(bundle))


def programs_of(bundle):
    return module_of(bundle, "gpu_programs.py")


def test_the_sanitizer_takes_tests_that_exist(bundle, tmp_path):
    wanted = module_of(bundle, "run-gpu").SANITIZER_TESTS
    programs = {path.name: path for path in (bundle / "bin").glob("gpu_*_test")}
    if not wanted.keys() <= programs.keys():
        pytest.skip("this build has no GPU tests (no CUDA compiler)")
    for name, pattern in wanted.items():
        listing = run(programs[name], "--gtest_list_tests", f"--gtest_filter={pattern}").stdout
        assert any(line.startswith("  ") for line in listing.splitlines()), (
            f"{name} has no test {pattern}"
        )
    control = run(programs["gpu_ep_processes_test"], "--gtest_list_tests").stdout
    assert "DISABLED_Control" in control
    tool, out = tmp_path / "tools" / "compute-sanitizer", tmp_path / "results.json"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{SANITIZER}\n")
    tool.chmod(0o755)
    result = run(bundle / "run-gpu", "--sanitizer", "--out", out, first_path=tool.parent)
    assert result.returncode == 0, result.stdout + result.stderr
    runs = runs_in(out)
    assert list(runs) == [
        "gpu_ep_processes_test control",
        *(f"{name} {tool}" for tool in ("memcheck", "racecheck") for name in wanted),
    ]
    for name, pattern in wanted.items():
        assert f"filter {pattern}\n" in runs[f"{name} memcheck"]["output"]
