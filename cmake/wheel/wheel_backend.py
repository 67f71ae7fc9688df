# SPDX-License-Identifier: Apache-2.0
"""The build backend of the Python package: scikit-build-core, with progress on the terminal.

pip shows nothing of a build without -v, and compiling takes minutes. The lines of ninja go where
they always go; in addition, one of them is written to the terminal now and then.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F403  (the hooks that stay as they are)

_INTERVAL = 5.0  # seconds between two lines on the terminal
_STEP = re.compile(rb"\[(\d+)/(\d+)\] ")  # of ninja


def build_wheel(*arguments: Any, **options: Any) -> str:
    """The hook of PEP 517."""
    _use_ccache()
    with _progress():
        return _build.build_wheel(*arguments, **options)


def build_editable(*arguments: Any, **options: Any) -> str:
    """The hook of PEP 660."""
    _use_ccache()
    with _progress():
        return _build.build_editable(*arguments, **options)


def _use_ccache() -> None:
    """Compiles through ccache where it is installed. Variables that the user has set stay.

    The settings let it cache files that use precompiled headers, and share results between clones.
    """
    if shutil.which("ccache") is None:
        return
    for language in ("C", "CXX", "CUDA"):
        os.environ.setdefault(f"CMAKE_{language}_COMPILER_LAUNCHER", "ccache")
    for name, value in (
        ("CCACHE_SLOPPINESS", "pch_defines,time_macros"),
        ("CCACHE_BASEDIR", os.getcwd()),
        ("CCACHE_NOHASHDIR", "1"),
        ("CCACHE_PCH_EXTSUM", "1"),
    ):
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def _progress() -> Iterator[None]:
    """Copies standard output through a pipe, and reports the steps in it on the terminal.

    No effect without a terminal, and where standard output is one.
    """
    try:
        terminal = None if os.isatty(1) else open("/dev/tty", "w")  # noqa: SIM115
    except OSError:
        terminal = None
    if terminal is None:
        yield
        return
    sys.stdout.flush()
    output = os.dup(1)
    source, target = os.pipe()
    os.dup2(target, 1)
    os.close(target)
    copier = threading.Thread(target=_copy, args=(source, output, terminal), daemon=True)
    copier.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)  # closes the pipe: the copier ends
        copier.join(timeout=5)  # unless a process of the build has been left behind


def _copy(source: int, output: int, terminal: Any) -> None:
    start, shown, line = time.monotonic(), 0.0, b""
    while data := os.read(source, 1 << 16):
        os.write(output, data)
        *lines, line = (line + data).split(b"\n")
        steps = [match for match in map(_STEP.match, lines) if match]
        now = time.monotonic()
        if not steps or now - shown < _INTERVAL:
            continue
        shown = now
        done, total = (int(number) for number in steps[-1].groups())
        with contextlib.suppress(OSError):  # the terminal may have been closed
            terminal.write(f"\r\033[Kshoal: step {done} of {total}, {now - start:.0f} s\r\n")
            terminal.flush()
