# SPDX-License-Identifier: Apache-2.0
"""Worlds over torch.distributed groups and mpi4py communicators.

The first rank creates a unique id and broadcasts it; after that Shoal uses neither library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._core import UniqueId, World
from .errors import Error, InvalidArgumentError, by_code


def from_torch(group: Any = None, settings: dict[str, Any] | None = None) -> World:
    """See World.from_torch."""
    import torch.distributed as dist

    if not dist.is_initialized():
        raise Error(
            "World.from_torch: torch.distributed is not initialised; call init_process_group first"
        )
    group = group if group is not None else dist.group.WORLD
    root = dist.get_global_rank(group, 0)

    def broadcast(text: str | None) -> str:
        box = [text]
        dist.broadcast_object_list(box, src=root, group=group)
        return box[0]

    return _open(dist.get_rank(group), dist.get_world_size(group), broadcast, settings)


def from_mpi4py(comm: Any, settings: dict[str, Any] | None = None) -> World:
    """See World.from_mpi4py."""
    if not all(hasattr(comm, name) for name in ("Get_rank", "Get_size", "bcast")):
        raise InvalidArgumentError(
            f"shoal: World.from_mpi4py: comm={comm!r} has the wrong type, {type(comm).__name__}; "
            "allowed: an mpi4py communicator such as MPI.COMM_WORLD"
        )
    return _open(comm.Get_rank(), comm.Get_size(), lambda text: comm.bcast(text, root=0), settings)


def _open(
    rank: int, size: int, broadcast: Callable[[str | None], str], settings: dict[str, Any] | None
) -> World:
    unique_id, failure = None, None
    if rank == 0:
        try:
            # It serves the other ranks until all have joined, so it lives until the end.
            unique_id = UniqueId.create(settings)
        except Exception as error:  # of any class: the other ranks wait for the id
            failure = error
    text = broadcast(
        str(unique_id) if unique_id is not None else _failed(failure) if failure else None
    )
    if text.startswith("error:"):
        _, code, message = text.split(":", 2)
        raise failure or by_code(code)(f"rank 0 could not create a unique id: {message}")
    return World.from_unique_id(text, rank, size, settings)


def _failed(error: Exception) -> str:
    return f"error:{getattr(error, 'code', Error.code)}:{error}"
