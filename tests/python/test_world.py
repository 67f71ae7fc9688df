# SPDX-License-Identifier: Apache-2.0
"""Worlds, teams, one-sided operations and collectives of shoal in Python."""

import multiprocessing
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import shoal


def test_every_pe_writes_to_every_pe(settings):
    def body(world):
        numbers = world.zeros((world.n_pes,), "int64")
        for other in range(world.n_pes):
            mine = numbers.on(other)[world.my_pe : world.my_pe + 1]
            world.put(mine, np.array([10 * world.my_pe], np.int64))
        shoal.barrier(world.team)
        fetched = np.zeros(world.n_pes, np.int64)
        world.get(fetched, numbers.on((world.my_pe + 1) % world.n_pes))
        shoal.barrier(world.team)
        shape = numbers.local.shape
        numbers.free()
        return shape, fetched.tolist()

    assert shoal.run_threads(4, body, settings) == [((4,), [0, 10, 20, 30])] * 4


def test_signals_follow_their_data(settings):
    def body(world):
        data, flag = world.zeros((100,), "float32"), world.zeros((1,), "int64")
        right = (world.my_pe + 1) % world.n_pes
        world.put_signal(
            data.on(right), np.full(100, world.my_pe, np.float32), flag.on(right)[0], 5
        )
        seen = world.wait_until(flag, ">=", 5)
        left = (world.my_pe - 1) % world.n_pes
        assert (
            (data.local.numpy() == left).all()
            and world.test(flag, ">=", 5)
            and not world.test(flag, ">", 7)
        )
        world.signal(flag.on(right)[0], 2, op="add")
        return seen in (5, 7), world.wait_until(flag, "==", 7)

    assert shoal.run_threads(3, body, settings) == [(True, 7)] * 3


def test_atomics_count(settings):
    def body(world):
        counter = world.zeros((1,), "int32")
        before = [world.atomic("add", counter.on(0)[0], 1) for _ in range(50)]
        shoal.barrier(world.team)
        total = world.atomic("fetch", counter.on(0)[0])
        shoal.barrier(world.team)
        won = world.atomic("compare_swap", counter.on(0)[0], operand=-1, compare=200) == 200
        return before, total, won

    results = shoal.run_threads(4, body, settings)
    assert sorted(sum((before for before, _, _ in results), [])) == list(range(200))
    assert [total for _, total, _ in results] == [200] * 4 and sum(
        won for _, _, won in results
    ) == 1


def test_non_blocking_operations_end_with_quiet(settings):
    def body(world):
        data = world.zeros((256,), "int32")
        source = np.arange(256, dtype=np.int32) + world.my_pe
        world.put_nbi(data.on(1 - world.my_pe), source)
        world.fence()
        world.quiet()
        shoal.sync(world.team)
        back = np.zeros_like(source)
        world.get_nbi(back, data.on(1 - world.my_pe))
        world.quiet()
        assert np.array_equal(back, source)
        return int(data.local.numpy()[0])

    assert shoal.run_threads(2, body, settings) == [1, 0]


def test_collectives(settings):
    def body(world):
        team, me, n = world.team, world.my_pe, world.n_pes
        one, all_, back = (
            world.zeros((4,), "float32"),
            world.zeros((4 * n,), "float32"),
            world.zeros((4 * n,), "float32"),
        )
        one.local.numpy()[:] = me + np.arange(4)
        shoal.all_gather(team, all_, one)
        gathered = all_.local.numpy().copy()
        shoal.all_to_all(team, back, all_)
        shoal.reduce(team, one, one)
        summed = one.local.numpy().copy()
        part = world.zeros((4,), "float32")
        shoal.reduce_scatter(team, part, all_, op="max")
        shoal.broadcast(team, one, one, root=n - 1)
        with pytest.raises(shoal.InvalidArgumentError, match="must have 3 times the elements"):
            shoal.all_gather(team, one, one)
        return (
            gathered,
            back.local.numpy().copy(),
            summed,
            part.local.numpy().copy(),
            team.exchange(bytes([me, 7])),
        )

    expected = np.concatenate([pe + np.arange(4) for pe in range(3)]).astype(np.float32)
    for me, (gathered, back, summed, part, blobs) in enumerate(
        shoal.run_threads(3, body, settings)
    ):
        assert np.array_equal(gathered, expected)
        assert np.array_equal(back, np.tile(me + np.arange(4), 3))
        assert np.array_equal(summed, 3 + 3 * np.arange(4)) and np.array_equal(
            part, me + np.arange(4)
        )
        assert blobs == [bytes([0, 7]), bytes([1, 7]), bytes([2, 7])]


