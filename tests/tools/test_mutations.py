# SPDX-License-Identifier: Apache-2.0
"""The mutations of tests/mutations apply to the sources as they are."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def areas():
    spec = importlib.util.spec_from_file_location("mutations", ROOT / "tests/mutations/run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.read_table()


def test_every_place_is_found_once(areas):
    problems = [
        f"{name}: {one.what}: {one.file}"
        for name, area in areas.items()
        for one in area["mutations"]
        if (ROOT / one.file).read_text().count(one.text) != 1 or one.text == one.replacement
    ]
    assert not problems, "\n".join(problems)


def test_every_source_exists(areas):
    patterns = [one for area in areas.values() for one in area.get("sources", [])]
    assert len(patterns) > 10
    assert not [one for one in patterns if not list(ROOT.glob(one))]
