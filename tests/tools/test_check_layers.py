# SPDX-License-Identifier: Apache-2.0
"""cmake/check_layers.py on small trees, each with one fault or none."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "cmake" / "check_layers.py"


def check(root, files):
    """Writes `files` (path: text) below `root`; returns (exit status, lines printed)."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    run = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, timeout=30)
    assert run.stderr == ""
    return run.returncode, run.stdout.splitlines()


def test_accepts_a_tree_that_follows_the_rules(tmp_path):
    files = {
        "include/shoal/error.hpp": "",
        "include/shoal/world.hpp": "#include <shoal/error.hpp>\n#include <memory>\n",
        "src/base/check.hpp": "#include <string>\n",
        "src/startup/world.cpp": '#include "base/check.hpp"\n#include "transport/transport.hpp"\n#include "shoal/world.hpp"\n',
        "src/transport/transport.hpp": "",
        "src/transport/registry/factories.cpp": '#include "transport/shm/shm.hpp"\n#include "transport/transport.hpp"\n',
        "src/transport/shm/shm.hpp": "",
        "src/transport/message/engine.hpp": "",
        "src/transport/ofi/network.cpp": '#include "transport/message/engine.hpp"\n',
        "src/transport/shm/shm.cpp": '#include "transport/shm/shm.hpp"\n#include "shm.hpp"\n#include "transport/transport.hpp"\n',
        "src/world/state.hpp": "",
        "src/ep/plan/shape.hpp": "",
        "src/ep/host/send.cpp": '#include "ep/plan/shape.hpp"\n#include "world/state.hpp"\n',
        "emulator/engine/engine.hpp": "#include <vector>\n",
        "emulator/verbs/verbs.cpp": '#include "base/check.hpp"\n#include "engine/engine.hpp"\n',
        "tests/unit/x_test.cpp": '#include "ep/plan/shape.hpp"\n#include "transport/shm/shm.hpp"\n',
    }
    assert check(tmp_path, files) == (0, [])


@pytest.mark.parametrize(
    ("file", "included"),
    [
        ("src/base/log.cpp", "src/world/state.hpp"),
        ("src/bootstrap/tcp.cpp", "src/memory/host/segment.hpp"),
        ("src/collective/reduce.cpp", "src/ep/numeric/bf16.hpp"),
        ("src/pe/health.cpp", "src/fabric/fabric.hpp"),
        ("src/rma/rma.cpp", "src/transport/shm/shm.hpp"),
        ("src/transport/self/self.cpp", "src/transport/shm/shm.hpp"),
        ("src/transport/shm/shm.cpp", "src/transport/message/engine.hpp"),
        ("src/transport/message/engine.cpp", "src/transport/ofi/network.hpp"),
        ("include/shoal/world.hpp", "src/world/state.hpp"),
        ("emulator/verbs/verbs.cpp", "src/memory/allocator.hpp"),
        ("emulator/engine/engine.cpp", "src/base/check.hpp"),
        ("emulator/engine/engine.cpp", "emulator/wire/packet.hpp"),
        ("python/bindings/world.cpp", "src/startup/open.hpp"),
        ("tools/moe/layer.cpp", "src/world/state.hpp"),
        ("tools/run/job.cpp", "src/base/log.hpp"),
        ("bench/rma_bench.cpp", "src/ep/host/rows/row_ops.hpp"),
    ],
)
def test_reports_a_forbidden_include_with_its_line(tmp_path, file, included):
    include = included.removeprefix("src/").removeprefix("emulator/")
    files = {included: "", "include/shoal/error.hpp": ""}
    text = "#pragma once\n#include <shoal/error.hpp>\n"
    if not file.startswith("emulator/engine/"):
        assert check(tmp_path, {**files, file: text}) == (0, [])
    status, lines = check(tmp_path, {**files, file: f'#pragma once\n#include "{include}"\n'})
    assert status == 1
    assert len(lines) == 1 and lines[0].startswith(f"{file}:2: ") and f'"{include}"' in lines[0]


