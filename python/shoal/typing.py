# SPDX-License-Identifier: Apache-2.0
"""Types of the arguments of `shoal`, for annotations."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, Union

if TYPE_CHECKING:
    import numpy
    import torch


class SupportsDLPack(Protocol):
    """An array of torch, NumPy, JAX, CuPy or another library with DLPack."""

    def __dlpack__(self) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class CudaStream(Protocol):
    """torch.cuda.Stream."""

    @property
    def cuda_stream(self) -> int: ...


class CudaEvent(Protocol):
    """torch.cuda.Event."""

    @property
    def cuda_event(self) -> int: ...


class Communicator(Protocol):
    """A communicator of mpi4py."""

    def Get_rank(self) -> int: ...

    def Get_size(self) -> int: ...

    def bcast(self, obj: object, root: int = 0) -> object: ...


class ProcessGroup(Protocol):
    """torch.distributed.ProcessGroup."""

    def rank(self) -> int: ...

    def size(self) -> int: ...


#: A name such as "bfloat16", or a dtype of NumPy, torch, JAX or ml_dtypes.
DType = Union[str, type, "numpy.dtype", "torch.dtype"]
#: A torch.cuda.Stream or its number.
Stream = Union[int, CudaStream]
#: A torch.cuda.Event or its number.
Event = Union[int, CudaEvent]
#: Settings by name in lower case, without SHOAL_. Durations are seconds or a timedelta.
Settings = Mapping[str, Union[str, int, float, datetime.timedelta]]
