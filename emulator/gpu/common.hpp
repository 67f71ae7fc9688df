// SPDX-License-Identifier: Apache-2.0
// common.hpp: what the dispatchers of one NIC on a GPU share: the link, the numbers of jobs, and
// what the owner asks for. For host and device code; Platform: see dispatcher.hpp.
//
// The first dispatcher looks at the words of the owner, which are far away; the others look at what
// it has found.
//
// Code that one lane executes has no loops: on a GPU the lanes of a warp stay apart after a loop of
// one of them, and whatever all lanes do together then takes about three times as long.
#pragma once

#include "gpu/bits.hpp"
#include "gpu/state.hpp"

namespace shoal::emulator::gpu {

/// What all dispatchers have to do after their current step.
enum class Ending : std::uint64_t { none, slice, stop };

/// In memory of the block of the dispatchers. Words that more than one of them changes are accessed
/// by atomics. Times of the link are 2^-16 ns since the start.
struct Common {
  Timing timing;
  std::uint64_t start = 0;       ///< of the clock of the NIC
  std::uint64_t free_at = 0;     ///< when the link is free of all that is handed out
  std::uint64_t claimed = 0;     ///< slots of jobs that are written or about to be
  std::uint64_t written = 0;     ///< jobs that have numbers
  std::uint64_t free_until = 0;  ///< jobs that have a slot
  std::uint64_t n_pairs = 0;
  std::uint64_t ending = 0;                 ///< Ending
  std::uint64_t open = 0;                   ///< dispatchers that have not closed
  std::uint64_t produced[kMostPairs] = {};  ///< entries by completion queue, which one of them has
  // Of the first dispatcher:
  std::uint64_t next_check = 0, heartbeat = 0, heartbeat_at = 0;
  std::uint64_t slice_end = 0;
};

/// Begins or continues. By one lane, before there is a dispatcher.
template <typename Platform>
SHOAL_HOST_DEVICE void begin(const NicState& state, Common& common, std::uint32_t dispatchers,
                             const Platform& platform) {
  const std::uint64_t now = platform.now();
  if (state.resumes != 0) {
    common = *reinterpret_cast<const Common*>(state.saved);
    // Then what is saved may be older than the last slice.
    const bool has_stopped = platform.load_far(&state.control->stop) != 0 ||
                             platform.load_far(&state.control->stopped) != 0;
    common.ending = static_cast<std::uint64_t>(has_stopped ? Ending::stop : Ending::none);
  } else {
    common = {};
    common.timing = state.timing;
    constexpr std::uint64_t kOne = std::uint64_t{1} << 32;
    const std::uint64_t cost = common.timing.byte_cost;
    common.timing.cost_inverse = cost < 2 ? kOne - 1 : kOne / cost;
    common.start = common.heartbeat_at = now;
    common.n_pairs = platform.load_far(&state.n_pairs);
  }
  common.next_check = now;
  common.slice_end = now + common.timing.slice;
  common.open = dispatchers;
}

/// Looks at the words of the owner if it is time for that. By one lane of the first dispatcher.
template <typename Platform>
SHOAL_HOST_DEVICE SHOAL_RARE void check_owner(Platform platform, const NicState& state,
                                              Common& common, std::uint64_t now) {
  constexpr std::uint64_t kPeriod = 100'000;
  const Timing& timing = common.timing;
  Control& control = *state.control;
  const auto load = [&](const std::uint64_t& word) {
    return platform.template load<std::uint64_t>(reinterpret_cast<const std::byte*>(&word));
  };
  // Far away: the loads are under way together.
  const std::uint64_t heartbeat = load(control.heartbeat), stop = load(control.stop);
  const std::uint64_t n_pairs = platform.load_far(&state.n_pairs);
  if (n_pairs != common.n_pairs) platform.store_shared(&common.n_pairs, n_pairs);
  if (heartbeat != common.heartbeat) {
    common.heartbeat = heartbeat;
    common.heartbeat_at = now;
  }
  Stopped stopped = Stopped::no;
  if (stop != 0)
    stopped = Stopped::by_owner;
  else if (timing.owner_timeout != 0 && now - common.heartbeat_at > timing.owner_timeout)
    stopped = Stopped::owner_silent;
  else if (now - common.start > timing.lifetime)
    stopped = Stopped::lifetime;
  common.next_check = now + kPeriod;
  Ending ending = Ending::none;
  if (stopped != Stopped::no) {
    platform.store_far(&control.stopped, static_cast<std::uint64_t>(stopped));
    ending = Ending::stop;
  } else if (timing.slice != 0 && now >= common.slice_end) {
    ending = Ending::slice;
  }
  if (ending != Ending::none)
    platform.store_shared(&common.ending, static_cast<std::uint64_t>(ending));
}

/// The link that all messages of the NIC share.
template <typename Platform>
class Link {
 public:
  SHOAL_HOST_DEVICE Link(Common& common, const Platform& platform)
      : common_(common), platform_(platform) {}

  /// Whether nothing can be handed out: the link has enough to do. By all lanes.
  SHOAL_HOST_DEVICE bool is_booked(std::uint64_t now) const {
    return common_.timing.byte_cost != 0 && platform_.ask([&] {
      return platform_.load_shared(&common_.free_at) > horizon(now);
    }) != 0;
  }

