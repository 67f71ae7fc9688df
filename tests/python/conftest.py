# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of the Python packages."""

import os

import pytest

# Ranks fill the cores: further threads of torch in each would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

SMALL = {"symmetric_size": "64M", "timeout": 20.0}


@pytest.fixture
def settings():
    return dict(SMALL)
