# SPDX-License-Identifier: Apache-2.0
"""The library of device functions has every function of the table and links with kernels that know
the functions by name alone: by nvlink, by clang and, where it is installed, by Triton. Needs no
GPU."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RING = ROOT / "tests/nvshmem/gpu/linked_ring.cu"
STATE = "shoal_nvshmem_state_d"

spec = importlib.util.spec_from_file_location(
    "nvshmem_conformance", ROOT / "tools/nvshmem/conformance.py"
)
conformance = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conformance)


def run(*command, status=0):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == (status == 0), done.stdout + done.stderr
    return done.stdout + done.stderr


def cache_of(bin_dir, variable):
    cache = (bin_dir.parent / "CMakeCache.txt").read_text()
    found = re.search(rf"^{variable}:\w+=(.*)$", cache, re.MULTILINE)
    return found.group(1) if found else ""


def symbols(cubin):
    """{name: [type, binding, section]} of an image."""
    lines = [line.split() for line in run("readelf", "-sW", cubin).splitlines()]
    return {line[-1]: [line[3], line[4], line[-2]] for line in lines if len(line) >= 8}


def check_image(cubin):
    """The kernel and its state are visible, and nothing is missing."""
    found = symbols(cubin)
    assert found["ring"][:2] == ["FUNC", "GLOBAL"]
    assert found[STATE][:2] == ["OBJECT", "GLOBAL"]
    missing = [name for name, (_, _, section) in found.items() if section == "UND"]
    assert [name for name in missing if "nvshmem" in name or "shoal" in name] == []


@pytest.fixture(scope="module")
def folder(bin_dir):
    """Folder of the libraries."""
    library = bin_dir.parent / "lib/shoal/nvshmem"
    if not (library / "libnvshmem_device.ltoir").exists():
        pytest.skip("built without CUDA or as a static library")
    return library


@pytest.fixture(scope="module")
def bitcode(folder):
    if not (folder / "libnvshmem_device.bc").exists():
        pytest.skip("no clang read the headers of CUDA")
    return folder / "libnvshmem_device.bc"


@pytest.fixture(scope="module")
def listing(bin_dir, bitcode, tmp_path_factory):
    """The bitcode as text."""
    clang = cache_of(bin_dir, "SHOAL_BITCODE_COMPILER")
    text = tmp_path_factory.mktemp("listing") / "library.ll"
    run(clang, "--target=nvptx64-nvidia-cuda", "-x", "ir", "-O1", "-Xclang", "-disable-llvm-passes",
        "-S", "-emit-llvm", bitcode, "-o", text)  # fmt: skip
    return text.read_text()


def test_bitcode_has_all_functions(listing):
    defined = re.findall(r"^define dso_local [^@]*@(nvshmemx?_\w+)\(", listing, re.MULTILINE)
    assert sorted(defined) == sorted(conformance.functions("kernel"))


def test_bitcode_has_the_state(listing):
    """Under the name that nvshmemx_cumodule_init finds, written by others: the optimizer does not
    replace it by its initial zeros."""
    (state,) = re.findall(rf"^@{STATE} = (.*)$", listing, re.MULTILINE)
    assert state.startswith("dso_local addrspace(4) externally_initialized ")


def test_bitcode_is_for_every_gpu(listing):
    assert "target-cpu" not in listing and "target-features" not in listing
    # Any flag that another module sets takes precedence.
    assert re.search(r'!\{i32 2, !"nvvm-reflect-ftz", i32 0\}', listing)


def test_bitcode_inlines_functions_that_take_objects(listing):
    """LLVM in Triton up to 3.8 fails on those that remain."""
    inlined = re.findall(r"^attributes (#\d+) = \{ alwaysinline ", listing, re.MULTILINE)
    groups = re.findall(r"^define .*byval\(.* (#\d+) [^{]*\{$", listing, re.MULTILINE)
    assert groups and set(groups) <= set(inlined)
    assert len(groups) == len(re.findall(r"^define .*byval\(", listing, re.MULTILINE))


def nvlink_ring(bin_dir, tmp_path, *inputs, status=0):
    """Links the kernel with these, which are LTO IR or sources that include nvshmem.h."""
    nvlink, nvvm = cache_of(bin_dir, "SHOAL_NVLINK"), bin_dir.parent / "nvshmem_device/nvvm"
    if not nvvm.exists():
        pytest.skip("no nvlink or libnvvm")
    linked = []
    for path in (RING, *inputs):
        linked.append(path)
        if path.suffix == ".cu":
            linked[-1] = tmp_path / f"{path.stem}.ltoir"
            run("nvcc", "-std=c++17", "-arch=sm_90", "-dlto", "-ltoir", f"-I{ROOT}/include", path,
                "-o", linked[-1])  # fmt: skip
    image = tmp_path / "ring.cubin"
    output = run(nvlink, "-arch=sm_90", "-dlto", f"-nvvmpath={nvvm}", *linked, "-o", image,
                 status=status)  # fmt: skip
    return image, output


def test_nvlink(bin_dir, folder, tmp_path):
    image, _ = nvlink_ring(bin_dir, tmp_path, folder / "libnvshmem_device.ltoir")
    check_image(image)


def test_units_with_the_header_share_the_state(bin_dir, folder, tmp_path):
    """The image of both has one state, and one definition of each function."""
    unit = ROOT / "tests/nvshmem/units/second.cu"
    image, _ = nvlink_ring(bin_dir, tmp_path, unit, folder / "libnvshmem_device.ltoir")
    check_image(image)
    assert len(re.findall(rf"\b{STATE}$", run("readelf", "-sW", image), re.MULTILINE)) == 1


def test_nvlink_needs_the_library(bin_dir, folder, tmp_path):
    _, output = nvlink_ring(bin_dir, tmp_path, status=1)
    assert "Unresolved extern function 'nvshmem_my_pe'" in output


def newest_clang(bin_dir):
    newer = [f"clang++-{release}" for release in (22, 21, 20)]
    return next(filter(shutil.which, newer), cache_of(bin_dir, "SHOAL_BITCODE_COMPILER"))


@pytest.mark.parametrize("pointers", ["-fno-cuda-short-ptr", "-fcuda-short-ptr"])
def test_clang_links_and_ptxas_assembles(bin_dir, bitcode, tmp_path, pointers):
    """Link as LLVM-based compilers do: only the functions that the kernel calls. Pointers to local
    memory are short in Triton up to 3.8."""
    headers = bin_dir.parent / "nvshmem_device/unused"
    toolkit = cache_of(bin_dir, "SHOAL_CUDA_TOOLKIT")
    ptx = tmp_path / "ring.ptx"
    run(newest_clang(bin_dir), "-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_90",
        f"--cuda-path={toolkit}", "-Wno-unknown-cuda-version", "-fno-crash-diagnostics", pointers,
        "-idirafter", headers, "-O2", "-Xclang", "-mlink-builtin-bitcode", "-Xclang", bitcode,
        "-S", RING, "-o", ptx)  # fmt: skip
    assert ".extern .func" not in ptx.read_text()
    run("ptxas", "-arch=sm_90", ptx, "-o", tmp_path / "ring.cubin")
    assert symbols(tmp_path / "ring.cubin")["ring"][:2] == ["FUNC", "GLOBAL"]


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_triton(bitcode, tmp_path, monkeypatch, capability):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    spec = importlib.util.spec_from_file_location(
        "triton_ring", ROOT / "examples/nvshmem/triton_ring.py"
    )
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    image = tmp_path / "ring.cubin"
    image.write_bytes(example.compiled(bitcode, capability).asm["cubin"])
    check_image(image)
