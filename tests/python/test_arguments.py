# SPDX-License-Identifier: Apache-2.0
"""Arguments of the calls: dtypes, shapes, durations and settings; names in errors; repr."""

import datetime
import importlib.util
import pathlib
import re
import sys

import numpy as np
import pytest

import shoal
from shoal.errors import python_names

ROOT = pathlib.Path(__file__).resolve().parents[2]


def alone(body, settings):
    """body(world) in a world of one PE."""
    return shoal.run_threads(1, body, settings)[0]


def small_group(world, **options):
    defaults = {"hidden": 16, "top_k": 1, "experts": 2, "max_tokens": 4, "dtype": "float32"}
    return shoal.ep.Group(world.team, **{**defaults, **options})


# dtypes and shapes


def dtypes():
    yield np.float32, "float32"
    yield np.dtype("int64"), "int64"
    yield np.uint8, "uint8"
    if importlib.util.find_spec("torch") is not None:
        import torch

        yield torch.bfloat16, "bfloat16"
        yield torch.float8_e4m3fn, "float8_e4m3"
        yield torch.float64, "float64"
    if importlib.util.find_spec("ml_dtypes") is not None:
        import ml_dtypes

        yield ml_dtypes.bfloat16, "bfloat16"
        yield np.dtype(ml_dtypes.float8_e4m3fn), "float8_e4m3"
    if importlib.util.find_spec("jax") is not None:
        import jax.numpy

        yield jax.numpy.bfloat16, "bfloat16"
        yield jax.numpy.int32, "int32"


def test_dtype_objects_name_dtypes(settings):
    def body(world):
        for given, name in dtypes():
            assert world.zeros(2, given).dtype == name, given
        group = small_group(world, dtype=np.float16)
        assert group.options["dtype"] == "float16"
        routing = group.route(np.zeros((2, 1), np.int64))
        bits = np.ones((2, 16), np.uint16)
        return group.dispatch(bits, routing, dtype=np.float16).x.dtype

    assert alone(body, settings) == "float16"


def test_other_types_than_shoals_are_refused(settings):
    def body(world):
        wrong = [3, "float31", np.complex64, np.uint16]
        if importlib.util.find_spec("ml_dtypes") is not None:
            import ml_dtypes

            wrong.append(ml_dtypes.float8_e4m3)  # not what Shoal calls so, which has no infinity
        for given in wrong:
            with pytest.raises(
                shoal.InvalidArgumentError, match="zeros: dtype .*; allowed: float32"
            ):
                world.zeros(2, given)
        return True

    assert alone(body, settings)


def test_shapes_are_ints_or_sequences(settings):
    def body(world):
        shapes = [5, np.int64(5), (2, 3), [2, 3], np.array([2, 3]), (), (np.int32(2),)]
        for shape in ("5", 2.5, (1, 2.5), {"a": 1}):
            with pytest.raises(shoal.InvalidArgumentError, match="zeros: shape=.* an int or"):
                world.zeros(shape)
        return [world.zeros(shape).shape for shape in shapes]

    assert alone(body, settings) == [(5,), (5,), (2, 3), (2, 3), (2, 3), (), (2,)]


# durations and settings


@pytest.mark.parametrize("value", [2.5, datetime.timedelta(seconds=2.5), np.float32(2.5)])
def test_durations_are_seconds(value):
    settings = {"symmetric_size": "64M", "timeout": value, "bootstrap_timeout": 30}
    with shoal.World.open(settings) as world:
        assert world.settings["timeout"] == 2.5 and world.settings["bootstrap_timeout"] == 30
        group = small_group(world, timeout=value)
        assert group.options["timeout"] == 2.5
        group.close()


def test_a_wait_takes_the_seconds_that_are_set():
    with shoal.World.open({"symmetric_size": "64M", "timeout": 0.2}) as world:
        flag = world.zeros(1, "int64")
        with pytest.raises(shoal.TimeoutError, match="after 200 ms"):
            world.wait_until(flag, "==", 1)


