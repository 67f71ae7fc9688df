# SPDX-License-Identifier: Apache-2.0
"""The layers of Shoal: who calls whom, from frameworks down to the network."""

from svg import Canvas

WIDTH, ROW, GAP, LEFT = 940, 58, 12, 20

# (label, colour, [(name, what it does)])
ROWS = [
    (
        "callers",
        "grey",
        [
            ("vLLM · SGLang", "inference"),
            ("Megatron-LM", "training"),
            ("torch, JAX", "own models"),
            ("C++, C", "own engines, HPC codes"),
        ],
    ),
    (
        "interfaces",
        "purple",
        [
            ("deep_ep", "DeepEP's API"),
            ("shoal (Python)", "arrays by DLPack"),
            ("shoal.h", "C ABI"),
            ("include/shoal", "C++20"),
            ("shmem.h", "OpenSHMEM"),
            ("nvshmem.h", "NVSHMEM's API"),
        ],
    ),
    (
        "shoal_ep",
        "blue",
        [
            ("ep/plan", "routing, shapes, arena"),
            ("ep/numeric", "FP8, UE8M0, LogFMT"),
            ("ep/host", "backend on processors"),
            ("ep/cuda", "backend on GPUs"),
        ],
    ),
    (
        "shoal",
        "green",
        [
            ("collective", "barrier, reduce, all-to-all"),
            ("world", "startup, teams, RMA, health"),
            ("memory", "segments, GPU mappings"),
            ("topology", "hosts, GPUs, NICs"),
        ],
    ),
    (
        "transports",
        "orange",
        [
            ("self · shm", "one host"),
            ("cuda_p2p", "NVLink, PCIe"),
            ("staged", "GPU via host memory"),
            ("ofi · ucx · verbs", "libfabric, UCX, RDMA"),
        ],
    ),
    (
        "start",
        "grey",
        [
            ("bootstrap", "how PEs find each other: TCP, MPI, PMI, PMIx, torchrun"),
            ("base", "errors, settings, log"),
        ],
    ),
]


def draw(path):
    height = len(ROWS) * (ROW + GAP) + GAP + 4
    canvas = Canvas(WIDTH, height, "The layers of Shoal")
    label = 92
    for index, (name, colour, cells) in enumerate(ROWS):
        y = GAP + index * (ROW + GAP)
        canvas.text(LEFT, y + ROW / 2 + 5, name, 14, "ink", bold=True)
        inner = WIDTH - LEFT * 2 - label
        width = (inner - GAP * (len(cells) - 1)) / len(cells)
        for column, (title, what) in enumerate(cells):
            x = LEFT + label + column * (width + GAP)
            canvas.box(x, y, width, ROW, colour)
            canvas.text(x + width / 2, y + 25, title, 14, "ink", "middle", bold=True)
            canvas.text(x + width / 2, y + 44, what, 11.5, "soft", "middle")
    canvas.write(path)
