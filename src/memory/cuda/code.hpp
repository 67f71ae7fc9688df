// SPDX-License-Identifier: Apache-2.0
// code.hpp: for which architecture the kernels were compiled that run on a GPU.
#pragma once

namespace shoal::memory::cuda {

/// __CUDA_ARCH__ / 10 of this library's kernels on the current GPU, such as 80 for compute_80 code
/// on a newer GPU; 0 where CUDA cannot load them. The first call for a GPU loads a kernel.
int code_architecture();

}  // namespace shoal::memory::cuda
