// SPDX-License-Identifier: Apache-2.0
// Counters of kernels, as the library shows it.
#include "fake_gpu/fake_gpu.hpp"
//
#include "ep/cuda/group/kernel_counts.cpp"
