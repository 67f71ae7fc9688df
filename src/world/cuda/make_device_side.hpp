// SPDX-License-Identifier: Apache-2.0
// make_device_side.hpp: the device side as CUDA implements it.
#pragma once

#include <memory>

#include "world/device_side.hpp"

namespace shoal::detail {

std::shared_ptr<DeviceSide> make_cuda_device_side(WorldParts& world);

}  // namespace shoal::detail
