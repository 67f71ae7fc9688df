# SPDX-License-Identifier: Apache-2.0
"""EventHandle and EventOverlap: on the host, with an imitation of CUDA that records calls, and
on GPUs."""

import copy

import pytest
import torch
from deep_ep.utils import EventHandle, EventOverlap, event


class FakeEvent:
    def __init__(self, name):
        self.cuda_event = name


class FakeStream:
    def __init__(self, name):
        self.name, self.waited, self.recorded = name, [], 0

    def record_event(self):
        self.recorded += 1
        return FakeEvent(f"{self.name}:{self.recorded}")

    def wait_event(self, event):
        self.waited.append(event.cuda_event)


@pytest.fixture
def streams(monkeypatch):
    """A list whose last item is the current stream of an imitated CUDA."""
    current = [FakeStream("compute")]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(event, "current_stream", lambda: current[-1])
    return current


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)


def test_same_classes_everywhere():
    from deep_ep.utils.event import EventHandle as Handle
    from deep_ep.utils.event import EventOverlap as Overlap

    assert Handle is EventHandle and Overlap is EventOverlap


def test_without_cuda_nothing_is_waited_for(no_cuda):
    handle = EventHandle()
    assert handle.cuda_event is None and handle.tensors_to_record == ()
    handle.current_stream_wait()
    EventOverlap(handle).current_stream_wait()


def test_records_the_current_stream_and_makes_another_wait(streams):
    handle = EventHandle()
    assert handle.cuda_event == "compute:1" and streams[0].waited == []
    streams.append(FakeStream("comm"))
    handle.current_stream_wait()
    handle.current_stream_wait()
    assert streams[1].waited == ["compute:1"] * 2 and streams[0].waited == []


def test_of_a_given_stream(streams):
    comm = FakeStream("comm")
    handle = EventHandle.on_stream(comm)
    assert comm.recorded == 1 and streams[0].recorded == 0
    handle.current_stream_wait()
    assert streams[0].waited == ["comm:1"]


def test_host_work():
    calls = []
    handle = EventHandle.on_host(lambda: calls.append(1))
    assert handle.cuda_event is None and calls == []
    handle.current_stream_wait()
    assert calls == [1]

    def fail():
        raise RuntimeError("peer is gone")

    with pytest.raises(RuntimeError, match="peer is gone"):
        EventOverlap(EventHandle.on_host(fail)).current_stream_wait()


def test_copies_mark_the_same_work(streams):
    handle = EventHandle()
    handle.tensors_to_record = (torch.ones(1),)
    twin = copy.copy(handle)
    assert (
        twin.cuda_event == "compute:1" and twin.tensors_to_record[0] is handle.tensors_to_record[0]
    )
    assert streams[0].recorded == 1


def test_overlap_fields():
    overlap = EventOverlap()
    assert (overlap.event, overlap.extra_tensors, overlap.hook_after_wait) == (None, None, None)
    assert overlap._release_handle_by_call is False
    handle, extra = EventHandle(), (torch.ones(1),)
    overlap = EventOverlap(handle, extra)
    assert overlap.event is handle and overlap.extra_tensors is extra


def test_wait_runs_the_hook_once_and_after_waiting(streams):
    order = []
    handle = EventHandle.on_host(lambda: order.append("wait"))
    overlap = EventOverlap(handle)
    overlap.register_hook_after_wait(lambda: order.append("hook"))
    with pytest.raises(AssertionError, match="registered already"):
        overlap.register_hook_after_wait(lambda: order.append("other"))
    overlap.current_stream_wait()
    overlap.current_stream_wait()
    assert (
        order == ["wait", "hook", "wait"]
        and overlap.hook_after_wait is None
        and overlap.event is handle
    )
    overlap.register_hook_after_wait(lambda: order.append("later"))
    overlap.current_stream_wait(release_handle=True)
    assert order[3:] == ["wait", "later"] and overlap.event is None
    with pytest.raises(AssertionError, match="no event"):
        overlap.current_stream_wait()


def test_context_manager(streams):
    overlap = EventOverlap(EventHandle())
    with overlap as entered:
        assert entered is overlap and streams[0].waited == []
    assert streams[0].waited == ["compute:1"] and overlap.event is not None
    with overlap(release_handle=True) as entered:
        assert entered is overlap and overlap._release_handle_by_call
    assert overlap.event is None and not overlap._release_handle_by_call
    assert streams[0].waited == ["compute:1"] * 2
    with overlap(release_handle=True):  # no event: nothing to wait for
        pass
    assert not overlap._release_handle_by_call


def test_context_manager_passes_errors_on(streams):
    overlap = EventOverlap(EventHandle())
    with pytest.raises(ZeroDivisionError), overlap:
        1 / 0  # noqa: B018
    assert streams[0].waited == ["compute:1"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_order_between_streams():
    data = torch.zeros(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        data.add_(1)
        handle = EventHandle()
    assert handle.cuda_event
    with EventOverlap(handle):
        pass
    result = data.clone()
    torch.cuda.synchronize()
    assert (result == 1).all()
