#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The functions of NVSHMEM, by chapter: where each exists, and how it differs.

Usage: conformance.py [--write]. Prints docs/reference/nvshmem.md, or writes it.
tests/tools/test_nvshmem_page.py compares this table with the library and the headers.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/nvshmem.md"

INTEGERS = (
    "char schar short int long longlong uchar ushort uint ulong ulonglong int8 int16 int32 int64 "
    "uint8 uint16 uint32 uint64 size ptrdiff"
).split()
AMO = "int long longlong uint ulong ulonglong int32 int64 uint32 uint64 size ptrdiff".split()
TYPES = {
    "RMA": ["half", "bfloat16", "float", "double", *INTEGERS],
    "AMO": AMO,
    "EXTENDED_AMO": ["float", "double", *AMO],
    "BITWISE_AMO": "uint ulong ulonglong int32 int64 uint32 uint64".split(),
    "WAIT": ["short", "ushort", *AMO],
    "BITWISE_REDUCE": (
        "uchar ushort uint ulong ulonglong int8 int16 int32 int64 uint8 uint16 uint32 uint64 size"
    ).split(),
    "SIZE": ["8", "16", "32", "64", "128"],
}
AVAILABLE, DIFFERENT, MISSING = "available", "different", "missing"


@dataclass
class Row:
    """`names`: names without "nvshmem_", separated by spaces; T stands for a type of table `types`,
    N for a size in bits. A name that begins with "x_" begins with "nvshmemx_". `where`: h host,
    s nvshmemx_..._on_stream, k kernel, g also nvshmemx_..._warp and _block in kernels, 4 also
    nvshmemx_..._warpgroup there."""

    names: str
    where: str
    types: str = ""
    state: str = AVAILABLE
    note: str = ""


CHAPTERS = {
    "Start, end and queries": [
        Row("init finalize", "h", note="may be repeated; counted"),
        Row("init_thread query_thread", "h", note="the level is NVSHMEM_THREAD_SERIALIZED"),
        Row("x_init_attr x_hostlib_init_attr x_hostlib_finalize", "h", "", DIFFERENT,
            "failures end the program; both forms of init are the same"),
        Row("x_init_status", "h", note="2, or 4 where PEs share a GPU"),
        Row("x_get_uniqueid x_set_attr_uniqueid_args", "h"),
        Row("x_cumodule_init x_cumodule_finalize x_culibrary_init x_culibrary_finalize", "h",
            note="for images with the device state of this library"),
        Row("my_pe n_pes info_get_version info_get_name x_vendor_get_version_info", "hk"),
        Row("pe_accessible addr_accessible", "h"),
        Row("global_exit", "h", "", DIFFERENT,
            "ends this process; the waits of other PEs end with an error, and the launcher ends them"),
    ],
    "Memory": [
        Row("malloc calloc align free", "h", note="alignment up to 2 MiB"),
        Row("ptr", "hk"),
        Row("x_mc_ptr", "hk", "", DIFFERENT, "always NULL: no multicast addresses"),
        Row("x_buffer_register x_buffer_unregister x_buffer_unregister_all", "h"),
        Row("x_buffer_register_symmetric x_buffer_unregister_symmetric", "h", "", DIFFERENT,
            "always NULL, an error: no memory joins a heap; `SymmetricHeap::share_buffer` shares it"),
    ],
    "Teams": [
        Row("team_my_pe team_n_pes team_translate_pe", "hk"),
        Row("team_get_config team_split_strided team_split_2d team_destroy", "h"),
        Row("x_team_init x_team_get_uniqueid", "h"),
    ],
    "Put and get": [
        Row("T_put T_get T_put_nbi T_get_nbi T_iput T_iget", "hskg", "RMA",
            note="in kernels the non-blocking forms are the blocking ones"),
        Row("putN getN putN_nbi getN_nbi iputN igetN", "hskg", "SIZE"),
        Row("putmem getmem putmem_nbi getmem_nbi", "hskg"),
        Row("T_p", "hsk", "RMA"),
        Row("T_g", "hsk", "RMA", note="on a stream: waits for it, then returns the value"),
    ],
    "Atomics": [
        Row("T_atomic_fetch T_atomic_set T_atomic_swap", "hk", "EXTENDED_AMO"),
        Row("T_atomic_compare_swap T_atomic_fetch_inc T_atomic_fetch_add T_atomic_inc T_atomic_add",
            "hk", "AMO"),
        Row("T_atomic_fetch_and T_atomic_fetch_or T_atomic_fetch_xor T_atomic_and T_atomic_or "
            "T_atomic_xor", "hk", "BITWISE_AMO"),
    ],
    "Signals": [
        Row("T_put_signal T_put_signal_nbi", "hskg", "RMA"),
        Row("putN_signal putN_signal_nbi", "hskg", "SIZE"),
        Row("putmem_signal putmem_signal_nbi", "hskg"),
        Row("x_signal_op", "hsk"),
        Row("signal_fetch", "hk"),
        Row("signal_wait_until", "k"),
        Row("x_signal_wait_until_on_stream", "h"),
    ],
    "Waits and tests": [
        Row("T_wait_until T_test", "k", "WAIT"),
        Row(
            " ".join(f"T_{kind}_{quorum}{vector}" for kind in ("wait_until", "test")
                     for quorum in ("all", "any", "some") for vector in ("", "_vector")),
            "k", "WAIT"),
        Row("x_T_wait_until_on_stream", "h", "AMO"),
    ],
    "Order": [
        Row("fence quiet", "hk"),
        Row("x_quiet_on_stream", "h"),
        Row("barrier barrier_all", "hskg4",
            note="barriers of the host count apart from those on streams and in kernels"),
        Row("sync sync_all team_sync", "hskg4", "", DIFFERENT,
            "on streams and in kernels a sync is a barrier"),
    ],
    "Collectives": [
        Row("T_broadcast T_fcollect T_alltoall", "hskg", "RMA"),
        Row("broadcastmem fcollectmem alltoallmem", "hskg"),
        Row("T_sum_reduce T_prod_reduce T_min_reduce T_max_reduce T_sum_reducescatter "
            "T_prod_reducescatter T_min_reducescatter T_max_reducescatter", "hskg", "RMA", DIFFERENT,
            "the sum's order is fixed: the same bits on every PE and in every run; on streams, "
            "sums from 16 MiB on of four GPUs or more have the order of NCCL"),
        Row("T_and_reduce T_or_reduce T_xor_reduce T_and_reducescatter T_or_reducescatter "
            "T_xor_reducescatter", "hskg", "BITWISE_REDUCE"),
        Row("x_double2_maxloc_reduce_block", "k", note="of equal values that of the lowest PE"),
        Row("x_tile_sum_reduce_block", "", "", MISSING,
            "NVSHMEM has tiles over multicast memory alone, which Shoal does not use"),
    ],
    "Launch": [
        Row("x_collective_launch x_collective_launch_query_gridsize", "", "", AVAILABLE,
            "compiled with the program"),
    ],
}  # fmt: skip