def test_milliseconds_have_a_name_of_their_own():
    with shoal.World.open({"symmetric_size": "64M", "timeout_ms": 1500}) as world:
        assert world.settings["timeout"] == 1.5
    with pytest.raises(shoal.InvalidArgumentError, match='"timeout_ms": 20000 for milliseconds'):
        shoal.World.open({"timeout": 20_000})
    assert shoal.Settings({"timeout": 20_000.0})["timeout"] == 20_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (5, "World: settings=5 has the wrong type, int; allowed: None, a dict"),
        ({"timeout": "5"}, "settings: timeout='5' has the wrong type, str; allowed: seconds"),
        ({"timeout": True}, "settings: timeout=True has the wrong type, bool"),
        ({"spin": 1.5}, "settings: spin=1.5 has the wrong type, float; allowed: an int or a str"),
        ({"log": 3.5}, "settings: log=3.5 has the wrong type, float; allowed: a str"),
        ({3: 4}, "settings: key=3 has the wrong type, int; allowed: a str"),
        ({"nvshmem_variables": "no"}, "settings: nvshmem_variables='no' has the wrong type, str"),
        ({"timeout": 1e9}, "settings: timeout is 1000000000 s; allowed"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(shoal.InvalidArgumentError, match=re.escape(message)):
        shoal.World.open(settings)


def test_settings_are_a_mapping(settings):
    given = shoal.Settings({**settings, "spin": 7})
    assert given["spin"] == 7 and given["symmetric_size"] == 64 << 20 and given["timeout"] == 20
    assert set(given) == set(given.keys()) == set(dict(given)) and len(given) == len(list(given))
    assert "spin" in given and "unique_id" not in given
    assert repr(given) == "shoal.Settings(symmetric_size=64M, timeout=20.0, spin=7)"
    with shoal.World.open(given) as world:
        assert dict(world.settings) == dict(given)


# wrong types name the call and the argument


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda g, x, r: g.dispatch(x, r, expert_alignment="x"),
            "dispatch: expert_alignment='x' has the wrong type",
        ),
        (
            lambda g, x, r: g.dispatch(x, r, expert_major=2),
            "dispatch: expert_major=2 has the wrong type",
        ),
        (lambda g, x, r: g.unpack(x), "; allowed: a Dispatched"),
        (
            lambda g, x, r: g.unpack(g.dispatch(x, r), clear_unused="x"),
            "unpack: clear_unused='x' has the wrong type",
        ),
        (
            lambda g, x, r: g.unpack(g.dispatch(x, r), scales=x),
            "unpack: scales is given, and the dispatch has no such result",
        ),
        (
            lambda g, x, r: g.dispatch(x, r, worst_case_rows=1.5),
            "dispatch: worst_case_rows=1.5 has the wrong type",
        ),
        (lambda g, x, r: g.dispatch(x, r, dtype=object()), "dispatch: dtype "),
        (lambda g, x, r: g.dispatch(x, r, stream="s"), "dispatch: stream='s' has the wrong type"),
        (lambda g, x, r: g.dispatch(x, r, after="s"), "dispatch: after='s' has the wrong type"),
        (lambda g, x, r: g.dispatch(x, r, sms="s"), "dispatch: sms='s' has the wrong type"),
        (
            lambda g, x, r: g.dispatch_async(x, r, sms="s"),
            "dispatch_async: sms='s' has the wrong type",
        ),
        (
            lambda g, x, r: g.route(np.zeros((2, 1), np.int64), sms="s"),
            "route: sms='s' has the wrong type",
        ),
        (
            lambda g, x, r: g.low_latency_dispatch(x, x, quantize=8),
            "low_latency_dispatch: quantize",
        ),
        (
            lambda g, x, r: g.low_latency_dispatch(x, x, defer_receive=0),
            "low_latency_dispatch: defer_receive=0 has the wrong type, int; allowed: True or False",
        ),
        (
            lambda g, x, r: shoal.ep.Group(3, hidden=7),
            "ep.Group: team=3 has the wrong type, int; allowed: a shoal.Team, such as world.team",
        ),
        (
            lambda g, x, r: shoal.ep.Group(None, hidden=7),
            "ep.Group: team=None has the wrong type, NoneType",
        ),
        (
            lambda g, x, r: shoal.ep.Group(g.team, hidden="7"),
            "ep.Group: hidden='7' has the wrong type, str",
        ),
        (
            lambda g, x, r: shoal.ep.Group(g.team, timeout="7"),
            "ep.Group: timeout='7' has the wrong type",
        ),
        (
            lambda g, x, r: shoal.ep.size_hint(2, hidden="7"),
            "size_hint: hidden='7' has the wrong type",
        ),
        (
            lambda g, x, r: shoal.ep.size_hint(2, nodes="7"),
            "size_hint: nodes='7' has the wrong type",
        ),
        (lambda g, x, r: shoal.ep.size_hint(2, heap=7), "size_hint: heap=7 has the wrong type"),
    ],
)
def test_wrong_types_name_the_call_and_the_argument(call, message, settings):
    def body(world):
        group = small_group(world)
        routing = group.route(np.zeros((2, 1), np.int64))
        with pytest.raises(shoal.InvalidArgumentError, match=re.escape(message)):
            call(group, np.ones((2, 16), np.float32), routing)
        return True

    assert alone(body, settings)


