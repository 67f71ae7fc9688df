// SPDX-License-Identifier: Apache-2.0
#include "fake_gpu/fake_gpu.hpp"
//
#include "ep/cuda/low_latency/send/combine_send_many_slots.cu"
