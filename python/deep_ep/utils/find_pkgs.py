# SPDX-License-Identifier: Apache-2.0
"""The folders of packages with native libraries, for callers; Shoal needs none of them."""

import importlib.util
import os
import shutil
from pathlib import Path


def find_pkg_root(name: str, lib_name: str | None = None, optional: bool = False) -> str | None:
    """The folder with include/ and lib/ of the package nvidia.`name`, e.g. of "nccl".

    The first of EP_NAME_ROOT_DIR and NAME_DIR that is set wins. `lib_name`: the start of the name
    of a library that lib/ of the package must have. The package is not imported. Without one:
    None if `optional`, else AssertionError.
    """
    variables = [f"EP_{name.upper()}_ROOT_DIR", f"{name.upper()}_DIR"]
    for variable in variables:
        if root := os.environ.get(variable):
            return root
    try:
        spec = importlib.util.find_spec(f"nvidia.{name}")
    except ModuleNotFoundError:  # the package nvidia is not installed
        spec = None
    for folder in spec.submodule_search_locations or () if spec else ():
        if lib_name is None or any(Path(folder, "lib").glob(lib_name + "*")):
            return str(folder)
    assert optional, (
        f"nvidia.{name} is not installed: install it, or set {' or '.join(variables)} to its folder"
    )
    return None


def find_nccl_root(optional: bool = False) -> str | None:
    """`find_pkg_root` of NCCL, with its library."""
    return find_pkg_root("nccl", "libnccl.so", optional)


def find_nvshmem_root(optional: bool = False) -> str | None:
    """`find_pkg_root` of NVSHMEM."""
    return find_pkg_root("nvshmem", optional=optional)


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
