// SPDX-License-Identifier: Apache-2.0
// dispatcher.hpp: the NIC on a GPU: warps that read doorbell records and requests, keep the order
// that each queue pair guarantees, and write completions. They move small messages and execute
// atomics themselves; workers (worker.hpp) copy the others. Each queue pair belongs to one
// dispatcher, together with all others of its completion queue; they share what is in common.hpp.
// For host and device code.
//
// A request is fetched (read and checked), issued (on its way; `time` is when it reaches the
// peer), started (jobs of it are handed out), executed, and complete when its acknowledgement is
// back. In each of these the requests of a queue pair keep their order, except that writes are
// executed in any order unless the queue pair is strict.
//
// A Platform has, besides what copy.hpp needs:
//   lanes(n, f)            calls f(i) for all i < n, each by one lane
//   mask(n, f)             the bits i < n for which f(i) holds; n is at most 32
//   masks<k>(n, f)         at[j]: the bits i < n for which f(i) has bit j
//   sum(n, f)              of f(i), 32 bits each; n is at most 32
//   scan(n, f, g)          calls g(i, sum of f(j) for all j < i), 32 bits, each by one lane; n is
//                          at most 32
//   one(f), ask(f)         calls f by one lane; ask() returns its result to all
//   load_word(w), store_word(w, v)   words of the NIC: acquire, release
//   load_shared(w), store_shared(w, v), add_shared(w, v), replace_shared(w, seen, v)
//                          words of the dispatchers: acquire, release, both
//   count(w)               adds 1 to a word of the NIC, after fence()
//   load_far(w), store_far(w, v)   words that hosts and other GPUs access as well
//   load_record(w)         a doorbell record: acquire
//   add_far, replace_far   atomics without order, on memory of the peer as well
//   fence()                what this lane and those before it have stored becomes visible to all
//                          before what it stores later
//   fence_near()           the same, visible to this GPU
//   now(), pause()         nanoseconds; between two looks
// All of them order memory among the lanes.
#pragma once

#include "gpu/jobs.hpp"

namespace shoal::emulator::gpu {

/// What a dispatcher keeps, in memory of its own.
struct Scratch {
  std::uint64_t n_pairs = 0;  ///< known to it
  JobScratch jobs;
  KeyCache keys;
};

template <typename Platform>
class Dispatcher {
 public:
  /// Number `index` of `count`, the same count in all slices. `state`, `common`, which has begun,
  /// and `pairs` are those of all; `pairs` has room for as many as state.n_pairs will ever be.
  SHOAL_HOST_DEVICE Dispatcher(NicState& state, Common& common, Scratch& scratch, Pair* pairs,
                               std::uint32_t index, std::uint32_t count, const Platform& platform)
      : timing_(common.timing),
        state_(state),
        index_(index),
        count_(count),
        own_keys_{state.tables[0], &scratch.keys},
        counters_(state.counters),
        reports_(state.reports),
        common_(common),
        scratch_(scratch),
        pairs_(pairs),
        platform_(platform),
        jobs_(state, own_keys_, common, scratch.jobs, platform) {
    if (state.resumes == 0) {
      platform_.one([&] { scratch_ = {}; });
      const auto n = platform_.ask([&] { return platform_.load_shared(&common_.n_pairs); });
      take_pairs(static_cast<std::uint32_t>(n), false);
    } else {  // those that have come since are not saved
      move(state_.saved + sizeof(Common) + index_ * sizeof(Scratch), &scratch_, sizeof(Scratch));
      take_pairs(static_cast<std::uint32_t>(scratch_.n_pairs), true);
    }
  }

  /// Bytes of NicState::saved for so many queue pairs.
  static constexpr std::size_t saved_bytes(std::size_t pairs) {
    return sizeof(Common) + kMostDispatchers * sizeof(Scratch) + pairs * sizeof(Pair);
  }

  /// Serves each of its queue pairs once. False: it has to close.
  SHOAL_HOST_DEVICE bool step() {
    const std::uint64_t time = platform_.now();  // read while look() loads
    std::uint32_t busy = look_from(0);
    now_ = platform_.ask([&] { return time; });
    if (!may_go_on()) return false;
    for (std::uint32_t base = 0; base < n_pairs_; base += kLanes) {
      if (base != 0) busy = look_from(base);
      if (scratch_.keys.seen_changes != scratch_.keys.changes) forget_keys();
      for (; busy != 0; busy &= busy - 1) serve(base + lowest(busy));
    }
    return true;
  }

