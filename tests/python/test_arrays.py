# SPDX-License-Identifier: Apache-2.0
"""Arrays pass between shoal and other libraries without copies, with their element types and
lifetimes."""

import gc
import sys
import types

import numpy as np
import pytest

import shoal

TYPES = [
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3",
    "int8",
    "uint8",
    "int32",
    "int64",
    "float64",
]
NUMPY = {"bfloat16": "uint16", "float8_e4m3": "uint8"}


def zeros(shape, dtype, settings):
    return shoal.run_threads(1, lambda world: world.zeros(shape, dtype).local, settings)[0]


@pytest.mark.parametrize("dtype", TYPES)
def test_numpy_sees_the_same_memory(dtype, settings):
    array = zeros((3, 5), dtype, settings)
    view = array.numpy()
    assert (array.shape, array.strides, array.dtype, array.device) == ((3, 5), (5, 1), dtype, "cpu")
    assert (
        view.dtype == np.dtype(NUMPY.get(dtype, dtype))
        and view.shape == (3, 5)
        and array.nbytes == view.nbytes
    )
    view[2, 4] = 7
    assert array.numpy()[2, 4] == 7 and array.numpy().sum() == 7


@pytest.mark.parametrize("dtype", TYPES)
def test_torch_sees_the_same_memory(dtype, settings):
    torch = pytest.importorskip("torch")
    array = zeros((4, 16), dtype, settings)
    tensor = torch.from_dlpack(array)
    assert tensor.dtype == getattr(torch, {"float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype))
    tensor.view(torch.uint8)[1, 2] = 9
    assert array.numpy().view(np.uint8)[1, 2] == 9


def test_memory_outlives_the_world_and_the_array(settings):
    array = zeros((1000,), "int64", settings)  # its world is closed
    view = array.numpy()
    view[:] = np.arange(1000)
    del array
    gc.collect()
    assert view.sum() == 499_500


class OnlyDLPack:
    """An array like those of CuPy: the first two methods of DLPack, and nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, stream=None):
        return self._array.__dlpack__()

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def maker_of(kind):
    """A function that makes an array of this kind from a NumPy view."""
    if kind == "numpy":
        return lambda x: x
    if kind == "dlpack":
        return OnlyDLPack
    if kind == "torch":
        return pytest.importorskip("torch").from_numpy
    jax = pytest.importorskip("jax")
    return jax.numpy.asarray


@pytest.mark.parametrize("kind", ["numpy", "dlpack", "torch", "jax", "shoal"])
def test_offsets_and_strides_are_kept(kind, settings):
    """torch exports views by DLPack's C table, others by a capsule, shoal.Array directly; JAX
    copies views."""
    make = maker_of(kind) if kind != "shoal" else None

    def body(world):
        group = shoal.ep.Group(
            world.team, hidden=16, top_k=1, experts=1, max_tokens=4, dtype="float32", max_scales=4
        )
        scales = np.arange(60, dtype=np.float32).reshape(5, 12)[1:4, 1:9:2]
        rows = np.arange(80, dtype=np.float32).reshape(5, 16)[2:5]
        if kind == "shoal":
            array = world.zeros((3, 16), "float32")
            array.local.numpy()[:] = rows
            got = group.dispatch(
                array.local, group.route(np.zeros((3, 1), np.int64)), scales=scales
            )
        else:
            got = group.dispatch(
                make(rows), group.route(make(np.zeros((3, 1), np.int32))), scales=make(scales)
            )
        return np.array_equal(got.x, rows), np.array_equal(got.scales, scales)

    assert shoal.run_threads(1, body, settings) == [(True, True)]


def test_jax_sees_the_same_memory(settings):
    """Results as JAX arrays and back, also bfloat16, without copies where JAX can use the
    memory."""
    jax = pytest.importorskip("jax")

    def body(world):
        group = shoal.ep.Group(world.team, hidden=64, top_k=1, experts=1, max_tokens=8)
        # A copy, not a view.
        x = jax.numpy.arange(6 * 64, dtype=jax.numpy.bfloat16).reshape(6, 64)[1:5]
        received = group.dispatch(x, group.route(jax.numpy.zeros((4, 1), jax.numpy.int32)))
        rows = received.x
        assert rows.dtype == jax.numpy.bfloat16 and bool((rows == x).all())
        in_heap = world.zeros(1).local.data_ptr
        assert abs(rows.unsafe_buffer_pointer() - in_heap) < world.heap_size
        combined = group.combine(rows + x, received.handle)
        return bool((combined.x == 2 * x).all())

    assert shoal.run_threads(1, body, settings) == [True]


def of_each_library(array, kind):
    """Whether an array is the library's own, over memory that others see."""
    if kind == "shoal":
        return type(array) is shoal.Array
    if kind == "numpy":
        return type(array) is np.ndarray
    module = pytest.importorskip(kind)
    return isinstance(array, module.Tensor if kind == "torch" else module.Array)


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax", "dlpack"])
def test_results_are_arrays_of_the_library_of_the_arguments(kind, settings):
    """Every call, and fields that are read after the group and the world have closed. Other
    libraries get a shoal.Array."""
    make, own = maker_of(kind), kind if kind != "dlpack" else "shoal"

    def body(world):
        group = shoal.ep.Group(
            world.team, hidden=128, top_k=1, experts=2, max_tokens=4, low_latency_max_tokens=4
        )
        rows = make(np.full((2, 128), 0x3F80, np.uint16))  # bfloat16 1.0
        ones, experts = make(np.ones((2, 1), np.float32)), make(np.zeros((2, 1), np.int32))
        routing = group.route(experts)
        received = group.dispatch(rows, routing, weights=ones, dtype="bfloat16")
        assert received.x is received.x
        arrays = [routing.topk_idx, received.x, received.topk_idx, received.topk_weights]
        later = group.dispatch_async(rows, routing, dtype="bfloat16").result()
        combined = group.combine(received.x, received.handle, weights=received.topk_weights)
        arrays += [later.source_token, combined.x, combined.topk_weights]
        arrays += [group.combine_async(later.x, later.handle).result().x]
        low = group.low_latency_dispatch(rows, experts, dtype="bfloat16").receive()
        arrays += [low.x, low.scales, low.counts, low.source_token, low.layout]
        y = make(np.zeros((2, 4, 128), np.uint16))
        sent = group.low_latency_combine(y, experts, ones, low.handle, dtype="bfloat16")
        arrays.append(sent.receive())
        arrays += shoal.ep.gate(make(np.ones((2, 2), np.float32)), top_k=1)
        assert all(of_each_library(array, own) for array in arrays), [type(a) for a in arrays]
        return group.dispatch(rows, routing, dtype="bfloat16")

    (left,) = shoal.run_threads(1, body, settings)
    assert of_each_library(left.x, own) and left.x.shape == (2, 128)


def test_the_dtype_or_like_names_the_library_of_arrays_without_arguments(settings):
    torch = pytest.importorskip("torch")

    def body(world):
        tensor = world.zeros(5, torch.bfloat16).local
        assert type(tensor) is torch.Tensor and tensor.dtype == torch.bfloat16
        for dtype in (np.int64, np.dtype("i8")):
            numbers = world.zeros((2, 3), dtype)
            numbers.local[1] = 7
            assert type(numbers.local) is np.ndarray and numbers[1, 2] == 7
            assert (numbers.shape, numbers.dtype) == ((2, 3), "int64")
        assert type(world.zeros(2, "int32").local) is shoal.Array
        for like in (torch, tensor, torch.nn.Parameter(torch.ones(1))):
            assert type(world.zeros(2, "int32", like=like).local) is torch.Tensor
        assert type(world.zeros(2, torch.int32, like=np).local) is np.ndarray
        with pytest.raises(
            shoal.InvalidArgumentError, match=r"zeros: like='torch' .*; allowed: an"
        ):
            world.zeros(2, like="torch")
        group = shoal.ep.Group(world.team, hidden=128, top_k=1, experts=1, low_latency_max_tokens=4)
        assert type(group.next_combine_buffer()) is shoal.Array
        return type(group.next_combine_buffer(like=tensor)) is torch.Tensor

    assert shoal.run_threads(1, body, settings) == [True]


def test_programs_that_convert_results_keep_working(settings):
    torch = pytest.importorskip("torch")

    def body(world):
        group = shoal.ep.Group(
            world.team, hidden=16, top_k=1, experts=1, max_tokens=4, dtype="float32"
        )
        routing = group.route(torch.zeros((2, 1), dtype=torch.int64))
        received = group.dispatch(torch.ones(2, 16), routing)
        assert torch.from_dlpack(received.x).data_ptr() == received.x.data_ptr()
        sums = group.combine(torch.from_dlpack(received.x), received.handle).x
        return float(np.asarray(sums).sum() + sums.numpy().sum())

    assert shoal.run_threads(1, body, settings) == [64.0]


def test_rows_in_formats_pass_through_dlpack(settings):
    """Arrays without a library of their own: results are shoal.Array, which torch takes as the
    dtypes of the format."""
    torch = pytest.importorskip("torch")

    def body(world):
        group = shoal.ep.Group(world.team, hidden=128, top_k=1, experts=1, max_tokens=4)
        routing = group.route(OnlyDLPack(torch.zeros((2, 1), dtype=torch.int64)))
        x = torch.ones(2, 128, dtype=torch.bfloat16)
        dtypes = []
        for name in ("fp8", "mxfp8", "nvfp4"):
            received = group.dispatch(OnlyDLPack(x), routing, quantize=name)
            assert type(received.x) is type(received.scales) is shoal.Array
            dtypes += [
                torch.from_dlpack(received.x).dtype,
                torch.from_dlpack(received.scales).dtype,
            ]
        sums = group.combine(OnlyDLPack(x), received.handle, quantize="mxfp8").x
        assert torch.equal(torch.from_dlpack(sums), x)
        return dtypes

    float8 = torch.float8_e4m3fn
    assert shoal.run_threads(1, body, settings) == [
        [float8, torch.float32, float8, torch.uint8, torch.uint8, float8]
    ]


def test_arrays_of_cupy_are_made_by_cupy(settings, monkeypatch):
    """A module in place of CuPy, which has no arrays on the host."""
    cupy = types.ModuleType("cupy")
    ndarray = type("ndarray", (OnlyDLPack,), {"__module__": "cupy"})
    cupy.ndarray, cupy.from_dlpack = ndarray, ndarray
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    def body(world):
        return type(world.zeros(3, like=ndarray(np.ones(1))).local) is ndarray

    assert shoal.run_threads(1, body, settings) == [True]


def test_tensors_that_need_gradients_are_read_as_they_are(settings):
    torch = pytest.importorskip("torch")

    def body(world):
        array = world.zeros((4,), "float32")
        world.put(array.on(0), torch.full((4,), 3.0, requires_grad=True))
        return float(
            array.local.numpy().sum()
        ), array.local.data_ptr == array.local.numpy().ctypes.data

    assert shoal.run_threads(1, body, settings) == [(12.0, True)]


def test_ml_dtypes_are_recognised(settings):
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def body(world):
        group = shoal.ep.Group(world.team, hidden=16, top_k=1, experts=1, max_tokens=4)
        rows = np.arange(32).reshape(2, 16).astype(ml_dtypes.bfloat16)
        received = group.dispatch(rows, group.route(np.zeros((2, 1), np.int64)))
        return received.x.dtype, received.x.astype(np.float32)

    dtype, values = shoal.run_threads(1, body, settings)[0]
    assert dtype == ml_dtypes.bfloat16 and np.array_equal(values, np.arange(32).reshape(2, 16))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", "x is a str"),
        (np.zeros((1, 1, 1, 1, 1), np.float32), "5 dimensions; allowed: up to 4"),
        (np.zeros((2, 16), np.complex64), "which Shoal does not have"),
    ],
)
def test_what_is_no_array_is_named(value, message, settings):
    def body(world):
        group = shoal.ep.Group(world.team, hidden=16, top_k=1, experts=1, max_tokens=4)
        routing = group.route(np.zeros((2, 1), np.int64))
        with pytest.raises(shoal.InvalidArgumentError, match=message):
            group.dispatch(value, routing)
        # The group stays usable.
        return group.dispatch(np.ones((2, 16), np.uint16), routing, dtype="bfloat16").rows

    assert shoal.run_threads(1, body, settings) == [2]


