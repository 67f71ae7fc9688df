# SPDX-License-Identifier: Apache-2.0
"""Programs with several translation units compile, link and carry their device state, with and
without relocatable device code, as C++17 and C++20. Blocks of 1024 threads have the registers that
every function needs. Needs nvcc, no GPU."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "tests/nvshmem/units"
STATE = "shoal_nvshmem_state_d"

# The command of ./run, because a unit takes long to compile.
COMPILE = ["ccache", "nvcc"] if shutil.which("ccache") else ["nvcc"]

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")


def image_of(unit, image):
    """Writes the image for the GPU of a unit that holds it uncompressed."""
    content = unit.read_bytes()
    start = content.find(b"\x7fELF", 1)  # the file itself is the first
    assert start > 0
    image.write_bytes(content[start:])


def states(cubin):
    """The symbols of the device state in an image."""
    lines = run("readelf", "-sW", str(cubin)).splitlines()
    return [line.split()[-1] for line in lines if STATE in line and " OBJECT " in line]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def library(bin_dir):
    if not (bin_dir.parent / "lib/libshoal_nvshmem.so").exists():
        pytest.skip("built without CUDA or as a static library")
    return bin_dir.parent / "lib"


@pytest.mark.parametrize(
    ("standard", "relocatable"),
    [
        ("c++17", "true"),
        ("c++20", "false"),
        pytest.param("c++17", "false", marks=pytest.mark.soak),
        pytest.param("c++20", "true", marks=pytest.mark.soak),
    ],
)
def test_units_link_and_have_their_state(library, tmp_path, standard, relocatable):
    options = [f"-std={standard}", f"-rdc={relocatable}", "-arch=sm_90", f"-I{ROOT}/include"]
    options += ["-Werror=all-warnings", "-Xcompiler=-Wall,-Wextra", "--no-compress"]
    objects = []
    for unit in ("first", "second", "main"):
        objects.append(str(tmp_path / f"{unit}.o"))
        run(*COMPILE, *options, "-c", str(UNITS / f"{unit}.cu"), "-o", objects[-1])
    run("nvcc", *options, *objects, f"-L{library}", "-lshoal_nvshmem", "-o", str(tmp_path / "all"))
    # The plain name, by which nvshmemx_cumodule_init finds it.
    image = tmp_path / "image.cubin"
    if relocatable == "true":  # the linker joins the units
        run("nvcc", "-arch=sm_90", "-dlink", "-cubin", *objects, "-o", str(image))
        assert states(image) == [STATE]
    else:
        for unit in ("first", "second"):
            image_of(tmp_path / f"{unit}.o", image)
            assert states(image) == [STATE]


@pytest.mark.parametrize(
    ("bounds", "relocatable"),
    [
        ("__launch_bounds__(1024)", "true"),
        ("", "false"),
        pytest.param("__launch_bounds__(1024)", "false", marks=pytest.mark.soak),
        pytest.param("", "true", marks=pytest.mark.soak),
    ],
    ids=["bounded-true", "free-false", "bounded-false", "free-true"],
)
def test_every_function_runs_in_blocks_of_1024_threads(tmp_path, relocatable, bounds):
    kernels, image = tmp_path / "kernels.cubin", tmp_path / "image.cubin"
    options = ["-std=c++17", "-arch=sm_90", f"-rdc={relocatable}", f"-I{ROOT}/include"]
    compiled = run(*COMPILE, *options, f"-DBOUNDS={bounds}", "-Xptxas", "-v", "-cubin",
                   str(UNITS / "bounds.cu"), "-o", str(kernels))  # fmt: skip
    if relocatable == "true":  # the linker knows what a kernel calls
        compiled = run("nvlink", "-arch=sm_90", "-v", str(kernels), "-o", str(image))
    # A multiprocessor has 65536 registers.
    used = [int(count) for count in re.findall(r"[Uu]sed (\d+) registers", compiled)]
    assert len(used) >= 100, compiled
    assert max(used) <= 65536 // 1024, compiled


HEADERS = (
    "nvshmem.h nvshmemx.h nvshmem_host.h nvshmem_tensor.h host/nvshmem_api.h host/nvshmemx_api.h "
    "device_host/nvshmem_types.h device_host/nvshmem_common.cuh "
    "non_abi/device/threadgroup/nvshmemi_common_device_defines.cuh"
).split()


@pytest.mark.parametrize("header", HEADERS)
def test_headers_stand_alone_on_the_host(tmp_path, header):
    toolkit = Path(shutil.which("nvcc")).resolve().parents[1]
    roots = [toolkit, *Path("/usr/local").glob("cuda*")]
    includes = [f"-isystem{root}/include" for root in roots]
    unit = tmp_path / "unit.cpp"
    unit.write_text(f"#include <{header}>\nint pe = nvshmem_my_pe();\n")
    run("c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{ROOT}/include",
        *includes, str(unit))  # fmt: skip


@pytest.mark.parametrize("header", HEADERS)
def test_headers_stand_alone_in_units_for_the_host_library(tmp_path, header):
    unit = tmp_path / "unit.cu"
    unit.write_text(
        f"#define NVSHMEM_HOSTLIB_ONLY\n#include <{header}>\nint pe = nvshmem_my_pe();\n"
    )
    run(*COMPILE, "-std=c++17", "-arch=sm_90", "-Werror=all-warnings", f"-I{ROOT}/include", "-c",
        str(unit), "-o", str(tmp_path / "unit.o"))  # fmt: skip


def test_programs_use_what_the_header_includes(tmp_path):
    unit = str(UNITS / "included.cu")
    run(*COMPILE, "-std=c++17", "-arch=sm_90", "-Werror=all-warnings", f"-I{ROOT}/include", "-c",
        unit, "-o", str(tmp_path / "included.o"))  # fmt: skip


def test_other_architectures(tmp_path):
    images = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in ("80", "100a")]
    run(*COMPILE, "-std=c++17", *images, f"-I{ROOT}/include", "-c",
        str(UNITS / "second.cu"), "-o", str(tmp_path / "second.o"))  # fmt: skip
