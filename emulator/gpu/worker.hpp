// SPDX-License-Identifier: Apache-2.0
// worker.hpp: the workers of the NIC on a GPU: warps that copy what the dispatchers hand out. For
// host and device code; a worker is all lanes of a warp, or a thread of a processor.
#pragma once

#include "gpu/copy.hpp"
#include "gpu/execute.hpp"
#include "gpu/state.hpp"

namespace shoal::emulator::gpu {

enum class WorkerState : std::uint8_t { waiting, worked, closed };

template <typename Platform>
class Worker {
 public:
  SHOAL_HOST_DEVICE Worker(JobRing& ring, const Platform& platform)
      : ring_(ring), jobs_(ring.jobs), done_(ring.done), size_(ring.size), platform_(platform) {}

  /// Does its next job if it is there and may begin. Jobs are taken in the order of their numbers.
  SHOAL_HOST_DEVICE WorkerState step() {
    if (!has_number_) {
      number_ = platform_.ask([&] { return platform_.add_far(&ring_.taken, std::uint64_t{1}); });
      has_number_ = true;
    }
    if (!has_job_) {
      const Job& job = jobs_[number_ & (size_ - 1)];
      const auto seen = static_cast<Seen>(platform_.ask([&] { return look(job); }));
      if (seen != Seen::job) return seen == Seen::end ? WorkerState::closed : WorkerState::waiting;
      job_ = job;
      has_job_ = true;
    }
    if (job_.start != 0 && platform_.ask([&] { return platform_.now(); }) < job_.start)
      return WorkerState::waiting;
    // Where warps may wait here, they have the data in registers when they may store them.
    if constexpr (!Platform::kWaits)
      if (!may_store()) return WorkerState::waiting;
    copy<kAtOnce>(platform_, job_.to, job_.from, job_.bytes, platform_.lane(), platform_.width(),
                  [&] {
                    while (!may_store()) {
                    }
                  });
    platform_.one([&] {
      job_.is_ordered != 0 ? platform_.fence() : platform_.fence_near();
      platform_.count(job_.counter);
      // The job was read before the fence.
      platform_.template store<std::uint64_t>(
          reinterpret_cast<std::byte*>(&done_[number_ & (size_ - 1)]), number_ + 1);
    });
    has_number_ = has_job_ = false;
    return WorkerState::worked;
  }

 private:
  /// Of 32 lanes: a whole job, unless it is of a long message.
  static constexpr std::uint32_t kAtOnce = kChunkBytes / sizeof(Vector) / 32;

  enum class Seen : std::uint8_t { nothing, job, end };

  SHOAL_HOST_DEVICE Seen look(const Job& job) const {
    // Both loads are under way together.
    const auto end =
        platform_.template load<std::uint64_t>(reinterpret_cast<const std::byte*>(&ring_.end));
    if (platform_.load_word(&job.ready) == number_ + 1) return Seen::job;
    return end <= number_ ? Seen::end : Seen::nothing;
  }

  /// Whether the jobs before it that it has to follow are done. They have smaller numbers, so they
  /// do not wait for this one.
  SHOAL_HOST_DEVICE bool may_store() const {
    return job_.is_ordered == 0 || platform_.ask([&] {
      return has_reached(platform_.load_word(job_.counter), job_.after);
    }) != 0;
  }

  JobRing& ring_;
  const Job* const jobs_;
  std::uint64_t* const done_;
  const std::uint32_t size_;
  const Platform& platform_;
  std::uint64_t number_ = 0;
  Job job_;
  bool has_number_ = false, has_job_ = false;
};

}  // namespace shoal::emulator::gpu
