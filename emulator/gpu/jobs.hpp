// SPDX-License-Identifier: Apache-2.0
// jobs.hpp: the dispatcher's side of the jobs, and the link that they share. For host and device
// code; Platform: see dispatcher.hpp.
//
// Jobs are handed out before the link is free for them, each with the time at which it may begin:
// the dispatcher may be away for Timing::ahead without the link falling idle.
#pragma once

#include "gpu/execute.hpp"

namespace shoal::emulator::gpu {

/// The jobs of one request among those that are handed out together.
struct Share {
  std::uint64_t start = 0;   ///< of the first of them; 2^-16 ns
  std::uint32_t offset = 0;  ///< of the first of them, in the current part
  std::uint8_t request = 0;  ///< in the window
  std::uint8_t first = 0;    ///< number of the first of them
};

/// Memory of the dispatcher's own. Times are 2^-16 ns since its start.
struct JobScratch {
  std::uint64_t free_at = 0;     ///< when the link is free of all that is handed out
  std::uint64_t published = 0;   ///< jobs that workers know
  std::uint64_t written = 0;     ///< jobs
  std::uint64_t free_until = 0;  ///< jobs that have a slot
  std::uint32_t left = 0;        ///< requests of the window that have more to hand out
  bool is_booked = false;        ///< the link, as far as jobs may be handed out
  std::uint8_t share_of[32] = {};
  Share shares[32] = {};
};

template <typename Platform>
class Jobs {
 public:
  SHOAL_HOST_DEVICE Jobs(NicState& state, JobScratch& scratch, const Platform& platform)
      : timing_(state.timing),
        own_keys_(state.tables[0]),
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
    make_up(now);
    scratch_.free_at += bytes * timing_.byte_cost;
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
      const auto n =
          static_cast<std::uint32_t>(platform_.ask([&] { return plan(pair, wanted, room, now); }));
      platform_.lanes(n, [&](std::uint32_t i) {
        write_job(pair, i, counters, jobs_[(written + i) & (n_jobs_ - 1)]);
      });
      const auto failed = static_cast<std::uint32_t>(platform_.ask([&] {
        scratch_.written = written + n;
        return continue_parts(pair);
      }));
      if (failed != 0) return failed;
      wanted = scratch_.left;
      given += n;
      // Workers begin while the rest is written.
      if (scratch_.written - scratch_.published >= 2 * kLanes) publish();
      if (scratch_.is_booked) break;
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

  /// The link is not late by more than `burst`: only so much idle time is made up for.
  SHOAL_HOST_DEVICE void make_up(std::uint64_t now) {
    const std::uint64_t since = now - start_;
    const std::uint64_t earliest = since > timing_.burst ? (since - timing_.burst) << kShift : 0;
    if (scratch_.free_at < earliest) scratch_.free_at = earliest;
  }

  /// Jobs that may be handed out. Those of a strict queue pair wait for each other: more of them
  /// would keep workers from the jobs of others.
  SHOAL_HOST_DEVICE std::uint32_t room_of(const Pair& pair) const {
    if (pair.config.ordering != Ordering::strict) return kLanes;
    const std::uint32_t under_way = pair.jobs - pair.jobs_done;
    if (under_way >= kStrictJobs) return 0;
    return kStrictJobs - under_way < kLanes ? kStrictJobs - under_way : kLanes;
  }

  /// Divides up to `room` jobs among the requests `wanted`. Returns how many. By one lane.
  SHOAL_HOST_DEVICE std::uint32_t plan(Pair& pair, std::uint32_t wanted, std::uint32_t room,
                                       std::uint64_t now) {
    make_up(now);
    scratch_.is_booked = false;
    std::uint32_t jobs = 0;
    for (std::uint32_t share = 0; wanted != 0 && jobs < room; ++share) {
      const std::uint32_t number = lowest(wanted);
      Request& request = pair.at(pair.completed + number);
      const Chunks chunks(request);
      const std::uint32_t count = chunks.count();
      std::uint32_t taken = count < room - jobs ? count : room - jobs;
      const std::uint64_t start = scratch_.free_at;
      if (timing_.byte_cost != 0)
        for (const std::uint64_t end = horizon(now); taken != 0; --taken)
          if (start + (chunks.offset(taken - 1) - request.offset) * timing_.byte_cost <= end) break;
      if (is_strict(pair) && request.moved == 0 && request.offset == 0)
        request.before = request.jobs = pair.jobs;
      scratch_.shares[share] = {start, request.offset, static_cast<std::uint8_t>(number),
                                static_cast<std::uint8_t>(jobs)};
      for (std::uint32_t i = 0; i < taken; ++i)
        scratch_.share_of[jobs + i] = static_cast<std::uint8_t>(share);
      scratch_.free_at += std::uint64_t{chunks.offset(taken) - request.offset} * timing_.byte_cost;
      request.offset = chunks.offset(taken);
      request.jobs += taken;
      pair.jobs += taken;
      jobs += taken;
      scratch_.is_booked = taken < count && jobs < room;
      if (scratch_.is_booked || !request.all_handed_out()) break;
      wanted &= wanted - 1;
    }
    scratch_.left = wanted;
    return jobs;
  }

  SHOAL_HOST_DEVICE void write_job(const Pair& pair, std::uint32_t i, std::uint64_t* counters,
                                   Job& job) const {
    const Share& share = scratch_.shares[scratch_.share_of[i]];
    const Request& request = pair.at(pair.completed + share.request);
    const Chunks chunks(request, share.offset);
    const std::uint32_t chunk = i - share.first, offset = chunks.offset(chunk);
    std::byte* const local = request.local + offset;
    std::byte* const remote = request.remote + request.moved + offset;
    const bool reads = request.opcode == Opcode::read;
    job.to = reads ? local : remote;
    job.from = reads ? remote : local;
    job.counter = &counters[counter_of(pair, share.request)];
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
  const KeyTable own_keys_;
  std::uint64_t* const published_;
  Job* const jobs_;
  std::uint64_t* const done_;
  const std::uint32_t n_jobs_;
  JobScratch& scratch_;
  const Platform& platform_;
  std::uint64_t start_ = 0;
};

}  // namespace shoal::emulator::gpu
