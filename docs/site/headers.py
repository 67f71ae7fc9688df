# SPDX-License-Identifier: Apache-2.0
"""API pages from public headers: the comment of the file, then each public declaration with its
comment, as Markdown.

A small reader of the subset of C++ that the headers use. It follows braces, parentheses and access
labels; bodies of functions, private members and namespaces called detail are omitted.
"""

import re
from typing import NamedTuple

# A comment, a string or character literal, a preprocessor line, a bracket or separator, or a run of
# other text.
TOKEN = re.compile(
    r"""(?P<doc>///[^\n]*)|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<directive>^[ \t]*\#(?:\\\n|[^\n])*)
    |(?P<literal>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\\n]){1,4}')|(?P<mark>[{}();])|(?P<text>[^{}();/"'\n]+|.|\n)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
SCOPE = re.compile(r"(namespace\s+[\w:]*|extern\s*\"C\")\s*$")
CLASS = re.compile(
    r"^(?:template\s*<.*>\s*)?(?:typedef\s+)?(class|struct|union)\b(?!.*\()", re.DOTALL
)
ENUM = re.compile(r"^(?:typedef\s+)?enum\b")
HIDDEN = re.compile(r"^(?:friend\b|static_assert\b|class \w+$|struct \w+$)")


class Entry(NamedTuple):
    """A declaration, its comment, and for a class its public members."""

    name: str
    code: str
    comment: str
    members: list | None = None


def tokens(text):
    for match in TOKEN.finditer(text):
        if match.lastgroup not in ("comment", "directive"):
            yield match.lastgroup, match[0]


def name_of(code):
    """The name that a declaration declares."""
    code = re.sub(r"^template\s*<(?:[^<>]|<[^<>]*>)*>\s*", "", code)
    if first := re.match(r"(?:typedef\s+)?enum\s*\{\s*(\w+)", code):
        return first[1]
    for pattern in (
        r"\b(operator\s*(?:\(\)|[^\s\w(]+|\w+))\s*\(",
        r"^(?:typedef\s+)?(?:class|struct|union|enum(?: class)?)\b(?:\s+\[\[.*?\]\])?\s+(\w+)",
        r"^using\s+(\w+)",
        r"\bconcept\s+(\w+)",
        r"\(\s*\*\s*(\w+)\s*\)",
        r"(~?\w+)\s*\(",
        r"(\w+)\s*(?:\[[^]]*\]\s*)?(?:=.*|\{.*)?$",
    ):
        if found := re.search(pattern, code, re.DOTALL):
            return found[1]
    return re.findall(r"\w+", code)[-1]


class Reader:
    def __init__(self, text):
        self.tokens = list(tokens(text))
        self.at = 0

    def balanced(self):
        """The text from a brace that has just been read to the one that closes it."""
        depth, text = 1, ""
        while depth and self.at < len(self.tokens):
            _, word = self.tokens[self.at]
            self.at += 1
            depth += {"{": 1, "}": -1}.get(word, 0)
            text += word
        return text[:-1]

    def entries(self, public=True, inside=False):
        """The declarations up to the end of the scope."""
        found, code, comment, depth = [], "", [], 0
        while self.at < len(self.tokens):
            kind, word = self.tokens[self.at]
            self.at += 1
            if kind == "doc":
                if word.startswith("///<"):
                    if found and not code.strip():
                        found[-1] = found[-1]._replace(
                            comment=(found[-1].comment + "\n" + word[4:]).strip()
                        )
                    continue
                if not code.strip():
                    comment.append(word[3:].removeprefix(" "))
                continue
            depth += {"(": 1, ")": -1}.get(word, 0)
            if word == "\n" and not code.strip() and comment and self.blank_follows():
                comment = []
            if kind == "mark" and depth == 0 and word in "{};":
                if word == "}":
                    return found
                if word == "{":
                    done = self.open(code, "\n".join(comment), found if public else [])
                    if done is None:
                        code += "{" + self.balanced() + "}"
                        continue
                elif public:
                    self.add(found, code, "\n".join(comment))
                code, comment = "", []
                continue
            code += word
            if inside and (label := re.match(r"\s*(public|private|protected)\s*:", code)):
                public, code, comment = label[1] == "public", code[label.end() :], []
        return found

    def blank_follows(self):
        return self.at < len(self.tokens) and self.tokens[self.at][1] == "\n"

    def open(self, code, comment, found):
        """Reads what an open brace begins; None: an initializer, part of the declaration."""
        code = code.strip()
        if SCOPE.search(code):
            inner = self.entries()
            if "detail" not in code:
                found += inner
            return True
        if ENUM.match(code):
            self.add(found, code + " {" + self.balanced() + "}" + self.tail(), comment)
            return True
        if kind := CLASS.match(code):
            members = self.entries(kind[1] != "class", inside=True)
            self.tail()
            found.append(Entry(name_of(code), code, comment, members))
            return True
        if "(" in re.sub(r"operator\s*[=!<>]+", "operator", code).split("=")[0]:
            self.balanced()
            code = re.sub(r"\)\s*:\s*\w+[({].*$", ")", code, flags=re.DOTALL)
            self.add(found, code, comment)
            return True
        return None

    def tail(self):
        """The text between a closing brace and the semicolon."""
        text = ""
        while self.at < len(self.tokens):
            _, word = self.tokens[self.at]
            self.at += 1
            if word == ";":
                break
            text += word
        return text.rstrip()

    @staticmethod
    def add(found, code, comment):
        code = code.strip()
        if code and not HIDDEN.match(code):
            lines = code.split("\n")
            least = min(
                (len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()), default=0
            )
            code = "\n".join(
                [lines[0], *(line[max(least - 4, 0) :].rstrip() for line in lines[1:])]
            )
            found.append(Entry(name_of(code), code + ";", comment))


def prose(comment):
    """The Markdown of a comment: indented lines are code, words that look like markup are text."""
    lines, code, item = [], False, False
    for line in comment.split("\n"):
        item = line.startswith("- ") or item and line.startswith("  ")
        indented = line.startswith("  ") and not item
        if indented != code and (indented or line.strip()):
            lines.append("```" if code else "\n```cpp")
            code = indented
        if code:
            lines.append(line.removeprefix("  "))
        else:
            if (
                item
                and line.startswith("- ")
                and lines
                and not lines[-1].startswith(("- ", "    "))
            ):
                lines.append("")
            parts = re.sub("^  ", "    ", line).split("`")
            parts[::2] = [re.sub(r"([\\*_<>\[\]#|])", r"\\\1", part) for part in parts[::2]]
            lines.append("`".join(parts))
    return "\n".join([*lines, *(["```"] if code else [])])


def render(entries, level, language):
    before = None
    for entry in entries:
        if entry.name != before:
            yield f"{'#' * level} `{entry.name}`\n"
        before = entry.name
        yield f"```{language}\n{entry.code}\n```\n"
        if entry.comment:
            yield prose(entry.comment) + "\n"
        if entry.members:
            yield from render(entry.members, min(level + 1, 4), language)
            before = None


def page(name, text):
    """The Markdown page of the header `name` as programs include it."""
    comment = []
    for line in text.split("\n"):
        if line.startswith("//"):
            comment.append(line[2:].removeprefix(" "))
        elif comment:
            break
    comment = "\n".join(line for line in comment if "SPDX-License" not in line)
    comment = comment.strip().removeprefix(f"{name}: ")
    comment = comment[:1].upper() + comment[1:]
    language = "c" if name.endswith(".h") else "cpp"
    body = "\n".join(render(Reader(text).entries(), 2, language))
    return f"# {name}\n\n{prose(comment)}\n\n```{language}\n#include <{name}>\n```\n\n{body}"
