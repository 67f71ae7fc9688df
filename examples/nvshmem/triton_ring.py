# SPDX-License-Identifier: Apache-2.0
"""Each PE sends a number to the next one from a Triton kernel, and waits for that of the one before
it. Needs Triton and PyTorch. Start with:

shoal-run -n 2 python triton_ring.py PREFIX/lib/shoal/nvshmem

The folder has libnvshmem_device.bc; the library for the host lies two folders above.
"""

import ctypes
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language import core

SIGNAL_SET, CMP_EQ = tl.constexpr(9), tl.constexpr(0)


def call(name, result, arguments, types, semantic):
    """Every thread calls a function of the library. `result` of a void function: any type."""
    signature = {tuple(core.dtype(one) for one in types): (name, core.dtype(result))}
    return core.extern_elementwise("", "", arguments, signature, is_pure=False, _semantic=semantic)


@core.extern
def my_pe(_semantic=None):
    return call("nvshmem_my_pe", "int32", [], [], _semantic)


@core.extern
def n_pes(_semantic=None):
    return call("nvshmem_n_pes", "int32", [], [], _semantic)


@core.extern
def putmem_signal_block(dest, source, size, flag, value, op, pe, _semantic=None):
    arguments = [dest, source, size, flag, value, op, pe]
    types = ["int64", "int64", "int64", "int64", "int64", "int32", "int32"]
    return call("nvshmemx_putmem_signal_block", "int32", arguments, types, _semantic)


@core.extern
def signal_wait_until(flag, compare, value, _semantic=None):
    types = ["int64", "int32", "int64"]
    return call("nvshmem_signal_wait_until", "int64", [flag, compare, value], types, _semantic)


@triton.jit
def ring(box, mine, flag):
    one = tl.full((), 1, tl.int64)
    next_pe = (my_pe() + 1) % n_pes()
    putmem_signal_block(box.to(tl.int64), mine.to(tl.int64), one * 4, flag.to(tl.int64), one,
                        SIGNAL_SET, next_pe)  # fmt: skip
    signal_wait_until(flag.to(tl.int64), CMP_EQ, one)


def compiled(bitcode, capability):
    """The kernel for GPUs of this compute capability, such as 90."""
    source = ASTSource(ring, signature={"box": "*i32", "mine": "*i32", "flag": "*i64"})
    options = {"extern_libs": {"libnvshmem_device": str(bitcode)}}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def main(folder):
    host = ctypes.CDLL(str(folder.resolve().parents[1] / "libshoal_nvshmem.so.0"))
    host.nvshmem_calloc.restype = ctypes.c_void_p
    host.nvshmem_calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    host.nvshmem_int_p.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    host.nvshmem_int_g.argtypes = [ctypes.c_void_p, ctypes.c_int]
    host.nvshmemx_cumodule_init.argtypes = [ctypes.c_void_p]
    host.nvshmem_init()
    me, n = host.nvshmem_my_pe(), host.nvshmem_n_pes()
    box, mine, flag = (host.nvshmem_calloc(1, 8) for _ in range(3))
    host.nvshmem_int_p(mine, 100 + me, me)
    host.nvshmem_barrier_all()

    kernel = compiled(
        folder / "libnvshmem_device.bc", triton.runtime.driver.active.get_current_target().arch
    )
    launch = kernel[(1, 1, 1)]  # loads the module
    if host.nvshmemx_cumodule_init(kernel.module) != 0:
        sys.exit("the module has no device state")
    launch(box, mine, flag)
    host.nvshmemx_quiet_on_stream(None)
    host.nvshmem_barrier_all()
    received = host.nvshmem_int_g(box, me)
    print(f"PE {me} of {n}: {received} from the PE before")
    host.nvshmem_finalize()
    return 0 if received == 100 + (me - 1) % n else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
