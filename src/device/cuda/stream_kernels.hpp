// SPDX-License-Identifier: Apache-2.0
// stream_kernels.hpp: starts the kernels of operations on streams, on the current device. Each
// function returns nullptr, or CUDA's reason where the kernel did not start. None waits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device_side.hpp"
#include "shoal/detail/stream_steps.hpp"

namespace shoal::detail::kernels {

/// The parameters of put_to_all.
struct PutToAll {
  static constexpr int kMaxBlocks = 16;
  detail::StreamBlock blocks[kMaxBlocks];
  int count = 0;
  std::uint64_t* flags = nullptr;
  std::uint64_t value = 0;
};

/// Loads all kernels.
const char* load();
/// The part of load() for the kernels of transfer_kernels.cu.
const char* load_transfers();

/// For sizes below the start-up cost of a copy engine.
const char* copy(cuda::Stream stream, void* target, const void* source, std::size_t bytes);
const char* copy_strided(cuda::Stream stream, void* target, std::size_t target_stride,
                         const void* source, std::size_t source_stride, std::size_t element,
                         std::size_t count);
const char* store(cuda::Stream stream, void* target, std::uint64_t value, std::size_t width);
const char* atomic(cuda::Stream stream, AtomicOp op, void* word, std::uint64_t operand,
                   std::uint64_t compare, std::size_t width, void* result);
const char* signal(cuda::Stream stream, std::uint64_t* word, SignalOp op, std::uint64_t value);
/// Runs in one block; for few bytes.
const char* copy_signal(cuda::Stream stream, void* target, const void* source, std::size_t bytes,
                        std::uint64_t* word, SignalOp op, std::uint64_t value);
const char* wait(cuda::Stream stream, const device::World& world, const Condition& condition);
const char* test(cuda::Stream stream, const Condition& condition, int* result);
/// `alone`: sm_90 and no other PE on this GPU. `ended`, here and below: nullptr, or a word of host
/// memory to which the kernel adds 1 at its end.
const char* barrier(cuda::Stream stream, const device::World& world, const device::Team& team,
                    bool alone, std::uint64_t* ended);
/// Runs in one block; for few bytes.
const char* transfer(cuda::Stream stream, const device::World& world, const Transfer& transfer);
/// Runs in one block per PE; for few bytes. Without blocks it only signals.
const char* put_to_all(cuda::Stream stream, const device::World& world, const device::Team& team,
                       const PutToAll& put);
const char* wait_for_all(cuda::Stream stream, const device::World& world, const device::Team& team,
                         const std::uint64_t* flags, std::uint64_t value);
const char* fetch_entries(cuda::Stream stream, const device::World& world,
                          const detail::EntryFetch& fetch);
const char* post(cuda::Stream stream, const device::World& world, const Posts& posts,
                 std::uint64_t* ended);
/// Runs in one block. As DeviceSide::fetch_block.
const char* fetch_block(cuda::Stream stream, const device::World& world,
                        const device::AllToAllV& arguments, Pe index, Pe me, Pe pe,
                        std::uint64_t* ended);
const char* drain(cuda::Stream stream, const device::World& world, std::uint64_t* ended);

}  // namespace shoal::detail::kernels
