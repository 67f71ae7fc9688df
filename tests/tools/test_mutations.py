# SPDX-License-Identifier: Apache-2.0
"""The mutations of tests/mutations apply to the sources as they are: the text that each replaces
occurs once."""

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "mutations"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if "MUTATIONS = [" in path.read_text())


@pytest.fixture
def script(request, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module(request.param)
    for name in [*SCRIPTS, "loop"]:
        sys.modules.pop(name, None)


def test_there_are_scripts():
    assert {"emulator_engine", "verbs_transport", "work_queue"} <= set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS, indirect=True)
def test_every_place_is_found_once(script):
    problems = []
    for what, file, text, replacement, *_ in script.MUTATIONS:
        count = (ROOT / script.path_of(file)).read_text().count(text)
        if count != 1 or text == replacement:
            problems.append(f"{what}: {file} has its text {count} times")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("script", SCRIPTS, indirect=True)
def test_names_are_unique(script):
    names = [what for what, *_ in script.MUTATIONS]
    assert len(names) == len(set(names))
    assert len(names) > 10


def test_the_page_of_rules_names_mutations_that_exist():
    page = (ROOT / "docs/internals/rdma-tests.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    sources = "".join((FOLDER / f"{name}.py").read_text() for name in SCRIPTS)
    quoted = re.findall(r'"([^"]+)"', "\n".join(rows))
    assert len(quoted) > 40
    assert not [name for name in quoted if f'"{name}"' not in sources]
