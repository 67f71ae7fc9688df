#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The routines of OpenSHMEM, by chapter: their state and their test.

Usage: conformance.py [--write]. Prints docs/reference/openshmem.md, or writes it.
tests/tools/test_openshmem_page.py compares this table with the library, the headers and the tests.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/openshmem.md"
TYPES = ROOT / "include/shoal/shmem/types.h"

AVAILABLE = "available"
NO_EFFECT = "no effect"


@dataclass
class Row:
    """`names`: names without "shmem_", separated by spaces. In a name, [ctx_] stands for two
    routines, T for a type of table `types`, N for a size in bits."""

    names: str
    types: str
    test: str
    state: str = AVAILABLE
    note: str = ""


CHAPTERS = {
    "Setup, exit and queries": [
        Row("init init_thread query_thread finalize my_pe n_pes", "", "library.c"),
        Row(
            "global_exit", "", "exit.c", note="reaches PEs in any state; the low 8 bits of a status"
        ),
        Row("pe_accessible addr_accessible ptr", "", "library.c"),
        Row("info_get_version info_get_name", "", "library.c"),
        Row("pcontrol", "", "library.c", NO_EFFECT, "for profiling libraries"),
        Row("query_initialized team_ptr", "", "library.c", note="1.6"),
    ],
    "Memory": [
        Row("malloc calloc align realloc free", "", "memory.c", note="alignment up to 2 MiB"),
        Row("malloc_with_hints", "", "memory.c", note="hints change nothing"),
    ],
    "Teams": [
        Row("team_my_pe team_n_pes team_get_config team_translate_pe", "", "teams.c"),
        Row("team_split_strided team_split_2d team_destroy", "", "teams.c"),
    ],
    "Contexts": [
        Row(
            "ctx_create team_create_ctx ctx_get_team ctx_destroy",
            "",
            "contexts.c",
            note="contexts share the connections of the world",
        ),
        Row("ctx_session_start ctx_session_stop", "", "contexts.c", NO_EFFECT, "1.6; hints"),
    ],
    "Put and get": [
        Row(
            "[ctx_]T_put [ctx_]T_get [ctx_]T_put_nbi [ctx_]T_get_nbi [ctx_]T_p [ctx_]T_g",
            "RMA",
            "rma.c",
        ),
        Row("[ctx_]T_iput [ctx_]T_iget", "RMA", "rma.c"),
        Row("[ctx_]putN [ctx_]getN [ctx_]putN_nbi [ctx_]getN_nbi", "SIZE", "rma.c"),
        Row("[ctx_]iputN [ctx_]igetN", "SIZE", "rma.c"),
        Row("[ctx_]putmem [ctx_]getmem [ctx_]putmem_nbi [ctx_]getmem_nbi", "", "rma.c"),
        Row("[ctx_]T_ibput [ctx_]T_ibget", "RMA", "rma.c", note="1.6"),
        Row("[ctx_]ibputN [ctx_]ibgetN", "SIZE", "rma.c", note="1.6"),
    ],
    "Atomics": [
        Row(
            "[ctx_]T_atomic_fetch [ctx_]T_atomic_set [ctx_]T_atomic_swap "
            "[ctx_]T_atomic_fetch_nbi [ctx_]T_atomic_swap_nbi",
            "EXTENDED_AMO",
            "atomics.c",
        ),
        Row(
            "[ctx_]T_atomic_compare_swap [ctx_]T_atomic_fetch_inc [ctx_]T_atomic_fetch_add "
            "[ctx_]T_atomic_compare_swap_nbi [ctx_]T_atomic_fetch_inc_nbi "
            "[ctx_]T_atomic_fetch_add_nbi [ctx_]T_atomic_inc [ctx_]T_atomic_add",
            "AMO",
            "atomics.c",
        ),
        Row(
            " ".join(
                f"[ctx_]T_atomic_{form}"
                for op in ("and", "or", "xor")
                for form in (f"fetch_{op}", f"fetch_{op}_nbi", op)
            ),
            "BITWISE_AMO",
            "atomics.c",
        ),
    ],
    "Signals": [
        Row("[ctx_]T_put_signal [ctx_]T_put_signal_nbi", "RMA", "signals.c"),
        Row("[ctx_]putN_signal [ctx_]putN_signal_nbi", "SIZE", "signals.c"),
        Row("[ctx_]putmem_signal [ctx_]putmem_signal_nbi", "", "signals.c"),
        Row("signal_fetch signal_wait_until", "", "signals.c"),
        Row("[ctx_]signal_set [ctx_]signal_add", "", "signals.c", note="1.6"),
    ],
    "Collectives": [
        Row("barrier_all sync_all team_sync", "", "collectives.c"),
        Row("T_alltoall T_alltoalls T_broadcast T_collect T_fcollect", "RMA", "collectives.c"),
        Row("alltoallmem alltoallsmem broadcastmem collectmem fcollectmem", "", "collectives.c"),
        Row("T_and_reduce T_or_reduce T_xor_reduce", "BITWISE_REDUCE", "collectives.c"),
        Row("T_max_reduce T_min_reduce", "ORDERED_REDUCE", "collectives.c"),
        Row("T_sum_reduce T_prod_reduce", "ARITHMETIC_REDUCE", "collectives.c"),
        Row("T_sum_inscan T_sum_exscan", "ARITHMETIC_REDUCE", "collectives.c", note="1.6"),
    ],
    "Waits and tests": [
        Row("T_wait_until T_test", "AMO", "waits.c"),
        Row(
            " ".join(
                f"T_{kind}_{quorum}{vector}"
                for kind in ("wait_until", "test")
                for quorum in ("all", "any", "some")
                for vector in ("", "_vector")
            ),
            "AMO",
            "waits.c",
        ),
    ],
    "Ordering": [
        Row(
            "fence ctx_fence quiet ctx_quiet",
            "",
            "order.c",
            note="of a shared context: cover all contexts",
        ),
        Row("[ctx_]pe_quiet", "", "order.c", note="1.6; covers all PEs"),
    ],
    "Locks": [Row("set_lock clear_lock test_lock", "", "locks.c", note="first come, first served")],
    "Deprecated": [
        Row("barrier sync", "", "deprecated.c", note="active sets; pSync is not used"),
        Row(
            " ".join(
                f"{name}{bits}"
                for name in ("broadcast", "collect", "fcollect", "alltoall", "alltoalls")
                for bits in (32, 64)
            ),
            "",
            "deprecated.c",
        ),
        Row("T_and_to_all T_or_to_all T_xor_to_all", "BITWISE_TO_ALL", "deprecated.c"),
        Row("T_max_to_all T_min_to_all", "ORDERED_TO_ALL", "deprecated.c"),
        Row("T_sum_to_all T_prod_to_all", "ARITHMETIC_TO_ALL", "deprecated.c"),
        Row("T_fetch T_set T_swap", "EXTENDED_AMO", "atomics.c"),
        Row("T_cswap T_finc T_inc T_fadd T_add", "AMO", "atomics.c"),
        Row("wait short_wait int_wait long_wait longlong_wait wait_until", "", "waits.c"),
        Row("short_wait_until ushort_wait_until short_test ushort_test", "", "waits.c"),
        Row(
            "set_cache_inv set_cache_line_inv clear_cache_inv clear_cache_line_inv udcflush "
            "udcflush_line",
            "",
            "deprecated.c",
            NO_EFFECT,
            "caches are coherent",
        ),
    ],
}
OLD_NAMES = {
    "start_pes": "deprecated.c",
    "_my_pe": "deprecated.c",
    "_num_pes": "deprecated.c",
    "shmalloc": "memory.c",
    "shmemalign": "memory.c",
    "shrealloc": "memory.c",
    "shfree": "memory.c",
}
SIZES = ("8", "16", "32", "64", "128")


