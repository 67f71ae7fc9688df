# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends a wait for a group's work on the GPU, as KeyboardInterrupt. The work continues."""

import signal

import pytest

torch = pytest.importorskip("torch")

import test_interrupt as waits

import shoal

SYNCHRONIZE = """
    import torch
    torch.cuda.init()
    with shoal.World.from_unique_id(
        sys.argv[1], int(sys.argv[2]), 2, {**settings, "heap": "cuda", "symmetric_size": "256M"}
    ) as world:
        group = shoal.ep.Group(
            world.team, hidden=64, dtype="float32", top_k=1, experts=2, max_tokens=4
        )
        x = torch.ones(3, 64, device="cuda")
        idx = torch.ones(3, 1, dtype=torch.int64, device="cuda")
        if world.my_pe == 1:
            sys.stdin.readline()
        torch.cuda.current_stream().synchronize()
        got = group.dispatch(x, group.route(idx), worst_case_rows=8)
        if world.my_pe == 0:
            ready()
            try:
                group.synchronize()
                print("it was not interrupted", flush=True)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        group.synchronize()
        rows = got.row_count.cpu()
        print("rows", rows.item(), flush=True)
        shoal.barrier(world.team)
"""


def test_synchronize_ends_at_once_and_the_group_stays_usable():
    name = shoal.UniqueId.create()
    other = waits.start(SYNCHRONIZE, str(name), "1")
    process = waits.start(SYNCHRONIZE, str(name), "0")
    waits.send(process, signal.SIGINT)
    line = process.stdout.readline()
    output, errors = other.communicate("go\n", timeout=60)
    assert output == "rows 6\n", output + errors
    output, errors = process.communicate(timeout=60)
    assert line == "interrupted\n" and output == "rows 0\n", line + output + errors
