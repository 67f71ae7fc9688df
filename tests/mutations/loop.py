# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: they make mutations one by one and count survivors.

Each script has MUTATIONS, a list of (what is wrong, file, text, replacement...), and
path_of(file), the file's path in the repository. tools/test_mutations.py checks that every text
occurs once.
"""

import re
import subprocess


class NotRun(Exception):
    """A mutation could not be tried: its place is not found, or it does not compile."""


def run_mutations(mutations, wanted, notice):
    """Prints what notices each mutation, or the `wanted` ones. Returns the exit status.

    `mutations`: (what is wrong, arguments of notice...). notice() returns what noticed the
    mutation, or an empty text; it may raise NotRun.
    """
    unknown = set(wanted) - {what for what, *_ in mutations}
    for what in sorted(unknown):
        print(f"{what}: NOT RUN: there is no such mutation")
    failures = len(unknown)
    for what, *arguments in mutations:
        if wanted and what not in wanted:
            continue
        try:
            noticed = notice(*arguments)
            failures += noticed == ""
        except NotRun as reason:
            noticed = f"NOT RUN: {reason}"
            failures += 1
        print(f"{what}: {noticed or 'SURVIVES'}", flush=True)
    return 1 if failures else 0


def replace_in(path, text, replacement):
    """Replaces the only `text` of a file."""
    source = path.read_text()
    count = source.count(text)
    if count != 1:
        raise NotRun(f"{path.name} has {text!r} {count} times")
    path.write_text(source.replace(text, replacement, 1))


def run_tests(command, timeout_s):
    """What fails in a program of tests: names, "the tests do not end", or an empty text."""
    try:
        done = subprocess.run(
            [*map(str, command), "--gtest_brief=1"],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "the tests do not end"
    failed = sorted(set(re.findall(r"^\[  FAILED  \] ([\w/.]+)", done.stdout, re.MULTILINE)))
    ended = f"the tests end with status {done.returncode}" if done.returncode else ""
    return ", ".join(failed[:2]) or ended
