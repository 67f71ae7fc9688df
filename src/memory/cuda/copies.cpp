// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/copies.hpp"

namespace shoal::memory::cuda {

bool on_gpu(const Driver& driver, const void* pointer) {
  CUmemorytype type = CU_MEMORYTYPE_HOST;
  const CUresult result =
      driver.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(pointer));
  return result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
}

CUresult start_copy(const Driver& driver, const Elements& target, const Elements& source,
                    CUstream stream) {
  CUDA_MEMCPY2D rows{};  // NOLINT(bugprone-invalid-enum-default-initialization): both memory types
                         // are set below
  rows.srcMemoryType = on_gpu(driver, source.start) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  rows.srcHost = source.start;
  rows.srcDevice = address(source.start);
  rows.srcPitch = source.pitch;
  rows.dstMemoryType = on_gpu(driver, target.start) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  rows.dstHost = target.start;
  rows.dstDevice = address(target.start);
  rows.dstPitch = target.pitch;
  rows.WidthInBytes = target.element;
  rows.Height = target.count;
  return driver.copy_2d(&rows, stream);
}

}  // namespace shoal::memory::cuda