@pytest.mark.parametrize("target", ['"base/gone.hpp"', '"gone.hpp"', "<shoal/gone.hpp>"])
@pytest.mark.parametrize(
    "file", ["src/base/a.cpp", "emulator/engine/a.cpp", "python/bindings/a.cpp", "tests/unit/a.cpp"]
)
def test_reports_includes_of_files_that_do_not_exist(tmp_path, file, target):
    status, lines = check(tmp_path, {file: f"#include <vector>\n#include {target}\n"})
    assert status == 1 and lines == [f'{file}:2: no file is "{target[1:-1]}"']


def test_exceptions_are_for_the_files_that_are_listed(tmp_path):
    files = {
        "src/topology/machine.hpp": "",
        "src/base/log.hpp": "",
        "src/ep/host/rows/row_ops.hpp": "",
        "tools/info/topology.cpp": '#include "topology/machine.hpp"\n',
        "tools/run/main.cpp": '#include "base/log.hpp"\n',
        "bench/ep_bench.cpp": '#include "ep/host/rows/row_ops.hpp"\n',
    }
    assert check(tmp_path, files) == (0, [])


@pytest.mark.parametrize("file", ["src/transport/nic.cpp", "tools/run/job.cpp", "include/a.hpp"])
def test_only_tests_and_benchmarks_use_the_emulator(tmp_path, file):
    files = {
        "emulator/engine/nic.hpp": "",
        "emulator/verbs/nic.cpp": '#include "engine/nic.hpp"\n#include "base/check.hpp"\n',
        "emulator/tests/unit/nic_test.cpp": '#include "engine/nic.hpp"\n#include "base/check.hpp"\n',
        "bench/nic/main.cpp": '#include "engine/nic.hpp"\n',
        "src/base/check.hpp": "",
    }
    assert check(tmp_path, files) == (0, [])
    status, lines = check(tmp_path, {file: '#include "engine/nic.hpp"\n'})
    assert status == 1 and len(lines) == 1
    assert lines[0].startswith(f"{file}:1: ") and '"engine/nic.hpp" of emulator/engine' in lines[0]
    internal = {
        "src/world/state.hpp": "",
        "emulator/tests/unit/a_test.cpp": '#include "world/state.hpp"\n',
    }
    status, lines = check(tmp_path, {file: "", **internal})
    assert status == 1 and lines[0].startswith(
        "emulator/tests/unit/a_test.cpp:1: emulator/tests includes"
    )


def test_sees_through_relative_includes(tmp_path):
    files = {"src/base/log.cpp": '#include "../world/state.hpp"\n', "src/world/state.hpp": ""}
    status, lines = check(tmp_path, files)
    assert status == 1 and lines[0].startswith("src/base/log.cpp:1: src/base includes")


PAIR = {
    "src/ep/group.hpp": '#include "ep/host/host.hpp"\n',
    "src/ep/checks.hpp": "",
    "src/ep/host/host.hpp": '#include "ep/checks.hpp"\n',
}
RING = {
    "src/ep/group.hpp": '#include "ep/host/host.hpp"\n',
    "src/ep/host/host.hpp": '#include "ep/plan/plan.hpp"\n',
    "src/ep/plan/plan.hpp": '#include "ep/checks.hpp"\n',
    "src/ep/checks.hpp": "",
}


@pytest.mark.parametrize("files", [PAIR, RING])
def test_reports_folders_that_include_each_other(tmp_path, files):
    status, lines = check(tmp_path, files)
    assert status == 1 and len(lines) == 1
    assert "folders include each other: src/ep -> src/ep/host -> " in lines[0]


@pytest.mark.parametrize(
    "folder", ["include/shoal/device/detail", "src/base", "tests/unit", "bench"]
)
def test_reports_files_that_include_each_other(tmp_path, folder):
    files = {
        f"{folder}/a.hpp": '#include "b.hpp"\n',
        f"{folder}/b.hpp": '#pragma once\n#include "c.hpp"\n',
        f"{folder}/c.hpp": "",
        f"{folder}/d.cpp": '#include "a.hpp"\n#include "c.hpp"\n',
    }
    assert check(tmp_path, files) == (0, [])
    status, lines = check(tmp_path, {f"{folder}/c.hpp": '#include "a.hpp"\n'})
    way = " -> ".join(f"{folder}/{name}.hpp" for name in "abca")
    assert status == 1 and lines == [f"{folder}/c.hpp:1: files include each other: {way}"]


