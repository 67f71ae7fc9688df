# SPDX-License-Identifier: Apache-2.0
"""Worlds over torch.distributed groups and mpi4py communicators.

The first rank creates a unique id and broadcasts it; after that Shoal uses neither library.
"""

from __future__ import annotations

import datetime
import os
import weakref
from collections.abc import Callable
from typing import Any

from ._core import Settings, UniqueId, World
from .errors import Error, InvalidArgumentError, TimeoutError, by_code

# Worlds opened over each process group, so that all ranks name the same key of its store.
_opened: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def from_torch(group: Any = None, settings: dict[str, Any] | None = None) -> World:
    """See World.from_torch."""
    import torch.distributed as dist

    if not dist.is_initialized():
        raise Error(
            "World.from_torch: torch.distributed is not initialised; call init_process_group first"
        )
    group = group if group is not None else dist.group.WORLD
    if dist.get_rank(group) < 0:
        raise InvalidArgumentError(
            "shoal: World.from_torch: this process is no rank of the given process group"
        )
    timeout = _timeout_of(group)
    if timeout is not None and "timeout" not in (settings or {}):
        if "SHOAL_TIMEOUT_MS" not in os.environ:
            settings = {**(settings or {}), "timeout": timeout}
    broadcast = _broadcast_of(group, Settings(settings)["bootstrap_timeout"])
    return _open(dist.get_rank(group), dist.get_world_size(group), broadcast, settings)


def _timeout_of(group: Any) -> float | None:
    """Seconds; None where a backend does not say."""
    try:
        return group._get_backend(group._device_types[0]).options._timeout.total_seconds()
    except (AttributeError, IndexError, RuntimeError):
        return None


def _broadcast_of(group: Any, seconds: float) -> Callable[[str | None], str]:
    """A broadcast from rank 0 by the store of the group, which waits for no other rank."""
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_process_group_store(group)
    _opened[group] = number = _opened.get(group, 0) + 1
    key = f"shoal/unique_id/{number}"

    def broadcast(text: str | None) -> str:
        if text is not None:
            store.set(key, text)
            return text
        try:
            store.wait([key], datetime.timedelta(seconds=seconds))
        except RuntimeError:
            raise TimeoutError(
                "World.from_torch: rank 0 of the process group has not called it within "
                f"{seconds} s; SHOAL_BOOTSTRAP_TIMEOUT_MS changes this time"
            ) from None
        return store.get(key).decode()

    return broadcast


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