def expand(name, table):
    """All functions that a name of a row stands for."""
    prefix = "nvshmemx_" if name.startswith("x_") else "nvshmem_"
    name = name.removeprefix("x_")
    if table == "SIZE":
        return [prefix + name.replace("N", bits) for bits in TYPES["SIZE"]]
    if table:
        return [prefix + re.sub(r"\bT_", f"{one}_", name) for one in TYPES[table]]
    return [prefix + name]


def extended(function):
    return function.replace("nvshmem_", "nvshmemx_", 1)


def functions(kind):
    """Names of the library (kind "library") or of kernels ("kernel")."""
    for rows in CHAPTERS.values():
        for row in rows:
            for name in row.names.split():
                for function in expand(name, row.types):
                    if kind == "library" and "h" in row.where:
                        yield function
                    if kind == "library" and "s" in row.where:
                        yield extended(function) + "_on_stream"
                    if kind == "kernel" and "k" in row.where:
                        yield function
                    if kind == "kernel" and "g" in row.where:
                        yield extended(function) + "_warp"
                        yield extended(function) + "_block"
                    if kind == "kernel" and "4" in row.where:
                        yield extended(function) + "_warpgroup"


def page():
    where = {"h": "host", "s": "stream", "k": "kernel", "g": "warp, block", "4": "warpgroup"}
    lines = [
        "# NVSHMEM functions",
        "",
        "Generated by `tools/nvshmem/conformance.py --write`; a test compares it with the library and",
        "the headers. [from-nvshmem.md](../guide/from-nvshmem.md) describes the use.",
        "",
        f"The library has {len(list(functions('library')))} functions for the host and streams, the"
        f" headers {len(list(functions('kernel')))} for kernels.",
        "Those for kernels are also in `libnvshmem_device.ltoir` (LTO IR) and `libnvshmem_device.bc` (LLVM",
        "bitcode).",
        "`T` stands for a type, `N` for 8, 16, 32, 64 or 128. The prefix is `nvshmem_`; `x_` and the",
        "forms on streams, of a warp and of a block begin with `nvshmemx_`.",
        "",
        "| types | |",
        "|---|---|",
    ]
    lines += [f"| {name} | {' '.join(types)} |" for name, types in TYPES.items() if name != "SIZE"]
    for chapter, rows in CHAPTERS.items():
        lines += ["", f"## {chapter}", "", "| functions | types | where | state | note |"]
        lines.append("|---|---|---|---|---|")
        for row in rows:
            names = " ".join(f"`{name}`" for name in row.names.split())
            places = ", ".join(where[letter] for letter in row.where)
            lines.append(f"| {names} | {row.types} | {places} | {row.state} | {row.note} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page())
    else:
        print(page(), end="")
