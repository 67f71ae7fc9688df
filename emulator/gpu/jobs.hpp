// SPDX-License-Identifier: Apache-2.0
// jobs.hpp: the dispatcher's side of the jobs, and the link that they share. For host and device
// code; Platform: see dispatcher.hpp.
//
// Jobs are handed out before the link is free for them, each with the time at which it may begin:
// the dispatcher may be away for Timing::ahead without the link falling idle.
#pragma once

#include "gpu/execute.hpp"

namespace shoal::emulator::gpu {

/// The jobs of one request of the window among those that are handed out together.
struct Share {
  std::uint64_t start = 0;   ///< of the first of them; 2^-16 ns
  std::uint32_t offset = 0;  ///< of the first of them, in the current part
  std::uint8_t first = 0;    ///< number of the first of them
  std::uint8_t count = 0;
};

/// Memory of the dispatcher's own. Times are 2^-16 ns since its start.
struct JobScratch {
  std::uint64_t free_at = 0;         ///< when the link is free of all that is handed out
  std::uint64_t published = 0;       ///< jobs that workers know
  std::uint64_t written = 0;         ///< jobs
  std::uint64_t free_until = 0;      ///< jobs that have a slot
  std::uint32_t left = 0;            ///< requests of the window that have more to hand out
  std::uint8_t request_of[32] = {};  ///< by job
  Share shares[32] = {};             ///< by request
};

template <typename Platform>
class Jobs {
 public:
  SHOAL_HOST_DEVICE Jobs(NicState& state, const Keys& own_keys, JobScratch& scratch,
                         const Platform& platform)
      : timing_(state.timing),
        own_keys_(own_keys),
        published_(&state.ring.published),
        jobs_(state.ring.jobs),
        done_(state.ring.done),
        n_jobs_(state.ring.size),
        scratch_(scratch),
        platform_(platform) {}

  /// Of the dispatcher's clock. By all lanes.
  SHOAL_HOST_DEVICE void set_start(std::uint64_t start) { start_ = start; }

  /// Whether nothing can be handed out: the link has enough to do.
  SHOAL_HOST_DEVICE bool is_booked(std::uint64_t now) const {
    return timing_.byte_cost != 0 && scratch_.free_at > horizon(now);
  }

  /// Takes the link for messages that are moved at once. By one lane.
  SHOAL_HOST_DEVICE void take_link(std::uint64_t bytes, std::uint64_t now) {
    scratch_.free_at = free_at(now) + bytes * timing_.byte_cost;
  }

  /// Hands out jobs of the requests `wanted` of the window, which are started, in their order.
  /// Returns the first request that fails since its memory is gone, as a bit.
  SHOAL_HOST_DEVICE std::uint32_t hand_out(Pair& pair, std::uint32_t wanted,
                                           std::uint64_t* counters, std::uint64_t now) {
    constexpr std::uint32_t kMostOfATurn = 128;
    for (std::uint32_t given = 0; wanted != 0 && given < kMostOfATurn;) {
      const std::uint32_t slots = free_slots(), left = room_of(pair);
      const std::uint32_t room = slots < left ? slots : left;
      if (room == 0 || is_booked(now)) break;
      const std::uint64_t written = scratch_.written;
      const std::uint32_t n = plan(pair, wanted, room, now);
      platform_.lanes(n, [&](std::uint32_t i) {
        write_job(pair, i, counters, jobs_[(written + i) & (n_jobs_ - 1)]);
      });
      const auto failed = static_cast<std::uint32_t>(platform_.ask([&] {
        scratch_.written = written + n;
        return continue_parts(pair);
      }));
      if (failed != 0) {  // it waits for the jobs of its earlier parts
        publish();
        return failed;
      }
      wanted = scratch_.left;
      given += n;
      // Workers begin while the rest is written.
      if (scratch_.written - scratch_.published >= 2 * kLanes) publish();
    }
    publish();
    return 0;
  }

  /// After the last job: workers end when all of them are done.
  SHOAL_HOST_DEVICE void close() {
    platform_.one([&] { platform_.store_word(published_, scratch_.published | kClosed); });
  }

 private:
  static constexpr std::uint32_t kLanes = 32;
  static constexpr unsigned kShift = 16;

  SHOAL_HOST_DEVICE std::uint64_t horizon(std::uint64_t now) const {
    return (now - start_ + timing_.ahead) << kShift;
  }

