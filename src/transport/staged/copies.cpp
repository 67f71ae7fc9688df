// SPDX-License-Identifier: Apache-2.0
#include "transport/staged/copies.hpp"

#include <cstring>

#include "base/check.hpp"
#include "base/log.hpp"

namespace shoal::transport::staged {

void Copies::to_chunk(std::byte* chunk, const Elements& source) const {
  rows({chunk, source.element, source.count, source.element}, source);
}

void Copies::from_chunk(const Elements& target, const std::byte* chunk) const {
  rows(target, {const_cast<std::byte*>(chunk), target.element, target.count, target.element});
}

void Copies::rows(const Elements& target, const Elements& source) const {
  if (target.element == 0 || target.count == 0) return;
  const bool from_gpu = on_gpu(source.start), to_gpu = on_gpu(target.start);
  if (!from_gpu && !to_gpu) {
    for (std::size_t i = 0; i < target.count; ++i)
      std::memcpy(target.start + i * target.pitch, source.start + i * source.pitch, target.element);
    return;
  }
  CUDA_MEMCPY2D rows{};  // NOLINT(bugprone-invalid-enum-default-initialization): both memory types
                         // are set below
  rows.srcMemoryType = from_gpu ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  rows.srcHost = source.start;
  rows.srcDevice = memory::cuda::address(source.start);
  rows.srcPitch = source.pitch;
  rows.dstMemoryType = to_gpu ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  rows.dstHost = target.start;
  rows.dstDevice = memory::cuda::address(target.start);
  rows.dstPitch = target.pitch;
  rows.WidthInBytes = target.element;
  rows.Height = target.count;
  memory::cuda::check(driver_, driver_.copy_2d(&rows, device_.stream),
                      fmt::format("copy of {} x {} bytes between the GPU and staging", target.count,
                                  target.element));
  device_.synchronize("a copy between the GPU and staging");
}

bool Copies::on_gpu(const void* pointer) const {
  device_.activate();
  CUmemorytype type = CU_MEMORYTYPE_HOST;
  const CUresult result = driver_.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                    memory::cuda::address(pointer));
  return result == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_DEVICE;  // ordinary memory is unknown to the driver
}

void Copies::pin(void* memory, std::size_t bytes) {
  device_.activate();
  const CUresult result = driver_.host_register(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE);
  if (result == CUDA_SUCCESS) {
    pinned_ = memory;
  } else {
    log::info("{} bytes of staging are not pinned, copies will be slower: {}", bytes,
              memory::cuda::describe(driver_, result));
  }
}

void Copies::unpin() noexcept {
  if (pinned_ != nullptr && driver_.set_current(device_.context) == CUDA_SUCCESS)
    driver_.host_unregister(pinned_);
  pinned_ = nullptr;
}

}  // namespace shoal::transport::staged
