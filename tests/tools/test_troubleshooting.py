# SPDX-License-Identifier: Apache-2.0
"""docs/guide/troubleshooting.md has an entry for every error message of the sources that does not
say itself what is allowed, and no others."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "cmake/messages.py"


def check(root, *options):
    return subprocess.run(
        [sys.executable, SCRIPT, *options, root], capture_output=True, text=True, timeout=60
    )


def test_every_message_has_an_entry_and_every_entry_a_message():
    result = check(ROOT)
    assert result.returncode == 0, result.stdout


def make(tmp_path, source, page):
    (tmp_path / "src/base").mkdir(parents=True)
    (tmp_path / "docs/guide").mkdir(parents=True)
    (tmp_path / "src/base/a.cpp").write_text(source)
    (tmp_path / "docs/guide/troubleshooting.md").write_text(page)
    return tmp_path


def test_messages_are_found_in_all_their_forms(tmp_path):
    source = """
      require(f(a, ")") && b, Code::mismatch, "the first of {} and "
              "{:.2f}: \\"{}\\"", x, y, z);
      fail(Code::closed, "{}: the second, {{braces}}", name(1, 2));
      // fail(Code::closed, "in a comment")
      if (n > 30'000) fail_errno("the third");
      throw Error(Code::system, fmt::format("the fourth {}", what));
      fail(Code::system, hard ? "the fifth, hard" : "the fifth, soft");
      log::warn("the sixth {}", 6);
      [[noreturn]] void fail(Code code, Format format);
      fail(code, "{}", message);
    """
    result = check(make(tmp_path, source, ""), "--list")
    assert [line.split(": ", 1)[1] for line in result.stdout.splitlines()] == [
        'the first of … and …: "…"',
        "…: the second, {braces}",
        "the third",
        "the fourth …",
        "the fifth, hard",
        "the fifth, soft",
        "the sixth …",
    ]
    assert result.stdout.startswith("src/base/a.cpp:2: ")


def test_a_row_has_several_entries_and_remedies_in_messages_need_none(tmp_path):
    source = 'fail(c, "the moon is {}", a); fail(c, "the sun is {}", b); fail(c, "x is {}; allowed: 1 to 2", x);'
    page = "# T\n\n| message | cure |\n|---|---|\n| `the moon is`, `the sun is` | wait |\n"
    result = check(make(tmp_path, source, page))
    assert result.returncode == 0, result.stdout
    (tmp_path / "src/base/a.cpp").write_text(source.replace("the sun", "the star"))
    result = check(tmp_path)
    assert "src/base/a.cpp:1: docs/guide/troubleshooting.md has no entry for: the star is …" in (
        result.stdout
    )
    assert "docs/guide/troubleshooting.md:5: the sources have no such message: the sun is" in (
        result.stdout
    )


def test_what_is_missing_and_what_is_dead_are_faults(tmp_path):
    source = 'fail(c, "the world of {} is flat", a); fail(c, "the sea is {}", b);'
    page = "# T\n\n### `the world of … is flat`\n\n| message | cure |\n|---|---|\n| `the moon is` | nothing |\n| `the` | too much |\n"
    result = check(make(tmp_path, source, page))
    assert result.returncode == 1
    assert (
        "src/base/a.cpp:1: docs/guide/troubleshooting.md has no entry for: the sea is …"
        not in result.stdout
    ), "`the` stands for it"
    assert (
        "docs/guide/troubleshooting.md:7: the sources have no such message: the moon is"
        in result.stdout
    )
    assert "docs/guide/troubleshooting.md:8: too short to be an entry: the" in result.stdout
    (tmp_path / "docs/guide/troubleshooting.md").write_text(
        page.replace("| `the` | too much |\n", "")
    )
    assert (
        "src/base/a.cpp:1: docs/guide/troubleshooting.md has no entry for: the sea is …"
        in check(tmp_path).stdout
    )