  /// When the link is free. It is not late by more than `burst`: only so much idle time is made up
  /// for.
  SHOAL_HOST_DEVICE std::uint64_t free_at(std::uint64_t now) const {
    const std::uint64_t since = now - start_;
    const std::uint64_t earliest = since > timing_.burst ? (since - timing_.burst) << kShift : 0;
    return scratch_.free_at < earliest ? earliest : scratch_.free_at;
  }

  /// Jobs that may be handed out. Those of a strict queue pair wait for each other: more of them
  /// would keep workers from the jobs of others.
  SHOAL_HOST_DEVICE std::uint32_t room_of(const Pair& pair) const {
    if (pair.config.ordering != Ordering::strict) return kLanes;
    const std::uint32_t under_way = pair.jobs - pair.jobs_done;
    if (under_way >= kStrictJobs) return 0;
    return kStrictJobs - under_way < kLanes ? kStrictJobs - under_way : kLanes;
  }

  /// Divides up to `room` jobs among the requests `wanted`. Returns how many.
  SHOAL_HOST_DEVICE std::uint32_t plan(Pair& pair, std::uint32_t wanted, std::uint32_t room,
                                       std::uint64_t now) {
    constexpr unsigned kBytesBits = 48;
    const std::uint64_t start = free_at(now);
    const std::uint64_t ahead =  // bytes that may be handed out
        timing_.byte_cost == 0 ? kMostMessageBytes * kLanes
                               : (horizon(now) - start) / timing_.byte_cost;
    // Jobs of later parts are not known yet: nothing behind them.
    const std::uint32_t in_parts = platform_.mask(kLanes, [&](std::uint32_t i) {
      const Request& request = pair.at(pair.completed + i);
      return (wanted >> i & 1) != 0 && request.moved + request.part_bytes < request.bytes;
    });
    const std::uint32_t now_wanted =
        in_parts == 0 ? wanted : wanted & ((2U << lowest(in_parts)) - 1);
    platform_.scan(
        kLanes,
        [&](std::uint32_t i) -> std::uint64_t {
          if ((now_wanted >> i & 1) == 0) return 0;
          const Request& request = pair.at(pair.completed + i);
          const std::uint32_t count = Chunks(request).count();
          return std::uint64_t{count < kLanes ? count : kLanes} << kBytesBits |
                 (request.part_bytes - request.offset);
        },
        [&](std::uint32_t i, std::uint64_t before) {
          const auto jobs = static_cast<std::uint32_t>(before >> kBytesBits);
          const std::uint64_t bytes = before & ((std::uint64_t{1} << kBytesBits) - 1);
          scratch_.shares[i].count = 0;
          if ((now_wanted >> i & 1) == 0) return;
          const std::uint64_t left = ahead < bytes ? 0 : 1 + ahead - bytes;
          share_out(pair, i, jobs, start + bytes * timing_.byte_cost, left,
                    room < jobs ? 0 : room - jobs);
        });
    const auto ends = platform_.template masks<2>(kLanes, [&](std::uint32_t i) -> std::uint32_t {
      const bool is_left =
          (now_wanted >> i & 1) != 0 && !pair.at(pair.completed + i).all_handed_out();
      return (scratch_.shares[i].count != 0 ? 1 : 0) | (is_left ? 2 : 0);
    });
    return static_cast<std::uint32_t>(platform_.ask([&]() -> std::uint32_t {
      scratch_.left = (wanted & ~now_wanted) | ends.at[1];
      if (ends.at[0] == 0) return 0;
      const std::uint32_t last = highest(ends.at[0]);
      const Share& share = scratch_.shares[last];
      const std::uint32_t jobs = share.first + share.count;
      scratch_.free_at =
          share.start + (pair.at(pair.completed + last).offset - share.offset) * timing_.byte_cost;
      pair.jobs += jobs;
      return jobs;
    }));
  }

