# SPDX-License-Identifier: Apache-2.0
"""Adds up the closing lines of ctest and pytest in the logs of a CI run and prints one line: N
passed, N failed, N skipped.

Before it, the tests that need a GPU, by result, and those that something else is missing for. Exits
with 1 when one of the former claims to have passed on a machine without a GPU.
"""

import pathlib
import re
import sys

HAS_GPU = pathlib.Path("/dev/nvidiactl").exists()

passed = failed = skipped = 0
gpu, missing = {}, {}
for log in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    text = log.read_text(errors="replace")
    for match in re.finditer(r"(\d+)% tests passed, (\d+) tests failed out of (\d+)", text):
        bad, total = int(match[2]), int(match[3])
        failed += bad
        passed += total - bad
    # Each test in one line of ctest's: " 12/300 Test #12: gpu/Heap.Grows ....***Skipped   0.01
    # sec".
    for name, result in re.findall(
        r"^ *\d+/\d+ Test +#\d+: (\S+).*?(?:\*\*\*|\. +)(\w+)(?:[: ][ \w():]*)? +[\d.]+ sec$",
        text,
        re.MULTILINE,
    ):
        if result == "Skipped":  # ctest counts it as passed
            skipped += 1
            passed -= 1
        if name.startswith("gpu/"):
            gpu[result] = gpu.get(result, 0) + 1
    for match in re.finditer(
        r"^(?=.*\b(?:passed|failed|skipped)\b.* in [\d.]+s)(.*)$", text, re.MULTILINE
    ):
        counts = {
            word: int(count)
            for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", match[1])
        }
        passed += counts.get("passed", 0)
        failed += counts.get("failed", 0) + counts.get("error", 0)
        skipped += counts.get("skipped", 0)

    for count, reason in re.findall(r"^SKIPPED \[(\d+)\] \S+: (.+)$", text, re.MULTILINE):
        if not re.search("GPU|CUDA", reason):
            missing[reason] = missing.get(reason, 0) + int(count)

wrong = not HAS_GPU and gpu.get("Passed", 0) > 0
if gpu:
    print(
        f"\ntests that need a GPU (of the counts below): {', '.join(f'{count} {result.lower()}' for result, count in sorted(gpu.items()))}"
        + (": passed without a GPU, which is impossible" if wrong else "")
    )
for reason, count in sorted(missing.items()):
    print(f"skipped: {count}: {reason}")
print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(1 if wrong else 0)
