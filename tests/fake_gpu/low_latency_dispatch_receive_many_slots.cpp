// SPDX-License-Identifier: Apache-2.0
#include "fake_gpu/fake_gpu.hpp"
//
#include "ep/cuda/low_latency/receive/dispatch_receive_many_slots.cu"
