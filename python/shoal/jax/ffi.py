# SPDX-License-Identifier: Apache-2.0
"""XLA's foreign function interface: calls of Python functions on host arrays, without copies.

XLA calls a C function with a "call frame": arguments, results and attributes. The structs are those
of XLA's `xla/ffi/api/c_api.h`, version 0.3, whose layout is stable. A handler is ctypes code, so
nothing is compiled. The function that it calls may release the GIL, as Shoal does in waits.
"""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Callable
from ctypes import POINTER, c_char, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import jax
import ml_dtypes
import numpy as np

API_VERSION = (0, 3)
_METADATA = 1  # XLA_FFI_Extension_Metadata
_EXECUTE = 3  # XLA_FFI_ExecutionStage_EXECUTE
_SCALAR = 3  # XLA_FFI_AttrType_SCALAR
_INTERNAL = 13  # XLA_FFI_Error_Code_INTERNAL
_DTYPES = {
    2: np.int8,
    4: np.int32,
    5: np.int64,
    6: np.uint8,
    10: np.float16,
    11: np.float32,
    16: ml_dtypes.bfloat16,
}


class _Version(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("extensions", c_void_p), ("major", c_int), ("minor", c_int)]


class _Metadata(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("version", _Version)]


class _Extension(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("type", c_int),
        ("next", c_void_p),
        ("metadata", POINTER(_Metadata)),
    ]


class _ErrorArguments(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("message", c_char_p),
        ("code", c_int),
    ]


class _Api(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("version", _Version),
        ("internal", c_void_p),
        ("create_error", ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))),
    ]


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    ]

    def array(self) -> np.ndarray:
        shape = tuple(self.dims[: self.rank])
        dtype = np.dtype(_DTYPES[self.dtype])
        size = int(np.prod(shape)) * dtype.itemsize
        if size == 0:
            return np.empty(shape, dtype)
        return np.frombuffer((c_char * size).from_address(self.data), dtype).reshape(shape)


class _Buffers(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("count", c_int64),
        ("types", c_void_p),
        ("buffers", POINTER(POINTER(_Buffer))),
    ]

    def arrays(self) -> list[np.ndarray]:
        return [self.buffers[i].contents.array() for i in range(self.count)]


class _Text(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t)]


class _Scalar(ctypes.Structure):
    _fields_ = [("dtype", c_int), ("value", c_void_p)]


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("count", c_int64),
        ("types", POINTER(c_int)),
        ("names", POINTER(POINTER(_Text))),
        ("values", POINTER(POINTER(_Scalar))),
    ]

    def integers(self) -> dict[str, int]:
        """The attributes of type int64."""
        found = {}
        for i in range(self.count):
            name, value = self.names[i].contents, self.values[i].contents
            if self.types[i] == _SCALAR and _DTYPES.get(value.dtype) is np.int64:
                found[ctypes.string_at(name.data, name.size).decode()] = c_int64.from_address(
                    value.value
                ).value
        return found


class _Frame(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", POINTER(_Extension)),
        ("api", POINTER(_Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    ]


_Handler = ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))
_registered: list[Any] = []  # keeps the handlers alive: XLA keeps their addresses


def _error(frame: _Frame, message: str) -> int:
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message.encode(), _INTERNAL)
    return frame.api.contents.create_error(ctypes.byref(arguments))


def register(name: str, function: Callable[..., None]) -> None:
    """Registers `function(arguments, results, **attributes)` as the XLA call `name` on the CPU.

    The function gets NumPy arrays over XLA's memory and fills the results. XLA fails with the
    message of an exception that it raises.
    """

    def call(pointer: Any) -> int | None:
        frame = pointer.contents
        if frame.extensions and frame.extensions.contents.type == _METADATA:
            version = frame.extensions.contents.metadata.contents.version
            version.major, version.minor = API_VERSION
            return None
        if frame.stage != _EXECUTE:
            return None
        try:
            function(
                frame.arguments.arrays(), frame.results.arrays(), **frame.attributes.integers()
            )
        except Exception as error:
            return _error(frame, "".join(traceback.format_exception_only(error)).strip())
        return None

    handler = _Handler(call)
    _registered.append(handler)
    jax.ffi.register_ffi_target(
        name, jax.ffi.pycapsule(ctypes.cast(handler, c_void_p)), platform="cpu"
    )
