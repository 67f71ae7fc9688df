# SPDX-License-Identifier: Apache-2.0
"""The console programs of the installed package: shoal-run and shoal-info."""

from __future__ import annotations

import os
import pathlib
import sys


def shoal_run() -> None:
    """Becomes the program shoal-run of this package."""
    _become("shoal-run")


def shoal_info() -> None:
    """Becomes the program shoal-info of this package."""
    _become("shoal-info")


def _become(name: str) -> None:
    program = pathlib.Path(__file__).resolve().parent / "bin" / name
    if not program.exists():
        sys.exit(f"{name}: {program} does not exist; only an installed package has its programs")
    os.execv(program, [name, *sys.argv[1:]])
