# SPDX-License-Identifier: Apache-2.0
"""cmake/check_prose.py on small trees, each with one fault or none."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "cmake" / "check_prose.py"
LICENCE = "SPDX-License-Identifier: Apache-2.0\n"
LONG = "word " * 21


def check(root, files):
    """Writes `files` (path: text) below `root`; returns (exit status, lines printed)."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    run = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, timeout=30)
    assert run.stderr == ""
    return run.returncode, run.stdout.splitlines()


def cpp(text):
    return f"// {LICENCE}{text}\n"


def test_accepts_a_tree_that_follows_the_rules(tmp_path):
    files = {
        "src/base/a.cpp": cpp('// Sums rows in float32 (e4m3 inputs).\nauto x = h(A1, "H100");'),
        "src/base/b.cpp": cpp("// First.\n// Then this.\n//\n// Words:\n//   a  b\n//   c  d"),
        "python/shoal/a.py": f'# {LICENCE}"""Rows of a group."""\n',
        "docs/guide/a.md": f"Text.\n\n| {LONG}|\n\n```\n{LONG}\n```\n",
        "tests/README.md": "# Tests\n\n| folder | tests |\n",
        "docs/data/a.json": "{}",
    }
    assert check(tmp_path, files) == (0, [])


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        (
            "src/base/a.cpp",
            cpp("// Waits for the\n// other PEs of the world."),
            "2: the comment breaks early in a sentence",
        ),
        ("src/base/a.cpp", cpp("// ---- state ----"), "2: a ruler"),
        ("python/shoal/a.py", f"# {LICENCE}# ------\n", "2: a ruler"),
        ("src/base/a.cpp", cpp(f"// {LONG}"), "2: prose wider than 100 columns"),
        ("docs/guide/a.md", LONG, "1: prose wider than 100 columns"),
        ("python/shoal/a.py", f'# {LICENCE}"""{LONG}"""\n', "2: prose wider than 100 columns"),
        ("src/base/a.cpp", "int a;\n", '1: no line "SPDX-License-Identifier: Apache-2.0"'),
        ("cmake/a.cmake", "set(A 1)\n", '1: no line "SPDX-License-Identifier: Apache-2.0"'),
        ("src/base/README.md", "#base : helpers\n", "1: does not begin with a heading"),
    ],
)
def test_reports_a_fault_with_its_line(tmp_path, file, text, fault):
    assert check(tmp_path, {file: text}) == (1, [f"{file}:{fault}"])
