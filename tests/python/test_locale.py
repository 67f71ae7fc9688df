# SPDX-License-Identifier: Apache-2.0
"""Settings, the emulated NIC and UCX in a Turkish locale: its decimal separator is a comma, and the
lower-case letter of I is not i."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# The build's libraries; without SHOAL_BIN_DIR, tests that need one of them are skipped.
LIBRARIES = Path(os.environ.get("SHOAL_BIN_DIR", "")).resolve().parent / "lib"
EMULATOR = LIBRARIES / "emulator/libibverbs.so.1"

PROGRAM = """
import locale
import sys
import shoal

if sys.argv[2:] == ["all"]:
    locale.setlocale(locale.LC_ALL, "")
    assert locale.localeconv()["decimal_point"] == ","

def body(world):
    shoal.barrier(world.team)
    return 1 + world.my_pe

print(shoal.run_threads(2, body, {"symmetric_size": "1.5M", "transport_inside": sys.argv[1]}))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(transport, category, **variables): what a program of two PEs in that locale prints.
    Python itself sets LC_CTYPE; category "all" sets the others too."""
    if shutil.which("localedef") is None:
        pytest.skip("needs localedef")
    folder = tmp_path_factory.mktemp("locales")
    made = subprocess.run(
        ["localedef", "-i", "tr_TR", "-f", "UTF-8", folder / "tr_TR.UTF-8"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if not (folder / "tr_TR.UTF-8/LC_NUMERIC").exists():
        pytest.skip(f"needs the sources of locales (Debian: locales): {made.stderr}")

    def run(transport, category="", **variables):
        environment = dict(os.environ, LOCPATH=str(folder), LC_ALL="tr_TR.UTF-8", **variables)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, transport, category],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


def test_names_of_settings(run):
    assert run("automatic") == "[1, 2]\n"


def test_choices_of_variables(run):
    printed = run("automatic", NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY="AF_INET", SHOAL_HEAP="HOST")
    assert printed == "[1, 2]\n"


def test_numbers_of_the_emulated_nic(run, tmp_path):
    if not EMULATOR.exists():
        pytest.skip("this build has no emulated NIC")
    trace = tmp_path / "trace.json"
    printed = run(
        "verbs",
        "all",
        SHOAL_VERBS_LIBRARY=str(EMULATOR),
        SHOAL_EMULATOR_JOB=f"locale-{os.getpid()}",
        SHOAL_EMULATOR_LOSS="0.01",
        SHOAL_EMULATOR_TRACE=str(trace.with_name("trace-%p-%d.json")),
    )
    assert printed == "[1, 2]\n"
    for file in tmp_path.iterdir():
        assert json.loads(file.read_text())["traceEvents"]


def test_ucx(run):
    if not (LIBRARIES / "shoal/libshoal_transport_ucx.so").exists():
        pytest.skip("this build has no transport ucx")
    assert run("ucx", "all") == "[1, 2]\n"
