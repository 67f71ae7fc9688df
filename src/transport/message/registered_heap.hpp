// SPDX-License-Identifier: Apache-2.0
// registered_heap.hpp: this PE's heap in GPU memory, registered with the library of a network, and
// the heaps of its peers.
//
// Each step of the heap's growth is registered once with every line of the network (port, rail). A
// step that one of them refuses is not registered at all; its data then pass through host memory,
// unless the settings make that an error.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "memory/device_heap.hpp"
#include "shoal/error.hpp"
#include "transport/heap_rma.hpp"
#include "transport/message/address.hpp"
#include "transport/message/network.hpp"

namespace shoal::transport::message {

/// Region: registered memory of this PE. Remote: how peers name it: `base` and a key. kMostLines:
/// of a network.
template <typename Region, typename Remote, std::size_t kMostLines>
class RegisteredHeap : public HeapRegistration {
 public:
  RegisteredHeap(std::shared_ptr<memory::DeviceHeap> heap, const char* transport, Pe my_pe,
                 Pe n_pes)
      : heap_(std::move(heap)),
        transport_(transport),
        my_pe_(my_pe),
        remote_(static_cast<std::size_t>(n_pes)) {}

  std::vector<std::byte> add(std::size_t offset, std::size_t bytes) final;
  void connect(Pe pe, std::span<const std::byte> blob) final;
  void roll_back(std::size_t offset) noexcept final;
  std::size_t piece(Pe pe, std::size_t offset, const std::byte* local,
                    std::size_t bytes) const final;
  std::string describe(Pe pe) const final;

  /// Start of this PE's heap.
  const std::byte* base() const noexcept { return heap_->base(my_pe_); }
  /// Bytes from the start of the heaps of this PE and of `pe` that are registered on both; 0: none.
  std::size_t first_step(Pe pe) const { return piece(pe, 0, base(), heap_->size()); }
  /// True if memory of this process lies in this PE's heap.
  bool contains(const std::byte* local) const noexcept {
    return local >= base() && local < base() + heap_->size();
  }

  // For ranges that piece() accepted.
  const Region& region(const std::byte* local, std::size_t line) const noexcept {
    return step_at(steps_, offset_of(local))->regions[line];
  }
  Remote remote(Pe pe, std::size_t offset, std::size_t line) const noexcept {
    const RemoteStep& step = *step_at(remote_[static_cast<std::size_t>(pe)], offset);
    Remote memory = step.memory[line];
    memory.base += offset - step.offset;
    return memory;
  }

 protected:
  /// Registers a step with every line and sets method(). Throws Error with the reason.
  virtual std::vector<Region> register_step(std::byte* start, std::size_t bytes) = 0;
  virtual Remote name(const Region& region, const std::byte* start) const = 0;
  /// Throws Error{unsupported} where the settings ask for a registration that failed.
  virtual void accept(const std::string& obstacle) const = 0;

  memory::DeviceHeap& heap() const noexcept { return *heap_; }
  /// "dma-buf"
  void set_method(const char* method) { method_ = method; }

 private:
  /// Address of a step that a PE sends to its peers.
  struct StepAddress {
    std::uint64_t offset = 0, bytes = 0;
    std::uint64_t lines = 0;  ///< 0: not registered
    std::array<Remote, kMostLines> memory{};
  };
  static_assert(sizeof(StepAddress) <= HeapRma::kBlobBytes);
  struct Step {
    std::size_t offset, bytes;
    std::vector<Region> regions;  ///< by line; empty: not registered
  };
  struct RemoteStep {
    std::size_t offset, bytes;
    std::vector<Remote> memory;  ///< by line; empty: not registered
  };

  /// The step with the byte at `offset`; nullptr without one.
  template <typename Steps>
  static auto* step_at(Steps& steps, std::size_t offset) noexcept {
    const auto found = std::ranges::find_if(
        steps, [&](const auto& step) { return offset - step.offset < step.bytes; });
    return found == steps.end() ? nullptr : &*found;
  }
  std::size_t offset_of(const std::byte* local) const noexcept {
    return static_cast<std::size_t>(local - base());
  }

