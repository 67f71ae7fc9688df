# SPDX-License-Identifier: Apache-2.0
"""The folders of packages with native libraries, for callers; Shoal needs none of them."""

import importlib.util
import os
import shutil
from pathlib import Path


def find_pkg_root(package: str, env_names: tuple[str, ...] = ()) -> str | None:
    """The folder with include/ and lib/ of `package`, e.g. "nvidia.nccl"; None: not installed.

    The first variable of `env_names` that is set wins. The package is not imported.
    """
    for name in env_names:
        if root := os.environ.get(name):
            return root
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # its parent is not installed
        return None
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return str(Path(locations[0])) if locations else None


def _require_root(package: str, *env_names: str) -> str:
    root = find_pkg_root(package, env_names)
    names = " or ".join(env_names)
    assert root is not None, f"{package} is not installed: install it, or set {names} to its folder"
    return root


def find_nccl_root() -> str:
    """The folder of NCCL: EP_NCCL_ROOT_DIR, NCCL_DIR, or the installed wheel.

    Raises AssertionError where there is none.
    """
    return _require_root("nvidia.nccl", "EP_NCCL_ROOT_DIR", "NCCL_DIR")


def find_nvshmem_root() -> str:
    """The folder of NVSHMEM: EP_NVSHMEM_ROOT_DIR, NVSHMEM_DIR, or the installed wheel.

    Raises AssertionError where there is none.
    """
    return _require_root("nvidia.nvshmem", "EP_NVSHMEM_ROOT_DIR", "NVSHMEM_DIR")


def find_cuda_home() -> str:
    """The folder of the CUDA toolkit: CUDA_HOME, CUDA_PATH, nvcc on PATH, or /usr/local/cuda.

    Raises AssertionError where there is none.
    """
    if given := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return given
    nvcc = shutil.which("nvcc")
    root = Path(nvcc).resolve().parent.parent if nvcc else Path("/usr/local/cuda")
    assert root.is_dir(), "no CUDA toolkit found: install it, or set CUDA_HOME to its folder"
    return str(root)
