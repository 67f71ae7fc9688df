// SPDX-License-Identifier: Apache-2.0
// jobs.hpp: a dispatcher's side of the jobs. For host and device code; Platform: see
// dispatcher.hpp.
//
// Jobs are handed out before the link is free for them, each with the time at which it may begin:
// a dispatcher may be away for Timing::ahead without the link falling idle.
#pragma once

#include "gpu/common.hpp"
#include "gpu/execute.hpp"

namespace shoal::emulator::gpu {

/// The jobs of one request of the window among those that are handed out together.
struct Share {
  std::uint32_t bytes = 0;   ///< handed out together with it, before it
  std::uint32_t offset = 0;  ///< of the first of them, in the current part
  std::uint8_t first = 0;    ///< number of the first of them
  std::uint8_t count = 0;
};

/// Memory of the dispatcher's own.
struct JobScratch {
  std::uint64_t number = 0;          ///< of the first of those that are handed out together
  std::uint64_t time = 0;            ///< when the link is free for it
  std::uint32_t left = 0;            ///< requests of the window that have more to hand out
  std::uint32_t firsts = 0;          ///< jobs that are the first of a request
  bool in_parts = false;             ///< one of them has further parts
  std::uint8_t request_of[32] = {};  ///< by such a job
  Share shares[32] = {};             ///< by request
};

template <typename Platform>
class Jobs {
 public:
  SHOAL_HOST_DEVICE Jobs(NicState& state, const Keys& own_keys, Common& common, JobScratch& scratch,
                         const Platform& platform)
      : own_keys_(own_keys),
        jobs_(state.ring.jobs),
        n_jobs_(state.ring.size),
        link_(common, platform),
        numbers_(state.ring, common, platform),
        scratch_(scratch),
        platform_(platform) {}

  SHOAL_HOST_DEVICE const Link<Platform>& link() const { return link_; }

  /// Hands out jobs of the requests `wanted` of the window, which are started, in their order.
  /// Returns the first request that fails since its memory is gone, as a bit.
  SHOAL_HOST_DEVICE std::uint32_t hand_out(Pair& pair, std::uint32_t wanted,
                                           std::uint64_t* counters, std::uint64_t now) {
    constexpr std::uint32_t kMostOfATurn = 128;
    for (std::uint32_t given = 0; wanted != 0 && given < kMostOfATurn;) {
      if (link_.is_booked(now)) break;
      const std::uint32_t room = numbers_.claim(room_of(pair));
      if (room == 0) break;
      const std::uint32_t n = plan(pair, wanted, room, now);
      platform_.lanes(n, [&](std::uint32_t i) {
        const std::uint64_t number = scratch_.number + i;
        Job& job = jobs_[number & (n_jobs_ - 1)];
        write_job(pair, i, counters, job);
        platform_.store_word(&job.ready, number + 1);
      });
      if (scratch_.in_parts) {
        const auto failed =
            static_cast<std::uint32_t>(platform_.ask([&] { return continue_parts(pair); }));
        if (failed != 0) return failed;  // it waits for the jobs of its earlier parts
      }
      wanted = scratch_.left;
      given += n;
    }
    return 0;
  }

 private:
  static constexpr std::uint32_t kLanes = 32;

  /// Jobs that may be handed out. Those of a strict queue pair wait for each other: more of them
  /// would keep workers from the jobs of others.
  SHOAL_HOST_DEVICE std::uint32_t room_of(const Pair& pair) const {
    if (pair.config.ordering != Ordering::strict) return kLanes;
    const std::uint32_t under_way = pair.jobs - pair.jobs_done;
    if (under_way >= kStrictJobs) return 0;
    return kStrictJobs - under_way < kLanes ? kStrictJobs - under_way : kLanes;
  }

