# SPDX-License-Identifier: Apache-2.0
"""Every Python block of the guide and the README runs; those of a page in order, as one program.
A block that is not run has the line `<!-- not run: REASON -->` before its fence.

Blocks of other languages: tests/tools/test_guide.py."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in (ROOT / "docs/guide").rglob("*.md")
    if "```python" in page.read_text()
)

# The default backend of torch.compile takes half a minute to generate code.
PRELUDE = """
import functools
try:
    import torch
    torch.set_num_threads(1)
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
except ImportError:
    pass
"""


def blocks_of(page, language):
    """(line of the page, text) of each block."""
    text = (ROOT / page).read_text()
    pattern = re.compile(rf"^( *)```{language}\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
    return [
        (text.count("\n", 0, match.start()) + 2, textwrap.dedent(match[2]))
        for match in pattern.finditer(text)
        if not re.search(r"<!-- not run: .+ -->\n$", text[: match.start()])
    ]


def program_of(page):
    """The blocks as one program. Its tracebacks show lines of the page."""
    program = [PRELUDE]
    for line, block in blocks_of(page, "python"):
        for module in ("torch", "jax"):
            if re.search(rf"\b{module}\b", block) and importlib.util.find_spec(module) is None:
                print(f"skipped, without {module}: {page}:{line}")
                break
        else:
            program.append(f"exec(compile({chr(10) * (line - 1) + block!r}, {page!r}, 'exec'))\n")
    return "".join(program)


@pytest.mark.parametrize("page", [*PAGES, "README.md"])
def test_blocks_run(page, tmp_path):
    pytest.importorskip("torch")
    program = tmp_path / "page.py"
    program.write_text(program_of(page))
    command = [sys.executable, program]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]


def test_pages_are_found():
    assert {"docs/guide/python.md", "docs/guide/from-deepep.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_code_and_name_its_language(page):
    fences = re.findall(r"^ *```(.*)$", (ROOT / page).read_text(), re.MULTILINE)
    assert fences[1::2] == [""] * (len(fences) // 2)
    assert set(fences[::2]) <= {"python", "sh", "text", "cpp"}  # other tests compile C++
    assert "python" in fences


def test_sizes_of_groups_are_those_of_size_hint():
    """The table in the section "Buffers" of clusters.md."""
    import shoal.ep

    page = (ROOT / "docs/guide/clusters.md").read_text()
    rows = re.findall(r"^\| (\d+) \|((?: [\d.]+ GiB \|){4})$", page, re.MULTILINE)
    assert [int(ranks) for ranks, _ in rows] == [8, 16, 32, 64, 128]
    for ranks, cells in rows:
        ranks, columns = int(ranks), []
        for tokens in ({"max_tokens": 4096}, {"low_latency_max_tokens": 128}):
            shape = {"hidden": 7168, "top_k": 8, "experts": 256, **tokens}
            columns.append(shoal.ep.size_hint(ranks, nodes=ranks // 8, **shape)["total"])
            columns.append(shoal.ep.size_hint(ranks, heap="cuda", **shape)["total"])
        for written, size in zip(re.findall(r"[\d.]+", cells), columns, strict=True):
            digits = len(written.partition(".")[2])
            assert abs(float(written) - size / 2**30) < 0.51 * 10**-digits, (ranks, written, size)


SHAPE = {"hidden": 7168, "top_k": 8, "experts": 256, "max_tokens": 4096}


def test_memory_of_normal_mode_is_that_of_size_hint():
    """The table in the section "Memory" of gpus.md, in MB."""
    import shoal.ep

    def hint(ranks, live_results, combine_staging=True):
        return shoal.ep.size_hint(
            ranks, heap="cuda", **SHAPE, live_results=live_results, combine_staging=combine_staging
        )

    page = (ROOT / "docs/guide/gpus.md").read_text()
    rows = re.findall(r"^\| (\d+) \|((?: [\d.]+ \|){6})$", page, re.MULTILINE)
    assert [int(ranks) for ranks, _ in rows] == [2, 4, 8, 64, 128]
    for ranks, cells in rows:
        both, in_place = hint(int(ranks), 2), hint(int(ranks), 2, False)
        columns = [
            both["control"],
            in_place["normal"] / 2,
            both["normal"] - in_place["normal"],
            both["total"],
            hint(int(ranks), 1)["total"],
            in_place["total"],
        ]
        for written, size in zip(re.findall(r"[\d.]+", cells), columns, strict=True):
            digits = len(written.partition(".")[2])
            assert abs(float(written) - size / 1e6) < 0.51 * 10**-digits, (ranks, written, size)
    (hosts,) = re.findall(r"256 ranks with `live_results`\s1: ([\d.]+) GB", page)
    size = shoal.ep.size_hint(256, nodes=32, **SHAPE, live_results=1)["total"]
    assert abs(float(hosts) - size / 1e9) < 0.051


def test_hello_runs_on_four_pes(tmp_path):
    """The first block of the page, started with the page's command."""
    bin_dir = os.environ.get("SHOAL_BIN_DIR")
    if not bin_dir:
        pytest.skip("set SHOAL_BIN_DIR to the build's bin directory")
    _, block = blocks_of("docs/guide/python.md", "python")[0]
    assert block.startswith("# hello.py")
    (tmp_path / "hello.py").write_text(block)
    command = [pathlib.Path(bin_dir) / "shoal-run", "-n", "4", sys.executable, "hello.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    for pe in range(4):
        assert f"PE {pe} of 4 got {100 + (pe - 1) % 4}" in result.stdout
    commands = [text.strip() for _, text in blocks_of("docs/guide/python.md", "sh")]
    assert "shoal-run -n 4 python hello.py" in commands
