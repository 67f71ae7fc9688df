"""Adds up the closing lines of ctest and pytest in the logs of a CI run and prints one line: N passed, N failed, N skipped."""

import pathlib
import re
import sys

passed = failed = skipped = 0
for log in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    text = log.read_text(errors="replace")
    for match in re.finditer(r"(\d+)% tests passed, (\d+) tests failed out of (\d+)", text):
        bad, total = int(match[2]), int(match[3])
        not_run = len(re.findall(r"\*\*\*Skipped", text))
        failed += bad
        skipped += not_run
        passed += total - bad - not_run
    for match in re.finditer(r"^(?=.*\b(?:passed|failed|skipped)\b.* in [\d.]+s)(.*)$", text, re.MULTILINE):
        counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", match[1])}
        passed += counts.get("passed", 0)
        failed += counts.get("failed", 0) + counts.get("error", 0)
        skipped += counts.get("skipped", 0)

print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
