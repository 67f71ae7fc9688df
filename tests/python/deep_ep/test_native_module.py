# SPDX-License-Identifier: Apache-2.0
"""deep_ep._C, the name of DeepEP's native module."""

import subprocess
import sys

import pytest
import torch

import deep_ep
from deep_ep import _C


def test_the_package_has_the_module():
    program = "import deep_ep; deep_ep._C.Config, deep_ep._C.topk_idx_t"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_names_are_those_of_the_package():
    assert _C.Config is deep_ep.Config and _C.EventHandle is deep_ep.EventHandle
    assert _C.topk_idx_t is deep_ep.topk_idx_t and isinstance(_C.topk_idx_t, torch.dtype)
    assert _C.is_sm90_compiled() and _C.init_jit("a", "b", "c") is None
    assert _C.get_elastic_buffer_alignment() == 2 << 20
    sizes = (128, 7168, 8, 256)
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(*sizes)
    assert _C.get_low_latency_rdma_size_hint(*sizes) == hint


ABSENT = """Buffer ElasticBuffer create_cpu_handle calculate_elastic_buffer_size create_nccl_comm
get_local_nccl_unique_id destroy_nccl_comm get_physical_domain_size get_logical_domain_size"""


@pytest.mark.parametrize("name", ABSENT.split())
def test_absent_names_say_so(name):
    with pytest.raises(NotImplementedError, match=f"deep_ep._C.{name} is not available"):
        getattr(_C, name)(0, 1)


def test_all_names_exist():
    assert all(hasattr(_C, name) for name in _C.__all__)
