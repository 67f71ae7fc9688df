# SPDX-License-Identifier: Apache-2.0
"""The build backend of the Python package reports progress on the terminal, and only there."""

import os
import pathlib
import pty
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]

# In place of scikit-build-core: prints what ninja prints.
BUILD = """
import os, sys, time
def build_wheel(directory, config=None, metadata=None):
    for step in range(1, 4):
        print(f"[{step}/3] Building CXX object", flush=True)
        time.sleep(0.2)
    os.system("echo from a child process")
    return "shoal.whl"
build_editable = build_wheel
def get_requires_for_build_wheel(config=None):
    return ["ninja"]
"""

PROGRAM = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import wheel_backend
wheel_backend._INTERVAL = 0.1
assert wheel_backend.get_requires_for_build_wheel() == ["ninja"]
print(wheel_backend.build_wheel("."), flush=True)
"""

EXPECTED = [f"[{step}/3] Building CXX object" for step in (1, 2, 3)] + [
    "from a child process",
    "shoal.whl",
]


def command(tmp_path):
    package = tmp_path / "scikit_build_core"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "build.py").write_text(textwrap.dedent(BUILD))
    return [sys.executable, "-c", PROGRAM, str(tmp_path), str(ROOT / "cmake/wheel")]


def test_output_without_a_terminal_is_that_of_the_build(tmp_path):
    done = subprocess.run(
        command(tmp_path), capture_output=True, text=True, timeout=60, start_new_session=True
    )
    assert done.stdout.splitlines() == EXPECTED, done.stderr


def test_the_terminal_shows_steps_that_pip_hides(tmp_path):
    arguments, output = command(tmp_path), tmp_path / "output"
    child, terminal = pty.fork()
    if child == 0:  # standard output goes to pip
        os.dup2(os.open(output, os.O_CREAT | os.O_WRONLY), 1)
        os.execv(sys.executable, arguments)
    shown = b""
    try:
        while data := os.read(terminal, 1 << 12):
            shown += data
    except OSError:  # the child has closed the terminal
        pass
    _, status = os.waitpid(child, 0)
    assert status == 0, shown
    assert output.read_text().splitlines() == EXPECTED
    assert b"shoal: step 3 of 3, 0 s" in shown
