// SPDX-License-Identifier: Apache-2.0
#include "fake_gpu/fake_gpu.hpp"
//
#include "ep/numeric/arithmetic.hpp"
#include "ep/numeric/float16.hpp"

#include "ep/cuda/normal/dispatch_many_slots.cu"
