# SPDX-License-Identifier: Apache-2.0
"""Buffer over the communicator of mpi4py, imitated among threads of one process."""

import threading

import torch

import deep_ep


class ThreadComm:
    """The part of an mpi4py communicator that Buffer uses, among threads of this process."""

    def __init__(self, rank, shared):
        self.rank, self.shared = rank, shared

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.shared["barrier"].parties

    def bcast(self, value, root=0):
        if self.rank == root:
            self.shared["value"] = value
        self.shared["barrier"].wait()
        value = self.shared["value"]
        self.shared["barrier"].wait()
        return value


def on_threads(ranks, body):
    """The results of body(comm) on a thread per rank."""
    shared, results = {"barrier": threading.Barrier(ranks, timeout=30)}, [None] * ranks

    def run(rank):
        try:
            results[rank] = body(ThreadComm(rank, shared))
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def test_sixteen_ranks_of_an_mpi_communicator(monkeypatch):
    """Two nodes of eight ranks, as DeepEP counts them: ten entries in the handle, tokens per
    node in the layout."""
    monkeypatch.setenv("SHOAL_SYMMETRIC_SIZE", "256M")
    ranks, experts = 16, 32

    def body(comm):
        buffer = deep_ep.Buffer(None, 1 << 20, 1 << 20, comm=comm, explicitly_destroy=True)
        generator = torch.Generator().manual_seed(comm.rank)
        tokens = 3 + comm.rank % 3
        x = torch.randn((tokens, 128), generator=generator).bfloat16()
        topk_idx = torch.rand((tokens, experts), generator=generator).topk(3, dim=1).indices
        weights = torch.rand((tokens, 3), generator=generator)
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, experts)
        recv_x, *_, handle, _ = buffer.dispatch(
            x, None, per_rank, per_node, in_rank, per_expert, topk_idx, weights
        )
        sums, *_ = buffer.combine(recv_x, handle)
        assert torch.equal(sums, (x.float() * in_rank.sum(1, keepdim=True)).bfloat16())
        assert torch.equal(per_node, in_rank.view(tokens, 2, 8).any(-1).sum(0).int())
        buffer.destroy()
        return per_rank, handle, recv_x.shape[0]

    results = on_threads(ranks, body)
    sent = torch.stack([per_rank for per_rank, *_ in results])
    for rank, (_, handle, rows) in enumerate(results):
        assert len(handle) == 10
        prefix = sent[:, rank].cumsum(0).int()
        assert torch.equal(handle[-4], prefix) and prefix[-1] == rows
        assert torch.equal(handle[4], prefix[7::8])
        source_node = handle[7].view(torch.int32)[:, 0]
        assert handle[7].shape == (rows, 8) and (source_node == 0).sum() == prefix[7]
