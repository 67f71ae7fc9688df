#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the layout of the prose of the tree: comments, docstrings and pages.

Usage: check_prose.py [ROOT]. Prints each fault as "file:line: what is wrong"; exits with 1 if there
is any, else 0.

- No line of prose is wider than 100 columns. Tables, links and code blocks of pages may be.
- Comments have no rulers and no line that breaks early in a sentence, as a formatter leaves them.
- Every source file has an SPDX line.
- A README begins with a heading.
"""

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

WIDTH = 100
SPDX = "SPDX-License-Identifier: Apache-2.0"
C_LIKE = {".cpp", ".hpp", ".h", ".c", ".cu", ".cuh", ".pml"}
HASH_LIKE = {".py", ".sh", ".cmake"}
HASH_NAMES = {"CMakeLists.txt", "run", "run-gpu", "Dockerfile"}
DATA = ("docs/data/", "tests/data/", "tests/fuzz/corpus/", ".devcontainer/")
RULER = re.compile(r"^\s*(?://+|#)\s*[-=*_]{4,}\s*\S{0,40}\s*[-=*_]*\s*$")
COMMENT_LINE = re.compile(r"^(\s*)(//+<?) (\S.*)$")
# A line breaks early where the first word of the next would leave this many columns free.
EARLY = 20


def tracked(root):
    """Files of the tree, by name: those that git tracks, or all outside a checkout."""
    listing = subprocess.run(
        ["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
    )
    if listing.returncode == 0:
        return sorted(name for name in set(listing.stdout.splitlines()) if (root / name).is_file())
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def comments_of_c(text):
    """(line, text) of the comments and string literals of C, C++ and CUDA sources."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.DOTALL)
    for match in pattern.finditer(text):
        first = text.count("\n", 0, match.start()) + 1
        for offset, line in enumerate(match.group().split("\n")):
            yield first + offset, line


def comments_of_python(text):
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING) or token.type == getattr(
                tokenize, "FSTRING_MIDDLE", -1
            ):
                for offset, line in enumerate(token.string.split("\n")):
                    yield token.start[0] + offset, line
    except (tokenize.TokenError, IndentationError):
        return


def comments_of_hash(text):
    for number, line in enumerate(text.splitlines(), 1):
        if "#" in line:
            yield number, line[line.index("#") :]


def prose_of(path, text):
    if path.suffix in C_LIKE:
        return comments_of_c(text)
    if path.suffix == ".py" or text.startswith("#!/usr/bin/env python3"):
        return comments_of_python(text)
    if path.suffix == ".md":
        return enumerate(text.splitlines(), 1)
    return comments_of_hash(text)


def wide_lines(path, text):
    """Lines of prose wider than WIDTH. Code that is too wide is the formatter's business."""
    lines = text.splitlines()
    if path.suffix == ".md":
        inside = False
        for number, line in enumerate(lines, 1):
            if line.lstrip().startswith("```"):
                inside = not inside
            elif (
                not inside
                and len(line) > WIDTH
                and not line.startswith("    ")
                and not line.lstrip().startswith(("|", "<", "[!", "!["))
            ):
                if " " in line[:WIDTH].strip() and not re.search(r"\]\([^)]*$", line[:WIDTH]):
                    yield number
        return
    for number, part in prose_of(path, text):
        literal = part.lstrip("rRbBfFuU")
        if literal.startswith(('"', "'")) and not literal.startswith(('"""', "'''")):
            continue
        line = lines[number - 1] if number <= len(lines) else ""
        if (
            len(line) > WIDTH
            and "http" not in line
            and " " in part.strip()
            and "NOLINT" not in line
        ):
            yield number


def early_breaks(lines):
    """Lines of comments that break in a sentence although the next word fits."""
    for number, (line, following) in enumerate(zip(lines, lines[1:]), 1):
        one, two = COMMENT_LINE.match(line), COMMENT_LINE.match(following)
        if not one or not two or one.groups()[:2] != two.groups()[:2]:
            continue
        text, word = one[3], two[3].split()[0]
        is_layout = "  " in text or "  " in two[3] or SPDX in text or text[0] in "-*|@"
        is_item = word[0] in "-*|<@" or word[0].isdigit()
        if is_layout or is_item or text.endswith((".", ":", ";", "?", ")")):
            continue
        if len(line) + 1 + len(word) + EARLY <= WIDTH:
            yield number


def is_source(name):
    path = Path(name)
    return (
        path.suffix in C_LIKE | HASH_LIKE or path.name in HASH_NAMES or name == ".ci/run"
    ) and not name.startswith(DATA)


def file_faults(root, name):
    path = root / name
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    if is_source(name) and SPDX not in "\n".join(text.splitlines()[:3]):
        yield f'{name}:1: no line "{SPDX}"'
    if name.startswith(DATA) or not (is_source(name) or path.suffix == ".md"):
        return
    if path.name == "README.md" and not text.startswith("# "):
        yield f"{name}:1: does not begin with a heading"
    if path.suffix in C_LIKE | HASH_LIKE:
        lines = text.splitlines()
        for number in early_breaks(lines):
            yield f"{name}:{number}: the comment breaks early in a sentence"
        for number, line in enumerate(lines, 1):
            if RULER.match(line):
                yield f"{name}:{number}: a ruler"
    for number in wide_lines(path, text):
        yield f"{name}:{number}: prose wider than {WIDTH} columns"


def faults(root):
    for name in tracked(root):
        yield from file_faults(root, name)


def main(arguments):
    root = Path(arguments[0] if arguments else Path(__file__).parents[1]).resolve()
    found = list(faults(root))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
