# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile, the dev container, the workflows and the hooks of commits: their syntax, and that
they run commands that exist. The steps that .ci/run takes."""

import json
import pathlib
import re
import shlex
import subprocess

import pytest
import yaml

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


def ci(*arguments):
    """.ci/run with arguments for which it runs no step."""
    return subprocess.run(
        [ROOT / ".ci/run", *arguments], capture_output=True, text=True, timeout=60
    )


def steps_of_ci():
    """{step: the steps whose results it uses}, as .ci/run lists them."""
    listing = re.findall(r"^  ([a-z-]+) +(.+)$", ci("--help").stdout, re.MULTILINE)
    return {
        name: re.sub(r"^[^(]*(\(uses: (.*)\))?$", r"\2", text).split() for name, text in listing
    }


def test_ci_lists_the_steps_that_it_runs():
    text = (ROOT / ".ci/run").read_text()
    run = re.findall(r"^(?:step|alongside) ([a-z-]+) ", text, re.MULTILINE)
    steps = steps_of_ci()
    assert list(steps) != [] and sorted(steps) == sorted(run)
    for name, uses in steps.items():
        assert set(uses) <= set(list(steps)[: list(steps).index(name)]), "a step uses earlier ones"


@pytest.mark.parametrize("argument", ["nosuch", "", "--nosuch", "test"])
def test_ci_names_the_steps_that_exist(argument):
    result = ci("format", argument)
    assert result.returncode == 2 and result.stdout == ""
    message = f'.ci/run: "{argument}" is not a step; allowed: {" ".join(steps_of_ci())}\n'
    assert result.stderr == message


def test_workflows_run_every_step_of_ci():
    steps = steps_of_ci()
    called = set()
    for path in sorted((ROOT / ".github/workflows").iterdir()):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            for parameters in job["strategy"]["matrix"]["include"]:
                texts = [step.get("run", "") for step in job["steps"]]
                (command,) = [text for text in texts if text.startswith(".ci/run")]
                command = re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda m: parameters[m[1]], command)
                called |= set(shlex.split(command)[1:])
    assert called <= set(steps)
    missing = set(steps) - called
    while used := {use for name in called for use in steps[name]} - called:
        called |= used
    assert missing <= called, "no job runs them"


def test_issue_forms_ask_for_what_a_report_needs():
    folder = ROOT / ".github/ISSUE_TEMPLATE"
    forms = [path for path in folder.glob("*.yml") if path.name != "config.yml"]
    assert len(forms) >= 2
    for path in forms:
        fields = {field.get("id"): field for field in yaml.safe_load(path.read_text())["body"]}
        assert {"version", "launcher", "info"} <= set(fields)
        assert "shoal-info -a" in fields["info"]["attributes"]["label"]


def test_hooks_of_commits_run_files_that_exist():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    commands = [shlex.split(hook["entry"]) for hook in local["hooks"]]
    scripts = {words[1] for words in commands if words[0] == "python3"}
    assert scripts == {f"cmake/{name}.py" for name in ("check_layers", "check_prose", "messages")}
    assert all((ROOT / script).is_file() for script in scripts)
    formatters = (ROOT / "run").read_text()
    assert all(
        pathlib.Path(words[0]).name in formatters for words in commands if words[0] != "python3"
    )
