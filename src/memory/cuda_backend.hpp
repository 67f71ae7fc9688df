// SPDX-License-Identifier: Apache-2.0
// backend.hpp: the implementations among which memory/device_heap.cpp chooses in a build with CUDA.
#pragma once

#include "memory/device_heap.hpp"
#include "memory/shared_buffers.hpp"

namespace shoal::memory::cuda {

std::shared_ptr<Device> open_device(const DeviceRequest& request);
GpuReport describe_gpus();
std::unique_ptr<DeviceHeap> make_mapped_heap(DeviceHeapContext context);
std::unique_ptr<DeviceHeap> make_ipc_heap(DeviceHeapContext context);
std::unique_ptr<DeviceHeap> make_pinned_heap(DeviceHeapContext context);
std::unique_ptr<SharedBuffers> make_shared_buffers(std::shared_ptr<Device> device);

}  // namespace shoal::memory::cuda
