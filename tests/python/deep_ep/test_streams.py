# SPDX-License-Identifier: Apache-2.0
"""The current stream of deep_ep.utils.streams, and operations on another stream, with an imitation
of the functions of torch that read and set it."""

from types import SimpleNamespace

import pytest
import torch
from deep_ep.buffers import runtime
from deep_ep.buffers.runtime import Operation
from deep_ep.utils import streams

DEFAULT = 0


def stream_of(device, address):
    return SimpleNamespace(
        stream_id=address, device_index=device, device_type=1, cuda_stream=address, waited=[]
    )


class Cuda:
    """Two devices, each with a current stream; counts the calls of torch.cuda.current_stream."""

    def __init__(self, patch):
        self.device, self.current, self.asked = 0, {0: DEFAULT, 1: DEFAULT}, 0
        torch_c = torch._C
        patch.setattr(torch_c, "_cuda_getDevice", lambda: self.device, raising=False)
        patch.setattr(
            torch_c, "_cuda_getCurrentRawStream", lambda index: self.current[index], raising=False
        )
        patch.setattr(torch_c, "_cuda_setStream", self.set_stream, raising=False)
        patch.setattr(torch.cuda, "current_stream", self.current_stream)
        patch.setattr(streams, "_known", {})

    def set_stream(self, stream_id, device_index, device_type):
        self.device, self.current[device_index] = device_index, stream_id

    def current_stream(self, index):
        self.asked += 1
        stream = stream_of(index, self.current[index])
        stream.wait_stream = stream.waited.append
        return stream


@pytest.fixture
def cuda(monkeypatch):
    return Cuda(monkeypatch)


def test_torch_is_asked_once_per_stream(cuda):
    first = streams.current_stream()
    assert streams.current_stream() is first and first.cuda_stream == DEFAULT
    cuda.current[0] = 77
    assert streams.current_stream().cuda_stream == 77
    cuda.current[0] = DEFAULT
    assert streams.current_stream() is first and cuda.asked == 2
    assert streams.current_stream(1).device_index == 1, "default streams of devices are equal"
    assert streams.current_stream() is first and cuda.asked == 3


def test_few_streams_are_kept(cuda):
    for address in range(3 * streams._MOST_KNOWN):
        cuda.current[0] = address
        assert streams.current_stream().cuda_stream == address
        assert len(streams._known) <= streams._MOST_KNOWN


def operation_on(device, address, asynchronous=False):
    comm = stream_of(device, address)
    comm.wait_stream = comm.waited.append
    owner = SimpleNamespace(comm_stream=comm, current_stream=lambda: address)
    previous = None if asynchronous else SimpleNamespace(current_stream_wait=lambda: None)
    return Operation(owner, previous, asynchronous)


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("fails", [False, True])
def test_an_operation_restores_the_streams_and_the_device(cuda, device, fails):
    cuda.current = {0: 5, 1: 6}
    operation = operation_on(device, 99)
    try:
        with operation:
            assert cuda.device == device and cuda.current[device] == 99
            if fails:
                raise ValueError
    except ValueError:
        assert fails
    assert cuda.device == 0 and cuda.current == {0: 5, 1: 6}
    compute = streams.current_stream()
    assert compute.waited == [operation._comm], "the caller's stream waits"


def test_an_asynchronous_operation_waits_for_the_caller_only(cuda, monkeypatch):
    monkeypatch.setattr(runtime.EventHandle, "on_stream", lambda stream: stream.cuda_stream)
    operation = operation_on(0, 99, asynchronous=True)
    with operation:
        pass
    assert operation._event == 99, "the event is recorded on the stream of the operation"
    compute = streams.current_stream()
    assert operation._comm.waited == [compute] and compute.waited == []


def test_an_event_that_cannot_be_waited_for_leaves_the_stream(cuda):
    operation = operation_on(1, 99)
    operation.also_wait("no event")
    with pytest.raises(AttributeError), operation:
        pass
    assert cuda.device == 0 and cuda.current == {0: DEFAULT, 1: DEFAULT}
