// SPDX-License-Identifier: Apache-2.0
// call.hpp: the gate of tensors in GPU memory, for code that includes no CUDA header.
#pragma once

#include "shoal/ep/gate.hpp"

namespace shoal::ep::cuda {

/// Arguments are checked, apart from the number of experts. Throws Error{unsupported} for too many,
/// Error{system} with CUDA's reason where the kernel does not start.
void gate(const TensorView& logits, const TensorView& bias, const GateOptions& options,
          const GateArrays& to);

}  // namespace shoal::ep::cuda
