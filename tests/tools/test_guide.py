# SPDX-License-Identifier: Apache-2.0
"""Every block of code in docs/guide and the README is run or compiled, or says in a comment before
it why not.

Python blocks run in tests/python/test_docs.py, C++ and sh blocks here. A block that is not run has
the line `<!-- not run: REASON -->` before its fence. Blocks of language `text` show output."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs/guide"
PAGES = sorted(page.relative_to(GUIDE).as_posix() for page in GUIDE.rglob("*.md"))
PAGES.append("../../README.md")
# test_device_page.py checks that the blocks of device.md are marked parts of these.
SOURCES = [
    "examples/device_ring.cu",
    "tests/gpu/world/stream_operations_test.cpp",
    "tests/gpu/collective/device_test.cu",
    "tests/gpu/collective/stream_test.cpp",
]
LANGUAGES = {"python", "cpp", "c", "sh", "cmake", "text", "yaml"}

# Blocks without main are bodies of functions, called in order on 4 PEs.
BODIES = """
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>
#include <shoal/collective.hpp>
#include <shoal/ep/group.hpp>
#include <shoal/world.hpp>
{functions}
int main() {{
  shoal::Settings settings;
  settings.symmetric_size = 64 << 20;
  shoal::run_threads(4, settings, [](shoal::World& world) {{
{calls}
  }});
}}
"""


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str
    reason: str  # why it is not run; "" for blocks that are


def blocks_of(page):
    found, lines, at = [], (GUIDE / page).read_text().splitlines(), 0
    while at < len(lines):
        opening = re.fullmatch(r" *```(\w*)", lines[at])
        if opening is None:
            at += 1
            continue
        end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
        comment = re.fullmatch(r" *<!-- not run: (.+) -->", lines[at - 1])
        text = "\n".join(lines[at + 1 : end]) + "\n"
        found.append(Block(page, at + 2, opening[1], text, comment[1] if comment else ""))
        at = end + 1
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def ids(blocks):
    return [f"{block.page}:{block.line}" for block in blocks]


def chosen(language):
    return [block for block in BLOCKS if block.language == language and not block.reason]


def compiled_elsewhere(block):
    """Part of a source file that the build compiles, word for word."""
    indented = [re.sub(r"(?m)^ +", "", (ROOT / source).read_text()) for source in SOURCES]
    return any(re.sub(r"(?m)^ +", "", block.text) in text for text in indented)


def test_blocks_name_their_language_and_reasons_belong_to_blocks():
    assert {block.language for block in BLOCKS} <= LANGUAGES
    for page in PAGES:
        text = (GUIDE / page).read_text()
        reasons = len(re.findall(r"<!-- not run: ", text))
        assert reasons == sum(bool(block.reason) for block in blocks_of(page)), page
        assert all(block.language != "text" for block in blocks_of(page) if block.reason), page


def test_every_block_is_run_or_says_why_not():
    """C has blocks in c.md alone, which test_c_example.py compares with an example."""
    for block in BLOCKS:
        if block.language in ("cmake", "yaml"):
            assert block.reason, f"{block.page}:{block.line}"
        if block.language == "c":
            assert block.page == "c.md"


@pytest.fixture(scope="module")
def compile_and_run(bin_dir, tmp_path_factory):
    def run(text):
        lib = bin_dir.parent / "lib"
        if not (lib / "libshoal_ep.so").exists():
            pytest.skip("needs shared libraries")
        folder = tmp_path_factory.mktemp("guide")
        (folder / "page.cpp").write_text(text)
        command = ["ccache"] if shutil.which("ccache") else []
        command += ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror"]
        command += [f"-I{ROOT / 'include'}", "-c", "page.cpp"]
        compiled = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        assert compiled.returncode == 0, compiled.stderr
        link = ["g++", "page.o", "-o", "page", f"-L{lib}", "-lshoal_ep", "-lshoal"]
        link += [f"-Wl,-rpath,{lib}"]
        linked = subprocess.run(link, cwd=folder, capture_output=True, text=True, timeout=120)
        assert linked.returncode == 0, linked.stderr
        ran = subprocess.run([folder / "page"], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stdout + ran.stderr

    return run


COMPILED_HERE = [block for block in chosen("cpp") if not compiled_elsewhere(block)]
PROGRAMS = [block for block in COMPILED_HERE if "int main" in block.text]
BODIES_OF = {block.page: [] for block in COMPILED_HERE if block not in PROGRAMS}
for one in COMPILED_HERE:
    if one not in PROGRAMS:
        BODIES_OF[one.page].append(one)


@pytest.mark.parametrize("block", PROGRAMS, ids=ids(PROGRAMS))
def test_programs_in_cpp_run(block, compile_and_run):
    compile_and_run(block.text)


@pytest.mark.parametrize("page", BODIES_OF)
def test_bodies_in_cpp_run_on_four_pes(page, compile_and_run):
    functions, calls = [], []
    for block in BODIES_OF[page]:
        name = f"line_{block.line}"
        functions.append(
            f"static void {name}([[maybe_unused]] shoal::World& world) {{\n"
            f'#line {block.line} "{page}"\n{block.text}}}\n'
        )
        calls.append(f"    {name}(world);\n    shoal::barrier(world.team());")
    compile_and_run(BODIES.format(functions="\n".join(functions), calls="\n".join(calls)))


@pytest.mark.parametrize("block", chosen("sh"), ids=ids(chosen("sh")))
def test_commands_run(block, bin_dir, tmp_path):
    """In a folder that has the files of the page's Python blocks that begin with "# NAME.py"."""
    for other in blocks_of(block.page):
        name = re.match(r"# (\w+\.py)\b", other.text)
        if other.language == "python" and name:
            (tmp_path / name[1]).write_text(other.text)
    environment = {
        **os.environ,
        "PATH": f"{bin_dir}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{bin_dir.parent / 'python'}:{os.environ.get('PYTHONPATH', '')}",
    }
    if "deep_ep" in block.text and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    command = ["bash", "-e", "-o", "pipefail", "-c", block.text]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
