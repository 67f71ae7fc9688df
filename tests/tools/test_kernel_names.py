# SPDX-License-Identifier: Apache-2.0
"""Profiling scripts written for DeepEP find kernels by their names."""

import re

import pytest

KERNELS = [
    "dispatch_impl",
    "combine_impl",
    "dispatch_kernel",
    "combine_kernel",
    "dispatch_send_kernel",
    "dispatch_receive_kernel",
    "combine_send_kernel",
    "combine_receive_kernel",
]


def test_kernels_have_the_names_that_profiling_scripts_look_for(bin_dir):
    build = bin_dir.parent
    if not re.search(
        r"^CMAKE_CUDA_COMPILER:\w+=/", (build / "CMakeCache.txt").read_text(), re.MULTILINE
    ):
        pytest.skip("built without CUDA")
    library = (build / "lib/libshoal_ep.so").read_bytes()
    for kernel in KERNELS:  # mangled: in a namespace, with the length before the name
        assert re.search(rf"_ZN5shoal2ep4cuda\w*?{len(kernel)}{kernel}".encode(), library), kernel
