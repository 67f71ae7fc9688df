// SPDX-License-Identifier: Apache-2.0
// host_device_side.hpp: a device side that runs the work of streams at once on the CPU, for tests
// of shoal/cuda.hpp without a GPU.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checks/world/operations.hpp"
#include "device/device_side.hpp"
#include "fabric/fabric.hpp"
#include "shoal/collective.hpp"
#include "shoal/cuda.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal::test {

/// Memory that this device side treats as unusable by the GPU.
inline int forbidden[4];

class HostDeviceSide : public detail::DeviceSide {
 public:
  explicit HostDeviceSide(const World& world, int sharing) {
    world_.my_pe = world.my_pe();
    world_.n_pes = world.n_pes();
    world_.heap = world.heap().base();
    world_.heap_bytes = world.heap().size();
    world_.failure = &report;
    launch_.pes_on_device = sharing;
    words_.resize(static_cast<std::size_t>(world.settings().max_teams) * team_stride(world_.n_pes));
    team_words_ = words_.data();
    for (Pe pe = 0; pe < world.n_pes(); ++pe)
      bases_.push_back(state_of(world).fabric().peer_base(pe));
  }

  void check_local(const char* what, const void* memory, std::size_t) const override {
    if (memory == forbidden)
      throw Error(Code::invalid_argument, std::string(what) + ": not of the GPU");
  }
  void copy(cuda::Stream, void* target, const void* source, std::size_t bytes) const override {
    ++calls;
    std::memcpy(target, source, bytes);
  }
  void copy_strided(cuda::Stream, void* target, std::size_t target_stride, const void* source,
                    std::size_t source_stride, std::size_t element,
                    std::size_t count) const override {
    ++calls;
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(static_cast<std::byte*>(target) + i * target_stride,
                  static_cast<const std::byte*>(source) + i * source_stride, element);
  }
  void store(cuda::Stream, void* target, std::uint64_t value, std::size_t width) const override {
    ++calls;
    std::memcpy(target, &value, width);
  }
  void atomic(cuda::Stream, AtomicOp op, void* word, std::uint64_t operand, std::uint64_t compare,
              std::size_t width, void* result) const override {
    ++calls;
    last = {op, operand, compare, width};
    if (result != nullptr) std::memcpy(result, word, width);
  }
  void signal(cuda::Stream, std::uint64_t* word, SignalOp op, std::uint64_t value) const override {
    ++calls;
    *word = op == SignalOp::add ? *word + value : value;
  }
  void copy_signal(cuda::Stream stream, void* target, const void* source, std::size_t bytes,
                   std::uint64_t* word, SignalOp op, std::uint64_t value) const override {
    if (bytes != 0) std::memcpy(target, source, bytes);
    signal(stream, word, op, value);
  }
  void wait(cuda::Stream, const detail::Condition& condition) const override {
    waited = condition, ++calls;
  }
  void test(cuda::Stream, const detail::Condition& condition, int* result) const override {
    waited = condition, ++calls;
    *result = 7;
  }
  void transfer(cuda::Stream, const detail::Transfer& transfer) const override {
    if (transfer.ready != nullptr && *transfer.ready < transfer.at_least)
      throw Error(Code::timeout, "a transfer would wait");
    ++calls;
    awaited = transfer.setter;
    if (transfer.bytes != 0) std::memcpy(transfer.target, transfer.source, transfer.bytes);
    *transfer.flag = transfer.value;
  }
  void put_to_all(cuda::Stream, const device::Team& team,
                  std::span<const detail::StreamBlock> blocks, std::uint64_t* flags,
                  std::uint64_t value) const override {
    joined = team, ++calls;
    for (std::byte* const base : bases_) {
      for (const detail::StreamBlock& block : blocks) {
        std::byte* const target = base + (static_cast<std::byte*>(block.place) - world_.heap);
        const bool skipped = block.others_only && base == world_.heap;
        if (target != block.source && !skipped) std::memcpy(target, block.source, block.bytes);
      }
      const auto offset = reinterpret_cast<std::byte*>(flags + world_.my_pe) - world_.heap;
      *reinterpret_cast<std::uint64_t*>(base + offset) = value;
    }
  }
  void wait_for_all(cuda::Stream, const device::Team& team, const std::uint64_t* flags,
                    std::uint64_t value) const override {
    joined = team, ++calls;
    waited = {flags, Compare::greater_equal, value, sizeof *flags, false, -1};
  }
  void fetch_entries(cuda::Stream, const detail::EntryFetch& fetch) const override {
    ++calls;
    fetched = fetch;
  }
  void barrier(cuda::Stream, const device::Team& team) const override { joined = team, ++calls; }
  void order(cuda::Stream, cuda::Stream) const override { ++calls; }
  bool captures(cuda::Stream) const override { return false; }
  void post(cuda::Stream, const detail::Posts& posts) const override { posted = posts, ++calls; }
  void fetch_block(cuda::Stream, const device::AllToAllV&, Pe, Pe, Pe) const override { ++calls; }
  void drain(cuda::Stream) const override { ++calls; }
  std::byte* scratch(std::int32_t, std::size_t bytes) const override {
    scratch_.resize(std::max(scratch_.size(), bytes));
    return scratch_.data();
  }

  struct Atomic {
    AtomicOp op;
    std::uint64_t operand, compare;
    std::size_t width;
  };
  mutable int calls = 0;
  mutable Atomic last{};
  mutable detail::Condition waited;
  mutable device::Team joined{};
  mutable detail::EntryFetch fetched;
  mutable Pe awaited = -1;  ///< by the last transfer
  mutable detail::Posts posted;
  mutable device::FailureReport report{};

 protected:
  std::vector<std::byte*> bases_;

 private:
  std::vector<std::uint64_t> words_;
  mutable std::vector<std::byte> scratch_;
};

inline cuda::Stream const kStream = reinterpret_cast<cuda::Stream>(std::uintptr_t{4096});

/// Runs `body` on PE 0 of two PEs, with a device side of its own.
inline void run_with_host_side(
    const std::function<void(World&, HostDeviceSide&, const cuda::StreamOperations&)>& body) {
  run_threads(2, world_settings(), [&](World& world) {
    const auto side = std::make_shared<HostDeviceSide>(world, 2);
    state_of(world).set_device_side(side);
    const cuda::StreamOperations on(world, kStream);
    if (world.my_pe() == 0) body(world, *side, on);
    barrier(world.team());
  });
}

}  // namespace shoal::test
