#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The error messages of the library: their ids in the sources, and the table of causes and cures.

Usage: messages.py [--list | --page] [ROOT]. --list prints "file:line: message" for every message,
fields as "…". --page prints docs/reference/messages.md. Otherwise prints each fault and exits with
1 when there is any, else 0.

A message is a text that is given to fail, require, fail_errno, an Error or a warning, and any other
text that begins with an id: it reaches a user inside other messages. A message begins with its id,
as in "SHOAL-N114: hidden is {}". A text that consists of fields passes on another message and needs
none. The table is in src/base/messages/*.cpp; its rows are sorted and each has a message.
"""

import functools
import re
import sys
from pathlib import Path

TABLE = "src/base/messages"
ID = re.compile(r"SHOAL-N(\d+): ")
STRINGS = r"((?:\s*\"(?:\\.|[^\"\\])*\")+)"
ROW = re.compile(r"\{(\d+)," + STRINGS + "," + STRINGS + r"\}")
FIELD = "…"
# Index of the argument of a call that is the format; the others have their own messages before it.
CALLS = {
    "fail": 1,
    "fail_made": 1,
    "require": 2,
    "fail_errno": 0,
    "Error": 1,
    "warn": 0,
    "error": 0,
}
CALL = re.compile(
    r"(?<![\w.>])(?:(?:shoal::|detail::)?(fail(?:_made|_errno)?|require|Error)|log::(warn|error))\s*\("
)
# Files in which calls are defined, not made.
NO_CALLS = {"src/base/check.hpp", "src/base/error.cpp", "src/base/log.cpp", "src/base/log.hpp"}
SHORTEST = 8  # characters of a message other than fields; shorter ones pass on others
TOKEN = re.compile(
    r'R"\((?P<raw>.*?)\)"|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|(?P<comment>//[^\n]*|/\*.*?\*/)',
    re.DOTALL,
)


def without_comments(text):
    """The same text with spaces in the place of comments, so that lines stay where they are."""
    return TOKEN.sub(
        lambda token: re.sub(r"[^\n]", " ", token[0]) if token["comment"] else token[0], text
    )


def arguments(text, at):
    """The arguments of the call whose opening parenthesis is before `at`."""
    parts, start, depth = [], at, 0
    while True:
        token = TOKEN.match(text, at)
        c = text[at]
        if token and not (c == "'" and text[at - 1].isalnum()):
            at = token.end()
            continue
        at += 1
        if c in ",)" and depth == 0:
            parts.append(text[start : at - 1])
            if c == ")":
                return parts
            start = at
        depth += (c in "([{") - (c in ")]}")


def normal(message):
    """Fields as "…", spaces single."""
    message = message.replace("{{", "\0").replace("}}", "\1")
    message = re.sub(r"\{[^{}]*\}", FIELD, message).replace("\0", "{").replace("\1", "}")
    return re.sub(r"\s+", " ", message).strip()


def literals(text):
    """[(position, text)] of all string literals, neighbours joined."""
    found, end = [], None
    for token in TOKEN.finditer(text):
        if not token[0].startswith('"'):
            continue
        literal = token[0][1:-1].replace('\\"', '"').replace("\\n", " ")
        if end is not None and not text[end : token.start()].strip():
            found[-1] = (found[-1][0], found[-1][1] + literal)
        else:
            found.append((token.start(), literal))
        end = token.end()
    return found


@functools.cache
def sources(root):
    """[(name, text without comments)] of all sources below src/ that may have messages."""
    found = []
    for file in sorted((root / "src").rglob("*")):
        name = file.relative_to(root).as_posix()
        if file.suffix in {".hpp", ".cpp", ".cu", ".cuh"} and name not in NO_CALLS:
            found.append((name, without_comments(file.read_text())))
    return found


def messages(root):
    """[(file, line, message)] of all sources below src/, by file and line."""
    direct = direct_messages(root)
    known = {(name, message) for name, _, message in direct}
    found = []
    for name, text in sources(root):
        for position, literal in literals(text):
            message = normal(literal)
            if ID.match(message) and (name, message) not in known:
                found.append((name, text.count("\n", 0, position) + 1, message))
    return sorted(direct + found)


def direct_messages(root):
    found = []
    for name, text in sources(root):
        for call in CALL.finditer(text):
            parts = arguments(text, call.end())
            position = CALLS[call[1] or call[2]]
            if len(parts) <= position:
                continue  # a declaration
            expression = parts[position]
            if "format(" in expression:  # Error(code, fmt::format("...", ...))
                expression = ",".join(
                    arguments(expression, expression.index("format(") + len("format("))[:1]
                )
            line = text.count("\n", 0, call.start()) + 1
            for _, literal in literals(expression):
                message = normal(literal)
                if len(message.replace(FIELD, "").strip(" :;,.")) >= SHORTEST:
                    found.append((name, line, message))
    return found


def table(root):
    """[(file, line, number, cause, cure)] of all rows."""
    rows = []
    for file in sorted((root / TABLE).glob("*.cpp")):
        text = file.read_text()
        for row in ROW.finditer(text):
            cause, cure = (
                "".join(re.findall(r'"((?:\\.|[^"\\])*)"', part)) for part in row.groups()[1:]
            )
            line = text.count("\n", 0, row.start()) + 1
            rows.append((file.relative_to(root).as_posix(), line, int(row[1]), cause, cure))
    return rows


def faults(root):
    result, used, rows = [], {}, table(root)
    for name, line, message in messages(root):
        if found := ID.match(message):
            used.setdefault(int(found[1]), (name, line))
        else:
            result.append(f"{name}:{line}: without an id: {message}")
    last = {}
    for name, line, number, cause, cure in rows:
        place = f"{name}:{line}: N{number}"
        if number not in used:
            result.append(f"{place} has no message")
        if number <= last.get(name, 0):
            result.append(f"{place} is not above the row before it, N{last[name]}")
        last[name] = number
        if not cause.endswith(".") or not cure.endswith("."):
            result.append(f"{place}: cause and cure are sentences")
    numbers = [number for _, _, number, _, _ in rows]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    result += [f"N{number} has several rows" for number in twice]
    result += [
        f"{name}:{line}: N{number} has no row in {TABLE}"
        for number, (name, line) in sorted(used.items())
        if number not in numbers
    ]
    return result


def page(root):
    texts = {}
    for _, _, message in messages(root):
        if found := ID.match(message):
            text = message[found.end() :].strip().replace("|", "\\|").replace("`", "'")
            texts.setdefault(int(found[1]), {})[text] = True
    lines = [
        "# Messages",
        "",
        f'Every message of the library, its cause and its cure; fields are "{FIELD}".',
        "`shoal-info --explain N114` prints one of them. Ids stay the same from version to version.",
        "Generated from `src/base/messages` and the sources by `./run messages`.",
        "",
        "| id | message | cause | cure |",
        "|---|---|---|---|",
    ]
    for _, _, number, cause, cure in sorted(table(root), key=lambda row: row[2]):
        shown = "<br>".join(f"`{text}`" for text in texts.get(number, []))
        cells = [f"N{number}", shown, cause.replace("|", "\\|"), cure.replace("|", "\\|")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    given = [a for a in sys.argv[1:] if not a.startswith("--")]
    root = Path(given[0]) if given else Path(__file__).resolve().parents[1]
    if "--list" in sys.argv:
        print("\n".join(f"{name}:{line}: {message}" for name, line, message in messages(root)))
        return 0
    if "--page" in sys.argv:
        print(page(root))
        return 0
    found = faults(root)
    print("\n".join(found) if found else "every message has an id, and every id a cause and a cure")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