  const std::shared_ptr<memory::DeviceHeap> heap_;
  const char* const transport_;
  const Pe my_pe_;
  std::string obstacle_;     ///< why the newest step is not registered; empty: it is
  std::string method_;       ///< of the newest registration
  std::vector<Step> steps_;  ///< by offset
  std::vector<std::vector<RemoteStep>> remote_;  ///< by PE, by offset
};

template <typename Region, typename Remote, std::size_t kMostLines>
std::vector<std::byte> RegisteredHeap<Region, Remote, kMostLines>::add(std::size_t offset,
                                                                       std::size_t bytes) {
  std::byte* const start = heap_->base(my_pe_) + offset;
  Step step{offset, bytes, {}};
  try {
    step.regions = register_step(start, bytes);
    obstacle_.clear();
  } catch (const Error& error) {
    obstacle_ = error.reason();
    accept(obstacle_);
    log::info("PE {}: transport {}: data of the heap in GPU memory pass through host memory: {}",
              my_pe_, transport_, obstacle_);
  }
  StepAddress address{.offset = offset, .bytes = bytes, .lines = step.regions.size()};
  for (std::size_t line = 0; line < step.regions.size(); ++line)
    address.memory[line] = name(step.regions[line], start);
  steps_.push_back(std::move(step));
  std::vector<std::byte> blob;
  append(blob, address);
  return blob;
}

template <typename Region, typename Remote, std::size_t kMostLines>
void RegisteredHeap<Region, Remote, kMostLines>::connect(Pe pe, std::span<const std::byte> blob) {
  if (blob.size() < sizeof(StepAddress)) return;  // a PE without this network
  const auto address = value_at<StepAddress>(blob, 0);
  if (address.bytes == 0) return;
  RemoteStep step{address.offset, address.bytes, {}};
  const std::size_t lines = std::min<std::size_t>(address.lines, kMostLines);
  step.memory.assign(address.memory.begin(), address.memory.begin() + lines);
  remote_[static_cast<std::size_t>(pe)].push_back(std::move(step));
}

template <typename Region, typename Remote, std::size_t kMostLines>
void RegisteredHeap<Region, Remote, kMostLines>::roll_back(std::size_t offset) noexcept {
  std::erase_if(steps_, [&](const Step& step) { return step.offset >= offset; });
  for (auto& of_pe : remote_)
    std::erase_if(of_pe, [&](const RemoteStep& step) { return step.offset >= offset; });
}

template <typename Region, typename Remote, std::size_t kMostLines>
std::size_t RegisteredHeap<Region, Remote, kMostLines>::piece(Pe pe, std::size_t offset,
                                                              const std::byte* local,
                                                              std::size_t bytes) const {
  const RemoteStep* const there = step_at(remote_[static_cast<std::size_t>(pe)], offset);
  if (there == nullptr || there->memory.empty()) return 0;
  bytes = std::min(bytes, there->offset + there->bytes - offset);
  if (!contains(local)) return bytes;
  const Step* const here = step_at(steps_, offset_of(local));
  if (here == nullptr || here->regions.empty()) return 0;
  return std::min(bytes, here->offset + here->bytes - offset_of(local));
}

template <typename Region, typename Remote, std::size_t kMostLines>
std::string RegisteredHeap<Region, Remote, kMostLines>::describe(Pe pe) const {
  const auto& there = remote_[static_cast<std::size_t>(pe)];
  if (!obstacle_.empty()) return fmt::format("through host memory: {}", obstacle_);
  if (there.empty() || there.back().memory.empty())
    return fmt::format("through host memory: PE {} has not registered its GPU memory", pe);
  return fmt::format("by RDMA ({})", method_);
}

}  // namespace shoal::transport::message
