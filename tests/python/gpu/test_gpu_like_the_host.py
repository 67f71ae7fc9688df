# SPDX-License-Identifier: Apache-2.0
"""The checks of the host tests that run on processes, on CUDA tensors: numerics, errors, call
patterns of vLLM, SGLang and Megatron-LM, gradients, compiled code, two emulated nodes. Ranks are
distributed over the GPUs of the machine.
"""

import ast
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch_ranks import HOST_ONLY, run_checks

FOLDER = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(FOLDER / "deep_ep"))

RANKS = {
    "deep_ep/test_buffer_normal": 4,
    "deep_ep/test_buffer_errors": 4,
    "deep_ep/test_buffer_low_latency": 4,
    "deep_ep/test_low_latency_forks": 4,
    "deep_ep/test_low_latency_shapes": 4,
    "deep_ep/test_elastic": 4,
    "deep_ep/test_hybrid": 4,
    "deep_ep/test_elastic_arguments": 4,
    "deep_ep/test_elastic_communication": 4,
    "deep_ep/test_several_nodes": 4,
    "deep_ep/test_int32_indices": 2,
    "deep_ep/test_callers": 8,
    "test_torch_autograd": 4,
    "test_torch_compile": 2,
    "test_torch_moe": 4,
}


def names_of_checks_in(module):
    """Reads the module without importing it, because some modules set variables for the
    processes of the ranks."""
    tree = ast.parse((FOLDER / f"{module}.py").read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names += [alias.asname or alias.name for alias in node.names]
    return [name for name in names if name.startswith("check_") and name not in HOST_ONLY]


@pytest.fixture(scope="module")
def results_of():
    known = {}

    def of(module):
        if module not in known:
            with pytest.MonkeyPatch.context() as patch:  # inherited by the ranks
                patch.setenv("SHOAL_SYMMETRIC_SIZE", "1G")
                patch.setenv("SHOAL_TIMEOUT_MS", "30000")
                known[module] = run_checks(RANKS[module], Path(module).name, "cuda")
        return known[module]

    return of


@pytest.mark.parametrize(
    "module, name",
    [(module, name) for module in RANKS for name in names_of_checks_in(module)],
    ids=str,
)
def test_check(results_of, module, name):
    results_of(module).verify(name)