  /// Bytes that may be handed out now: more or less where other dispatchers take the link at the
  /// same time. By one lane.
  SHOAL_HOST_DEVICE std::uint32_t room(std::uint64_t now) const {
    constexpr std::uint64_t kMost = 0xffffffff;
    if (common_.timing.byte_cost == 0) return kMost;
    const std::uint64_t free = platform_.load_shared(&common_.free_at), first = earliest(now),
                        from = free < first ? first : free, until = horizon(now);
    if (from > until) return 0;
    const std::uint64_t left = until - from < kMost ? until - from : kMost;
    return static_cast<std::uint32_t>(1 + (left * common_.timing.cost_inverse >> 32));
  }

  /// Takes the link for so many bytes. When it is free for the first of them, in the time of the
  /// link. By one lane.
  SHOAL_HOST_DEVICE std::uint64_t take(std::uint64_t bytes, std::uint64_t now) const {
    if (common_.timing.byte_cost == 0) return 0;
    // Where the exchange fails, the next call makes up for it.
    std::uint64_t free = platform_.load_shared(&common_.free_at);
    if (free < earliest(now)) (void)platform_.replace_shared(&common_.free_at, free, earliest(now));
    return platform_.add_shared(&common_.free_at, bytes * common_.timing.byte_cost);
  }

  /// The clock's time of `bytes` bytes after a time of the link; 0: at once.
  SHOAL_HOST_DEVICE std::uint64_t clock(std::uint64_t time, std::uint64_t bytes) const {
    const std::uint64_t cost = common_.timing.byte_cost;
    return cost == 0 ? 0 : common_.start + ((time + bytes * cost) >> kShift);
  }

 private:
  static constexpr unsigned kShift = 16;

  SHOAL_HOST_DEVICE std::uint64_t horizon(std::uint64_t now) const {
    return (now - common_.start + common_.timing.ahead) << kShift;
  }
  /// When a link that is idle is free: only so much idle time is made up for.
  SHOAL_HOST_DEVICE std::uint64_t earliest(std::uint64_t now) const {
    const std::uint64_t since = now - common_.start, burst = common_.timing.burst;
    return since > burst ? (since - burst) << kShift : 0;
  }

  Common& common_;
  const Platform& platform_;
};

/// The numbers of jobs, and the slots of their ring. A dispatcher claims slots, and takes numbers
/// for as many of them as it needs: written <= claimed <= free_until.
template <typename Platform>
class JobNumbers {
 public:
  SHOAL_HOST_DEVICE JobNumbers(const JobRing& ring, Common& common, const Platform& platform)
      : done_(ring.done), size_(ring.size), common_(common), platform_(platform) {}

  /// Up to `wanted` slots, at most 32, whose last jobs are done.
  SHOAL_HOST_DEVICE std::uint32_t claim(std::uint32_t wanted) const {
    if (wanted == 0) return 0;
    const std::uint32_t n = claim_known(wanted);
    if (n != 0) return n;
    find_free();
    return claim_known(wanted);
  }

  /// The number of the first of `used` jobs, of `claimed` claimed slots. By one lane.
  SHOAL_HOST_DEVICE std::uint64_t take(std::uint32_t used, std::uint32_t claimed) const {
    const std::uint64_t first = platform_.add_shared(&common_.written, used);
    if (used != claimed) platform_.add_shared(&common_.claimed, std::uint64_t{used} - claimed);
    return first;
  }

 private:
  static constexpr std::uint32_t kLanes = 32;

  SHOAL_HOST_DEVICE std::uint32_t claim_known(std::uint32_t wanted) const {
    return static_cast<std::uint32_t>(platform_.ask([&]() -> std::uint64_t {
      // All that are claimed count for the others before it is known how many there are.
      const std::uint64_t before = platform_.add_shared(&common_.claimed, wanted);
      const std::uint64_t until = platform_.load_shared(&common_.free_until);
      const std::uint64_t left = before < until ? until - before : 0;
      if (left >= wanted) return wanted;
      platform_.add_shared(&common_.claimed, left - wanted);
      return left;
    }));
  }

  SHOAL_HOST_DEVICE void find_free() const {
    constexpr std::uint32_t kMostOfALane = 4;
    const std::uint64_t from =
        platform_.ask([&] { return platform_.load_shared(&common_.free_until); });
    const std::uint32_t share = size_ / kLanes;
    const std::uint32_t of_a_lane = share == 0 ? 1 : (share < kMostOfALane ? share : kMostOfALane);
    const std::uint32_t free = platform_.mask(kLanes, [&](std::uint32_t i) {
      bool is_free = i < size_;
      for (std::uint32_t j = 0; j < of_a_lane; ++j)
        is_free = is_free && last_is_done(from + i * of_a_lane + j);
      return is_free;
    });
    const std::uint64_t until = from + of_a_lane * (free == ~0U ? kLanes : lowest(~free));
    if (until == from) return;
    platform_.one([&] {  // where it fails, another dispatcher has found them
      std::uint64_t seen = from;
      (void)platform_.replace_shared(&common_.free_until, seen, until);
    });
  }

  SHOAL_HOST_DEVICE bool last_is_done(std::uint64_t number) const {
    return number < size_ ||
           platform_.load_word(&done_[number & (size_ - 1)]) == number - size_ + 1;
  }

  const std::uint64_t* const done_;
  const std::uint32_t size_;
  Common& common_;
  const Platform& platform_;
};

}  // namespace shoal::emulator::gpu
