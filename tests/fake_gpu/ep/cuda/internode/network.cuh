// SPDX-License-Identifier: Apache-2.0
// network.cuh: takes the place of src/ep/cuda/internode/network.cuh: a network that delays and
// reorders what is posted. A signal comes after its put.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/types.hpp>

namespace shoal::test::fake_gpu {

/// Posts a put of `bytes` bytes, which may be 0, with a signal. Offsets count from the start of the
/// heap of `pe`. With `waits`, returns when both are complete; otherwise the source may be read
/// late. Returns false where the network has failed.
bool post(Pe pe, std::size_t offset, const std::byte* source, std::size_t bytes,
          std::size_t flag_offset, std::uint64_t value, bool waits);

}  // namespace shoal::test::fake_gpu

namespace shoal::ep::cuda {

inline bool start_put(const device::World& world, std::byte* target, const std::byte* source,
                      std::size_t bytes, std::uint64_t* flag, std::uint64_t value, Pe pe) {
  return test::fake_gpu::post(pe, target - world.heap, source, bytes,
                              reinterpret_cast<std::byte*>(flag) - world.heap, value, false);
}

inline bool put(const device::World& world, std::byte* target, const std::byte* source,
                std::size_t bytes, std::uint64_t* flag, std::uint64_t value, Pe pe) {
  return test::fake_gpu::post(pe, target - world.heap, source, bytes,
                              reinterpret_cast<std::byte*>(flag) - world.heap, value, true);
}

inline bool start_signal(const device::World& world, std::uint64_t* word, std::uint64_t value,
                         Pe pe) {
  return test::fake_gpu::post(pe, 0, nullptr, 0, reinterpret_cast<std::byte*>(word) - world.heap,
                              value, false);
}

}  // namespace shoal::ep::cuda
