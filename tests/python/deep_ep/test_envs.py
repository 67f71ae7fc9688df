# SPDX-License-Identifier: Apache-2.0
"""Process groups, seeds, properties of the system, and small helpers."""

import gc
import importlib.util
import os
import random
import socket
import subprocess
import sys
import types
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from deep_ep.utils import comm, envs, find_pkgs, semantic
from torch_ranks import spawn

RANKS = 4


# Several ranks.


def run_rank(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", RANK=str(rank // 2)
    )
    index, num_ranks, group = envs.init_dist(rank % 2, 2, seed=3)
    assert (index, num_ranks) == (rank, RANKS) and dist.get_world_size(group) == RANKS
    assert torch.get_default_dtype() == torch.bfloat16
    assert torch.ones(1).device.type == envs.default_device().type

    seeds: list = [None] * RANKS
    dist.all_gather_object(
        seeds, (envs.get_global_seed(), envs.get_local_seed(), torch.rand(1).item()), group=group
    )
    assert {seed[0] for seed in seeds} == {3}
    assert len({seed[1] for seed in seeds}) == RANKS and len({seed[2] for seed in seeds}) == RANKS

    sys.stdout = open(Path(folder, f"{rank}.txt"), "w")
    envs.dist_print(f"all {rank}")
    envs.dist_print(f"node {rank}", once_in_node=True)
    sys.stdout.close()
    sys.stdout = sys.__stdout__

    # One host, unless SHOAL_NODE_SIZE splits it or SHOAL_HOST_ID renames it.
    for variable, sizes in (
        ("", (1, 4)),
        ("1", (4, 1)),
        ("2", (2, 2)),
        ("4", (1, 4)),
        ("8", (1, 4)),
    ):
        os.environ["SHOAL_NODE_SIZE"] = variable
        assert envs.get_physical_domain_size(group) == sizes
    assert envs.get_logical_domain_size(group) == (1, 4)
    os.environ.update(SHOAL_NODE_SIZE="", SHOAL_HOST_ID=f"host-{rank // 2}")
    assert envs.get_physical_domain_size(group) == (2, 2) == envs.get_logical_domain_size(group)
    assert envs.get_logical_domain_size(group, allow_hybrid_mode=False) == (1, 4)
    os.environ["SHOAL_NODE_SIZE"] = "1"
    assert envs.get_physical_domain_size(group) == (4, 1)
    os.environ.update(SHOAL_NODE_SIZE="", SHOAL_HOST_ID=f"host-{min(rank, 1)}")
    with pytest.raises(AssertionError, match=r"different numbers of ranks: \[1, 3\]"):
        envs.get_physical_domain_size(group)
    os.environ.update(SHOAL_NODE_SIZE="3", SHOAL_HOST_ID="one")
    with pytest.raises(AssertionError, match="got 3, which does not divide the 4 ranks"):
        envs.get_physical_domain_size(group)

    envs.check_nvlink_connections(group)
    handle = comm.get_nccl_comm_handle(group)
    assert handle is comm.get_nccl_comm_handle(group)
    assert comm.get_nccl_comm_handle(group, force_new_comm=True).get() == 0
    if not torch.cuda.is_available():
        assert handle.get() == 0 and not handle.managed
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.skipif(0 < torch.cuda.device_count() < 2, reason="two ranks need no GPU or two")
def test_4_ranks_of_2_nodes(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(run_rank, (port, str(tmp_path)), RANKS)
    printed = {rank: (tmp_path / f"{rank}.txt").read_text() for rank in range(RANKS)}
    assert printed == {
        r: f"all {r}\n" + (f"node {r}\n" if r % 2 == 0 else "") for r in range(RANKS)
    }


# One process.


def test_bad_ranks(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(AssertionError, match="RANK: got 2, allowed 0 to 1"):
        envs.init_dist(0, 2)
    with pytest.raises(AssertionError, match="local_rank: got 2, allowed 0 to 1"):
        envs.init_dist(2, 2)


@pytest.mark.parametrize("gpus", [0, 2])
def test_nccl_is_bound_to_the_gpu(monkeypatch, gpus):
    passed = {}

    def init_process_group(backend, init_method, world_size, rank, device_id=None):
        passed.update(backend=backend, device_id=device_id)
        raise RuntimeError("seen")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    monkeypatch.setattr(envs, "_local_rank", 0)  # init_dist sets it
    with pytest.raises(RuntimeError, match="seen"):
        envs.init_dist(1, 2)
    if gpus:
        assert passed == {"backend": "nccl", "device_id": torch.device("cuda", 1)}
    else:
        assert passed == {"backend": "gloo", "device_id": None}


def test_seed_repeats():
    envs.init_seed(9)
    first = torch.rand(3), random.random()
    envs.init_seed(9)
    assert torch.equal(torch.rand(3), first[0]) and random.random() == first[1]
    assert envs.get_global_seed() == envs.get_local_seed() == 9


def test_dist_print_alone(capsys):
    envs.dist_print("words", once_in_node=True)
    envs.dist_print()
    assert capsys.readouterr().out == "words\n\n"


def test_deterministic_fill_is_refused(monkeypatch):
    envs.check_torch_deterministic()
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(AssertionError, match="fill_uninitialized_memory = False"):
            envs.check_torch_deterministic()
        torch.utils.deterministic.fill_uninitialized_memory = False
        envs.check_torch_deterministic()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("num_ranks, linked", [(2, True), (2, False), (3, True)])
def test_nvlink_of_pcie_gpus(monkeypatch, num_ranks, linked):
    asked = []

    def status(first, second, _index):
        asked.append((first, second))
        return 0 if linked else 5

    nvml = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetP2PStatus=status,
        NVML_P2P_CAPS_INDEX_NVLINK=2,
        NVML_P2P_STATUS_OK=0,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(uuid="a")
    )
    monkeypatch.setattr(dist, "get_world_size", lambda group: num_ranks)
    monkeypatch.setattr(
        dist,
        "all_gather_object",
        lambda out, mine, group: out.__setitem__(slice(None), [mine, "GPU-b"]),
    )
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    envs.check_nvlink_connections("group")
    assert asked == []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100-PCIE-40GB")
    if num_ranks > 2:
        with pytest.raises(AssertionError, match="got 3 ranks, allowed 2"):
            envs.check_nvlink_connections("group")
    elif linked:
        envs.check_nvlink_connections("group")
    else:
        with pytest.raises(AssertionError, match="no NVLink between"):
            envs.check_nvlink_connections("group")
    assert asked == ([("GPU-a", "GPU-b")] if num_ranks == 2 else [])


NVLINK_STATUS = """GPU 0: NVIDIA H200 (UUID: GPU-1)
\t Link 0: 26.562 GB/s
\t Link 1: 26.562 GB/s
\t Link 2: <inactive>
"""


def test_nvlink_speed(monkeypatch):
    envs.get_nvlink_gbs.cache_clear()
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: types.SimpleNamespace(stdout=NVLINK_STATUS)
    )
    assert envs.get_nvlink_gbs(0.5) == pytest.approx(26.562)
    assert envs.get_nvlink_gbs() == pytest.approx(0.9 * 2 * 26.562)
    envs.get_nvlink_gbs.cache_clear()

    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", missing)
    assert envs.get_nvlink_gbs() == 0
    envs.get_nvlink_gbs.cache_clear()