  /// After the last step. When all dispatchers have closed, workers end after the last job. At the
  /// end of a slice, saves what the next dispatcher goes on with. Where the NIC had stopped before,
  /// what was restored may be older than the reports.
  SHOAL_HOST_DEVICE void close() {
    platform_.lanes(has_served_ ? n_pairs_ : 0, [&](std::uint32_t i) {
      if (is_mine(i)) reports_[i] = pairs_[i].report;
    });
    const bool ends_slice = platform_.ask([&] { return platform_.load_shared(&common_.ending); }) ==
                            static_cast<std::uint64_t>(Ending::slice);
    if (ends_slice) {
      move(&scratch_, state_.saved + sizeof(Common) + index_ * sizeof(Scratch), sizeof(Scratch));
      for (std::uint32_t i = 0; i < n_pairs_; ++i)
        if (is_mine(i)) move(&pairs_[i], saved_pair(i), sizeof(Pair));
    }
    platform_.one([&] {
      if (platform_.add_shared(&common_.open, ~std::uint64_t{0}) != 1) return;
      platform_.store_word(&state_.ring.end, platform_.load_shared(&common_.written));
      if (!ends_slice) return;
      *reinterpret_cast<Common*>(state_.saved) = common_;
      platform_.store_far(&state_.control->slices, state_.control->slices + 1);
    });
  }

 private:
  static constexpr std::uint32_t kLanes = 32;
  static constexpr int kRounds = 8;

  SHOAL_HOST_DEVICE std::byte* saved_pair(std::uint32_t i) const {
    return state_.saved + sizeof(Common) + kMostDispatchers * sizeof(Scratch) + i * sizeof(Pair);
  }

  /// `bytes` is a multiple of 8. Kernels lie between: no order is needed.
  SHOAL_HOST_DEVICE void move(const void* from, void* to, std::size_t bytes) const {
    static_assert(sizeof(Scratch) % 8 == 0 && sizeof(Pair) % 8 == 0 && sizeof(Common) % 8 == 0);
    platform_.lanes(static_cast<std::uint32_t>(bytes / 8), [&](std::uint32_t i) {
      static_cast<std::uint64_t*>(to)[i] = static_cast<const std::uint64_t*>(from)[i];
    });
  }

  SHOAL_HOST_DEVICE void read_clock() {
    now_ = platform_.ask([&] { return platform_.now(); });
  }

  SHOAL_HOST_DEVICE bool is_mine(std::uint32_t number) const { return (mine_ >> number & 1) != 0; }
  /// Whether this dispatcher has the queue pairs of a completion queue. Those that follow each
  /// other go to different dispatchers, and so do those with a distance of 2, 4 or 8: clients may
  /// use one of so many for each peer.
  SHOAL_HOST_DEVICE bool has(std::uint32_t completions) const {
    return (completions + completions / count_) % count_ == index_;
  }

  /// Queue pairs up to `n`, which are new or were saved by the last slice.
  SHOAL_HOST_DEVICE void take_pairs(std::uint32_t n, bool are_saved) {
    for (std::uint32_t base = n_pairs_; base < n; base += kLanes) {
      const std::uint32_t left = n - base;
      const std::uint32_t mine =
          platform_.mask(left < kLanes ? left : kLanes, [&](std::uint32_t i) {
            const bool its = has(state_.pairs[base + i].completions);
            if (its && !are_saved) initialize(state_, base + i, pairs_[base + i]);
            return its;
          });
      mine_ |= std::uint64_t{mine} << base;
    }
    if (are_saved)
      for (std::uint32_t i = n_pairs_; i < n; ++i)
        if (is_mine(i)) move(saved_pair(i), &pairs_[i], sizeof(Pair));
    n_pairs_ = n;
    platform_.one([&] { scratch_.n_pairs = n; });
  }