REMOTE = "; allowed: a shoal.RemoteArray, which on(pe) of a SymmetricArray returns"
SYMMETRIC = "; allowed: a shoal.SymmetricArray, which World.zeros returns"
TEAM = "has the wrong type, World; allowed: a shoal.Team, such as world.team"
NUMBERS = np.ones(2, np.int64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w, a: w.put(a, NUMBERS), "put: target=shoal.SymmetricArray(int64 [2]"),
        (lambda w, a: w.put(a, NUMBERS), "has the wrong type, SymmetricArray" + REMOTE),
        (lambda w, a: w.put(None, NUMBERS), "put: target=None has the wrong type"),
        (lambda w, a: w.put(a.on(0)), "put: source is a NoneType"),
        (lambda w, a: shoal.barrier(None), "barrier: team=None has the wrong type"),
        (lambda w, a: w.put_nbi(NUMBERS, a.on(0)), "wrong type, ndarray" + REMOTE),
        (lambda w, a: w.get(a.on(0), NUMBERS), "get: source=array([1, 1])"),
        (lambda w, a: w.get_nbi(NUMBERS), "get: source=None has the wrong type"),
        (lambda w, a: w.put_signal(a, NUMBERS, a.on(0), 1), "put_signal: target=shoal.Symm"),
        (lambda w, a: w.put_signal(a.on(0), NUMBERS, a, 1), "put_signal: flag=shoal.Symm"),
        (lambda w, a: w.signal(a, 1), "signal: flag=shoal.SymmetricArray"),
        (lambda w, a: w.atomic("add", a), "atomic: target=shoal.SymmetricArray"),
        (lambda w, a: w.wait_until(a.on(0), "==", 0), "wait_until: array=shoal.RemoteArray"),
        (lambda w, a: w.test(NUMBERS, "==", 0), "wrong type, ndarray" + SYMMETRIC),
        (lambda w, a: shoal.reduce(w.team, NUMBERS, NUMBERS), "reduce: target=array([1, 1])"),
        (lambda w, a: shoal.reduce(w.team, a, NUMBERS), "reduce: source=array([1, 1])"),
        (lambda w, a: shoal.reduce_scatter(w.team, a, a.local), "wrong type, Array" + SYMMETRIC),
        (lambda w, a: shoal.broadcast(w.team, a.on(0), a, 0), "broadcast: target=shoal.Remote"),
        (lambda w, a: shoal.all_gather(w, a, a), "all_gather: team=shoal.World("),
        (lambda w, a: shoal.all_to_all(w, a, a), TEAM),
        (lambda w, a: shoal.barrier(w), TEAM),
        (lambda w, a: shoal.sync(w), TEAM),
        (
            lambda w, a: shoal.sync(shoal.Team.__new__(shoal.Team)),
            "sync: team is an object that no",
        ),
        (lambda w, a: shoal.run_threads(print, 2), "run_threads: n_pes=<built-in function print>"),
        (lambda w, a: shoal.run_threads(1, 2), "run_threads: body=2 has the wrong type, int"),
    ],
)
def test_wrong_objects_name_the_call_and_the_argument(call, message, settings):
    def body(world):
        array = world.zeros(2, "int64")
        with pytest.raises(shoal.InvalidArgumentError, match=re.escape(message)):
            call(world, array)
        return array.local.numpy().tolist()

    assert alone(body, settings) == [0, 0]


