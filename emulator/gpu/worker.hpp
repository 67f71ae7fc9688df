// SPDX-License-Identifier: Apache-2.0
// worker.hpp: the workers of the NIC on a GPU: warps that copy what the dispatcher hands out. For
// host and device code; a worker is all lanes of a warp, or a thread of a processor.
#pragma once

#include "gpu/copy.hpp"
#include "gpu/state.hpp"

namespace shoal::emulator::gpu {

enum class WorkerState : std::uint8_t { waiting, worked, closed };

template <typename Platform>
class Worker {
 public:
  SHOAL_HOST_DEVICE Worker(JobRing& ring, const Platform& platform)
      : ring_(ring), jobs_(ring.jobs), done_(ring.done), size_(ring.size), platform_(platform) {}

  /// Does its next job if it is there. Jobs begin in the order of their numbers.
  SHOAL_HOST_DEVICE WorkerState step() {
    if (!has_number_) {
      number_ = platform_.ask([&] { return platform_.add_far(&ring_.taken, std::uint64_t{1}); });
      has_number_ = true;
    }
    const std::uint64_t published =
        platform_.ask([&] { return platform_.load_word(&ring_.published); });
    if ((published & ~kClosed) <= number_)
      return (published & kClosed) == 0 ? WorkerState::waiting : WorkerState::closed;
    const std::uint32_t slot = static_cast<std::uint32_t>(number_) & (size_ - 1);
    const Job job = jobs_[slot];
    copy(platform_, job.to, job.from, job.bytes, platform_.lane(), platform_.width());
    platform_.fence();
    platform_.one([&] {
      platform_.add(job.pending, ~std::uint64_t{0});
      // The job was read before the fence.
      platform_.template store<std::uint64_t>(reinterpret_cast<std::byte*>(&done_[slot]),
                                              number_ + 1);
    });
    has_number_ = false;
    return WorkerState::worked;
  }

 private:
  JobRing& ring_;
  const Job* const jobs_;
  std::uint64_t* const done_;
  const std::uint32_t size_;
  const Platform& platform_;
  std::uint64_t number_ = 0;
  bool has_number_ = false;
};

}  // namespace shoal::emulator::gpu
