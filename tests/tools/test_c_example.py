# SPDX-License-Identifier: Apache-2.0
"""Shoal from C: the header as C and C++, the example, exported names, the pages, frozen structs."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = sorted((ROOT / "include/shoal/c").glob("*.h"))


def header_text():
    """The declarations of the C API: shoal.h only includes them."""
    return "\n".join(header.read_text() for header in HEADERS)


def includes(bin_dir):
    """Where a build has the public headers, one of which it writes."""
    return ["-I", ROOT / "include", "-I", bin_dir.parent / "include"]


USER = """
#include <shoal/shoal.h>
#include <shoal/shoal.h>
int main(void) {
  shoal_ep_group_options group = SHOAL_EP_GROUP_OPTIONS_INIT;
  shoal_ep_launch launch = SHOAL_EP_LAUNCH_INIT;
  shoal_ep_dispatch_options dispatch = SHOAL_EP_DISPATCH_OPTIONS_INIT;
  shoal_ep_combine_options combine = SHOAL_EP_COMBINE_OPTIONS_INIT;
  shoal_ep_low_latency_dispatch_options send = SHOAL_EP_LOW_LATENCY_DISPATCH_OPTIONS_INIT;
  shoal_ep_low_latency_combine_options reduce = SHOAL_EP_LOW_LATENCY_COMBINE_OPTIONS_INIT;
  shoal_ep_routing routing = SHOAL_EP_ROUTING_INIT;
  shoal_ep_dispatched dispatched = SHOAL_EP_DISPATCHED_INIT;
  shoal_ep_combined combined = SHOAL_EP_COMBINED_INIT;
  shoal_ep_low_latency_received received = SHOAL_EP_LOW_LATENCY_RECEIVED_INIT;
  shoal_ep_sizes sizes = SHOAL_EP_SIZES_INIT;
  shoal_ep_statistics statistics = SHOAL_EP_STATISTICS_INIT;
  shoal_tensor none = SHOAL_TENSOR_NONE;
  return (int)(group.size + launch.size + dispatch.size + combine.size + send.size + reduce.size +
               routing.size + dispatched.size + combined.size + received.size + sizes.size +
               statistics.size + (size_t)none.rank) == 0;
}
"""


@pytest.mark.parametrize(
    ("compiler", "language", "standard"),
    [
        ("cc", "c", "c11"),
        ("cc", "c", "c17"),
        ("c++", "c++", "c++11"),
        ("c++", "c++", "c++20"),
        ("clang-19", "c", "c11"),
    ],
)
def test_header_compiles_without_a_warning(bin_dir, compiler, language, standard):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    warnings = ["-Wall", "-Wextra", "-pedantic", "-Werror"]
    command = [compiler, "-x", language, f"-std={standard}", *warnings, "-fsyntax-only"]
    command += [*includes(bin_dir), "-"]
    result = subprocess.run(command, input=USER, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("pes", [None, 1, 4])
def test_example_checks_its_own_result(run_program, pes):
    result = run_program("example_c_moe", pes=pes)
    assert result.returncode == 0, result.stdout + result.stderr
    count = pes or 1
    for pe in range(count):
        passed = f"PE {pe} of {count}: 0 values wrong in normal mode, 0 in low latency"
        assert passed in result.stdout
    # Token t goes to experts pe + t and pe + t + n, which are on different PEs if n > 1.
    received = [int(rows) for rows in re.findall(r"PE \d+ received (\d+) rows", result.stdout)]
    assert len(received) == count and sum(received) == 12 * count * (1 if count == 1 else 2)


def test_example_runs_as_other_compilers_place_its_arrays(bin_dir, tmp_path):
    """Arrays of float and uint16_t on the stack need not start at multiples of 16 bytes."""
    compiler = shutil.which("clang-19") or shutil.which("clang")
    library = bin_dir.parent / "lib/libshoal_c.so"
    if compiler is None or not library.exists():
        pytest.skip("needs clang and a shared library of Shoal")
    program = tmp_path / "c_moe"
    command = [compiler, "-std=c11", "-O1", *includes(bin_dir), ROOT / "examples/c_moe.c"]
    command += [library, f"-Wl,-rpath,{library.parent}", "-o", program]
    subprocess.run(command, check=True, timeout=60)
    command = [bin_dir / "shoal-run", "-n", "2", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(" 0 values wrong in normal mode, 0 in low latency") == 2


def test_example_says_what_went_wrong(bin_dir):
    environment = {**os.environ, "SHOAL_SYMMETRIC_SIZE": "64K"}
    command = [bin_dir / "example_c_moe"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 1
    assert 'SHOAL_SYMMETRIC_SIZE is "64K"' in result.stderr
    assert "(invalid_argument)" in result.stderr


def test_only_names_of_shoal_are_exported(bin_dir):
    library = bin_dir.parent / "lib/libshoal_c.so"
    if not library.exists():
        pytest.skip("static libraries export nothing by themselves")
    command = ["nm", "-D", "--defined-only", library]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    exported = {line.split()[-1].split("@")[0] for line in lines.splitlines()}
    declared = set(re.findall(r"SHOAL_API [^;(]*?\*?(shoal_\w+)\(", header_text()))
    assert len(declared) > 60
    assert exported == declared


def test_every_struct_and_member_is_frozen():
    """The layout test has a row for every struct and member."""
    table = (ROOT / "tests/unit/capi/layout_test.cpp").read_text()
    structs = re.findall(r"typedef struct (\w+) \{\n(.*?)\n\} \1;", header_text(), re.DOTALL)
    assert len(structs) == 15
    for name, body in structs:
        assert f"EXPECT_STRUCT({name}, " in table, name
        if "float " in body:  # no unique representation: add up the sizes here
            end = 0
            for offset, kind in re.findall(rf"EXPECT_MEMBER\({name}, \w+, (\d+), (\w+)\)", table):
                assert int(offset) == end, name
                end += {"size_t": 8, "int32_t": 4, "float": 4}[kind]
            assert f"EXPECT_STRUCT({name}, {end})" in table, name
        else:
            assert f"has_unique_object_representations_v<{name}>" in table, name
        members = re.findall(r"^  [^/\n]*?(\w+)(?:\[\d+\])?;", body, re.MULTILINE)
        assert re.findall(rf"EXPECT_MEMBER\({name}, (\w+), ", table) == members, name


def test_page_shows_the_example_that_is_built():
    example = (ROOT / "examples/c_moe.c").read_text()
    blocks = re.findall(r"```c\n(.*?)```", (ROOT / "docs/guide/c.md").read_text(), re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        assert block in example, block


def test_reference_lists_every_function_with_its_header():
    page = (ROOT / "docs/reference/c-api.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| (`shoal_.*`) \| (.*?) \|", page, re.MULTILINE)
    listed = []
    for functions, headers in rows:
        names = re.findall(r"\[(\w+\.h)\]", headers)
        text = "\n".join((ROOT / "include/shoal/c" / name).read_text() for name in names)
        for function in re.findall(r"`(shoal_\w+)`", functions):
            assert f"{function}(" in text, f"{function} is not declared in {headers}"
            listed.append(function)
    declared = re.findall(r"SHOAL_API [^;(]*?\*?(shoal_\w+)\(", header_text())
    assert sorted(listed) == sorted(declared)
