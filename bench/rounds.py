# SPDX-License-Identifier: Apache-2.0
"""Code of all drivers: options, programs run in alternating rounds, medians, results in JSON.

Alternating rounds expose all programs under comparison to the same load of the machine.
"""

import argparse
import datetime
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile


def make_parser(description, rounds, timeout):
    """A parser with the options that all drivers have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--bin",
        type=pathlib.Path,
        default=pathlib.Path("build/release/bin"),
        help="folder of the programs (%(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=rounds, help="default: %(default)s")
    parser.add_argument(
        "--timeout",
        type=float,
        default=timeout,
        help="seconds that one program may take (%(default)s)",
    )
    parser.add_argument(
        "--json", type=pathlib.Path, help="also write everything measured to this file"
    )
    return parser


def output_of(command, timeout, environment=None):
    """(exit status, output and errors) of a program, which is killed with all it has started after
    `timeout` seconds."""
    process = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        sys.exit(f"no result after {timeout:.0f} s (--timeout): {' '.join(map(str, command))}")
    return process.returncode, output


def report_of(command, timeout, environment=None):
    """The report that a program writes with --json."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "result.json"
        status, output = output_of([*command, "--json", path], timeout, environment)
        if status != 0 or not path.exists():
            sys.exit(f"exit status {status}: {' '.join(map(str, command))}\n{output}")
        return json.loads(path.read_text())


def alternate(count, runs):
    """{name: [result of round 1, ...]} of {name: function}."""
    found = {name: [] for name in runs}
    for number in range(count):
        for name, run in runs.items():
            print(f"round {number + 1} of {count}: {name}", file=sys.stderr)
            found[name].append(run())
    return found


def medians(results):
    """{row: median} of several {row: value}."""
    return {row: statistics.median(one[row] for one in results) for row in results[0]}


def origin(machine):
    """Where results come from: date, machine, and the commit in a checkout of the sources."""
    root = pathlib.Path(__file__).resolve().parents[1]
    result = {"date": datetime.date.today().isoformat(), "machine": machine}
    if (root / ".git").exists():
        command = ["git", "-C", root, "rev-parse", "--short=8", "HEAD"]
        found = subprocess.run(command, capture_output=True, text=True)
        result |= {"commit": found.stdout.strip()} if found.returncode == 0 else {}
    return result


def write(path, everything):
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(everything, indent=2) + "\n")