  SHOAL_HOST_DEVICE bool may_go_on() {
    constexpr unsigned kEndingShift = 32;
    const std::uint64_t asked = platform_.ask([&] {
      if (index_ == 0 && now_ >= common_.next_check) check_owner(platform_, state_, common_, now_);
      return platform_.load_shared(&common_.ending) << kEndingShift |
             platform_.load_shared(&common_.n_pairs);
    });
    if (asked >> kEndingShift != 0) return false;
    has_served_ = true;
    const auto n = static_cast<std::uint32_t>(asked);
    if (n != n_pairs_) take_pairs(n, false);
    return true;
  }

  /// In any order.
  SHOAL_HOST_DEVICE std::uint64_t load(const std::uint64_t& word) const {
    return platform_.template load<std::uint64_t>(reinterpret_cast<const std::byte*>(&word));
  }

  SHOAL_HOST_DEVICE void forget_keys() {
    platform_.lanes(KeyCache::kEntries, [&](std::uint32_t i) { scratch_.keys.at[i] = nullptr; });
    platform_.one([&] {
      scratch_.keys.missed = nullptr;
      scratch_.keys.changes = platform_.load_far(&state_.key_changes);
    });
  }

  /// Those of 32 queue pairs that have something to do.
  SHOAL_HOST_DEVICE std::uint32_t look_from(std::uint32_t base) {
    const auto mine = static_cast<std::uint32_t>(mine_ >> base);
    if (mine == 0) return 0;
    return platform_.mask(kLanes, [&](std::uint32_t i) {
      if (i == 0) scratch_.keys.seen_changes = load(state_.key_changes);
      return (mine >> i & 1) != 0 && look(pairs_[base + i]);
    });
  }

  /// Whether the queue pair has something to do.
  SHOAL_HOST_DEVICE bool look(Pair& pair) const {
    constexpr std::uint32_t kIndex = 0xffff;
    // All loads are under way together.
    const std::uint64_t ended = load(*pair.config.ended);
    const std::uint64_t jobs_done = pair.awaited == nullptr ? 0 : load(*pair.awaited);
    if (pair.config.record != nullptr)
      pair.posted = mlx5::big(platform_.load_record(pair.config.record)) & kIndex;
    const bool has_ended = static_cast<Ended>(ended) != pair.ended;
    pair.ended = static_cast<Ended>(ended);
    const bool may_fetch = pair.posted != pair.block && pair.fetched - pair.completed < kWindow;
    if (pair.awaited != nullptr && !may_fetch && !has_ended && now_ < pair.look_again &&
        !has_reached(jobs_done, pair.awaited_jobs))
      return false;
    return pair.posted != pair.block || pair.fetched != pair.completed ||
           (pair.ended == Ended::refused && !pair.failed);
  }

  SHOAL_HOST_DEVICE void serve(std::uint32_t number) {
    Pair& pair = pairs_[number];
    std::uint64_t* const counters = counters_ + std::size_t{number} * kWindow;
    const std::uint32_t jobs_before = pair.jobs;
    bool any = false;
    for (int turn = 0; turn < 2; ++turn) {
      any |= fetch(pair);
      if (!pair.failed) any |= go_ahead(pair, number, counters);
      if (!complete(pair, number, counters)) break;
      any = true;
      read_clock();
    }
    any |= pair.jobs != jobs_before;
    await_workers(pair, counters, any);
  }

  /// Sends and executes what may be. Whether there was anything.
  SHOAL_HOST_DEVICE bool go_ahead(Pair& pair, std::uint32_t number, std::uint64_t* counters) {
    bool any = false;
    if (pair.issued != pair.fetched) send(pair, number);
    moves_ = true;
    for (int i = 0; i < kRounds && execute(pair, counters); ++i) {
      any = true;
      read_clock();
    }
    if (moves_) any |= settle(pair, counters);
    return any;
  }

  /// Notes what the queue pair waits for, unless there was something to do.
  SHOAL_HOST_DEVICE void await_workers(Pair& pair, const std::uint64_t* counters, bool any) const {
    constexpr std::uint64_t kLongest = 10'000;
    constexpr std::uint32_t kByWorkers = 1, kByOthers = 2;
    const bool looks = !any && !pair.failed;
    const auto n = looks ? static_cast<std::uint32_t>(pair.issued - pair.completed) : 0;
    const auto waits = platform_.template masks<2>(n, [&](std::uint32_t i) -> std::uint32_t {
      const Request& request = pair.at(pair.completed + i);
      if (request.state == RequestState::started)
        return request.all_handed_out() ? kByWorkers : kByOthers;
      const bool comes_later = request.state == RequestState::executed || request.time > now_;
      return comes_later || !is_direct(request) ? kByOthers : 0;
    });
    platform_.one([&] {
      pair.awaited = nullptr;
      if (waits.at[0] == 0 || waits.at[1] != 0) return;
      const std::uint32_t first = lowest(waits.at[0]);
      pair.awaited = &counters[counter_of(pair, first)];
      pair.awaited_jobs = pair.at(pair.completed + first).jobs;
      pair.look_again = now_ + kLongest;
    });
  }

