// SPDX-License-Identifier: Apache-2.0
// make_device_side.hpp: creates the CUDA implementation of DeviceSide.
#pragma once

#include <memory>

#include "device/device_side.hpp"

namespace shoal::detail {

std::shared_ptr<DeviceSide> make_cuda_device_side(const DeviceSideContext& context);

}  // namespace shoal::detail
