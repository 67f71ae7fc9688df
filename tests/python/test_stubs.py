# SPDX-License-Identifier: Apache-2.0
"""The stubs for editors and type checkers: every name in them exists, and public results have
types."""

import ast
import builtins
import os
import pathlib
import subprocess
import sys

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
    assert returns["Dispatched.x"] == "A_co"
    assert returns["Dispatched.topk_weights"] == "A_co | None"
    assert returns["LowLatencyReceived.counts"] == "A_co"
    assert not [
        name
        for name, kind in returns.items()
        if kind in ("object", "Any") and name.split(".")[0] not in OF_DEEP_EP
    ]


def names_with_any(tree):
    """The functions whose signature has Any, as "Class.function" or "function"."""
    for node in tree.body:
        functions = node.body if isinstance(node, ast.ClassDef) else [node]
        for function in functions:
            if isinstance(function, ast.FunctionDef):
                signature = [function.args, function.returns]
                for part in filter(None, signature):
                    if any(isinstance(one, ast.Name) and one.id == "Any" for one in ast.walk(part)):
                        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                        yield prefix + function.name


# Why a signature of the public interface cannot name a type.
ANY = {
    "Array.__getitem__": "an element or an array, as NumPy's",
    "SymmetricArray.__getitem__": "an element or an array, as NumPy's",
    "World.zeros": "like= a module, which checkers do not tell apart",
    "Group.next_combine_buffer": "like= a module, which checkers do not tell apart",
}
# Classes and functions behind deep_ep and shoal.torch, which no program calls. Their tensors are
# those of the caller's library, unknown to the core.
OF_DEEP_EP = {
    "CallLayout",
    "CallReceived",
    "ElasticCalls",
    "ElasticLayout",
    "HybridCalls",
    "LegacyCalls",
    "LowLatencyCalls",
    "LowLatencyGroup",
    "NormalCalls",
    "TorchCalls",
    "TorchLayout",
    "torch_handle",
}


def test_signatures_have_any_only_where_a_type_is_unknown():
    found = {name for path in STUBS for name in names_with_any(ast.parse(path.read_text()))}
    assert {name for name in found if name.split(".")[0] not in OF_DEEP_EP} == set(ANY)


def test_a_type_checker_knows_the_library_of_results():
    pytest.importorskip("mypy")
    pytest.importorskip("torch")
    program = pathlib.Path(__file__).with_name("typed_program.py")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", program]
    environment = {**os.environ, "MYPYPATH": str(FOLDER.parents[1])}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