def test_teams_split(settings):
    def body(world):
        even = world.team.split_strided(0, 2, 2)
        row, column = world.team.split_2d(2)
        result = (
            even is not None and even.size,
            row.my_pe,
            column.my_pe,
            world.team.translate(3, row),
        )
        shoal.barrier(row)
        if even is not None:
            even.destroy()
        return result

    assert shoal.run_threads(4, body, settings) == [
        (2, 0, 0, None),
        (False, 1, 0, None),
        (2, 0, 1, 1),
        (False, 1, 1, 1),
    ]


def test_an_exception_of_one_pe_ends_all_and_comes_out_as_it_was(settings):
    class Mine(Exception):
        pass

    def body(world):
        if world.my_pe == 1:
            raise Mine("here")
        shoal.barrier(world.team)

    with pytest.raises(Mine, match="here"):
        shoal.run_threads(3, body, {**settings, "timeout": 3600.0})


@pytest.mark.parametrize("n_pes", [-1, 0, 513, 2**31 - 1])
def test_numbers_of_pes_outside_the_limits(n_pes, settings):
    message = f"run_threads with {n_pes} PEs; allowed: 1 to 512"
    with pytest.raises(shoal.errors.InvalidArgumentError, match=message):
        shoal.run_threads(n_pes, lambda world: None, settings)


def test_leaving_a_with_block_by_an_exception_tells_the_others(settings):
    """Also with an exception without a message, such as that of an assert."""
    heard = {}

    def body(world):
        pe = world.my_pe
        try:
            with world:
                if pe == 1:
                    raise AssertionError
                shoal.barrier(world.team)
        except Exception as error:
            heard[pe] = error
            raise

    with pytest.raises(AssertionError):
        shoal.run_threads(2, body, settings)
    assert isinstance(heard[1], AssertionError) and "AssertionError" in str(heard[0])


def test_a_wait_without_a_signal_times_out_and_names_what_it_waits_for():
    def body(world):
        flag = world.zeros((1,), "int64")
        with pytest.raises(
            TimeoutError
        ) as raised:  # shoal.TimeoutError is also a TimeoutError of Python
            world.wait_until(flag, "==", 1)
        return raised.value.code, isinstance(raised.value, shoal.TimeoutError)

    assert shoal.run_threads(1, body, {"symmetric_size": "64M", "timeout": 0.2}) == [
        ("timeout", True)
    ]


def test_waiting_lets_other_threads_run(settings):
    """Calls release the GIL; otherwise the first PE would wait forever for the second."""

    waits = threading.Event()

    def body(world):
        flag = world.zeros((1,), "int64")
        if world.my_pe == 0:
            waits.set()
            return world.wait_until(flag, "==", 1)
        waits.wait()
        world.signal(flag.on(0)[0], 1)
        return 1

    assert shoal.run_threads(2, body, settings) == [1, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda world, array: world.put(array.on(0), np.zeros(3, np.float32)),
            "has 12 bytes, the elements on PE 0 have 16",
        ),
        (lambda world, array: array.on(1), "PE 1; the world has PEs 0 to 0"),
        (lambda world, array: array.on(0)[::2], "sliced with step 1"),
        (lambda world, array: world.wait_until(array, "==", 0), "waits are for int64 arrays"),
        (
            lambda world, array: world.wait_until(world.zeros((1,), "int64"), "=", 0),
            'compare "="; allowed: "=="',
        ),
        (
            lambda world, array: world.atomic("nand", world.zeros((1,), "int64").on(0)[0]),
            'op "nand"; allowed: "fetch"',
        ),
        (lambda world, array: world.zeros((1,), "float31"), 'dtype "float31"; allowed: float32'),
        (lambda world, array: world.zeros((-1,), "int64"), "an extent of -1"),
        (lambda world, array: world.team.exchange(bytes(513)), "allowed: up to 512"),
        (
            lambda world, array: shoal.World.open({"symetric_size": "1G"}),
            'no setting "symetric_size"; there are bootstrap',
        ),
        (lambda world, array: world.zeros((1 << 40,), "int64"), "SHOAL_SYMMETRIC_SIZE"),
    ],
)
def test_bad_arguments_say_what_is_allowed(call, message, settings):
    def body(world):
        array = world.zeros((4,), "float32")
        with pytest.raises(shoal.Error, match=message.replace("[", r"\[")):
            call(world, array)
        world.put(array.on(0), np.ones(4, np.float32))
        return float(array.local.numpy().sum())

    assert shoal.run_threads(1, body, settings) == [4.0]


