# SPDX-License-Identifier: Apache-2.0
"""The table of tests/README.md: every requirement has a row, every file that it names exists."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
COUNTS = {"A": 16, "B": 8, "C": 3, "D": 15, "E": 6}


def rows():
    table = (TESTS / "README.md").read_text().split("## Traceability")[1]
    return re.findall(r"^\| ([A-E]\d+) \| (.+?) \| (.*?) \|$", table, re.MULTILINE)


def test_every_requirement_has_a_row_with_a_reference():
    assert [row[0] for row in rows()] == [
        f"{part}{n}" for part, count in COUNTS.items() for n in range(1, count + 1)
    ]
    assert all(what and reference.strip() for _, what, reference in rows())


def test_every_file_exists():
    for identifier, _, reference in rows():
        for name in re.findall(r"`([\w/.-]+\.(?:cpp|cu|c|py|hpp|md))`", reference):
            assert (TESTS / name).is_file() or (TESTS.parent / name).is_file(), (
                f"{identifier}: {name}"
            )
