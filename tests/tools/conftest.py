# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tests of Shoal's programs. SHOAL_BIN_DIR: where the programs are."""

import os
import pathlib
import subprocess

import pytest

# A program that hangs is a failure of the test, not of the test run.
DEADLINE_S = 60


def pytest_collection_modifyitems(items):
    """The file that takes longest, half a minute, comes first, so that it is not the only one left
    on one core."""
    items.sort(key=lambda item: item.path.name != "test_protocol_models.py")


@pytest.fixture(scope="session")
def bin_dir():
    directory = os.environ.get("SHOAL_BIN_DIR")
    if not directory:
        pytest.fail("set SHOAL_BIN_DIR to the build's bin directory")
    return pathlib.Path(directory)


@pytest.fixture
def run_program(bin_dir):
    """run_program("shoal-moe", *args, pes=4): the completed process; pes=None starts it without
    shoal-run."""

    def run(name, *args, pes=None):
        command = [] if pes is None else [bin_dir / "shoal-run", "-n", str(pes)]
        command += [bin_dir / name, *args]
        return subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=DEADLINE_S
        )

    return run
