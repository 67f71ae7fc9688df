# SPDX-License-Identifier: Apache-2.0
"""Runs programs of the bundle until a deadline and reads their results. A test is a dict: name,
result (passed, failed or skipped), seconds, message. The functions run_... return the tests and the
output of a step, that of a benchmark also its result."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import typing

BUNDLE = pathlib.Path(__file__).resolve().parent
BIN = BUNDLE / "bin"
SHOWN_LINES = 25
SANITIZER_TOOLS = {
    "memcheck": ["--tool", "memcheck"],
    "racecheck": ["--tool", "racecheck", "--racecheck-report", "all"],
}
# Reads beyond its memory: a tool that does not report it has observed nothing.
SANITIZER_CONTROL = "*DISABLED_Control"
SANITIZER_FINDINGS = 86  # the exit status that stands for findings
SKIPPED = 77  # the exit status of an example that lacks a GPU
MOE = ["--backend", "cuda", "--pes", "8"]  # shoal-moe: a whole layer, its result against float64
MOE_LACKS = ("--backend cuda is not possible here", "needs the library cuBLASLt")  # it cannot run
RESTARTS = 8


class Finished(typing.NamedTuple):
    status: int | None  # exit status; None: killed at its deadline
    output: str
    seconds: float

    def in_words(self):
        """How the program ended, and the last lines of its output."""
        how = f"exit status {self.status}"
        if self.status is None:
            how = f"killed at its deadline after {self.seconds:.0f} s"
        elif self.status < 0:
            how = f"ended by {signal.Signals(-self.status).name}"
        return f"{how}\n{last_lines(self.output)}"


def last_lines(text, count=SHOWN_LINES):
    return "\n".join(text.rstrip().splitlines()[-count:])


def run(command, end, eager=True):
    """Runs `command` until `end` at most; what it leaves running is killed. Output goes through a
    file: a pipe would be held open by whatever outlives the program. `eager`: all device code is
    loaded at once. Loading a kernel when it is first used waits for the GPU, on which, where PEs
    share it, another PE may be waiting for that kernel."""
    # Eight PEs may be threads that share one GPU: each of their streams needs a hardware queue of
    # its own, or one PE's waiting kernel blocks the kernel that it waits for.
    variables = {**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    variables |= {"SHOAL_BIN_DIR": str(BIN), "PYTHONPATH": str(BUNDLE / "python")}
    variables["COLUMNS"] = "400"  # pytest cuts reasons off
    if eager:
        variables["CUDA_MODULE_LOADING"] = "EAGER"
    # The toolkit: for libraries that are opened at run time, such as cuBLASLt.
    paths = [os.environ.get("LD_LIBRARY_PATH"), "/usr/local/cuda/lib64"]
    variables["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        words, files = list(map(str, command)), {"stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, env=variables, start_new_session=True, **files
        )
        status = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(timeout=max(end - start, 1))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        return Finished(status, output.read().decode(errors="replace"), time.monotonic() - start)


def run_with_json(command, end, eager=True):
    """(how it ended, what it wrote with --json or None)."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "result.json"
        finished = run([*command, "--json", path], end, eager)
        try:  # what a program that failed had measured until then counts as well
            return finished, json.loads(path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return finished, None


def outcome(name, result, seconds=0.0, message=""):
    return {"name": name, "result": result, "seconds": round(seconds, 3), "message": message}


def run_pytest(file, end):
    """All tests of a file. A test without a result was running at the end."""
    options = ["-v", "-p", "no:cacheprovider", "--color=no", "--disable-warnings"]
    finished = run([sys.executable, "-m", "pytest", *options, file], end)
    line = r"^\S+?\.py::(.+?) *(?:(PASSED|SKIPPED|FAILED|ERROR)(?: \((.*)\))? *\[.*|)$"
    tests = []
    for name, word, reason in re.findall(line, finished.output, re.MULTILINE):
        result = {"PASSED": "passed", "SKIPPED": "skipped"}.get(word, "failed")
        tests.append(outcome(name, result, message=reason))
    bad = [test for test in tests if test["result"] == "failed"]
    if finished.status not in (0, 5):  # 5: it has no test
        bad = bad or [outcome("(the program)", "failed")]
        tests += [test for test in bad if test not in tests]
        bad[-1]["message"] = finished.in_words()
    return {"tests": tests, "output": finished.output}


def googletest_results(text):
    """The results in the output of a program, and whether the last test has not ended."""
    parts, tests, ended = re.split(r"^\[ RUN      \] (\S+)\n", text, flags=re.MULTILINE), [], True
    for name, output in zip(parts[1::2], parts[2::2]):
        # The closing line may follow other output on the same line.
        closing = r"\[ +(OK|SKIPPED|FAILED) +\] " + re.escape(name) + r"\b.*? \((\d+) ms\)"
        ended = re.search(closing, output)
        result = {"OK": "passed", "SKIPPED": "skipped"}.get(ended[1] if ended else "", "failed")
        shown = last_lines(output[: ended.start()] if ended else output)
        seconds = int(ended[2]) / 1000 if ended else 0
        tests.append(outcome(name, result, seconds, "" if result == "passed" else shown))
    return tests, not ended


def run_googletest(program, pattern, end):
    """All tests of a program; after a crash once more without those that were begun."""
    tests, output = [], []
    for _ in range(RESTARTS):
        begun = ":".join(test["name"] for test in tests)
        without = (":" if "-" in pattern else "-") + begun if begun else ""
        given = [f"--gtest_filter={pattern}{without}", "--gtest_color=no"]
        finished = run([program, *given], end)
        output.append(finished.output)
        new, within_a_test = googletest_results(finished.output)
        tests += new
        if within_a_test:
            new[-1]["message"] = finished.in_words()
            if finished.status is not None:
                continue
        elif finished.status != any(test["result"] == "failed" for test in new):
            tests.append(outcome("(the program)", "failed", message=finished.in_words()))
        break
    return {"tests": tests, "output": "\n".join(output)}


def run_example(program, end):
    """One result: an example or a program on nvshmem.h ends with 0, or with 77 where it lacks a
    GPU. Programs on nvshmem.h have two PEs."""
    launcher = [BIN / "shoal-run", "-n", "2"] if "nvshmem" in program.name else []
    finished = run([*launcher, program], end)
    result = {0: "passed", SKIPPED: "skipped"}.get(finished.status, "failed")
    message = "" if result == "passed" else finished.in_words()
    test = outcome(program.name, result, finished.seconds, message)
    return {"tests": [test], "output": finished.output}


def run_moe(mode, dtype, end):
    """One result: shoal-moe's check of the layer, with its largest error."""
    command = [BIN / "shoal-moe", *MOE, "--mode", mode, "--dtype", dtype]
    finished, report = run_with_json(command, end)
    check = (report or {}).get("check")
    lacks = finished.status == 2 and any(reason in finished.output for reason in MOE_LACKS)
    passed = finished.status == 0 and check
    result = "passed" if passed else "skipped" if lacks else "failed"
    message = "" if passed else last_lines(finished.output, 1) if lacks else finished.in_words()
    test = outcome(f"{mode} {dtype}", result, finished.seconds, message)
    return {"tests": [{**test, "check": check}], "output": finished.output}


def run_benchmark(command, eager, end):
    """One result, and what the benchmark measured."""
    finished, result = run_with_json(command, end, eager)
    passed = finished.status == 0 and result is not None
    message = "" if passed else finished.in_words()
    test = outcome("results", "passed" if passed else "failed", finished.seconds, message)
    return {"tests": [test], "output": finished.output, "result": result}


def run_sanitizer(tool, program, pattern, end):
    """One result: the program under the tool. The tool "control": memcheck finds the fault that the
    program's control has."""
    control = tool == "control"
    status = ["--error-exitcode", SANITIZER_FINDINGS, "--print-limit", 20]
    sanitizer = ["compute-sanitizer", *SANITIZER_TOOLS["memcheck" if control else tool], *status]
    tests = [program, f"--gtest_filter={pattern}", "--gtest_color=no"]
    tests += ["--gtest_also_run_disabled_tests"] * control
    finished = run([*sanitizer, "--target-processes", "all", *tests], end)
    text = finished.output
    summaries = r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)"
    findings = sum(int(a or b) for a, b in re.findall(summaries, text))
    count = len(re.findall(r"^\[       OK \]", text, re.MULTILINE))
    result, message = "passed", ""
    if control:
        if findings == 0 or "Invalid __global__ read" not in text:
            result, message = "failed", f"the fault was not found\n{last_lines(text)}"
    elif finished.status == 0 and count == 0 and "[  SKIPPED ]" in text:
        result, message = "skipped", "all of its tests were skipped"
    elif finished.status != 0 or count == 0 or findings > 0:
        wrong = [line for line in text.splitlines() if line.startswith("=========")]
        told = [f"{findings} findings", *wrong[:SHOWN_LINES], finished.in_words()]
        result, message = "failed", "\n".join(told)
    test = outcome(f"{tool} ({count} tests)", result, finished.seconds, message)
    return {"tests": [test], "output": text}