def test_arrays_without_elements_may_have_any_strides(settings):
    def body(world):
        group = shoal.ep.Group(world.team, hidden=16, top_k=1, experts=1, max_tokens=4)
        nothing = np.zeros((0, 32), np.uint16)[:, :16]
        return group.dispatch(
            nothing, group.route(np.zeros((0, 1), np.int64)), dtype="bfloat16"
        ).x.shape

    assert shoal.run_threads(1, body, settings) == [(0, 16)]


def test_a_dtype_of_another_size_is_refused(settings):
    def body(world):
        group = shoal.ep.Group(world.team, hidden=16, top_k=1, experts=1, max_tokens=4)
        group.dispatch(
            np.ones((2, 16), np.uint8), group.route(np.zeros((2, 1), np.int64)), dtype="bfloat16"
        )

    with pytest.raises(ValueError, match="has 16 bits, the array has 8"):
        shoal.run_threads(1, body, settings)


def test_cuda_arrays_say_where_they_are(settings):
    array = zeros((2,), "float32", settings)
    assert array.__dlpack_device__() == (1, 0) and len(array) == 2 and "float32 [2]" in repr(array)


def test_numpy_reads_and_writes_results(settings):
    """numpy.asarray and indexing access the memory; dtype= and copy= are those of NumPy 2."""

    def body(world):
        symmetric = world.zeros((2, 3), "float32")
        array = symmetric.local
        array[1, 2] = 7
        symmetric[0] = [1, 2, 3]
        view = np.asarray(array)
        assert view.dtype == np.float32 and view.tolist() == [[1, 2, 3], [0, 0, 7]]
        assert np.shares_memory(view, array.numpy()) and np.shares_memory(symmetric, view)
        assert array[1, 2] == 7 and array[:, 0].tolist() == [1, 0] and array[-1].shape == (3,)
        assert [row.tolist() for row in array] == view.tolist() and len(symmetric) == 2
        assert (symmetric.shape, symmetric.dtype, symmetric.nbytes) == ((2, 3), "float32", 24)
        assert np.asarray(symmetric, np.int64).dtype == np.int64
        copy = np.array(array, copy=True)
        copy[:] = 0
        assert array[1, 2] == 7
        assert np.shares_memory(np.asarray(array, dtype=np.float32), view)
        with pytest.raises(IndexError):
            array[2]
        with pytest.raises(ValueError, match="copy"):
            array.__array__(np.int64, copy=False)
        assert np.add(array, 1).tolist() == [[2, 3, 4], [1, 1, 8]]
        return True

    assert shoal.run_threads(1, body, settings) == [True]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3"])