  /// Reads what fits into the window. Whether there was anything.
  SHOAL_HOST_DEVICE bool fetch(Pair& pair) {
    const std::uint32_t waiting = (pair.posted - pair.block) & 0xffff;
    const auto room = kWindow - static_cast<std::uint32_t>(pair.fetched - pair.completed);
    const std::uint32_t n = waiting < room ? waiting : room;
    if (n == 0) return false;
    // As if each request had one block: those after one with more are read again later.
    const std::uint32_t longer = platform_.mask(n, [&](std::uint32_t i) {
      Request& request = pair.at(pair.fetched + i);
      decode(platform_, pair.config, own_keys_, static_cast<std::uint16_t>(pair.block + i),
             request);
      return request.blocks != 1;
    });
    platform_.one([&] {
      take(pair, longer == 0 ? n : lowest(longer) + 1, waiting);
      add_missed(platform_, scratch_.keys);
    });
    return true;
  }

  /// Sends what the queue pair's ordering and fences allow.
  SHOAL_HOST_DEVICE void send(Pair& pair, std::uint32_t number) const {
    if (pair.stop != kNoStop) return;
    constexpr std::uint32_t kWrong = 1, kAlone = 2, kFenced = 4, kFetches = 8;
    const auto n = static_cast<std::uint32_t>(pair.fetched - pair.completed),
               first = static_cast<std::uint32_t>(pair.issued - pair.completed);
    const bool adaptive = pair.config.ordering == Ordering::adaptive;
    const auto bits = platform_.template masks<4>(n, [&](std::uint32_t i) -> std::uint32_t {
      const Request& request = pair.at(pair.completed + i);
      const bool overtakes = request.opcode == Opcode::write || request.opcode == Opcode::nop;
      return (request.syndrome != Syndrome::none ? kWrong : 0) |
             (adaptive && !overtakes ? kAlone : 0) | (request.fenced ? kFenced : 0) |
             (request.fetches() ? kFetches : 0);
    });
    // Complete requests have left the window.
    const std::uint32_t after_fetch = bits.at[3] == 0 ? 0 : ~1U << lowest(bits.at[3]);
    const std::uint32_t held =
        (bits.at[0] | (bits.at[1] & ~1U) | (bits.at[2] & after_fetch)) >> first << first;
    const std::uint32_t end = held == 0 ? n : lowest(held);
    platform_.lanes(end, [&](std::uint32_t i) {
      if (i == 0) pair.issued = pair.completed + end;
      if (i < first) return;
      Request& request = pair.at(pair.completed + i);
      request.time =
          now_ + timing_.delay + lateness(timing_, pair, request, pair.completed + i, number);
      request.state = RequestState::issued;
    });
  }

  /// Executes or starts requests that have arrived. Whether it may have to be called again.
  SHOAL_HOST_DEVICE bool execute(Pair& pair, std::uint64_t* counters) {
    const auto n = static_cast<std::uint32_t>(pair.issued - pair.completed);
    if (n == 0 || pair.ended != Ended::no) return false;
    const Found found = find(pair, n);
    moves_ = found.started != 0 || (found.ready & ~found.direct) != 0;
    if (found.ready == 0) return false;
    if (pair.unfenced && (found.ready & found.in_order) != 0) fence(pair);
    const std::uint32_t moved = execute_direct(pair, n, found.direct);
    const std::uint32_t by_jobs = found.ready & ~found.direct;
    const std::uint32_t unstarted = by_jobs & ~found.started;
    if (by_jobs != 0 && !jobs_.link().is_booked(now_) && start(pair, n, unstarted, counters)) {
      const std::uint32_t failed = jobs_.hand_out(pair, by_jobs, counters, now_);
      if (failed != 0) platform_.one([&] { stop_at(pair, failed); });  // the rest is not moved
    }
    return moved != 0 && moved == found.ready;
  }

