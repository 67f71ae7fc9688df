// SPDX-License-Identifier: Apache-2.0
#include "fake_gpu/fake_gpu.hpp"
//
#include "ep/numeric/numeric.hpp"

#define __CUDA_ARCH__ 900  // NOLINT: with bulk copies
#include "ep/cuda/low_latency/receive/combine_receive_many_slots.cu"