HANDLE = "; allowed: the Handle of a dispatch, Dispatched.handle"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, x, r: g.combine(x), "combine: handle=None has the wrong type, NoneType"),
        (lambda g, x, r: g.combine(x, r), "has the wrong type, Dispatched" + HANDLE),
        (lambda g, x, r: g.combine_async(x), "combine_async: handle=None"),
        (lambda g, x, r: g.dispatch(x), "a Routing or the Handle of an earlier dispatch, got a No"),
        (lambda g, x, r: g.dispatch_async(x), "got a NoneType"),
        (lambda g, x, r: g.low_latency_dispatch(x), "low_latency_dispatch: topk_idx is"),
        (
            lambda g, x, r: g.low_latency_combine(x, x, x, r.handle),
            "has the wrong type, Handle; allowed: the LowLatencyHandle",
        ),
        (lambda g, x, r: g.low_latency_combine(x), "low_latency_combine: handle=None"),
    ],
)
def test_missing_and_wrong_handles_are_named(call, message, settings):
    def body(world):
        group = small_group(world, low_latency_max_tokens=4)
        x = np.ones((2, 16), np.float32)
        received = group.dispatch(x, group.route(np.zeros((2, 1), np.int64)))
        with pytest.raises(shoal.InvalidArgumentError, match=re.escape(message)):
            call(group, x, received)
        return True

    assert alone(body, settings)


def test_a_group_without_its_constructor_is_refused():
    class Unfinished(shoal.ep.Group):
        def __init__(self):
            pass

    group, x = Unfinished(), np.ones((2, 16), np.float32)
    message = "self is an object that no constructor has filled"
    with pytest.raises(shoal.InvalidArgumentError, match="low_latency_dispatch: " + message):
        group.low_latency_dispatch(x, np.zeros((2, 1), np.int64))
    with pytest.raises(shoal.InvalidArgumentError, match="low_latency_combine: " + message):
        group.low_latency_combine(x, x, x, None)


def test_more_choices_than_experts_are_refused(settings):
    def body(world):
        with pytest.raises(shoal.InvalidArgumentError, match="top_k is 9 with 8 experts"):
            small_group(world, top_k=9, experts=8)
        return small_group(world, top_k=8, experts=8).options["top_k"]

    assert alone(body, settings) == 8


def test_an_array_of_one_element_alone_has_a_truth_value(settings):
    def body(world):
        array, flag = world.zeros((2, 3), "int64"), world.zeros(1, "int64")
        for one in (array, array.local, world.zeros(0)):
            with pytest.raises(ValueError, match="Array of [06] elements is ambiguous"):
                bool(one)
        with pytest.raises(TypeError, match="World.get"):
            bool(array.on(0))
        assert not flag and not flag.local
        flag[0] = 2
        return bool(flag) and bool(flag.local)

    assert alone(body, settings)


# Python's names in errors of the core


def messages_of_the_library():
    sys.path.insert(0, str(ROOT / "cmake"))
    try:
        import messages
    finally:
        sys.path.pop(0)
    return [text for _, _, text in messages.messages(ROOT)]


def test_no_message_has_names_of_cpp():
    """Over all messages in the sources. Names of the C interface are for C programs."""
    wrong = [
        text
        for text in map(python_names, messages_of_the_library())
        if re.search(r"::|\w+Options\b|\(\)\.|\bnullptr\b|\bstd\b", text)
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("core", "python"),
    [
        ("dispatch: DispatchOptions.worst_case_rows is -1", "dispatch: worst_case_rows is -1"),
        ("ep::GroupOptions.hidden is 0; allowed", "ep.Group: hidden is 0; allowed"),
        ("ep::GroupOptions has neither x", "ep.Group has neither x"),
        ("raise GroupOptions.max_tokens (now 4)", "raise max_tokens (now 4)"),
        ("GateOptions::groups is 3", "gate: groups is 3"),
        (
            "x (SymmetricHeap::share_buffer), Group::synchronize",
            "x (World.share_buffer), Group.synchronize",
        ),
        ("made with GroupOptions.mask_failed = false", "made with mask_failed = False"),
        ("at 10:20::1 of [fe80::1]:80", "at 10:20::1 of [fe80::1]:80"),
    ],
)
def test_names_are_translated(core, python):
    for start in ("shoal: ", "SHOAL-N605: "):
        assert python_names(start + core) == start + python