  /// Hands out jobs of one request, at most `room`, those that begin among the next `bytes` bytes;
  /// `jobs` are handed out before them, and the link is free for them at `start`. By one lane.
  SHOAL_HOST_DEVICE void share_out(Pair& pair, std::uint32_t number, std::uint32_t jobs,
                                   std::uint64_t start, std::uint64_t bytes, std::uint32_t room) {
    Request& request = pair.at(pair.completed + number);
    const Chunks chunks(request);
    const std::uint64_t begun = bytes == 0 ? 0 : chunks.begun(bytes - 1);
    std::uint32_t count = chunks.count();
    if (count > room) count = room;
    if (count > begun) count = static_cast<std::uint32_t>(begun);
    // Without jobs, the jobs before it may be fewer than are planned.
    if (is_strict(pair) && request.moved == 0 && request.offset == 0 && count != 0)
      request.before = request.jobs = pair.jobs + jobs;
    scratch_.shares[number] = {start, request.offset, static_cast<std::uint8_t>(jobs),
                               static_cast<std::uint8_t>(count)};
    for (std::uint32_t i = 0; i < count; ++i)
      scratch_.request_of[jobs + i] = static_cast<std::uint8_t>(number);
    request.offset = chunks.offset(count);
    request.jobs += count;
  }

  SHOAL_HOST_DEVICE void write_job(const Pair& pair, std::uint32_t i, std::uint64_t* counters,
                                   Job& job) const {
    const std::uint32_t number = scratch_.request_of[i];
    const Share& share = scratch_.shares[number];
    const Request& request = pair.at(pair.completed + number);
    const Chunks chunks(request, share.offset);
    const std::uint32_t chunk = i - share.first, offset = chunks.offset(chunk);
    std::byte* const local = request.local + offset;
    std::byte* const remote = request.remote + request.moved + offset;
    const bool reads = request.opcode == Opcode::read;
    job.to = reads ? local : remote;
    job.from = reads ? remote : local;
    job.counter = &counters[counter_of(pair, number)];
    job.bytes = chunks.bytes(chunk);
    job.after = request.before;
    job.is_ordered = is_strict(pair) ? 1 : 0;
    job.start =
        timing_.byte_cost == 0
            ? 0
            : start_ + ((share.start + (offset - share.offset) * timing_.byte_cost) >> kShift);
  }

  /// Where the current part of the first request that is left is handed out, makes its next part
  /// the current one. Returns the request as a bit where that fails. By one lane.
  SHOAL_HOST_DEVICE std::uint32_t continue_parts(Pair& pair) {
    if (scratch_.left == 0) return 0;
    Request& request = pair.at(pair.completed + lowest(scratch_.left));
    if (request.offset != request.part_bytes || request.all_handed_out()) return 0;
    next_part(platform_, pair.config, own_keys_, request);
    return request.syndrome == Syndrome::none ? 0 : 1U << lowest(scratch_.left);
  }

  /// Slots of the ring of jobs that may be written, at most 32. Their last jobs are done.
  SHOAL_HOST_DEVICE std::uint32_t free_slots() {
    constexpr std::uint32_t kMostOfALane = 4;
    const std::uint64_t written = scratch_.written;
    auto known = static_cast<std::uint32_t>(scratch_.free_until - written);
    if (known == 0) {
      const std::uint32_t share = n_jobs_ / kLanes;
      const std::uint32_t of_a_lane =
          share == 0 ? 1 : (share < kMostOfALane ? share : kMostOfALane);
      const std::uint32_t free = platform_.mask(kLanes, [&](std::uint32_t i) {
        bool is_free = i < n_jobs_;
        for (std::uint32_t j = 0; j < of_a_lane; ++j)
          is_free = is_free && last_is_done(written + i * of_a_lane + j);
        return is_free;
      });
      known = of_a_lane * (free == ~0U ? kLanes : lowest(~free));
      platform_.one([&] { scratch_.free_until = written + known; });
    }
    return known < kLanes ? known : kLanes;
  }

  SHOAL_HOST_DEVICE bool last_is_done(std::uint64_t number) const {
    return number < n_jobs_ ||
           platform_.load_word(&done_[number & (n_jobs_ - 1)]) == number - n_jobs_ + 1;
  }

  /// Makes the jobs that are written known to the workers.
  SHOAL_HOST_DEVICE void publish() {
    if (scratch_.published == scratch_.written) return;
    platform_.one([&] {
      scratch_.published = scratch_.written;
      platform_.store_word(published_, scratch_.written);
    });
  }

  const Timing timing_;
  const Keys own_keys_;
  std::uint64_t* const published_;
  Job* const jobs_;
  std::uint64_t* const done_;
  const std::uint32_t n_jobs_;
  JobScratch& scratch_;
  const Platform& platform_;
  std::uint64_t start_ = 0;
};

}  // namespace shoal::emulator::gpu