  /// Requests of the window that may go on, as bits.
  struct Found {
    std::uint32_t ready = 0;
    std::uint32_t direct = 0;    ///< of them, those that the dispatcher executes itself
    std::uint32_t in_order = 0;  ///< the first, unless it may overtake
    std::uint32_t started = 0;
  };

  SHOAL_HOST_DEVICE Found find(const Pair& pair, std::uint32_t n) const {
    constexpr std::uint32_t kOpen = 1, kReady = 2, kOvertakes = 4, kDirect = 8, kStarted = 16,
                            kFollowed = 32;
    const auto bits = platform_.template masks<6>(n, [&](std::uint32_t i) -> std::uint32_t {
      const Request& request = pair.at(pair.completed + i);
      if (request.state == RequestState::executed) return 0;
      const bool is_started = request.state == RequestState::started;
      const bool is_handed_out = is_started && request.all_handed_out();
      const bool is_ready =
          pair.completed + i < pair.stop && request.time <= now_ && !is_handed_out;
      const bool is_write = request.opcode == Opcode::write;
      return kOpen | (is_ready ? kReady : 0) | (may_overtake(pair, request) ? kOvertakes : 0) |
             (is_direct(request) && !is_started ? kDirect : 0) | (is_started ? kStarted : 0) |
             (is_write && (is_handed_out || is_ready) ? kFollowed : 0);
    });
    const std::uint32_t open = bits.at[0], direct = bits.at[3];
    const std::uint32_t first = open & ~(open - 1);
    Found found{.started = bits.at[4]};
    found.in_order = first & ~bits.at[2];
    found.ready = bits.at[1] & (first | bits.at[2]);
    found.direct = found.ready & direct;
    if (!is_strict(pair) || (first & bits.at[5] & ~direct) == 0) return found;
    // Writes behind one that is moved by jobs are moved by jobs too: each job waits for those of
    // the writes before it.
    const std::uint32_t barrier = open & ~bits.at[5];
    const std::uint32_t until = barrier == 0 ? ~0U : (barrier & ~(barrier - 1)) - 1;
    found.ready |= bits.at[1] & bits.at[5] & until;
    found.direct &= ~bits.at[5];
    return found;
  }

  /// Whether a request may be executed before those in front of it.
  SHOAL_HOST_DEVICE bool may_overtake(const Pair& pair, const Request& request) const {
    return request.opcode == Opcode::nop ||
           (pair.config.ordering != Ordering::strict && request.opcode == Opcode::write);
  }

  SHOAL_HOST_DEVICE void fence(Pair& pair) const {
    platform_.fence();
    platform_.one([&] { pair.unfenced = false; });
  }

  /// Executes the requests `wanted` if the link has room. Returns what it has executed.
  SHOAL_HOST_DEVICE std::uint32_t execute_direct(Pair& pair, std::uint32_t n,
                                                 std::uint32_t wanted) {
    if (wanted == 0 || jobs_.link().is_booked(now_)) return 0;
    const std::uint32_t refused = platform_.mask(n, [&](std::uint32_t i) {
      if ((wanted >> i & 1) == 0) return false;
      Request& request = pair.at(pair.completed + i);
      run_direct(platform_, pair, own_keys_, request);
      request.time = now_;
      request.state = RequestState::executed;
      return request.syndrome != Syndrome::none;
    });
    const std::uint64_t bytes = bytes_of(pair, wanted);
    platform_.one([&] {
      jobs_.link().take(bytes, now_);
      pair.unfenced = true;
      stop_at(pair, refused);
    });
    return wanted;
  }

  /// Of the requests `wanted` of the window.
  SHOAL_HOST_DEVICE std::uint64_t bytes_of(const Pair& pair, std::uint32_t wanted) const {
    return platform_.sum(kLanes, [&](std::uint32_t i) {
      return (wanted >> i & 1) == 0 ? 0U : pair.at(pair.completed + i).bytes;
    });
  }

