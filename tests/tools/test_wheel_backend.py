# SPDX-License-Identifier: Apache-2.0
"""The build backend of shoal reports progress on the terminal, and only there. That of deep_ep
builds a pure wheel, and refuses where another deep_ep is installed."""

import email
import importlib.util
import os
import pathlib
import pty
import subprocess
import sys
import textwrap
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# In place of scikit-build-core: prints what ninja prints.
BUILD = """
import os, sys, time
def build_wheel(directory, config=None, metadata=None):
    for step in range(1, 4):
        print(f"[{step}/3] Building CXX object", flush=True)
        time.sleep(0.2)
    os.system("echo from a child process")
    return "shoal.whl"
build_editable = build_wheel
def get_requires_for_build_wheel(config=None):
    return ["ninja"]
"""

PROGRAM = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import wheel_backend
wheel_backend._INTERVAL = 0.1
assert wheel_backend.get_requires_for_build_wheel() == ["ninja"]
print(wheel_backend.build_wheel("."), flush=True)
"""

EXPECTED = [f"[{step}/3] Building CXX object" for step in (1, 2, 3)] + [
    "from a child process",
    "shoal.whl",
]


def command(tmp_path):
    package = tmp_path / "scikit_build_core"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "build.py").write_text(textwrap.dedent(BUILD))
    return [sys.executable, "-c", PROGRAM, str(tmp_path), str(ROOT / "cmake/wheel")]


def test_output_without_a_terminal_is_that_of_the_build(tmp_path):
    done = subprocess.run(
        command(tmp_path), capture_output=True, text=True, timeout=60, start_new_session=True
    )
    assert done.stdout.splitlines() == EXPECTED, done.stderr


def test_the_terminal_shows_steps_that_pip_hides(tmp_path):
    arguments, output = command(tmp_path), tmp_path / "output"
    child, terminal = pty.fork()
    if child == 0:  # standard output goes to pip
        os.dup2(os.open(output, os.O_CREAT | os.O_WRONLY), 1)
        os.execv(sys.executable, arguments)
    shown = b""
    try:
        while data := os.read(terminal, 1 << 12):
            shown += data
    except OSError:  # the child has closed the terminal
        pass
    _, status = os.waitpid(child, 0)
    assert status == 0, shown
    assert output.read_text().splitlines() == EXPECTED
    assert b"shoal: step 3 of 3, 0 s" in shown


@pytest.fixture
def deep_ep_wheel():
    path = ROOT / "python/deep_ep_wheel.py"
    spec = importlib.util.spec_from_file_location("deep_ep_wheel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install(folder, name, version):
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(text)


def test_wheel_of_deep_ep(deep_ep_wheel, tmp_path):
    name = deep_ep_wheel.build_wheel(str(tmp_path))
    assert name == "deep_ep-2.1.0+shoal-py3-none-any.whl"
    info = "deep_ep-2.1.0+shoal.dist-info"
    with zipfile.ZipFile(tmp_path / name) as wheel:
        files, record = set(wheel.namelist()), wheel.read(f"{info}/RECORD").decode()
        metadata = email.message_from_string(wheel.read(f"{info}/METADATA").decode())
    package = ROOT / "python/deep_ep"
    sources = {f"deep_ep/{path.relative_to(package)}" for path in package.rglob("*.py")}
    added = {f"{info}/{file}" for file in ("METADATA", "WHEEL", "RECORD")}
    assert files == sources | {"deep_ep/py.typed"} | added
    assert {line.split(",")[0] for line in record.splitlines()} == files
    shoal = ROOT / "python/shoal/__init__.py"
    assert metadata["Requires-Dist"].removeprefix("shoal==") in shoal.read_text()


def test_another_deep_ep_is_not_replaced(deep_ep_wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(deep_ep_wheel.sysconfig, "get_path", lambda name: str(tmp_path))
    install(tmp_path, "deep_ep", "2.0.9+shoal")  # an earlier one of ours
    install(tmp_path, "deep_ep_tools", "1.0")
    deep_ep_wheel.build_wheel(str(tmp_path))
    install(tmp_path, "Deep.EP", "1.2.1+9af0e0d")
    with pytest.raises(RuntimeError, match=r"deep_ep 1\.2\.1\+9af0e0d .* pip uninstall deep_ep"):
        deep_ep_wheel.build_wheel(str(tmp_path))


@pytest.mark.parametrize("installed", [True, False])
def test_compiles_through_ccache_where_it_is_installed(tmp_path, installed):
    package = tmp_path / "scikit_build_core"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "build.py").write_text(
        "import os\n"
        "def build_wheel(*arguments):\n"
        "    return ' '.join(os.environ.get(f'CMAKE_{x}_COMPILER_LAUNCHER', 'none') for x in ('C', 'CXX', 'CUDA'))\n"
        "build_editable = build_wheel\n"
    )
    programs = tmp_path / "bin"
    programs.mkdir()
    if installed:
        (programs / "ccache").write_text("#!/bin/sh\n")
        (programs / "ccache").chmod(0o755)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.path[:0] = sys.argv[1:]; import wheel_backend; print(wheel_backend.build_wheel('.'))",
            tmp_path,
            ROOT / "cmake/wheel",
        ],
        env={"PATH": str(programs), "CMAKE_CXX_COMPILER_LAUNCHER": "mine"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    expected = "ccache mine ccache" if installed else "none mine none"
    assert done.stdout.split("\n")[0] == expected, done.stderr
