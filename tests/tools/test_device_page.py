# SPDX-License-Identifier: Apache-2.0
"""Every block of code in docs/guide/device.md is a marked part of a compiled source file."""

import os
import pathlib
import re
import subprocess
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = [
    "examples/device_ring.cu",
    "tests/gpu/world/stream_operations_test.cpp",
    "tests/gpu/collective/device_test.cu",
    "tests/gpu/collective/stream_test.cpp",
]


def marked_parts():
    """The text between two lines "// [name]" of the sources, without indentation."""
    parts = []
    for source in SOURCES:
        text = (ROOT / source).read_text()
        pattern = r"^ *// \[(\w+)\]\n(.*?)^ *// \[\1\]$"
        for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
            parts.append(textwrap.dedent(match[2]).strip("\n"))
    return parts


def test_every_block_of_code_is_compiled():
    page = (ROOT / "docs/guide/device.md").read_text()
    blocks = [block.strip("\n") for block in re.findall(r"```cpp\n(.*?)```", page, re.DOTALL)]
    assert len(blocks) == 6
    parts = marked_parts()
    for block in blocks:
        assert block in parts, f"not in {' or '.join(SOURCES)}:\n{block}"


def test_example_without_a_gpu_says_so(bin_dir):
    program = bin_dir / "example_device_ring"
    if not program.exists():
        pytest.skip("built without CUDA")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([program], capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 77
    assert "needs a GPU" in result.stdout
