# SPDX-License-Identifier: Apache-2.0
"""Shoal: symmetric memory and expert-parallel dispatch and combine for mixture-of-experts models.

    import numpy, shoal

    def pe(world):
        numbers = world.zeros((world.n_pes,), "int64")
        mine = numpy.array([world.my_pe], numpy.int64)
        for other in range(world.n_pes):
            world.put(numbers.on(other)[world.my_pe : world.my_pe + 1], mine)
        shoal.barrier(world.team)
        return numbers.local[:].tolist()

    shoal.run_threads(4, pe)   # four PEs as threads of this process: [[0, 1, 2, 3]] * 4

Worlds of processes: World.open (shoal-run), World.from_torch, World.from_mpi4py and
World.from_unique_id. shoal.ep has dispatch and combine, shoal.torch and shoal.jax make them
differentiable. Results are arrays of the arguments' library: torch, NumPy, JAX or CuPy.
"""

from . import ep, errors
from ._core import VERSION as __version__
from ._core import (
    Array,
    RemoteArray,
    Settings,
    SharedBuffer,
    SymmetricArray,
    Team,
    UniqueId,
    World,
    all_gather,
    all_to_all,
    barrier,
    broadcast,
    reduce,
    reduce_scatter,
    run_threads,
    sync,
)
from .errors import (
    ClosedError,
    Error,
    ExhaustedError,
    InvalidArgumentError,
    MismatchError,
    PeerFailedError,
    SystemFailureError,
    TimeoutError,
    UnsupportedError,
)

__all__ = [
    "Array",
    "ClosedError",
    "Error",
    "ExhaustedError",
    "InvalidArgumentError",
    "MismatchError",
    "PeerFailedError",
    "RemoteArray",
    "Settings",
    "SharedBuffer",
    "SymmetricArray",
    "SystemFailureError",
    "Team",
    "TimeoutError",
    "UniqueId",
    "UnsupportedError",
    "World",
    "all_gather",
    "all_to_all",
    "barrier",
    "broadcast",
    "ep",
    "errors",
    "reduce",
    "reduce_scatter",
    "run_threads",
    "sync",
]
