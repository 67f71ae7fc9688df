# SPDX-License-Identifier: Apache-2.0
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # torch_ranks

# The driver reads these at its start: one hardware queue per waiting stream, and no lazy loading of
# kernels (docs/guide/gpus.md, several PEs on one GPU).
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")


@pytest.fixture
def small_heaps(monkeypatch):
    """Ranks on one GPU share its memory."""
    monkeypatch.setenv("SHOAL_SYMMETRIC_SIZE", "2G")
    monkeypatch.setenv("SHOAL_TIMEOUT_MS", "20000")


def pytest_collection_modifyitems(items):
    """Skips everything without a GPU."""
    here = str(Path(__file__).resolve().parent)
    ours = [item for item in items if str(item.path).startswith(here)]
    if not ours:  # also where there is no torch
        return
    import torch

    for item in ours:
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(
                pytest.mark.skip(reason="needs a GPU: torch.cuda.is_available() is false")
            )
