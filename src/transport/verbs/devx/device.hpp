// SPDX-License-Identifier: Apache-2.0
// device.hpp: what the queue pairs of a port share when device commands create them: the doorbell
// page, the completion queue, and memory that the device may use.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "shoal/device/detail/mlx5/work_queue.hpp"
#include "transport/verbs/devx/library.hpp"
#include "transport/verbs/port/pages.hpp"

namespace shoal::transport::verbs::devx {

class CommandQueuePair;

/// Context, protection domain and name for messages of an object.
struct Place {
  ibv_context* context;
  ibv_pd* domain;
  std::string label;  ///< "mlx5_0:1"
};

/// Zeroed or filled memory of this process in which the device has queues.
class QueueMemory {
 public:
  /// Throws Error{unsupported} naming `what` it is for.
  QueueMemory(const Library& library, const Place& place, std::size_t bytes, std::byte fill,
              const std::string& what);

  std::byte* at(std::size_t offset) const noexcept { return memory_.get() + offset; }
  /// Whole pages.
  std::size_t bytes() const noexcept { return bytes_; }
  std::uint32_t number() const noexcept { return umem_->umem_id; }

 private:
  Pages memory_;
  std::size_t bytes_ = 0;
  std::unique_ptr<mlx5dv_devx_umem, int (*)(mlx5dv_devx_umem*)> umem_{nullptr, nullptr};
};

/// An object that a command made; destroyed by the device when it goes.
using Object = std::unique_ptr<mlx5dv_devx_obj, int (*)(mlx5dv_devx_obj*)>;

class Device;

/// Completion queues differ in what happens when more completions arrive than they have entries.
enum class Overrun : std::uint8_t { error, ignored };

class CompletionQueue {
 public:
  /// `entries`: a power of two. Throws Error{unsupported}.
  CompletionQueue(const Device& device, std::uint32_t entries, Overrun overrun);

  std::uint32_t number() const noexcept { return number_; }
  const mlx5::CompletionQueue& ring() const noexcept { return ring_; }
  const QueueMemory& memory() const noexcept { return memory_; }

 private:
  QueueMemory memory_;
  mlx5::CompletionQueue ring_;
  Object object_{nullptr, nullptr};  ///< before its memory
  std::uint32_t number_ = 0;
};

class Device {
 public:
  /// Makes a completion queue for `completions` entries. Throws Error{unsupported}.
  Device(std::shared_ptr<const Library> library, Place place, std::size_t completions);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Library& library() const noexcept { return *library_; }
  const Place& place() const noexcept { return place_; }
  std::uint32_t domain() const noexcept { return domain_; }
  std::uint32_t doorbell_page() const noexcept { return page_->page_id; }
  std::uint64_t* doorbell() const noexcept { return static_cast<std::uint64_t*>(page_->reg_addr); }
  std::uint32_t queue() const noexcept { return queue_->number(); }
  /// Entries of the completion queue.
  std::size_t completions() const noexcept { return std::size_t{1} << queue_->ring().log_size; }
  /// Limits of a send queue.
  std::uint32_t most_blocks() const noexcept { return most_blocks_; }
  std::uint32_t most_request_bytes() const noexcept { return most_request_bytes_; }
  /// Most entries of a completion queue.
  std::uint32_t most_entries() const noexcept { return most_entries_; }

  /// Executes CREATE_*. Null with a reason in `problem` when it fails.
  Object create(Command& command, std::string& problem) const;

  /// Completed requests, of queue pairs that are known.
  int poll(std::span<ibv_wc> completions) noexcept;
  void add(CommandQueuePair& pair);
  void remove(std::uint32_t number) noexcept { pairs_.erase(number); }

 private:
  void query_limits();

  const std::shared_ptr<const Library> library_;
  const Place place_;
  std::uint32_t domain_ = 0;
  std::uint32_t most_blocks_ = 0, most_request_bytes_ = 0, most_entries_ = 0;
  std::unique_ptr<mlx5dv_devx_uar, void (*)(mlx5dv_devx_uar*)> page_{nullptr, nullptr};
  std::unique_ptr<CompletionQueue> queue_;
  std::uint32_t consumed_ = 0;
  std::unordered_map<std::uint32_t, CommandQueuePair*> pairs_;  ///< by number
};

}  // namespace shoal::transport::verbs::devx
