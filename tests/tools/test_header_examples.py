# SPDX-License-Identifier: Apache-2.0
"""The examples in the comments of the public C++ headers compile."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).parents[2]
# Headers that users include; those of detail/ are for their own callers.
HEADERS = sorted(
    path for path in (ROOT / "include/shoal").rglob("*.hpp") if "detail" not in path.parts
)
NOT_HERE = {
    "device.hpp": "contains a kernel",
    "reduction.hpp": "is for kernels",
    "mpi.hpp": "needs mpi.h",
    "stream.hpp": "needs CUDA's headers",
    "version.hpp": "needs a header that a build writes",
}
# An example is indented by three spaces and follows an empty line of the comment.
EMPTY, LINE = re.compile(r" *///?"), re.compile(r" *///?   (.*)")
# A kernel launch is CUDA C++.
LAUNCH = re.compile(r".*<<<.*")

# Declarations that the examples assume.
PREAMBLE = """\
#include <cstdio>
#include <utility>
#include <shoal/collective.hpp>
#include <shoal/cuda.hpp>
#include <shoal/cuda_collective.hpp>
#include <shoal/ep/gate.hpp>
#include <shoal/ep/group.hpp>
#include <shoal/interrupt.hpp>
#include <shoal/memory_map.hpp>
#include <shoal/numeric.hpp>
#include <shoal/observe.hpp>
#include <shoal/world.hpp>
shoal::Tensor run_experts(const shoal::ep::Dispatched& received);
int ctrl_c;
struct Given {
  shoal::World world;
  shoal::Settings settings;
  int pe, n_pes, peer;
  shoal::SymmetricArray<float> box, values, sums, mine, all;
  std::size_t bytes;
  shoal::SymmetricArray<std::uint64_t> flag;
  std::span<const float> source;
  shoal::cuda::Stream stream;
  shoal::ep::Group group, next;
  shoal::ep::Routing routing;
  shoal::ep::Dispatched received;
  shoal::TensorView x, y, logits, topk_idx, topk_weights;
  std::size_t hidden;
"""


def examples(path):
    """(number of the first line, lines) of every example."""
    block, follows_empty = [], False
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        match = LINE.fullmatch(line)
        if match and (block or follows_empty):
            block.append(match[1])
        elif block:
            yield number - len(block), block
            block = []
        follows_empty = EMPTY.fullmatch(line) is not None


def test_they_compile(tmp_path):
    text, count = PREAMBLE, 0
    for path in HEADERS:
        if path.name in NOT_HERE:
            continue
        for first, lines in examples(path):
            kept = "\n".join(LAUNCH.sub("", line) for line in lines)
            text += f'void example_{count}() {{\n#line {first} "{path.name}"\n{kept}\n}}\n'
            count += 1
    assert count >= 15
    (tmp_path / "examples.cpp").write_text(text + "};\n")
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-I{ROOT / 'include'}", "examples.cpp"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
