// SPDX-License-Identifier: Apache-2.0
#include "fake_gpu/fake_gpu.hpp"
//
#include "ep/cuda/normal/device/plan.cpp"