  /// Finds the memory of the requests `wanted`. Whether all may go on.
  SHOAL_HOST_DEVICE bool start(Pair& pair, std::uint32_t n, std::uint32_t wanted,
                               std::uint64_t* counters) {
    if (wanted == 0) return true;
    const std::uint32_t refused = platform_.mask(n, [&](std::uint32_t i) {
      if ((wanted >> i & 1) == 0) return false;
      Request& request = pair.at(pair.completed + i);
      request.syndrome = find_remote(platform_, pair, scratch_.keys, request);
      if (request.syndrome == Syndrome::none) {
        request.state = RequestState::started;
        request.before = request.jobs = is_strict(pair) ? pair.jobs : 0;
        // No job counts there: the last request that used it is complete. Jobs are published later.
        if (!is_strict(pair))
          platform_.template store<std::uint64_t>(
              reinterpret_cast<std::byte*>(&counters[counter_of(pair, i)]), 0);
        return false;
      }
      request.state = RequestState::executed;
      request.time = now_;
      return true;
    });
    if (refused != 0) platform_.one([&] { stop_at(pair, refused); });
    return refused == 0;
  }

  /// Notes the first of the requests `refused` of the window.
  SHOAL_HOST_DEVICE void stop_at(Pair& pair, std::uint32_t refused) const {
    if (refused != 0 && pair.completed + lowest(refused) < pair.stop)
      pair.stop = pair.completed + lowest(refused);
  }

  /// Notes the requests whose jobs are done. Whether there are any.
  SHOAL_HOST_DEVICE bool settle(Pair& pair, const std::uint64_t* counters) {
    const auto n = static_cast<std::uint32_t>(pair.issued - pair.completed);
    const std::uint32_t done = platform_.mask(n, [&](std::uint32_t i) {
      Request& request = pair.at(pair.completed + i);
      if (request.state != RequestState::started) return false;
      const std::uint64_t counter = platform_.load_word(&counters[counter_of(pair, i)]);
      if (is_strict(pair)) pair.jobs_done = static_cast<std::uint32_t>(counter);
      if (!request.all_handed_out() || !has_reached(counter, request.jobs)) return false;
      request.state = RequestState::executed;
      request.time = now_;
      return true;
    });
    if (done != 0) platform_.one([&] { pair.unfenced = true; });
    return done != 0;
  }

  /// Completes requests in their order. Whether there were any.
  SHOAL_HOST_DEVICE bool complete(Pair& pair, std::uint32_t number, const std::uint64_t* counters) {
    const Due due = find_due(pair, counters);
    if (due.count != 0) pop(pair, due.count, due.syndrome);
    if (due.fails) fail(pair, due.syndrome);
    if (pair.failed)
      platform_.one([&] {
        pair.issued = pair.fetched;
        reports_[number] = pair.report;
      });
    return due.count != 0 || due.fails;
  }

  /// Requests to complete, and whether the queue pair enters the error state with them.
  struct Due {
    std::uint32_t count = 0;
    Syndrome syndrome = Syndrome::none;
    bool fails = false;
  };

  SHOAL_HOST_DEVICE Due find_due(const Pair& pair, const std::uint64_t* counters) {
    if (pair.failed)  // everything that is posted
      return {static_cast<std::uint32_t>(pair.fetched - pair.completed), Syndrome::flushed, false};
    const auto n = static_cast<std::uint32_t>(pair.issued - pair.completed);
    const std::uint32_t good = platform_.mask(n, [&](std::uint32_t i) {
      const Request& request = pair.at(pair.completed + i);
      return request.syndrome == Syndrome::none && is_acknowledged(request);
    });
    const std::uint32_t count = good == ~0U ? kLanes : lowest(~good);
    if (count != 0) return {count, Syndrome::none, false};
    const Syndrome cause = cause_of_failure(pair);
    if (cause == Syndrome::none || !is_idle(pair, counters)) return {};
    return {cause == Syndrome::flushed ? 0U : 1U, cause, true};
  }

  SHOAL_HOST_DEVICE bool is_acknowledged(const Request& request) const {
    return request.state == RequestState::executed && now_ >= request.time + timing_.delay;
  }

