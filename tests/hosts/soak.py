# SPDX-License-Identifier: Apache-2.0
"""Parameters of tests that only `./run soak` takes: each of their values is also in a set of
parameters that `./run test` takes, of the same or a similar test."""

import pytest


def soak(*values):
    return pytest.param(*values, marks=pytest.mark.soak)


# Networks and the interfaces by which srun starts PEs.
SLURM_CASES = pytest.mark.parametrize(
    ("transport", "mpi"),
    [("ofi", "pmix"), ("verbs", "pmi2"), soak("ofi", "pmi2"), soak("verbs", "pmix")],
)
