# SPDX-License-Identifier: Apache-2.0
"""The table of NVSHMEM functions says what the library and the headers have."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADERS = ROOT / "include/shoal/nvshmem"

spec = importlib.util.spec_from_file_location(
    "nvshmem_conformance", ROOT / "tools/nvshmem/conformance.py"
)
conformance = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conformance)


def preprocessed(tmp_path, *options):
    """The identifiers that nvshmem.h brings, without CUDA's own headers."""
    for header in ("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h", "cooperative_groups.h"):
        (tmp_path / header).write_text("")
    source = tmp_path / "unit.cpp"
    source.write_text("#include <nvshmem.h>\n#include <nvshmemx.h>\n")
    command = ["c++", "-std=c++17", "-E", "-P", *options, f"-I{ROOT}/include", f"-I{tmp_path}"]
    return subprocess.run([*command, source], capture_output=True, text=True, check=True).stdout


def test_page_is_generated():
    assert conformance.PAGE.read_text() == conformance.page(), (
        "tools/nvshmem/conformance.py --write"
    )


@pytest.mark.parametrize("kind", ["library", "kernel"])
def test_no_function_twice(kind):
    names = list(conformance.functions(kind))
    assert len(names) == len(set(names))


def test_library_has_these_functions_and_no_others(bin_dir):
    library = bin_dir.parent / "lib/libshoal_nvshmem.so"
    if not library.exists():
        pytest.skip("built without CUDA or as a static library")
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[2] for line in symbols.splitlines()}
    own = {name for name in exported if name.startswith("shoal_nvshmem_")}
    assert exported - own == set(conformance.functions("library"))


def test_drop_in_is_the_library(bin_dir):
    drop_in = bin_dir.parent / "lib/shoal/nvshmem/libnvshmem_host.so.3"
    if not (bin_dir.parent / "lib/libshoal_nvshmem.so").exists():
        pytest.skip("built without CUDA or as a static library")
    assert drop_in.resolve() == (bin_dir.parent / "lib/libshoal_nvshmem.so").resolve()


def test_headers_declare_the_functions_of_the_library(tmp_path):
    declared = set(re.findall(r"\bnvshmemx?_\w+(?= ?\()", preprocessed(tmp_path)))
    missing = set(conformance.functions("library")) - declared
    assert not missing, sorted(missing)[:10]


def test_headers_define_the_functions_of_kernels(tmp_path):
    text = preprocessed(tmp_path, "-D__CUDACC__", "-D__CUDA_ARCH__=900")
    inline = r"inline (?:__host__ )?__device__ [^;{]*?"
    defined = set(re.findall(inline + r"\b(nvshmemx?_\w+) ?\([^)]*\) ?\{", text))
    assert defined == set(conformance.functions("kernel"))