def type_tables():
    """The names of the types of each table of types.h, by the table's name: RMA, AMO, ..."""
    text = TYPES.read_text().replace("\\\n", " ")
    bodies = dict(re.findall(r"#define SHOAL_SHMEM_(\w+)_TYPES\(X\)(.*)", text))
    tables = {}

    def names(table):
        if table not in tables:
            tables[table] = []
            for other, name in re.findall(
                r"SHOAL_SHMEM_(\w+)_TYPES\(X\)|\bX\([^,]*?, (\w+)\)", bodies[table]
            ):
                tables[table] += names(other) if other else [name]
        return tables[table]

    for table in bodies:
        if not table.startswith("DISTINCT"):
            names(table)
    return tables


def expand(name, table, tables):
    """All routines that a name of a row stands for."""
    forms = [name.replace("[ctx_]", ""), name.replace("[ctx_]", "ctx_")]
    if table == "SIZE":
        return [
            f"shmem_{form.replace('N', bits)}" for form in dict.fromkeys(forms) for bits in SIZES
        ]
    if table:
        return [
            "shmem_" + re.sub(r"(?<![a-z])T_", f"{one}_", form)
            for form in dict.fromkeys(forms)
            for one in tables[table]
        ]
    return [f"shmem_{form}" for form in dict.fromkeys(forms)]


def routines():
    """(routine, row) for every routine of the table."""
    tables = type_tables()
    for rows in CHAPTERS.values():
        for row in rows:
            for name in row.names.split():
                for routine in expand(name, row.types, tables):
                    yield routine, row


def page():
    tables = type_tables()
    count = len(list(routines()))
    lines = [
        "# OpenSHMEM routines",
        "",
        "Generated by `tools/shmem/conformance.py --write`; a test compares it with the library, the",
        "headers and the tests. The [guide](../guide/openshmem.md) describes the use.",
        "",
        f"The library has {count} routines, each also under its `pshmem_` name, and"
        f" {len(OLD_NAMES)} names from",
        "before OpenSHMEM. All of OpenSHMEM 1.5 is available, and of 1.6 what is marked so. A name",
        "stands for several routines: `[ctx_]` with and without a context, `T` a type, `N` 8, 16, 32,",
        "64 or 128. C11 and C++ have the generic forms of all typed routines.",
        "",
        "| types | |",
        "|---|---|",
    ]
    used = {row.types for rows in CHAPTERS.values() for row in rows} - {"", "SIZE"}
    for table in sorted(used):
        lines.append(f"| {table} | {' '.join(tables[table])} |")
    for chapter, rows in CHAPTERS.items():
        lines += ["", f"## {chapter}", "", "| routines | types | state | note | test |"]
        lines.append("|---|---|---|---|---|")
        for row in rows:
            names = " ".join(f"`{name}`" for name in row.names.split())
            types = "N bits" if row.types == "SIZE" else row.types
            test = f"[{row.test}](../../tests/shmem/{row.test})"
            lines.append(f"| {names} | {types} | {row.state} | {row.note} | {test} |")
    names = list(OLD_NAMES)
    lines += ["", "Names from before OpenSHMEM: " + ", ".join(f"`{n}`" for n in names[:5]) + ","]
    lines.append(" and ".join(f"`{n}`" for n in names[5:]) + ".")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page())
    else:
        print(page(), end="")