def test_nic(monkeypatch, tmp_path):
    (tmp_path / "mlx5_9/ports/1").mkdir(parents=True)
    (tmp_path / "mlx5_9/hca_type").write_text("MT4131\n")
    (tmp_path / "mlx5_9/ports/1/rate").write_text("400 Gb/sec (4X NDR)\n")
    monkeypatch.setattr(envs, "Path", lambda root, *parts: Path(tmp_path, *parts))
    assert envs.get_rdma_gbs("mlx5_9") == 50 and envs.check_fast_rdma_atomic_support("mlx5_9")
    # Programs divide by the speed of a NIC that does not exist.
    assert envs.get_rdma_gbs("mlx5_8") == envs.DEFAULT_RDMA_GBS == 50
    assert envs.reported_rdma_gbs("mlx5_8") == 0
    assert not envs.check_fast_rdma_atomic_support("mlx5_8")
    monkeypatch.setenv("EP_NIC_NAME", "mlx5_9")
    assert envs.get_rdma_gbs() == 50
    (tmp_path / "mlx5_9/hca_type").write_text("MT4129\n")
    assert not envs.check_fast_rdma_atomic_support()


def test_comm_handles(monkeypatch):
    aborted = []
    monkeypatch.setattr(comm, "_abort", aborted.append)
    mine, theirs = comm.NCCLCommHandle(7, managed=True), comm.NCCLCommHandle(8, managed=False)
    assert mine.get() == 7 and theirs.get() == 8
    del theirs
    other = comm.NCCLCommHandle(9, managed=True)
    del other
    gc.collect()
    assert aborted == [9]
    comm.destroy_all_managed_nccl_comm()
    comm.destroy_all_managed_nccl_comm()
    assert aborted == [9, 7] and mine.get() == 0