def test_numpy_has_values_of_narrow_types_by_ml_dtypes(dtype, settings, monkeypatch):
    pytest.importorskip("ml_dtypes")

    def body(world):
        array = world.zeros(4, dtype)
        array[:] = [1, -2, 0.5, 4]
        return np.asarray(array, np.float32).tolist(), str(np.asarray(array).dtype)

    def without(world):
        return world.zeros(4, dtype).local

    values, name = shoal.run_threads(1, body, settings)[0]
    assert values == [1, -2, 0.5, 4] and name == {"float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype)
    array = shoal.run_threads(1, without, settings)[0]
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(shoal.UnsupportedError, match="install ml_dtypes, use torch.from_dlpack"):
        np.asarray(array)
    assert array.numpy().dtype == NUMPY[dtype]  # the bits
    bits = shoal.run_threads(1, lambda world: world.zeros(4, dtype, like=np).local, settings)[0]
    assert type(bits) is np.ndarray and bits.dtype == NUMPY[dtype]


def test_results_that_hold_arrays_say_so_to_numpy(settings):
    def body(world):
        group = shoal.ep.Group(
            world.team, hidden=16, top_k=1, experts=1, max_tokens=4, dtype="float32"
        )
        routing = group.route(np.zeros((2, 1), np.int64))
        received = group.dispatch(np.ones((2, 16), np.float32), routing)
        combined = group.combine(received.x, received.handle)
        remote = world.zeros(2).on(0)
        for holder in (routing, received, combined, remote):
            with pytest.raises(TypeError, match=f"a {type(holder).__name__} is no array; take its"):
                np.asarray(holder)
        return np.asarray(combined.x).sum()

    assert shoal.run_threads(1, body, settings) == [32]


CALLS = {
    "put": lambda world, remote, local, flag: world.put(remote, local),
    "put_nbi": lambda world, remote, local, flag: world.put_nbi(remote, local),
    "get": lambda world, remote, local, flag: world.get(local, remote),
    "get_nbi": lambda world, remote, local, flag: world.get_nbi(local, remote),
    "put_signal": lambda world, remote, local, flag: world.put_signal(remote, local, flag, 1),
}


@pytest.mark.parametrize("call", CALLS)
def test_transfers_between_unequal_dtypes_are_refused(call, settings):
    """Also those of the same size, whose bits would be copied."""

    def body(world):
        array, flag = world.zeros(4, "float32"), world.zeros(1, "int64").on(0)
        for dtype, elements in (("int32", 4), ("int64", 2), ("float64", 2), ("uint8", 16)):
            with pytest.raises(shoal.InvalidArgumentError, match=f"{dtype}.*float32.*equal"):
                CALLS[call](world, array.on(0), np.zeros(elements, dtype), flag)
        argument = f"{call.removesuffix('_nbi')}: {'target' if 'get' in call else 'source'}"
        with pytest.raises(shoal.InvalidArgumentError, match=f"{argument} is a list; allowed"):
            CALLS[call](world, array.on(0), [1, 2, 3, 4], flag)
        CALLS[call](world, array.on(0), np.zeros(4, np.float32), flag)
        world.quiet()
        return True

    assert shoal.run_threads(1, body, settings) == [True]


def test_dtype_names_the_type_of_bits_in_a_transfer(settings):
    def body(world):
        array = world.zeros(4, "bfloat16")
        world.put(array.on(0), np.full(4, 0x3F80, np.uint16), dtype="bfloat16")
        back = np.zeros(4, np.uint16)
        world.get(back, array.on(0), dtype="bfloat16")
        with pytest.raises(shoal.InvalidArgumentError, match="is float16.*are bfloat16"):
            world.put(array.on(0), back, dtype="float16")
        return back.tolist()

    assert shoal.run_threads(1, body, settings) == [[0x3F80] * 4]


def test_dtype_names_the_type_of_bits_in_all_calls_that_take_rows(settings):
    def body(world):
        options = {"hidden": 128, "top_k": 1, "experts": 1, "max_tokens": 4}
        group = shoal.ep.Group(world.team, **options, low_latency_max_tokens=4)
        bits = np.full((2, 128), 0x3F80, np.uint16)  # bfloat16 1.0
        experts, weights = np.zeros((2, 1), np.int64), np.ones((2, 1), np.float32)
        with pytest.raises(
            shoal.InvalidArgumentError, match=r"uint16, .*ml_dtypes.bfloat16.*dtype="
        ):
            group.low_latency_dispatch(bits, experts)
        received = group.low_latency_dispatch(
            bits, experts, quantize="none", dtype="bfloat16"
        ).receive()
        y, out = received.x.copy(), np.zeros_like(bits)
        group.low_latency_combine(
            y, experts, weights, received.handle, out=out, dtype="bfloat16"
        ).receive()
        low_latency = out.tolist() == bits.tolist()
        normal = group.dispatch(bits, group.route(experts), dtype="bfloat16")
        group.combine(normal.x.copy(), normal.handle, bias=bits, out=out, dtype="bfloat16")
        return low_latency, out.tolist() == np.full_like(bits, 0x4000).tolist()

    assert shoal.run_threads(1, body, settings) == [(True, True)]


def test_strided_arrays_are_refused_with_a_remedy(settings):
    def body(world):
        array = world.zeros(4, "float32")
        apart = np.ones(8, np.float32)[::2]
        group = shoal.ep.Group(
            world.team, hidden=16, top_k=1, experts=1, max_tokens=4, dtype="float32"
        )
        rows = np.ones((2, 32), np.float32)[:, :16]
        for call, message in (
            (
                lambda: world.put(array.on(0), apart),
                r"put: .*float32 \[4\], is not contiguous; pass",
            ),
            (lambda: world.get(apart, array.on(0)), "a contiguous copy, and copy the result back"),
            (
                lambda: group.dispatch(rows, group.route(np.zeros((2, 1), np.int64))),
                "x is not contiguous: .*; pass a contiguous copy",
            ),
        ):
            with pytest.raises(shoal.InvalidArgumentError, match=message):
                call()
        return True

    assert shoal.run_threads(1, body, settings) == [True]


def test_calls_that_would_lose_a_gradient_are_refused(settings):
    torch = pytest.importorskip("torch")

    def body(world):
        group = shoal.ep.Group(
            world.team,
            hidden=128,
            top_k=1,
            experts=1,
            max_tokens=4,
            dtype="float32",
            low_latency_max_tokens=4,
        )
        idx, weights = torch.zeros((2, 1), dtype=torch.int64), torch.ones(2, 1)
        x = torch.ones(2, 128, requires_grad=True)
        learned = weights.clone().requires_grad_()
        narrow = torch.ones(2, 128, dtype=torch.bfloat16)
        routing = group.route(idx)
        received = group.dispatch(x.detach(), routing, weights=weights)
        refused = {
            "dispatch: x": lambda: group.dispatch(x, routing),
            "dispatch: weights": lambda: group.dispatch(x.detach(), routing, weights=learned),
            "combine: y": lambda: group.combine(x, received.handle),
            "combine: weights": lambda: group.combine(x.detach(), received.handle, weights=learned),
            "combine: bias": lambda: group.combine(x.detach(), received.handle, bias=x),
            "dispatch_async: x": lambda: group.dispatch_async(x, routing),
            "combine_async: y": lambda: group.combine_async(x, received.handle),
        }
        for what, call in refused.items():
            instead = "shoal.torch." + ("combine" if "combine" in what else "dispatch")
            with pytest.raises(shoal.InvalidArgumentError, match=f"{what} requires .*{instead}"):
                call()
        with pytest.raises(shoal.InvalidArgumentError, match="low_latency_dispatch: x requires"):
            group.low_latency_dispatch(narrow.clone().requires_grad_(), idx)
        with pytest.raises(
            shoal.InvalidArgumentError, match="low_latency_dispatch: weights requires"
        ):
            group.low_latency_dispatch(narrow, idx, weights=learned)
        with pytest.raises(shoal.InvalidArgumentError, match="gate: logits requires .*detach"):
            shoal.ep.gate(torch.rand(2, 8, requires_grad=True), top_k=2)
        with torch.no_grad():  # no gradient is lost
            return group.dispatch(x, routing, weights=learned, copy_out=True).rows

    assert shoal.run_threads(1, body, settings) == [2]
