# SPDX-License-Identifier: Apache-2.0
"""Settings of a World that follow from Buffer's arguments about the network."""

import pytest
import torch.distributed as dist
from torch_ranks import add_tests, run_checks

import deep_ep
import shoal
from deep_ep.buffers.legacy.network import MAX_QUEUE_PAIRS, WITHOUT_NVLINK, network_settings


def settings(
    environment=None, qps=16, nvlink=True, normal=True, low_latency=True, rdma=True, on_gpu=True
):
    return network_settings(environment or {}, qps, nvlink, normal, low_latency, rdma, on_gpu)


def test_queue_pairs_of_kernels():
    assert settings() == {"gda_queue_pairs": 16}
    assert settings(low_latency=False) == {"gda_queue_pairs": 16}
    assert settings(low_latency=False, rdma=False) == {}
    assert settings(qps=128) == {"gda_queue_pairs": MAX_QUEUE_PAIRS}
    assert settings({"SHOAL_GDA_QUEUE_PAIRS": "2"}) == {}


def test_nvlink_is_turned_off_where_low_latency_mode_could_use_it():
    assert settings(nvlink=False)["transport_inside"] == WITHOUT_NVLINK
    for without in ({"low_latency": False}, {"on_gpu": False}, {"nvlink": True}):
        assert "transport_inside" not in settings(**({"nvlink": False} | without))
    assert "transport_inside" not in settings({"SHOAL_TRANSPORT_INSIDE": "shm"}, nvlink=False)


def test_arguments_come_before_variables_of_nvshmem():
    # DeepEP sets NVSHMEM_DISABLE_P2P itself, by its argument.
    assert settings({"NVSHMEM_DISABLE_P2P": "1"})["transport_inside"] == "automatic"
    assert (
        settings({"NVSHMEM_DISABLE_P2P": "0"}, nvlink=False)["transport_inside"] == WITHOUT_NVLINK
    )
    assert settings({"NVSHMEM_IBGDA_NUM_RC_PER_PE": "2"})["gda_queue_pairs"] == 16
    # The heap of a buffer is address space, which needs virtual memory.
    assert settings({"NVSHMEM_DISABLE_CUDA_VMM": "1"})["cuda_handle"] == "automatic"
    both = {"NVSHMEM_DISABLE_CUDA_VMM": "1", "SHOAL_CUDA_HANDLE": "ipc"}
    assert "cuda_handle" not in settings(both)


@pytest.mark.parametrize("low_latency", [False, True])
def test_nvlink_is_turned_off_for_normal_mode(low_latency):
    assert settings(normal=False, low_latency=low_latency)["transport_inside"] == WITHOUT_NVLINK
    assert "transport_inside" not in settings(normal=False, low_latency=low_latency, on_gpu=False)


def verify_the_world_gets_them(argument):
    seen = {}
    open_world = shoal.World.from_torch

    def spy(group, given):
        seen.update(given)
        return open_world(group, given)

    shoal.World.from_torch = spy
    try:
        buffer = deep_ep.Buffer(
            dist.group.WORLD,
            0,
            1 << 20,
            low_latency_mode=True,
            num_qps_per_rank=3,
            explicitly_destroy=True,
            **{argument: False},
        )
    finally:
        shoal.World.from_torch = open_world
    assert seen["gda_queue_pairs"] == 3
    on_gpu = buffer.runtime.device.type == "cuda"
    assert seen.get("transport_inside") == (WITHOUT_NVLINK if on_gpu else None)
    buffer.destroy()


def check_the_world_gets_them(_):
    verify_the_world_gets_them("allow_nvlink_for_low_latency_mode")
    verify_the_world_gets_them("allow_nvlink_for_normal_mode")


add_tests(globals(), lambda: run_checks(2, __name__))
