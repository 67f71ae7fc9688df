# SPDX-License-Identifier: Apache-2.0
"""The table of OpenSHMEM routines says what the library, the headers and the tests have. The
compiler wrappers make programs of it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/shmem"))
import conformance  # noqa: E402

TESTS = ROOT / "tests/shmem"
LINE_MARKER = re.compile(r'# \d+ "([^"]*)"')


def words_by_file(source):
    """The identifiers of a preprocessed C file, by the file that each line is from."""
    text = subprocess.run(
        ["cc", "-E", f"-I{ROOT}/include", str(source)], capture_output=True, text=True, check=True
    ).stdout
    words, file = {}, ""
    for line in text.splitlines():
        marker = LINE_MARKER.match(line)
        if marker:
            file = marker[1]
        else:
            words.setdefault(file, set()).update(re.findall(r"\w+", line))
    return words


@pytest.fixture(scope="module")
def exported(bin_dir):
    library = bin_dir.parent / "lib/libshoal_shmem.so"
    if not library.exists():
        pytest.skip("built as a static library")
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    return {line.split()[2]: line.split()[1] for line in symbols.splitlines()}


def test_page_is_generated():
    assert conformance.PAGE.read_text() == conformance.page(), "tools/shmem/conformance.py --write"


def test_no_routine_twice():
    names = [routine for routine, _ in conformance.routines()]
    assert len(names) == len(set(names))


def test_library_has_these_routines_and_no_others(exported):
    names = {routine for routine, _ in conformance.routines()}
    public = {name for name in exported if name.startswith("shmem_")}
    assert public == names
    assert {name for name in exported if name.startswith("pshmem_")} == {f"p{n}" for n in names}
    assert set(exported) - public - {f"p{n}" for n in names} == set(conformance.OLD_NAMES)


def test_profiling_libraries_can_replace_each_routine(exported):
    assert {exported[routine] for routine, _ in conformance.routines()} == {"W"}


def test_headers_declare_each_routine():
    words = words_by_file(TESTS / "profiling.c")
    declared = set().union(*(words[file] for file in words if "/include/shoal/shmem/" in file))
    for routine, _ in conformance.routines():
        assert routine in declared and f"p{routine}" in declared, routine
    assert set(conformance.OLD_NAMES) <= declared


def test_tests_call_each_routine():
    called = {}
    rows = [(routine, row.test) for routine, row in conformance.routines()]
    for routine, test in [*rows, *conformance.OLD_NAMES.items()]:
        if test not in called:
            words = words_by_file(TESTS / test)
            called[test] = set().union(*(words[file] for file in words if "/tests/shmem/" in file))
        assert routine in called[test], f"{test} does not call {routine}"


def compiles(standard, generic):
    """The messages of the compiler for a small program; empty: it compiles."""
    source = "#include <shmem.h>\nint box;\nint main(void) {\n  shmem_init();\n"
    source += f"  {'shmem_p' if generic else 'shmem_int_p'}(&box, 1, 0);\n  shmem_finalize();\n"
    source += "  return 0;\n}\n"
    compiler = ["c++", "-x", "c++"] if standard.startswith("c++") else ["cc", "-x", "c"]
    flags = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", f"-I{ROOT}/include"]
    return subprocess.run(
        [*compiler, f"-std={standard}", *flags, "-"],
        input=source,
        capture_output=True,
        text=True,
        check=False,
    ).stderr


@pytest.mark.parametrize(
    ("standard", "generic"),
    [("c99", False), ("c11", True), ("c++14", True), ("c++17", True), ("c++20", True)],
)
def test_headers_compile(standard, generic):
    assert compiles(standard, generic) == ""


def test_older_cxx_is_refused():
    assert "shmem.h needs C++14 or later" in compiles("c++11", False)


@pytest.mark.parametrize(
    "wrapper, suffix", [("oshcc", "c"), ("oshc++", "cpp"), ("oshcxx", "cpp"), ("oshCC", "cpp")]
)
def test_wrappers_compile_programs(exported, bin_dir, tmp_path, wrapper, suffix):
    source, program = tmp_path / f"program.{suffix}", tmp_path / "program"
    source.write_text(
        "#include <shmem.h>\nint main(void) { shmem_init(); shmem_finalize(); return 0; }\n"
    )
    subprocess.run([bin_dir / wrapper, source, "-o", program], check=True, timeout=120)
    subprocess.run([bin_dir / "oshrun", "-np", "2", program], check=True, timeout=120)
