# SPDX-License-Identifier: Apache-2.0
"""Symmetric memory on GPUs in Python: DLPack without copies, one-sided operations and
collectives on CUDA tensors, and errors."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gpu_worlds import delay, on_gpu

import shoal
import shoal.ep


def test_arrays_of_the_heap_are_cuda_tensors_of_the_same_memory():
    def body(world):
        device = f"cuda:{world.my_pe % torch.cuda.device_count()}"
        assert world.heap_device == device
        array = world.zeros((4, 6), "bfloat16")
        tensor = torch.from_dlpack(array.local)
        assert tensor.is_cuda and tensor.dtype == torch.bfloat16 and tensor.shape == (4, 6)
        assert tensor.data_ptr() == array.local.data_ptr and array.local.device == device
        tensor.fill_(world.my_pe + 1)
        again = torch.from_dlpack(array.local)
        assert again.data_ptr() == tensor.data_ptr() and bool((again == world.my_pe + 1).all())
        with pytest.raises(shoal.InvalidArgumentError, match=f"lies on {device}"):
            array.local.numpy()
        return True

    assert on_gpu(2, body) == [True, True]


def test_arrays_come_in_the_library_of_their_dtype():
    def body(world):
        tensor = world.zeros((4,), torch.float32).local
        assert type(tensor) is torch.Tensor and tensor.is_cuda
        other = world.zeros((4,), "float32", like=tensor)
        other.local.fill_(2)
        assert other.local.data_ptr() == other.local.data_ptr()
        assert type(world.zeros((4,), np.float32).local) is shoal.Array  # NumPy cannot read a GPU
        return other.local.sum().item()

    assert on_gpu(1, body) == [8]


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float16", "bfloat16", "float64", "int8", "uint8", "int32", "int64", "float8_e4m3"],
)
def test_element_types_cross(dtype):
    def body(world):
        tensor = torch.from_dlpack(world.zeros((3,), dtype).local)
        names = {"float8_e4m3": torch.float8_e4m3fn}
        return tensor.is_cuda and tensor.dtype == names.get(dtype, getattr(torch, dtype, None))

    assert on_gpu(1, body) == [True]


def test_put_and_get_of_cuda_tensors_wait_for_what_makes_them():
    """Host and device tensors. Torch still writes the source on its stream when put is called."""

    def body(world):
        right = (world.my_pe + 1) % world.n_pes
        box = world.zeros((1 << 16,), "float32")
        source = torch.empty(1 << 16, device="cuda")
        shoal.barrier(world.team)
        delay()
        source.fill_(world.my_pe + 1)
        world.put(box.on(right), source)
        shoal.barrier(world.team)
        left = (world.my_pe - 1) % world.n_pes
        assert bool((torch.from_dlpack(box.local) == left + 1).all())
        target, on_host = torch.zeros(1 << 16, device="cuda"), np.zeros(1 << 16, np.float32)
        world.get(target, box.on(right))
        world.get(on_host, box.on(right))
        assert bool((target == world.my_pe + 1).all()) and (on_host == world.my_pe + 1).all()
        shoal.barrier(world.team)
        return True

    assert all(on_gpu(4, body))


def test_signals_atomics_and_collectives():
    def body(world):
        flag, values = world.zeros((1,), "int64"), world.zeros((5,), "int64")
        box = world.zeros((2,), "float32")
        right = (world.my_pe + 1) % world.n_pes
        world.put_signal(
            box.on(right), torch.full((2,), world.my_pe + 0.5, device="cuda"), flag.on(right), 7
        )
        assert world.wait_until(flag, "==", 7) == 7
        assert torch.from_dlpack(box.local).tolist() == [(world.my_pe - 1) % world.n_pes + 0.5] * 2
        world.atomic("add", values.on(0)[2], 1)
        shoal.barrier(world.team)
        if world.my_pe == 0:
            assert torch.from_dlpack(values.local).tolist() == [0, 0, world.n_pes, 0, 0]
        torch.from_dlpack(values.local).fill_(world.my_pe)
        torch.cuda.current_stream().synchronize()
        shoal.reduce(world.team, values, values, "max")
        assert torch.from_dlpack(values.local).tolist() == [world.n_pes - 1] * 5
        gathered = world.zeros((world.n_pes * 2,), "float32")
        shoal.all_gather(world.team, gathered, box)
        assert torch.from_dlpack(gathered.local)[::2].tolist() == [
            (p - 1) % world.n_pes + 0.5 for p in range(world.n_pes)
        ]
        return True

    assert all(on_gpu(4, body))


def test_arrays_outlive_their_world():
    def body(world):
        array = world.zeros((8,), "float32")
        tensor = torch.from_dlpack(array.local)
        tensor.fill_(3)
        torch.cuda.current_stream().synchronize()
        return tensor

    assert [tensor.sum().item() for tensor in on_gpu(2, body)] == [24, 24]


def test_device_and_heap_have_to_match():
    """A CUDA tensor in a world on the host, and the reverse: the error names it, and nothing is
    sent."""

    def host_world(world):
        group = shoal.ep.Group(
            world.team, hidden=16, top_k=1, experts=2, max_tokens=4, dtype="float32"
        )
        rows, indices = torch.ones(4, 16), torch.zeros(4, 1, dtype=torch.int64)
        with pytest.raises(
            shoal.InvalidArgumentError, match=r"topk_idx is on GPU 0; .* on the host \(SHOAL_HEAP\)"
        ):
            group.route(indices.cuda())
        routing = group.route(indices)
        with pytest.raises(
            shoal.InvalidArgumentError, match=r"x is on GPU 0; .* on the host \(SHOAL_HEAP\)"
        ):
            group.dispatch(rows.cuda(), routing)
        with pytest.raises(
            shoal.InvalidArgumentError, match="lies on a GPU, the heap of this world on the host"
        ):
            world.put(world.zeros((4, 16), "float32").on(0), rows.cuda())
        stream = torch.cuda.Stream()
        with pytest.raises(shoal.InvalidArgumentError, match="lies on the host"):
            group.dispatch(rows, routing, stream=stream)
        return group.dispatch(rows, routing).rows

    settings = {"heap": "host", "symmetric_size": "64M"}
    assert sum(shoal.run_threads(2, host_world, settings)) == 8

    def gpu_world(world):
        group = shoal.ep.Group(
            world.team, hidden=16, top_k=1, experts=2, max_tokens=4, dtype="float32"
        )
        rows, indices = torch.ones(4, 16), torch.zeros(4, 1, dtype=torch.int64)
        with pytest.raises(
            shoal.InvalidArgumentError,
            match=r"topk_idx is on the host; .* on GPU \d+ \(SHOAL_HEAP\)",
        ):
            group.route(indices)
        routing = group.route(indices.cuda())
        with pytest.raises(
            shoal.InvalidArgumentError, match=r"x is on the host; .* on GPU \d+ \(SHOAL_HEAP\)"
        ):
            group.dispatch(rows, routing)
        with pytest.raises(shoal.InvalidArgumentError, match="the event has no cudaEvent_t yet"):
            group.dispatch(rows.cuda(), routing, done=torch.cuda.Event())
        with pytest.raises(shoal.Error):
            shoal.ep.gate(torch.ones(4, 2, device="cuda"), top_k=1)
        rows_received = group.dispatch(rows.cuda(), routing).rows
        torch.cuda.current_stream().synchronize()
        return rows_received

    assert sum(on_gpu(2, gpu_world)) == 8


def test_collectives_on_a_stream():
    """In order with torch's work on the stream, and in a graph."""

    def body(world):
        team, pes = world.team, world.n_pes
        mine, everything = world.zeros((4,), "float32"), world.zeros((4 * pes,), "float32")
        total = world.zeros((4,), "float32")
        stream = torch.cuda.current_stream()
        source = torch.from_dlpack(mine.local)
        source.fill_(world.my_pe + 1)
        shoal.barrier(team, stream=stream)
        shoal.reduce(team, total, mine, "sum", stream=stream)
        shoal.all_gather(team, everything, mine, stream=stream.cuda_stream)
        sums = torch.from_dlpack(total.local).clone()
        gathered = torch.from_dlpack(everything.local).clone()
        shoal.broadcast(team, mine, total, 0, stream=stream)
        copied = source.clone()
        blocks, exchanged = world.zeros((2 * pes,), "int32"), world.zeros((2 * pes,), "int32")
        torch.from_dlpack(blocks.local).fill_(world.my_pe)
        shoal.all_to_all(team, exchanged, blocks, stream=stream)
        part = world.zeros((2,), "int32")
        shoal.reduce_scatter(team, part, blocks, "max", stream=stream)
        stream.synchronize()
        expected = float(sum(range(1, pes + 1)))
        assert sums.tolist() == copied.tolist() == [expected] * 4
        assert gathered.tolist() == [float(1 + i // 4) for i in range(4 * pes)]
        assert torch.from_dlpack(exchanged.local).tolist() == [i // 2 for i in range(2 * pes)]
        assert torch.from_dlpack(part.local).tolist() == [pes - 1] * 2
        return True

    assert on_gpu(2, body) == [True, True]


def test_a_reduction_on_a_stream_names_its_element_types():
    def body(world):
        array = world.zeros((4,), "float8_e4m3")
        with pytest.raises(shoal.InvalidArgumentError, match="dtype float8_e4m3; allowed"):
            shoal.reduce(world.team, array, array, stream=torch.cuda.current_stream())
        return True

    assert on_gpu(1, body) == [True]
