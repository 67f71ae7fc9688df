# SPDX-License-Identifier: Apache-2.0
"""Every error message of the sources has an id, every id a cause and a cure, and the page of all
messages is up to date."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "cmake/messages.py"
ROW = 'constexpr Message kRows[] = {{{number},\n  "A {cause}" " is so.",\n  "Cure it."}}'


def check(root, *options):
    return subprocess.run(
        [sys.executable, SCRIPT, *options, root], capture_output=True, text=True, timeout=60
    )


def make(tmp_path, source, *rows):
    (tmp_path / "src/base/messages").mkdir(parents=True)
    (tmp_path / "src/base/a.cpp").write_text(source)
    table = "\n".join(ROW.format(number=number, cause="cause") for number in rows)
    (tmp_path / "src/base/messages/rows.cpp").write_text(table)
    return tmp_path


def test_every_message_has_an_id_and_every_id_a_message():
    result = check(ROOT)
    assert result.returncode == 0, result.stdout


def test_the_page_is_generated():
    result = check(ROOT, "--page")
    page = (ROOT / "docs/reference/messages.md").read_text()
    assert result.stdout == page, "run ./run messages"


def test_the_troubleshooting_guide_names_ids_that_exist():
    known = set(
        re.findall(r"^\| (N\d+) \|", (ROOT / "docs/reference/messages.md").read_text(), re.M)
    )
    guide = (ROOT / "docs/guide/troubleshooting.md").read_text()
    assert len(known) > 200
    assert set(re.findall(r"\bN\d{3}\b", guide)) <= known


def test_messages_are_found_in_all_their_forms(tmp_path):
    source = """
      require(f(a, ")") && b, Code::mismatch, "SHOAL-N1: the first of {} and "
              "{:.2f}: \\"{}\\"", x, y, z);
      fail(Code::closed, "{}: the second, {{braces}}", name(1, 2));
      // fail(Code::closed, "in a comment")
      if (n > 30'000) fail_errno("the third");
      throw Error(Code::system, fmt::format("the fourth {}", what));
      fail(Code::system, hard ? "the fifth, hard" : "the fifth, soft");
      log::warn("the sixth {}", 6);
      fail_made(Code::closed, "the seventh {}", 7);
      [[noreturn]] void fail(Code code, Format format);
      fail(code, "{}", message);
      const auto reason = "SHOAL-N8: the eighth";
    """
    result = check(make(tmp_path, source), "--list")
    assert [line.split(": ", 1)[1] for line in result.stdout.splitlines()] == [
        'SHOAL-N1: the first of … and …: "…"',
        "…: the second, {braces}",
        "the third",
        "the fourth …",
        "the fifth, hard",
        "the fifth, soft",
        "the sixth …",
        "the seventh …",
        "SHOAL-N8: the eighth",
    ]
    assert result.stdout.startswith("src/base/a.cpp:2: ")


@pytest.mark.parametrize(
    ("source", "rows", "fault"),
    [
        ('fail(c, "the moon is {}", a);', [], "src/base/a.cpp:1: without an id: the moon is …"),
        ('fail(c, "SHOAL-N4: the moon", a);', [], "a.cpp:1: N4 has no row in src/base/messages"),
        ('fail(c, "SHOAL-N4: the moon", a);', [4, 5], "rows.cpp:4: N5 has no message"),
        ('f("SHOAL-N4: a moon"); f("SHOAL-N5: b");', [5, 4], "N4 is not above the row before it"),
        ('f("SHOAL-N4: a moon");', [4, 4], "N4 has several rows"),
        ('fail(c, "SHOAL-N4: the moon is {}", a);', [4], ""),
        ('fail(c, "{}: {}", a, b);', [], ""),
    ],
)
def test_faults_are_found(tmp_path, source, rows, fault):
    result = check(make(tmp_path, source, *rows))
    assert (result.returncode != 0) == bool(fault), result.stdout
    assert fault in result.stdout


def test_the_page_has_texts_causes_and_cures(tmp_path):
    source = 'fail(c, "SHOAL-N4: a | is {}", a); fail(c, "SHOAL-N4: b is {}", a);'
    result = check(make(tmp_path, source, 4), "--page")
    assert r"| N4 | `a \| is …`<br>`b is …` | A cause is so. | Cure it. |" in result.stdout


@pytest.mark.parametrize("name", ["SHOAL-N551", "N551", "n551", "551"])
def test_shoal_info_explains_an_id(bin_dir, name):
    command = [bin_dir / "shoal-info", "--explain", name]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert re.match(r"SHOAL-N551\nCause: .+\.\nCure:  .+\.\n$", text)
    result = subprocess.run([*command, "--json"], capture_output=True, check=True, timeout=60)
    document = json.loads(result.stdout)
    assert document["id"] == "SHOAL-N551"
    assert document["cause"] in text and document["cure"] in text


@pytest.mark.parametrize("name", ["N1", "551x", "", "SHOAL-", "99999999"])
def test_shoal_info_refuses_what_is_no_id(bin_dir, name):
    command = [bin_dir / "shoal-info", f"--explain={name or '-'}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "SHOAL-N100: no message has the id" in result.stderr