class Group:
    def __init__(self, backend):
        self.backend = backend

    def _get_backend(self, device):
        if self.backend is None:
            raise RuntimeError("no backend for CUDA")
        return self.backend


def test_comm_of_torch(monkeypatch):
    nccl = types.SimpleNamespace(_comm_ptr=lambda: 1234)
    assert torch.cuda.is_available() or comm.get_nccl_comm_handle(Group(nccl)).get() == 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    group = Group(nccl)
    assert (
        comm.get_nccl_comm_handle(group).get() == 1234
        and not comm.get_nccl_comm_handle(group).managed
    )
    assert comm.get_nccl_comm_handle(Group(types.SimpleNamespace())).get() == 0
    assert comm.get_nccl_comm_handle(Group(None)).get() == 0
    monkeypatch.setenv("EP_REUSE_NCCL_COMM", "0")
    assert comm.get_nccl_comm_handle(Group(nccl)).get() == 0


def test_find_packages(monkeypatch, tmp_path):
    package = tmp_path / "nvidia/part"
    (package / "lib").mkdir(parents=True)
    (package / "lib/libpart.so.3").touch()
    (package / "__init__.py").write_text("raise ImportError('imported')")
    found = importlib.util.spec_from_file_location(
        "nvidia.part", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    with monkeypatch.context() as patch:
        specs = {"nvidia.part": found}
        patch.setattr(find_pkgs.importlib.util, "find_spec", specs.get)
        assert find_pkgs.find_pkg_root("part") == str(package)
        assert find_pkgs.find_pkg_root("part", lib_name="libpart.so") == str(package)
        assert find_pkgs.find_pkg_root("part", lib_name="libother.so", optional=True) is None
        assert find_pkgs.find_pkg_root("other", optional=True) is None
        with pytest.raises(AssertionError, match="nvidia.part"):
            find_pkgs.find_pkg_root("part", lib_name="libother.so")
    assert find_pkgs.find_pkg_root("no_such_package", optional=True) is None
    for function, names in (
        (find_pkgs.find_nccl_root, ("EP_NCCL_ROOT_DIR", "NCCL_DIR")),
        (find_pkgs.find_nvshmem_root, ("EP_NVSHMEM_ROOT_DIR", "NVSHMEM_DIR")),
    ):
        for name in names:
            monkeypatch.delenv(name, raising=False)
        with monkeypatch.context() as patch:
            patch.setattr(find_pkgs.importlib.util, "find_spec", lambda _: None)
            with pytest.raises(AssertionError, match=f"set {names[0]} or {names[1]}"):
                function()
            assert function(optional=True) is None
        monkeypatch.setenv(names[1], "/second")
        assert function() == "/second"
        monkeypatch.setenv(names[0], "/first")
        assert function() == "/first"


def test_find_cuda_home(monkeypatch, tmp_path):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.touch(0o755)
    monkeypatch.setenv("PATH", str(nvcc.parent))
    assert find_pkgs.find_cuda_home() == str(tmp_path.resolve())
    monkeypatch.setenv("CUDA_PATH", "/second")
    assert find_pkgs.find_cuda_home() == "/second"
    monkeypatch.setenv("CUDA_HOME", "/first")
    assert find_pkgs.find_cuda_home() == "/first"
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.delenv("CUDA_PATH")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(find_pkgs.Path, "is_dir", lambda _: False)
    with pytest.raises(AssertionError, match="set CUDA_HOME"):
        find_pkgs.find_cuda_home()


def test_value_or():
    assert semantic.value_or(None, 3) == 3
    assert semantic.value_or(0, 3) == 0 and semantic.value_or(False, True) is False


def test_weak_lru():
    class Adder:
        def __init__(self, base):
            self.base, self.calls = base, []

        @semantic.weak_lru(maxsize=2)
        def add(self, x, y=0):
            """Adds."""
            self.calls.append(x)
            return self.base + x + y

    one, two = Adder(1), Adder(2)
    assert [one.add(5), one.add(5), one.add(5, y=1), two.add(5)] == [6, 6, 7, 7]
    assert one.calls == [5, 5] and two.calls == [5]
    one.add(8)  # the third exceeds the size of two: the oldest is dropped
    one.add(5)
    assert one.calls == [5, 5, 8, 5]
    assert Adder.add.__doc__ == "Adds."
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None and two.add(5) == 7 and two.calls == [5]


def test_native_assert():
    semantic.native_assert(True, "unused")
    with pytest.raises(RuntimeError, match=r"^Assertion exception \(.*\): x > 0, got -1$"):
        semantic.native_assert(False, "x > 0, got -1")


ONE_RANK = """
import sys
import torch.distributed as dist
import deep_ep
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
buffer = deep_ep.Buffer(dist.group.WORLD, {arguments}, explicitly_destroy=True)
buffer.destroy()
print("opened")
"""


def test_variables_of_deepep_are_answered():
    run = subprocess.run(
        [sys.executable, "-c", ONE_RANK.format(arguments="num_nvl_bytes=1 << 20")],
        env={**os.environ, "EP_BUFFER_DEBUG": "1", "DEEP_EP_NO_SUCH": "1", "EP_NIC_NAME": "mlx5_1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    output = run.stdout + run.stderr
    assert "opened" in output, output
    assert output.count("set for DeepEP, without effect on Shoal: EP_BUFFER_DEBUG") == 1, output
    assert output.count("DEEP_EP_NO_SUCH: not a variable of DeepEP") == 1, output
    assert "EP_NIC_NAME" not in output, output


@pytest.mark.parametrize(
    ("arguments", "reads"),
    [
        ("num_nvl_bytes=1 << 20", False),
        pytest.param("num_nvl_bytes=1 << 20, num_rdma_bytes=1 << 20", True, marks=pytest.mark.soak),
        ("low_latency_mode=True", True),
    ],
)
def test_nvshmem_variables_count_where_deepep_starts_nvshmem(arguments, reads):
    run = subprocess.run(
        [sys.executable, "-c", ONE_RANK.format(arguments=arguments)],
        env={**os.environ, "NVSHMEM_MAX_TEAMS": "many"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ("opened" in run.stdout) != reads, run.stderr
    assert ("NVSHMEM_MAX_TEAMS" in run.stderr) == reads, run.stderr
