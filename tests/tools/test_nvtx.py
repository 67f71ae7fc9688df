# SPDX-License-Identifier: Apache-2.0
"""NVTX ranges of operations, as a profiler sees them (builds with CUDA)."""

import os
import subprocess

import pytest


@pytest.fixture
def tool(bin_dir):
    path = bin_dir.parent / "tests" / "libnvtx_tool.so"
    if not path.exists():
        pytest.skip("this build has no CUDA")
    return path


def ranges(bin_dir, tool, file, **environment):
    """Runs a benchmark. Returns its ranges by thread: names in order of their begin;
    each has ended before the next one begins."""
    environment = {
        **os.environ,
        "NVTX_INJECTION64_PATH": str(tool),
        "SHOAL_TEST_NVTX_FILE": str(file),
        **environment,
    }
    command = [bin_dir / "shoal-bench", "ep", "--tokens", "8", "--iterations", "3"]
    command += ["--hidden", "128", "--experts", "4", "--top-k", "2"]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    by_thread = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        what, domain, name, thread = line.split()
        assert domain == "shoal"
        by_thread.setdefault(thread, []).append(name if what == "begin" else None)
    for events in by_thread.values():
        assert all(event is None for event in events[1::2]), "a range ends before the next begins"
        assert None not in events[::2] and len(events) % 2 == 0
    return {thread: events[::2] for thread, events in by_thread.items()}


def test_a_profiler_sees_a_range_for_each_operation(bin_dir, tool, tmp_path):
    by_thread = ranges(bin_dir, tool, tmp_path / "ranges")
    assert len(by_thread) == 1
    for names in by_thread.values():
        assert set(names) <= {"dispatch", "combine", "low_latency_dispatch", "low_latency_combine"}
        assert names.count("dispatch") >= 3
        assert names.count("combine") >= 3


def test_a_setting_turns_ranges_off(bin_dir, tool, tmp_path):
    assert ranges(bin_dir, tool, tmp_path / "ranges", SHOAL_NVTX="off") == {}