  /// Divides up to `room` jobs, for which slots are claimed, among the requests `wanted`. Returns
  /// how many.
  SHOAL_HOST_DEVICE std::uint32_t plan(Pair& pair, std::uint32_t wanted, std::uint32_t room,
                                       std::uint64_t now) {
    const auto ahead = static_cast<std::uint32_t>(platform_.ask([&] { return link_.room(now); }));
    // Jobs of later parts are not known yet: nothing behind them.
    const std::uint32_t in_parts = platform_.mask(kLanes, [&](std::uint32_t i) {
      const Request& request = pair.at(pair.completed + i);
      return (wanted >> i & 1) != 0 && request.moved + request.part_bytes < request.bytes;
    });
    const std::uint32_t now_wanted =
        in_parts == 0 ? wanted : wanted & ((2U << lowest(in_parts)) - 1);
    platform_.scan(
        kLanes,
        [&](std::uint32_t i) {
          return (now_wanted >> i & 1) == 0 ? 0 : planned(pair.at(pair.completed + i));
        },
        [&](std::uint32_t i, std::uint32_t before) {
          scratch_.shares[i].count = 0;
          if ((now_wanted >> i & 1) == 0) return;
          const std::uint32_t jobs = before >> kUnitBits,
                              bytes = (before & ((1U << kUnitBits) - 1)) * kUnit;
          share_out(pair, i, jobs, bytes, ahead < bytes ? 0 : ahead - bytes,
                    room < jobs ? 0 : room - jobs);
        });
    const auto ends = platform_.template masks<2>(kLanes, [&](std::uint32_t i) -> std::uint32_t {
      const bool is_left =
          (now_wanted >> i & 1) != 0 && !pair.at(pair.completed + i).all_handed_out();
      return (scratch_.shares[i].count != 0 ? 1 : 0) | (is_left ? 2 : 0);
    });
    const auto firsts = static_cast<std::uint32_t>(platform_.sum(kLanes, [&](std::uint32_t i) {
      return (ends.at[0] >> i & 1) == 0 ? 0 : 1U << scratch_.shares[i].first;
    }));
    return static_cast<std::uint32_t>(platform_.ask([&]() -> std::uint32_t {
      scratch_.left = (wanted & ~now_wanted) | ends.at[1];
      scratch_.firsts = firsts;
      scratch_.in_parts = in_parts != 0;
      std::uint32_t jobs = 0;
      if (ends.at[0] != 0) {
        const std::uint32_t last = highest(ends.at[0]);
        const Share& share = scratch_.shares[last];
        jobs = share.first + share.count;
        scratch_.time =
            link_.take(share.bytes + pair.at(pair.completed + last).offset - share.offset, now);
        pair.jobs += jobs;
      }
      scratch_.number = numbers_.take(jobs, room);
      return jobs;
    }));
  }

  /// What is left of the current part of a request, as one word: jobs and units of bytes. Sums over
  /// a window do not overflow. Too few where it alone has more jobs than can be handed out.
  static constexpr std::uint32_t kUnit = 16, kUnitBits = 21, kMostUnits = 0xffff;
  SHOAL_HOST_DEVICE static std::uint32_t planned(const Request& request) {
    const std::uint32_t count = Chunks(request).count(),
                        units = (request.part_bytes - request.offset + kUnit - 1) / kUnit;
    return (count < kLanes ? count : kLanes) << kUnitBits |
           (units < kMostUnits ? units : kMostUnits);
  }

  /// Hands out jobs of one request, at most `room`, those that begin among the next `left` bytes;
  /// `jobs` with `bytes` are handed out before them. By one lane.
  SHOAL_HOST_DEVICE void share_out(Pair& pair, std::uint32_t number, std::uint32_t jobs,
                                   std::uint32_t bytes, std::uint32_t left, std::uint32_t room) {
    Request& request = pair.at(pair.completed + number);
    const Chunks chunks(request);
    const std::uint32_t begun = left == 0 ? 0 : chunks.begun(left - 1);
    std::uint32_t count = chunks.count();
    if (count > room) count = room;
    if (count > begun) count = begun;
    // Without jobs, the jobs before it may be fewer than are planned.
    if (is_strict(pair) && request.moved == 0 && request.offset == 0 && count != 0)
      request.before = request.jobs = pair.jobs + jobs;
    scratch_.shares[number] = {bytes, request.offset, static_cast<std::uint8_t>(jobs),
                               static_cast<std::uint8_t>(count)};
    if (count != 0) scratch_.request_of[jobs] = static_cast<std::uint8_t>(number);
    request.offset = chunks.offset(count);
    request.jobs += count;
  }

  SHOAL_HOST_DEVICE void write_job(const Pair& pair, std::uint32_t i, std::uint64_t* counters,
                                   Job& job) const {
    const std::uint32_t number = scratch_.request_of[highest(scratch_.firsts & ((2U << i) - 1))];
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
    job.start = link_.clock(scratch_.time, share.bytes + offset - share.offset);
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

  const Keys own_keys_;
  Job* const jobs_;
  const std::uint32_t n_jobs_;
  const Link<Platform> link_;
  const JobNumbers<Platform> numbers_;
  JobScratch& scratch_;
  const Platform& platform_;
};

}  // namespace shoal::emulator::gpu