def test_a_world_that_is_closed_during_a_call_of_others_is_named(settings):
    def body(world):
        if world.my_pe == 0:
            world.close()
        else:
            with pytest.raises(shoal.MismatchError) as caught:
                world.team.exchange(b"size")
            assert "PE 0 made a call without data (sync, or closing the world)" in str(caught.value)
            raise caught.value

    with pytest.raises(shoal.MismatchError):
        shoal.run_threads(2, body, settings)


def test_what_is_no_communicator_is_named():
    with pytest.raises(shoal.InvalidArgumentError, match="from_mpi4py: comm='world' has the wrong"):
        shoal.World.from_mpi4py("world")


def test_a_freed_array_and_a_closed_world_say_so(settings):
    def body(world):
        array = world.zeros((4,), "float32")
        array.free()
        for call in (
            lambda: array.on(0),
            lambda: array.local,
            lambda: shoal.reduce(world.team, array, array),
        ):
            with pytest.raises(shoal.ClosedError, match="the array is freed"):
                call()
        world.close()
        with pytest.raises(shoal.ClosedError):
            world.zeros((4,), "float32")
        return world.is_open

    assert shoal.run_threads(1, body, settings) == [False]


def _process(pe, unique_id, results):
    with shoal.World.from_unique_id(unique_id, pe, 2, {"symmetric_size": "64M"}) as world:
        total = world.zeros((1,), "int64")
        total.local.numpy()[:] = pe + 1
        shoal.reduce(world.team, total, total)
        results.put(
            (
                pe,
                int(total.local.numpy()[0]),
                world.pes_per_node,
                world.describe_transport(1 - pe).split(":")[0],
            )
        )


def test_processes_meet_by_a_unique_id():
    context = multiprocessing.get_context("spawn")
    unique_id, results = shoal.UniqueId.create(), context.Queue()
    processes = [
        context.Process(target=_process, args=(pe, str(unique_id), results)) for pe in range(2)
    ]
    for process in processes:
        process.start()
    try:
        assert sorted(results.get(timeout=60) for _ in range(2)) == [
            (0, 3, 2, "shm"),
            (1, 3, 2, "shm"),
        ]
    finally:
        for process in processes:
            process.join(timeout=30)
            process.kill()
    assert [process.exitcode for process in processes] == [0, 0]


