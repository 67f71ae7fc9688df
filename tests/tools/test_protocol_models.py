# SPDX-License-Identifier: Apache-2.0
"""docs/internals/protocol: the models of the protocol hold, and every mutation of them fails for
its own reason."""

import pathlib
import re
import shutil
import subprocess

import pytest

PROTOCOL = pathlib.Path(__file__).resolve().parents[2] / "docs/internals/protocol"
DEADLINE_S = 600  # half a minute on an idle core


@pytest.fixture(scope="module")
def report():
    missing = [tool for tool in ("spin", "cc") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed (Debian packages: spin, gcc)")
    return subprocess.run([PROTOCOL / "check"], capture_output=True, text=True, timeout=DEADLINE_S)


def runs(report):
    """List for each run whether it ended as it must, "hold" or "fail", and its name."""
    return [
        (verdict == "ok", must, name.strip())
        for verdict, must, name in re.findall(
            r"^(ok|WRONG) +must (hold|fail)  (.{42}) ", report.stdout, re.MULTILINE
        )
    ]


def test_models_hold_and_mutations_fail(report):
    assert report.returncode == 0, report.stdout + report.stderr
    assert runs(report) and all(good for good, _, _ in runs(report)), report.stdout


@pytest.mark.parametrize("model", ["normal", "low_latency", "rail"])
def test_every_mutation_that_a_model_names_is_tried(report, model):
    head = (PROTOCOL / f"{model}.pml").read_text().split("*/")[0]
    named = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", head.split("must fail:")[1]))
    tried = {
        word
        for _, must, name in runs(report)
        if must == "fail" and name.split()[0] == model
        for word in name.split()[1:]
    }
    assert named and named <= tried


def test_the_page_has_the_states_of_every_model(report):
    page = (PROTOCOL / "README.md").read_text()
    for name, states in re.findall(
        r"^ok +must hold  (.{42}) +(\d+) states", report.stdout, re.MULTILINE
    ):
        assert f"| {name.strip()} | {int(states):,} |" in page
