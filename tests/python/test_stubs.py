# SPDX-License-Identifier: Apache-2.0
"""The stubs for editors and type checkers: every name in them exists, and public results have
types."""

import ast
import builtins
import pathlib

import pytest

import shoal

FOLDER = pathlib.Path(shoal.__file__).parent / "_core"
STUBS = sorted(FOLDER.glob("*.pyi"))


def known_names(tree):
    names = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_there_are_stubs():
    assert {path.name for path in STUBS} == {"__init__.pyi", "ep.pyi"}
    assert (FOLDER.parent / "py.typed").exists()


@pytest.mark.parametrize("path", STUBS, ids=lambda path: path.name)
def test_names_are_known(path):
    tree = ast.parse(path.read_text())
    names = known_names(tree)
    unknown = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id not in names
    }
    assert not unknown


def test_results_have_types():
    tree = ast.parse((FOLDER / "ep.pyi").read_text())
    returns = {
        f"{node.name}.{method.name}": ast.unparse(method.returns)
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.returns is not None
    }
    assert returns["Dispatched.x"] == "shoal._core.Array"
    assert returns["Dispatched.topk_weights"] == "shoal._core.Array | None"
    assert returns["LowLatencyReceived.counts"] == "shoal._core.Array"
    callers = (
        "CallLayout.",
        "CallReceived.",
        "ElasticCalls.",
        "ElasticLayout.",
        "HybridCalls.",
        "LegacyCalls.",
        "LowLatencyCalls.",
    )  # with tensors of the caller's library
    assert not [
        name
        for name, kind in returns.items()
        if kind in ("object", "Any") and not name.startswith(callers)
    ]
