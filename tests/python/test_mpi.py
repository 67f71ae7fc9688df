"""World.from_mpi4py with real processes of mpirun (D7)."""

import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent(
    """
    from mpi4py import MPI
    import shoal

    comm = MPI.COMM_WORLD
    half = comm.Split(comm.rank % 2, -comm.rank)  # two worlds at once, with ranks in reversed order
    with shoal.World.from_mpi4py(half, {"symmetric_size": "64M"}) as world:
        total = world.zeros((1,), "int64")
        total.local.numpy()[:] = comm.rank
        shoal.reduce(world.team, total, total)
        line = (comm.rank, world.my_pe, world.n_pes, int(total.local.numpy()[0]))
    lines = comm.gather(line)
    if comm.rank == 0:
        print(*lines, sep="\\n")
    """
)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")
@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="no mpi4py")
def test_two_worlds_of_split_communicators():
    command = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "4", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "OMPI_MCA_btl": "self,vader"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["(0, 1, 2, 2)", "(1, 1, 2, 4)", "(2, 0, 2, 2)", "(3, 0, 2, 4)"]
