// SPDX-License-Identifier: Apache-2.0
// layer.hpp: the layer on GPUs, in builds with CUDA.
#pragma once

#include <memory>

#include "moe/layer.hpp"

namespace shoal::moe {

/// Collective. The world's heap is in GPU memory, and check_backend has passed.
std::unique_ptr<Layer> make_cuda_layer(const World& world, const Options& options,
                                       const Shape& shape, const Inputs& inputs);

}  // namespace shoal::moe