def test_errors_of_calls_have_python_names(settings):
    def body(world):
        group = small_group(world)
        routing = group.route(np.zeros((2, 1), np.int64))
        with pytest.raises(shoal.InvalidArgumentError, match="dispatch: worst_case_rows is -1"):
            group.dispatch(np.ones((2, 16), np.float32), routing, worst_case_rows=-1)
        with pytest.raises(shoal.InvalidArgumentError, match=r"at most 0 \(max_tokens\)"):
            options = {"max_tokens": 0, "low_latency_max_tokens": 4}
            small_group(world, **options).dispatch(np.ones((2, 16), np.float32), routing)
        with pytest.raises(shoal.InvalidArgumentError, match="ep.Group: hidden is 0") as raised:
            small_group(world, hidden=0)
        assert raised.value.id == "SHOAL-N605"
        assert shoal.ClosedError("without").id is None
        return True

    assert alone(body, settings)


# repr


def test_repr_says_what_an_object_is(settings):
    def body(world):
        array = world.zeros((2, 3), "int32")
        group = small_group(world, low_latency_max_tokens=4)
        routing = group.route(np.array([[0], [1], [-1]]))
        received = group.dispatch(np.ones((3, 16), np.float32), routing)
        combined = group.combine(received.x, received.handle)
        texts = [repr(one) for one in (world, world.team, array, array.on(0), group)]
        texts += [repr(one) for one in (routing, received, received.handle, combined)]
        del received, combined
        group.close()
        array.free()
        return texts, repr(group), repr(array)

    with shoal.World.open(settings) as world:
        texts, group, array = body(world)
    assert texts[0].startswith("shoal.World(PE 0 of 1, 1 PEs per node, heap of 64M on cpu, ")
    assert texts[1:] == [
        "shoal.Team(PE 0 of 1, world PEs [0])",
        "shoal.SymmetricArray(int32 [2, 3] on each of 1 PEs, cpu, heap offset 0)",
        "shoal.RemoteArray(6 elements of int32 on PE 0)",
        "shoal.ep.Group(rank 0 of 1, hidden=16, top_k=1, experts=2, max_tokens=4, dtype=float32, "
        "low_latency_max_tokens=4)",
        "shoal.ep.Routing(3 tokens, tokens_per_rank [2])",
        "shoal.ep.Dispatched(2 rows, x float32 [2, 16] on cpu, topk_idx int64 [2, 1] on cpu, "
        "rows_per_source [2])",
        "shoal.ep.Handle(2 rows received)",
        "shoal.ep.Combined(x float32 [3, 16] on cpu)",
    ]
    assert group == "shoal.ep.Group(closed)"
    assert array == "shoal.SymmetricArray(int32 [2, 3], freed)"
    assert repr(world) == "shoal.World(closed)"


def test_repr_says_how_far_an_operation_is(settings):
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def body(world):
        group = small_group(world, hidden=128, low_latency_max_tokens=4)
        event = shoal.ep.HostEvent()
        assert repr(event) == "shoal.ep.HostEvent(not set)"
        idx, weights = np.zeros((2, 1), np.int64), np.ones((2, 1), np.float32)
        routing = group.route(idx)
        future = group.dispatch_async(np.ones((2, 128), np.float32), routing, after=event)
        assert repr(future) == "shoal.ep.Future(running)"
        event.set()
        assert repr(event) == "shoal.ep.HostEvent(set)"
        received = future.result()
        assert repr(future) == "shoal.ep.Future(taken)" and received.rows == 2
        x = np.ones((2, 128), ml_dtypes.bfloat16)
        sent = group.low_latency_dispatch(x, idx, quantize="none")
        assert repr(sent) == "shoal.ep.PendingDispatch(sent)"
        rows = sent.receive()
        assert repr(sent) == "shoal.ep.PendingDispatch(received)"
        assert repr(rows.handle) == "shoal.ep.LowLatencyHandle()"
        sums = group.low_latency_combine(rows.x, idx, weights, rows.handle)
        assert repr(sums) == "shoal.ep.PendingCombine(sent)"
        sums.receive()
        assert repr(sums) == "shoal.ep.PendingCombine(received)"
        return True

    assert shoal.run_threads(1, body, settings) == [True]
