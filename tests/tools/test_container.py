# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile and the dev container: their syntax, and that they run commands that exist."""

import json
import pathlib
import re
import shlex
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGETS = {"shoal-run", "shoal-moe"}


def instructions():
    """[(instruction, arguments)] of the Dockerfile."""
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text()).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def run_commands(text):
    """The arguments of each `./run` in a shell command."""
    parts = [part.strip() for part in re.split(r"&&|;", text)]
    return [shlex.split(part)[1:] for part in parts if part.startswith("./run")]


def known_commands():
    return set(re.findall(r"^  (\w+) ", (ROOT / "run").read_text(), re.MULTILINE))


def test_dockerfile_has_known_instructions_in_order():
    names = [name for name, _ in instructions()]
    assert names[0] == "FROM" and names[-1] == "CMD"
    assert set(names) <= {"FROM", "WORKDIR", "COPY", "RUN", "CMD"}
    assert dict(instructions())["FROM"] == "debian:12"
    for name, arguments in instructions():
        if name == "COPY":
            assert (ROOT / arguments.split()[0]).exists(), arguments
        if name == "RUN":
            subprocess.run(["bash", "-n", "-c", arguments], check=True, timeout=10)


def test_dockerfile_runs_commands_that_exist():
    texts = [text for name, text in instructions() if name == "RUN"]
    called = [command for text in texts for command in run_commands(text)]
    called.append(json.loads(dict(instructions())["CMD"])[1:])
    assert [command[0] for command in called] == ["setup", "build", "demo"]
    assert {command[0] for command in called} <= known_commands()
    assert set(called[1][1:]) == TARGETS
    programs = (ROOT / "tools/CMakeLists.txt").read_text()
    assert all(f"shoal_program({target} " in programs for target in TARGETS)


def test_dockerfile_excludes_the_files_that_git_ignores():
    listed = (ROOT / ".dockerignore").read_text().split()
    lines = (ROOT / ".gitignore").read_text().splitlines()
    ignored = [line.strip("/") for line in lines if line.startswith("/")]
    assert ".git" in listed
    assert set(listed) - {".git"} <= set(ignored)


def test_dev_container_uses_the_dockerfile():
    folder = ROOT / ".devcontainer"
    container = json.loads((folder / "devcontainer.json").read_text())
    assert (folder / container["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert (folder / container["build"]["context"]).resolve() == ROOT
    ((command, *_),) = run_commands(container["postCreateCommand"])
    assert command in known_commands()
