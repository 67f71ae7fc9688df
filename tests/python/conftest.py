# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of the Python packages."""

import pytest

SMALL = {"symmetric_size": "64M", "timeout": 20.0}


@pytest.fixture
def settings():
    return dict(SMALL)
