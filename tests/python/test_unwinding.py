# SPDX-License-Identifier: Apache-2.0
"""An exception that unwinds through a world or a buffer reaches the messages of the other PEs.

PE 1 fails as each case says; PE 0 waits for it in a barrier and reports how that ended.
"""

import importlib.util
import subprocess
import sys
import textwrap

import pytest

import shoal

WAITING = """
import sys
import shoal
world = shoal.World.from_unique_id(sys.argv[1], 0, 2, {"symmetric_size": "64M", "timeout": 3600.0})
try:
    shoal.barrier(world.team)
except shoal.Error as error:
    print(type(error).__name__, error)
"""

OPEN = """
import contextlib, sys
import shoal

class Failed(Exception):
    pass

def work(*_):
    world = shoal.World.from_unique_id(sys.argv[1], 1, 2, {"symmetric_size": "64M"})
    raise Failed("the 7th layer")
"""

FAILING = {
    "uncaught": "work()",
    "with": """
        with contextlib.suppress(Failed):
            with shoal.World.from_unique_id(sys.argv[1], 1, 2, {"symmetric_size": "64M"}):
                raise Failed("the 7th layer")
    """,
    "finally": """
        world = shoal.World.from_unique_id(sys.argv[1], 1, 2, {"symmetric_size": "64M"})
        try:
            raise Failed("the 7th layer")
        finally:
            world.close()
    """,
    "inside of another handler": """
        try:
            import no_such_module
        except ImportError:
            world = shoal.World.from_unique_id(sys.argv[1], 1, 2, {"symmetric_size": "64M"})
            try:
                raise Failed("the 7th layer")
            finally:
                world.close()
    """,
    "reported and exited": """
        import os, traceback
        def main():
            global world
            world = shoal.World.from_unique_id(sys.argv[1], 1, 2, {"symmetric_size": "64M"})
            try:
                raise Failed("the 7th layer")
            except Failed:
                world = None
                os._exit(1)
        main()
    """,
    "multiprocessing": """
        import multiprocessing
        if __name__ == "__main__":
            context = multiprocessing.get_context("fork")
            process = context.Process(target=work)
            process.start()
            process.join()
    """,
    "mp.spawn": """
        import torch.multiprocessing
        if __name__ == "__main__":
            torch.multiprocessing.start_processes(work, nprocs=1, start_method="fork")
    """,
}


def run_pair(failing, folder):
    """Output of PE 0, long before its timeout."""
    unique_id = shoal.UniqueId.create()  # serves the PEs while it lives
    (folder / "failing.py").write_text(OPEN + textwrap.dedent(failing))
    (folder / "waiting.py").write_text(WAITING)
    waiting, failing = (
        subprocess.Popen(
            [sys.executable, folder / f"{what}.py", str(unique_id)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for what in ("waiting", "failing")
    )
    output = waiting.communicate(timeout=90)[0]
    failing.communicate(timeout=60)  # closes its stdin, for which it may wait
    return output


# The handler of the exception ends, and the program continues. Only its place is known by then.
HANDLED = {
    "except": """
        try:
            work()
        except Failed:
            pass
        sys.stdin.read()
    """,
    "except as": """
        def main():
            for _ in range(2):
                try:
                    work()
                except Failed as error:
                    print(error)
                    break
        main()
        sys.stdin.read()
    """,
    "thread": """
        import threading
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        sys.stdin.read()
    """,
}


@pytest.mark.parametrize("case", HANDLED)
def test_the_other_pe_learns_where_an_exception_was_handled(case, tmp_path):
    output = run_pair(HANDLED[case], tmp_path)
    place = "_bootstrap_inner handled (threading.py:" if case == "thread" else "(failing.py:"
    assert "PeerFailedError" in output and "PE 1: RuntimeError: an exception that" in output
    assert place in output and "left the code that had opened the world" in output


@pytest.mark.parametrize("case", FAILING)
def test_the_other_pe_learns_of_the_exception(case, tmp_path):
    if case == "mp.spawn" and importlib.util.find_spec("torch") is None:
        pytest.skip("no torch")
    output = run_pair(FAILING[case], tmp_path)
    assert "PeerFailedError" in output and "Failed: the 7th layer" in output, output


BUFFER = """
import sys
import torch
import torch.distributed as dist
import deep_ep

def work(rank, store, case):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        step(rank, case)
    except ValueError:
        if case != "except":
            raise
    dist.barrier()  # nothing ends the process

def step(rank, case):
    buffer = deep_ep.Buffer(dist.group.WORLD, 1 << 20, explicitly_destroy=case == "finally")
    if rank == 1:
        if case == "finally":
            try:
                raise ValueError("the 7th layer")
            finally:
                buffer.destroy()
        raise ValueError("the 7th layer")
    try:
        buffer.dispatch(
            torch.zeros((3, 128), dtype=torch.bfloat16),
            num_tokens_per_rank=torch.tensor([3, 0], dtype=torch.int32),
            is_token_in_rank=torch.tensor([[True, False]] * 3),
            num_tokens_per_expert=torch.tensor([3, 0], dtype=torch.int32),
            topk_idx=torch.zeros((3, 1), dtype=torch.int64),
            topk_weights=torch.ones((3, 1)),
        )
    except Exception as error:
        print(error, flush=True)

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=sys.argv[1:], nprocs=2)
"""


@pytest.mark.parametrize(
    "case", ["raise", pytest.param("finally", marks=pytest.mark.soak), "except"]
)
def test_the_other_rank_of_a_buffer_learns_of_the_exception(case, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "ranks.py").write_text(BUFFER)
    done = subprocess.run(
        [sys.executable, tmp_path / "ranks.py", tmp_path / "store", case],
        capture_output=True,
        text=True,
        timeout=80,
    )
    expected = "PE 1: ValueError: the 7th layer"
    if case == "except":
        expected = "PE 1: RuntimeError: an exception that work handled (ranks.py:"
    assert expected in done.stdout, done.stdout + done.stderr


def test_a_world_that_is_released_without_an_exception_reports_none():
    """SystemExit with code 0, and an exception that was handled before, are no failures."""
    program = """
        import sys
        import shoal
        from shoal._unwinding import unwinding_exception
        try:
            raise KeyError("handled")
        except KeyError:
            assert isinstance(unwinding_exception(), KeyError)
        assert unwinding_exception() is None
        try:
            sys.exit(0)
        except SystemExit:
            assert unwinding_exception() is None
        try:
            try:
                raise KeyError("ended the process")
            except KeyError:
                sys.exit(1)
        except SystemExit:
            assert isinstance(unwinding_exception(), KeyError)
        world = shoal.World.open({"symmetric_size": "64M"})
        try:
            raise KeyError("handled")
        except KeyError:
            inner = shoal.World.open({"symmetric_size": "64M"})
            inner.zeros(4)
            inner.close()
            assert not inner.is_open
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