def test_importing_does_nothing():
    """Importing changes no thread, environment, no output, and no torch."""
    script = (
        "import os, sys, threading; before = dict(os.environ); import shoal; "
        "print(threading.active_count(), before == dict(os.environ), 'torch' in sys.modules, "
        "len(os.listdir('/proc/self/task')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.split(), done.stderr) == (["1", "True", "False", "1"], "")


@pytest.mark.parametrize(
    "module, needs", [("deep_ep", "torch"), ("shoal.torch", "torch"), ("shoal.jax", "jax")]
)
def test_importing_has_no_side_effects(module, needs):
    """An import starts no thread, changes no environment, prints nothing, opens no file and leaves
    CUDA alone, unlike the original of deep_ep."""
    pytest.importorskip(needs)
    script = f"""
        import os, sys, threading, {needs}
        def state():
            torch = sys.modules.get("torch")
            used = torch is not None and torch.cuda.is_initialized()
            tasks, files = (len(os.listdir("/proc/self/" + what)) for what in ("task", "fd"))
            return dict(os.environ), threading.active_count(), tasks, files, used
        before = state()
        import {module}
        names = "environment threads tasks files cuda".split()
        print([name for name, was, now in zip(names, before, state()) if was != now])
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_everything_public_is_documented():
    for module in (shoal, shoal.ep):
        for name in module.__all__:
            thing = getattr(module, name)
            assert thing.__doc__, name
            if isinstance(thing, type) and not issubclass(thing, Exception):
                for member, value in vars(thing).items():
                    if not member.startswith("_"):
                        text = (value.__doc__ or "").splitlines()
                        # The first line of bound functions.
                        signature = bool(text) and text[0].startswith(member + "(")
                        assert "".join(text[1:] if signature else text).strip(), f"{name}.{member}"


def test_teams_and_facts_of_a_world(settings):
    def body(world):
        assert world.node_team.size == world.shared_team.size == world.pes_per_node == 4
        assert (
            world.same_index_team.size == 1
            and world.self_team.world_pe(0) == world.my_pe == world.my_pe_on_node
        )
        ids = world.zeros((1,), "int64")
        if world.my_pe == 0:
            number = np.array([world.make_team_id()], np.uint64).view(np.int64)
            for pe in range(world.n_pes):
                world.put(ids.on(pe), number)
        shoal.barrier(world.team)
        reverse = world.make_team(int(ids.local.numpy().view(np.uint64)[0]), 4, 3 - world.my_pe)
        assert reverse.my_pe == 3 - world.my_pe and reverse.world_pe(0) == 3
        assert 0 < world.heap_used <= world.heap_size and world.heap_device == "cpu"
        names = [name for name, seconds in world.init_phases if seconds >= 0]
        assert names[0] == "settings" and names[-1] == "final barrier"
        return True

    assert shoal.run_threads(4, body, settings) == [True] * 4


def test_connectivity_is_the_same_on_all_pes(settings):
    reports = shoal.run_threads(4, lambda world: world.connectivity(), {**settings, "node_size": 2})
    assert all(report == reports[0] for report in reports)
    report = reports[0]
    assert [pe["node"] for pe in report["pes"]] == [0, 0, 1, 1]
    assert len({(pe["host"], pe["host_index"]) for pe in report["pes"]}) == 1
    assert all(pe["nics"] is None for pe in report["pes"]), "no pair needs a network"
    pairs = {(pair["a"], pair["b"]): pair for pair in report["pairs"]}
    assert sorted(pairs) == [(a, b) for a in range(4) for b in range(a, 4)]
    assert pairs[2, 2]["chosen"] == "self" and pairs[0, 3]["chosen"] == "shm"
    (used,) = [one for one in pairs[0, 3]["transports"] if one["chosen"]]
    assert used["name"] == "shm" and used["capabilities"] == "put get atomics signals"
    assert all(one["why"] for pair in report["pairs"] for one in pair["transports"])
    assert report["heap_pairs"] == []


def test_buffers_of_a_heap_on_the_host_are_not_shared(settings):
    def body(world):
        with pytest.raises(shoal.UnsupportedError, match="SHOAL_HEAP is cuda"):
            world.share_buffer(np.zeros(4, np.float32))
        with pytest.raises(shoal.InvalidArgumentError, match="contiguous"):
            world.share_buffer(np.zeros((4, 4), np.float32)[:, ::2])
        return True

    assert shoal.run_threads(2, body, settings) == [True] * 2


def test_collectives_on_a_stream_need_gpu_memory():
    def body(world):
        array = world.zeros((4,), "float32")
        with pytest.raises(shoal.UnsupportedError, match="SHOAL_HEAP=cuda"):
            shoal.reduce(world.team, array, array, stream=1)
        with pytest.raises(shoal.InvalidArgumentError, match="stream='one'"):
            shoal.broadcast(world.team, array, array, 0, stream="one")
        return True

    assert shoal.run_threads(1, body) == [True]
