# SPDX-License-Identifier: Apache-2.0
"""Every program prints scripts that complete its own options in bash and zsh, and names the option
that a mistyped one is near to."""

import re
import shutil
import subprocess

import pytest

# Program, start of an option, its completions; option, start of its value, its completions.
PROGRAMS = [
    ("shoal-run", "--no", ["--nodes", "--no-label"], "--bind", "c", ["core"]),
    ("shoal-info", "--to", ["--topology"], "--completion", "z", ["zsh"]),
    ("shoal-moe", "--groups", ["--groups", "--groups-kept"], "--dtype", "f", ["fp8"]),
]
IDS = [program[0] for program in PROGRAMS]


def complete(script, name, *words):
    """Words that bash offers for the last word after the program's name."""
    ask = (
        f"{script}\nCOMP_WORDS=({' '.join([name, *words])}) COMP_CWORD={len(words)}\n"
        f"_{name.replace('-', '_')}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name, start, options, option, value, values", PROGRAMS, ids=IDS)
def test_bash_completes_options_and_values(
    run_program, name, start, options, option, value, values
):
    script = run_program(name, "--completion", "bash")
    assert script.returncode == 0, script.stderr
    assert complete(script.stdout, name, start) == options
    assert complete(script.stdout, name, option, value) == values
    help_text = run_program(name, "--help").stdout
    offered = complete(script.stdout, name, "--")
    assert set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", help_text, re.MULTILINE)) <= set(offered)


@pytest.mark.parametrize("name", IDS)
def test_zsh_script(run_program, tmp_path, name):
    script = run_program(name, "--completion", "zsh")
    assert script.stdout.startswith(f"#compdef {name}\n"), script.stderr
    assert "'--completion[" in script.stdout and ":(bash zsh)'" in script.stdout
    if shutil.which("zsh"):
        path = tmp_path / "script"
        path.write_text(script.stdout)
        subprocess.run(["zsh", "-n", path], check=True, timeout=60)


@pytest.mark.parametrize("name", IDS)
def test_mistyped_options_are_recognized(run_program, name):
    done = run_program(name, "--completoin", "bash")
    assert done.returncode not in (0, -6, -11)
    assert f"--completoin is not an option of {name}; did you mean --completion?" in done.stderr


@pytest.mark.parametrize(
    "command", [("shoal-info", "--live", "--interval"), ("shoal-moe", "--pes", "1", "--skew")]
)
def test_numbers_are_not_nan(run_program, command):
    done = run_program(*command, "nan")
    assert done.returncode != 0 and "nan; allowed: a number from" in done.stderr, done.stderr
