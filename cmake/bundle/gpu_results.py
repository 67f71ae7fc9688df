# SPDX-License-Identifier: Apache-2.0
"""Results of test programs: read from GoogleTest, collected, printed and saved.

The result of a test is a dict: name, result (passed, failed or skipped), seconds, message."""

import json
import re
import time
from xml.etree import ElementTree

import gpu_machine

SHOWN_LINES = 25


def outcome(name, result, seconds=0.0, message=""):
    return {"name": name, "result": result, "seconds": round(seconds, 3), "message": message}


def output_of(test, text):
    """The output between the first and the last line of a test."""
    match = re.search(
        r"^\[ RUN      \] "
        + re.escape(test)
        + r"\n(.*?)(?=\[ +(?:OK|SKIPPED|FAILED) +\] |^\[ RUN      \] |^\[-{10}\]|\Z)",
        text,
        re.MULTILINE | re.DOTALL,
    )
    return match[1] if match else text


class Run:
    """All results so far. Every program that is added updates the files in ``out``."""

    def __init__(self, name, out, only_host_side):
        self.name, self.out, self.only_host_side = name, out, only_host_side
        self.machine = gpu_machine.describe_machine()
        self.programs, self.log = [], []
        self.start = time.monotonic()
        out.mkdir(parents=True, exist_ok=True)

    def add(self, program, tests, seconds):
        self.programs.append({"program": program, "seconds": round(seconds, 2), "tests": tests})
        self.save()
        counts = {
            result: sum(test["result"] == result for test in tests)
            for result in ("passed", "failed", "skipped")
        }
        print(
            f"{program:<44} {counts['passed']:>5} passed {counts['failed']:>4} failed {counts['skipped']:>4} skipped "
            f"{seconds:>7.1f} s",
            flush=True,
        )
        for test in tests:
            if test["result"] == "failed":
                print(
                    f"  FAILED {test['name']}\n"
                    + "".join(f"    | {line}\n" for line in test["message"].splitlines()),
                    end="",
                    flush=True,
                )

    def record(self, title, finished):
        """Adds the output of a program to the log."""
        self.log.append(
            f"===== {title}: {finished.in_words()} after {finished.seconds:.1f} s\n{finished.output}"
        )

    def total(self, result):
        return sum(
            test["result"] == result for program in self.programs for test in program["tests"]
        )

    def empty(self):
        """Whether no GPU test passed, in a run that was not asked for tests of the host only."""
        named = self.only_host_side
        return not any(
            test["result"] == "passed"
            for program in self.programs
            for test in program["tests"]
            if named or program["program"].startswith(("gpu_", "nvshmem_gpu_"))
        )

    def failed(self):
        return self.total("failed") > 0 or self.empty()

    def save(self):
        summary = {
            "run": self.name,
            "machine": self.machine,
            "seconds": round(time.monotonic() - self.start, 1),
            **{result: self.total(result) for result in ("passed", "failed", "skipped")},
            "programs": self.programs,
        }
        (self.out / f"{self.name}-summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        (self.out / f"{self.name}.log").write_text("\n".join(self.log))
        root = ElementTree.Element("testsuites", name=self.name)
        for program in self.programs:
            suite = ElementTree.SubElement(
                root,
                "testsuite",
                name=program["program"],
                tests=str(len(program["tests"])),
                failures=str(sum(t["result"] == "failed" for t in program["tests"])),
                skipped=str(sum(t["result"] == "skipped" for t in program["tests"])),
                time=str(program["seconds"]),
            )
            for test in program["tests"]:
                case = ElementTree.SubElement(
                    suite,
                    "testcase",
                    classname=program["program"],
                    name=test["name"],
                    time=str(test["seconds"]),
                )
                if test["result"] != "passed":
                    kind = "failure" if test["result"] == "failed" else "skipped"
                    # XML does not allow other control characters, such as those of colours.
                    message = re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd]", "?", test["message"])
                    ElementTree.SubElement(case, kind).text = message
        ElementTree.ElementTree(root).write(
            self.out / f"{self.name}.xml", encoding="utf-8", xml_declaration=True
        )

    def close(self):
        print(
            f"\n{gpu_machine.in_words(self.machine)}\n{self.total('passed')} passed, {self.total('failed')} failed, "
            f"{self.total('skipped')} skipped; results in {self.out}"
        )
        reasons = {}
        for program in self.programs:
            for test in program["tests"]:
                if test["result"] == "skipped":
                    lines = test["message"].strip().splitlines() or ["no reason given"]
                    reasons.setdefault(lines[-1], []).append(test)
        for reason, tests in reasons.items():
            print(f"  skipped, {len(tests)} tests: {reason}")
        if self.empty():
            print("no test on a GPU passed: this run shows nothing")


def results_in(path):
    """The results in GoogleTest's XML; none if the program ended before it wrote the file."""
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, FileNotFoundError):
        return []
    tests = []
    for case in root.iter("testcase"):
        failures, skips = case.findall("failure"), case.findall("skipped")
        if case.get("status") != "run" and not skips:
            continue
        result = (
            "failed"
            if failures
            else "skipped"
            if skips or case.get("result") == "skipped"
            else "passed"
        )
        messages = [element.get("message", "") for element in failures or skips]
        name = f"{case.get('classname')}.{case.get('name')}"
        tests.append(outcome(name, result, float(case.get("time", 0)), "\n".join(messages)))
    return tests


def results_from_output(text):
    """The same from the output of a program that crashed or was killed. The test that was running
    counts as failed."""
    tests = []
    started = re.findall(r"^\[ RUN      \] (\S+)$", text, re.MULTILINE)
    for name in started:
        # The closing line may follow other output on the same line.
        match = re.search(
            r"\[ +(OK|SKIPPED|FAILED) +\] " + re.escape(name) + r"\b.*? \((\d+) ms\)", text
        )
        shown = gpu_machine.last_lines(output_of(name, text), SHOWN_LINES)
        if match:
            result = {"OK": "passed", "SKIPPED": "skipped", "FAILED": "failed"}[match[1]]
            message = "" if result == "passed" else shown
            tests.append(outcome(name, result, int(match[2]) / 1000, message))
        else:
            tests.append(outcome(name, "failed", message=shown))
    return tests