  /// Why the queue pair has to fail now; Syndrome::flushed where the peer has refused something.
  SHOAL_HOST_DEVICE Syndrome cause_of_failure(const Pair& pair) const {
    if (pair.ended == Ended::refused) return Syndrome::flushed;
    if (pair.completed == pair.fetched) return Syndrome::none;
    const Request& front = pair.at(pair.completed);
    if (front.syndrome != Syndrome::none) {
      const bool known = front.state != RequestState::executed || is_acknowledged(front);
      return known ? front.syndrome : Syndrome::none;
    }
    const bool silent = pair.ended == Ended::peer_is_gone && (front.state == RequestState::issued ||
                                                              front.state == RequestState::started);
    return silent && now_ > front.time + timing_.retry ? Syndrome::retry_exceeded : Syndrome::none;
  }

  /// Whether no worker moves data of the queue pair.
  SHOAL_HOST_DEVICE bool is_idle(const Pair& pair, const std::uint64_t* counters) {
    const auto n = static_cast<std::uint32_t>(pair.issued - pair.completed);
    return platform_.mask(n, [&](std::uint32_t i) {
      const Request& request = pair.at(pair.completed + i);
      return request.state == RequestState::started &&
             !has_reached(platform_.load_word(&counters[counter_of(pair, i)]), request.jobs);
    }) == 0;
  }

  SHOAL_HOST_DEVICE void fail(Pair& pair, Syndrome cause) const {
    platform_.one([&] {
      pair.failed = true;
      pair.report.failed = 1;
      const bool refused = cause == Syndrome::remote_access ||
                           cause == Syndrome::remote_invalid_request ||
                           cause == Syndrome::remote_operation;
      if (pair.config.peer_ended != nullptr)
        platform_.store_far(
            pair.config.peer_ended,
            static_cast<std::uint64_t>(refused ? Ended::refused : Ended::peer_is_gone));
    });
  }

  /// Completes the first `n` requests: signalled ones, or all of them with an error.
  SHOAL_HOST_DEVICE void pop(Pair& pair, std::uint32_t n, Syndrome syndrome) {
    const CompletionQueueConfig& queue = pair.queue;
    const std::uint64_t produced = common_.produced[pair.config.completions];
    const bool failed = syndrome != Syndrome::none;
    const std::uint32_t written = platform_.mask(
        n, [&](std::uint32_t i) { return failed || pair.at(pair.completed + i).signalled; });
    const std::uint32_t last = written == 0 ? 0 : highest(written);
    const auto is_written = [&](std::uint32_t i) {  // in a collapsed queue, the last remains
      return (written >> i & 1) != 0 && (!queue.collapsed || i == last);
    };
    const auto entry_of = [&](std::uint32_t i) {
      return queue.collapsed ? 0 : produced + count_bits(written & ((1U << i) - 1));
    };
    platform_.lanes(n, [&](std::uint32_t i) {
      if (is_written(i))
        write_entry(platform_, pair, entry_of(i), pair.at(pair.completed + i), syndrome, now_);
    });
    // Clients on this GPU make it visible to others with what they store after it. What a strict
    // queue pair executes next needs the other fence.
    const bool near = queue.is_near && !is_strict(pair);
    if (written != 0) near ? platform_.fence_near() : platform_.fence();
    platform_.lanes(n, [&](std::uint32_t i) {
      if (is_written(i))
        finish_entry(platform_, queue, entry_of(i), pair.at(pair.completed + i), syndrome);
    });
    const std::uint64_t bytes = bytes_of(pair, n == kLanes ? ~0U : (1U << n) - 1);
    platform_.one([&] {
      const std::uint32_t count = count_bits(written);
      if (count != 0 && !near) pair.unfenced = false;
      common_.produced[pair.config.completions] = produced + count;
      pair.report.completions += count;
      if (failed)
        pair.report.errors += n;
      else
        pair.report.bytes += bytes;
      pair.completed += n;
      if (pair.issued < pair.completed) pair.issued = pair.completed;
    });
  }

  const Timing& timing_;
  NicState& state_;
  const std::uint32_t index_, count_;
  const Keys own_keys_;
  std::uint64_t* const counters_;
  QueuePairReport* const reports_;
  Common& common_;
  Scratch& scratch_;
  Pair* const pairs_;
  const Platform& platform_;
  Jobs<Platform> jobs_;
  std::uint64_t mine_ = 0;  ///< its queue pairs
  std::uint32_t n_pairs_ = 0;
  bool has_served_ = false;
  std::uint64_t now_ = 0;
  bool moves_ = true;  ///< the queue pair that is served may have requests that are moved by jobs
};

}  // namespace shoal::emulator::gpu
