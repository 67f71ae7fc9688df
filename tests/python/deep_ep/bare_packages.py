# SPDX-License-Identifier: Apache-2.0
"""Imports single files of a program that is installed without what else it needs."""

import importlib.util
import sys
import types
from pathlib import Path


class Unused(types.ModuleType):
    """A module of which any name is another such module."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Unused(name)

    def __call__(self, *_, **__):
        return Unused("result")


def bare(name):
    """Makes the package `name` and its parents importable without running their __init__.py, which
    import libraries that the tests do not have. Modules in them are those of the installation."""
    top, *rest = name.split(".")
    if top not in sys.modules:
        _add(top, Path(importlib.util.find_spec(top).submodule_search_locations[0]))
    for part in rest:
        parent, top = sys.modules[top], f"{top}.{part}"
        if top not in sys.modules:
            _add(top, Path(parent.__path__[0]) / part)
            setattr(parent, part, sys.modules[top])


def _add(name, folder):
    if not folder.is_dir():
        raise ModuleNotFoundError(f"{name}: {folder} is no folder")
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(folder)]
