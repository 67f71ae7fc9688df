#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The error messages of the library, out of its sources, and whether docs/guide/troubleshooting.md
has an entry for each that does not say itself what is allowed.

Usage: messages.py [--list] [ROOT]. --list prints "file:line: message" for every one, fields as "…":
the raw material of the page. Otherwise prints each message without an entry, each entry without a
message, and exits with 1 when there is any, else 0.

A message is a text that is given to fail, require, fail_errno, an Error or a warning, and any other
text of at least four words that names a setting, says what is allowed, or begins with "cannot":
those reach a user inside other messages. A message with the word "allowed" or "must" needs no
entry. An entry is a text in backticks in a heading, or in the first cell of a table's row, which
may have several: it stands for all messages that begin so, where "…" is any text. An entry may also
stand for any other text of the sources.
"""

import functools
import re
import sys
from pathlib import Path

PAGE = "docs/guide/troubleshooting.md"
FIELD = "…"
# Index of the argument of a call that is the format; the others have their own messages before it.
CALLS = {"fail": 1, "require": 2, "fail_errno": 0, "Error": 1, "warn": 0, "error": 0}
CALL = re.compile(
    r"(?<![\w.>])(?:(?:shoal::|detail::)?(fail|require|fail_errno|Error)|log::(warn|error))\s*\("
)
# Files in which calls are defined, not made.
LEFT_OUT = {"src/base/check.hpp", "src/base/error.cpp", "src/base/log.cpp", "src/base/log.hpp"}
INDIRECT = re.compile(r"^(?!\";)[\w…\"[].*(SHOAL_|allowed: |Setting)|^cannot ")
# Whose other texts are no messages.
NO_MESSAGES = {
    "src/base/settings.cpp",
    "src/base/settings_table.cpp",
    "src/pe/agreement.cpp",
    "src/startup/connectivity_report.cpp",
    "src/shmem/program.cpp",
}
REMEDY = re.compile(r"\b(?:allowed|must)\b")  # such messages need no entry
SHORTEST = 8  # characters of an entry other than fields, so that no entry matches everything
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


def texts(root):
    """[(file, line, text)] of all other texts of the sources, which may be parts of messages."""
    found = []
    for name, text in sources(root):
        included = re.sub(r"^\s*#.*", lambda line: " " * len(line[0]), text, flags=re.MULTILINE)
        for position, literal in literals(included):
            found.append((name, included.count("\n", 0, position) + 1, normal(literal)))
    return found


@functools.cache
def sources(root):
    """[(name, text without comments)] of all sources below src/ that may have messages."""
    found = []
    for file in sorted((root / "src").rglob("*")):
        name = file.relative_to(root).as_posix()
        if file.suffix in {".hpp", ".cpp", ".cu", ".cuh"} and name not in LEFT_OUT:
            found.append((name, without_comments(file.read_text())))
    return found


def messages(root):
    """[(file, line, message)] of all sources below src/, by file and line."""
    direct = direct_messages(root)
    known = {message for _, _, message in direct}
    indirect = [
        (name, line, text)
        for name, line, text in texts(root)
        if name not in NO_MESSAGES
        and text not in known
        and len(text.split()) >= 4
        and INDIRECT.search(text)
    ]
    return sorted(direct + indirect)


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


@functools.cache
def pattern_of(entry):
    return re.compile(".*?".join(re.escape(part) for part in entry.split(FIELD)))


def stands_for(entry, message):
    """Return true if the message begins as the entry says, whose "…" is any text."""
    return pattern_of(entry).match(message) is not None


def entries(page):
    """[(line, text)] of the page's entries."""
    found = []
    for number, line in enumerate(page.splitlines(), 1):
        match = re.match(r"(?:#+|\|)\s+((?:`[^`]+`(?:, )?)+)\s*(?:\||$)", line)
        if match:
            found += [(number, text) for text in re.findall(r"`([^`]+)`", match[1])]
    return found


def faults(root):
    page = (root / PAGE).read_text()
    known = entries(page)
    every = messages(root)
    alive = {text for _, _, text in [*every, *texts(root)]}
    result = []
    for name, line, message in every:
        if not REMEDY.search(message) and not any(stands_for(text, message) for _, text in known):
            result.append(f"{name}:{line}: {PAGE} has no entry for: {message}")
    for number, text in known:
        if len(text.replace(FIELD, "").strip()) < SHORTEST:
            result.append(f"{PAGE}:{number}: too short to be an entry: {text}")
        elif not any(stands_for(text, message) for message in alive):
            result.append(f"{PAGE}:{number}: the sources have no such message: {text}")
    entry_texts = [text for _, text in known]
    result += [
        f"{PAGE}:{number}: twice: {text}"
        for i, (number, text) in enumerate(known)
        if text in entry_texts[:i]
    ]
    return result


def main():
    arguments_given = [a for a in sys.argv[1:] if a != "--list"]
    root = Path(arguments_given[0]) if arguments_given else Path(__file__).resolve().parents[1]
    if "--list" in sys.argv:
        print("\n".join(f"{name}:{line}: {message}" for name, line, message in messages(root)))
        return 0
    found = faults(root)
    print("\n".join(found) if found else f"every message has an entry in {PAGE}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