def test_a_public_header_is_a_folder_of_its_own(tmp_path):
    files = {
        "include/shoal/device/types.hpp": "",
        "include/shoal/device/detail/copy.cuh": "#include <shoal/device/types.hpp>\n",
        "include/shoal/device/functions.cuh": "#include <shoal/device/detail/copy.cuh>\n",
        "include/shoal/device.hpp": "#include <shoal/device/functions.cuh>\n",
    }
    assert check(tmp_path, files) == (0, [])
    more = {
        "include/shoal/device/detail/word.cuh": "",
        "include/shoal/device/types.hpp": "#include <shoal/device/detail/word.cuh>\n",
    }
    status, lines = check(tmp_path, more)
    assert status == 1 and len(lines) == 1 and "folders include each other" in lines[0]


@pytest.mark.parametrize(
    "file",
    [
        "include/shoal/a.hpp",
        "src/base/a.cpp",
        "tools/a.cpp",
        "tests/unit/a_test.cpp",
        "bench/a.cpp",
    ],
)
def test_reports_files_above_600_lines(tmp_path, file):
    assert check(tmp_path, {file: "//\n" * 600}) == (0, [])
    status, lines = check(tmp_path, {file: "//\n" * 601})
    assert status == 1 and lines == [f"{file}:601: 601 lines; allowed: 600"]


DEVICE_CODE = """// __device__ int in_a_comment;
#define SHOAL_BOTH __host__ __device__
template <typename T>
__device__ T* function(const World& world, T* local);
__device__ __forceinline__ std::uint32_t
on_two_lines(int a = 3) { __shared__ int inside; return a; }
__global__ void __launch_bounds__(256, 1) kernel(const __grid_constant__ World world) {}
struct Row {
  __device__ Row() = default;
  __host__ __device__ bool operator==(const Row&) const = default;
};
constexpr int kBlocks = 4;
"""


@pytest.mark.parametrize(
    "file", ["src/ep/cuda/a.cu", "src/ep/cuda/a.cuh", "include/shoal/device/a.cuh"]
)
def test_accepts_device_code_without_variables(tmp_path, file):
    assert check(tmp_path, {file: DEVICE_CODE}) == (0, [])


@pytest.mark.parametrize(
    "variable",
    [
        "__device__ int counter;",
        "__device__ int counter = 3;",
        "__device__ unsigned table[4]{};",
        "static __device__ World* world;",
        "__device__ __align__(16) char memory[64];",
        "alignas(16) __device__ char memory[64];",
        "__device__ volatile\nint flag;",
        "__constant__ World world;",
        "__managed__ int both;",
        "inline __device__ constexpr float kHalf = 0.5F;",
    ],
)
@pytest.mark.parametrize("file", ["src/ep/cuda/a.cu", "include/shoal/device/a.cuh"])
def test_reports_variables_of_device_code(tmp_path, file, variable):
    status, lines = check(tmp_path, {file: DEVICE_CODE + variable + "\n"})
    number = DEVICE_CODE.count("\n") + 1
    assert (
        status == 1
        and len(lines) == 1
        and lines[0].startswith(f"{file}:{number}: a __")
        and "variable" in lines[0]
    )


def test_leaves_variables_of_tests_alone(tmp_path):
    assert check(tmp_path, {"tests/gpu/a_test.cu": "__device__ int counter;\n"}) == (0, [])


@pytest.mark.parametrize(
    "text",
    [
        "set_target_properties(shoal PROPERTIES CUDA_SEPARABLE_COMPILATION ON)",
        "target_compile_options(shoal PRIVATE -rdc=true)",
        "target_compile_options(shoal PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--relocatable-device-code=true>)",
        'set(CMAKE_CUDA_FLAGS "-dc")',
        "set(CMAKE_CUDA_RESOLVE_DEVICE_SYMBOLS ON)",
    ],
)
@pytest.mark.parametrize("file", ["CMakePresets.json", "cmake/cuda.cmake"])
def test_reports_linking_of_device_code(tmp_path, file, text):
    status, lines = check(tmp_path, {file: f"# -rdc in a comment\n{text}\n"})
    assert status == 1 and len(lines) == 1 and lines[0].startswith(f"{file}:2: ")
