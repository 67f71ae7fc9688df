# SPDX-License-Identifier: Apache-2.0
"""A rank has a CUDA context on its own GPU alone. Another one would take a second, and hundreds of
MiB of that GPU."""

import ctypes
import time

import pytest

torch = pytest.importorskip("torch")
from torch_ranks import run_checks

import shoal.ep


def gpus_with_a_context():
    """The GPUs on which this process has a primary context, by number."""
    driver, flags, active = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint(), ctypes.c_int()

    def is_active(gpu):
        result = driver.cuDevicePrimaryCtxGetState(gpu, ctypes.byref(flags), ctypes.byref(active))
        assert result == 0, f"cuDevicePrimaryCtxGetState: {result}"
        return active.value != 0

    return [gpu for gpu in range(torch.cuda.device_count()) if is_active(gpu)]


def check_counters_are_copied_in_the_context_of_the_rank(world):
    """A thread of Shoal copies what kernels have counted."""
    group = shoal.ep.Group(world.team, hidden=64, top_k=1, experts=world.n_pes, max_tokens=4)
    time.sleep(0.5)  # many copies, by SHOAL_METRICS_INTERVAL_MS
    group.close()  # after the copy that is under way
    assert gpus_with_a_context() == [torch.cuda.current_device()]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_rank_uses_its_own_gpu(monkeypatch):
    monkeypatch.setenv("SHOAL_METRICS_INTERVAL_MS", "10")  # inherited by the ranks
    results = run_checks(2, __name__, "cuda")
    results.verify("check_counters_are_copied_in_the_context_of_the_rank")
