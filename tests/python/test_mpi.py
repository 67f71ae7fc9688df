# SPDX-License-Identifier: Apache-2.0
"""Worlds and the buffer of deep_ep over communicators of mpi4py, with processes of mpirun."""

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


BUFFER = textwrap.dedent(
    """
    from mpi4py import MPI
    import torch
    import deep_ep

    comm, experts = MPI.COMM_WORLD, 8
    generator = torch.Generator().manual_seed(comm.rank)
    buffer = deep_ep.Buffer(None, 1 << 20, comm=comm, explicitly_destroy=True)
    x = torch.randn((5 + comm.rank, 64), generator=generator).bfloat16()
    weights, topk_idx = torch.rand((len(x), experts), generator=generator).topk(2, dim=1)
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, experts)
    recv_x, *_, handle, _ = buffer.dispatch(
        x, None, per_rank, per_node, in_rank, per_expert, topk_idx, weights
    )
    sums, *_ = buffer.combine(recv_x, handle)
    right = torch.equal(sums, (x.float() * in_rank.sum(1, keepdim=True)).bfloat16())
    sent = sum(counts[comm.rank] for counts in comm.allgather(per_rank.tolist()))
    line = (buffer.rank, buffer.group_size, buffer.group is None, right, len(recv_x) == sent)
    buffer.destroy()
    lines = comm.gather(line)
    if comm.rank == 0:
        print(*lines, sep="\\n")
    """
)

pytestmark = [
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun"),
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="no mpi4py"),
]


def lines_of(program):
    """The output of four processes, which all succeed."""
    command = [
        "mpirun",
        "--oversubscribe",
        "--allow-run-as-root",
        "-n",
        "4",
        sys.executable,
        "-c",
        program,
    ]
    environment = {**os.environ, "OMPI_MCA_btl": "self,vader"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_two_worlds_of_split_communicators():
    assert lines_of(PROGRAM) == ["(0, 1, 2, 2)", "(1, 1, 2, 4)", "(2, 0, 2, 2)", "(3, 0, 2, 4)"]


def test_a_buffer_of_deep_ep():
    pytest.importorskip("torch")
    assert lines_of(BUFFER) == [f"({rank}, 4, True, True, True)" for rank in range(4)]
