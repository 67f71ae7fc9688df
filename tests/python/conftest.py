# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python packages share."""

import pytest

SMALL = {"symmetric_size": "64M", "timeout": 20_000}


@pytest.fixture
def settings():
    return dict(SMALL)
