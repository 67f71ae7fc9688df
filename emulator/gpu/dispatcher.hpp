// SPDX-License-Identifier: Apache-2.0
// dispatcher.hpp: the NIC on a GPU: one warp that reads doorbell records and requests, keeps the
// order that each queue pair guarantees, and writes completions. It moves small messages and
// executes atomics itself; workers (worker.hpp) copy the others. For host and device code.
//
// A request is fetched (read and checked), issued (on its way; `arrival` is when it reaches the
// peer), started (jobs of it are handed out), executed, and complete when its acknowledgement is
// back. In each of these the requests of a queue pair keep their order, except that writes are
// executed in any order unless the queue pair is strict.
//
// A Platform has, besides what copy.hpp needs:
//   lanes(n, f)            calls f(i) for all i < n, each by one lane
//   mask(n, f)             the bits i < n for which f(i) holds; n is at most 32
//   one(f), ask(f)         calls f by one lane; ask() returns its result to all
//   load_word(w), store_word(w, v), add(w, v)   words of the NIC: acquire, release, both
//   load_far(w), store_far(w, v)   words that hosts and other GPUs access as well
//   load_record(w)         a doorbell record: acquire
//   add_far, replace_far   atomics without order, on memory of the peer as well
//   fence()                what this lane and those before it have stored becomes visible to all
//                          before what it stores later
//   now(), pause()         nanoseconds; between two looks
// All of them order memory among the lanes.
#pragma once

#include "gpu/execute.hpp"

namespace shoal::emulator::gpu {

/// What the dispatcher keeps, in memory of its own.
struct Scratch {
  std::uint64_t start = 0;       ///< of its clock
  std::uint64_t free_at = 0;     ///< 2^-16 ns since `start`: when the link is free
  std::uint64_t published = 0;   ///< jobs that workers know
  std::uint64_t written = 0;     ///< jobs
  std::uint64_t free_until = 0;  ///< jobs that have a slot
  std::uint64_t next_check = 0, heartbeat = 0, heartbeat_at = 0;
  std::uint64_t produced[kMostPairs] = {};  ///< by completion queue
};

template <typename Platform>
class Dispatcher {
 public:
  /// `pairs` has room for as many as state.n_pairs will ever be.
  SHOAL_HOST_DEVICE Dispatcher(NicState& state, Scratch& scratch, Pair* pairs,
                               const Platform& platform)
      : timing_(state.timing),
        n_pairs_word_(&state.n_pairs),
        state_(state),
        own_keys_(state.tables[0]),
        pending_(state.pending),
        reports_(state.reports),
        control_(*state.control),
        published_(&state.ring.published),
        jobs_(state.ring.jobs),
        done_(state.ring.done),
        n_jobs_(state.ring.size),
        scratch_(scratch),
        pairs_(pairs),
        platform_(platform) {
    platform_.one([&] {
      scratch_ = {};
      scratch_.start = scratch_.heartbeat_at = platform_.now();
    });
    take_new_pairs();
  }

  /// Serves each queue pair once. False: the NIC has to stop.
  SHOAL_HOST_DEVICE bool step() {
    read_clock();
    if (!may_go_on()) return false;
    for (std::uint32_t base = 0; base < n_pairs_; base += kLanes) {
      const std::uint32_t left = n_pairs_ - base;
      std::uint32_t busy = platform_.mask(left < kLanes ? left : kLanes,
                                          [&](std::uint32_t i) { return look(pairs_[base + i]); });
      for (; busy != 0; busy &= busy - 1) serve(base + lowest(busy));
    }
    return true;
  }

  /// After the last step: workers end when all jobs are done.
  SHOAL_HOST_DEVICE void close() {
    platform_.lanes(n_pairs_, [&](std::uint32_t i) { report(pairs_[i], i); });
    platform_.one([&] { platform_.store_word(published_, scratch_.published | kClosed); });
  }

 private:
  static constexpr std::uint32_t kLanes = 32;
  static constexpr int kRounds = 8;

  SHOAL_HOST_DEVICE void read_clock() {
    now_ = platform_.ask([&] { return platform_.now(); });
  }

  SHOAL_HOST_DEVICE void take_new_pairs() {
    const auto n = static_cast<std::uint32_t>(
        platform_.ask([&] { return platform_.load_far(n_pairs_word_); }));
    platform_.lanes(n - n_pairs_, [&](std::uint32_t i) {
      initialize(state_, n_pairs_ + i, pairs_[n_pairs_ + i]);
    });
    n_pairs_ = n;
  }

  SHOAL_HOST_DEVICE bool may_go_on() {
    constexpr std::uint64_t kPeriod = 20'000;
    if (now_ < scratch_.next_check) return true;
    take_new_pairs();
    return platform_.ask([&] {
      Stopped stopped = Stopped::no;
      const std::uint64_t heartbeat = platform_.load_far(&control_.heartbeat);
      if (heartbeat != scratch_.heartbeat) {
        scratch_.heartbeat = heartbeat;
        scratch_.heartbeat_at = now_;
      }
      if (platform_.load_far(&control_.stop) != 0)
        stopped = Stopped::by_owner;
      else if (timing_.owner_timeout != 0 && now_ - scratch_.heartbeat_at > timing_.owner_timeout)
        stopped = Stopped::owner_silent;
      else if (now_ - scratch_.start > timing_.lifetime)
        stopped = Stopped::lifetime;
      scratch_.next_check = now_ + kPeriod;
      if (stopped != Stopped::no)
        platform_.store_far(&control_.stopped, static_cast<std::uint64_t>(stopped));
      return stopped == Stopped::no;
    });
  }

  /// Whether the queue pair has something to do.
  SHOAL_HOST_DEVICE bool look(Pair& pair) const {
    constexpr std::uint32_t kIndex = 0xffff;
    const auto* const ended = reinterpret_cast<const std::byte*>(pair.config.ended);
    pair.ended = static_cast<Ended>(platform_.template load<std::uint64_t>(ended));
    if (pair.config.record != nullptr)
      pair.posted = mlx5::big(platform_.load_record(pair.config.record)) & kIndex;
    return pair.posted != pair.block || pair.fetched != pair.completed ||
           (pair.ended == Ended::refused && !pair.failed);
  }

  SHOAL_HOST_DEVICE void serve(std::uint32_t number) {
    Pair& pair = pairs_[number];
    std::uint64_t* const pending = pending_ + std::size_t{number} * kWindow;
    for (int turn = 0; turn < 2; ++turn) {
      if (pair.failed) return flush(pair, number);
      fetch(pair);
      issue(pair, number);
      for (int i = 0; i < kRounds && execute(pair, pending); ++i) read_clock();
      settle(pair, pending);
      if (!complete(pair, number, pending)) return;
      read_clock();
    }
  }

  SHOAL_HOST_DEVICE void fetch(Pair& pair) {
    const std::uint32_t waiting = (pair.posted - pair.block) & 0xffff;
    const auto room = kWindow - static_cast<std::uint32_t>(pair.fetched - pair.completed);
    const std::uint32_t n = waiting < room ? waiting : room;
    if (n == 0) return;
    // As if each request had one block: those after one with more are read again later.
    platform_.lanes(n, [&](std::uint32_t i) {
      decode(platform_, pair.config, own_keys_, static_cast<std::uint16_t>(pair.block + i),
             pair.at(pair.fetched + i));
    });
    platform_.one([&] {
      std::uint32_t blocks = 0, taken = 0;
      bool more = true;
      for (; more && taken < n; ++taken) {
        Request& request = pair.at(pair.fetched + taken);
        more = request.blocks == 1;
        if (request.blocks > waiting - blocks) {  // the doorbell record ends within it
          const std::uint16_t index = request.index;
          request = {};
          request.index = index;
          request.blocks = static_cast<std::uint8_t>(waiting - blocks);
          request.syndrome = Syndrome::local_qp_operation;
        }
        blocks += request.blocks;
      }
      pair.fetched += taken;
      pair.block = (pair.block + blocks) & 0xffff;
      pair.report.requests += taken;
    });
  }

  /// Sends what the queue pair's ordering and fences allow.
  SHOAL_HOST_DEVICE void issue(Pair& pair, std::uint32_t number) {
    if (pair.issued == pair.fetched || pair.stop != kNoStop) return;
    platform_.one([&] {
      for (; pair.issued < pair.fetched; ++pair.issued) {
        Request& request = pair.at(pair.issued);
        if (request.syndrome != Syndrome::none || !may_be_sent(pair, request)) return;
        request.arrival = now_ + timing_.delay + lateness(pair, request, number);
        request.state = RequestState::issued;
      }
    });
  }

  SHOAL_HOST_DEVICE bool may_be_sent(const Pair& pair, const Request& request) const {
    // Complete requests have left the window.
    if (pair.config.ordering == Ordering::adaptive && request.opcode != Opcode::write &&
        request.opcode != Opcode::nop && pair.issued != pair.completed)
      return false;
    if (!request.fenced) return true;
    for (std::uint64_t i = pair.completed; i < pair.issued; ++i)
      if (pair.at(i).fetches()) return false;
    return true;
  }

  /// By which a write is late, from the seed.
  SHOAL_HOST_DEVICE std::uint64_t lateness(const Pair& pair, const Request& request,
                                           std::uint32_t number) const {
    if (timing_.reorder == 0 || pair.config.ordering == Ordering::strict ||
        request.opcode != Opcode::write)
      return 0;
    std::uint64_t x =
        timing_.seed + pair.issued * 0x9e3779b97f4a7c15 + (number + 1) * 0xd1b54a32d192ed03;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return (x ^ x >> 31) % timing_.reorder;
  }

  /// Executes or starts requests that have arrived. Whether it may have to be called again.
  SHOAL_HOST_DEVICE bool execute(Pair& pair, std::uint64_t* pending) {
    const auto n = static_cast<std::uint32_t>(pair.issued - pair.completed);
    if (n == 0 || pair.ended != Ended::no) return false;
    const auto in_window = [&](std::uint32_t i) -> Request& { return pair.at(pair.completed + i); };
    const std::uint32_t open = platform_.mask(
        n, [&](std::uint32_t i) { return in_window(i).state != RequestState::executed; });
    if (open == 0) return false;
    const std::uint32_t first = lowest(open);
    const std::uint32_t ready = platform_.mask(n, [&](std::uint32_t i) {
      const Request& request = in_window(i);
      if ((open >> i & 1) == 0 || pair.completed + i >= pair.stop || request.arrival > now_)
        return false;
      if (request.state == RequestState::started) return !request.all_handed_out();
      return i == first || may_overtake(pair, request);
    });
    if (ready == 0) return false;
    if (pair.unfenced && (ready >> first & 1) != 0 && !may_overtake(pair, in_window(first)))
      fence(pair);
    const std::uint32_t direct = platform_.mask(
        n, [&](std::uint32_t i) { return (ready >> i & 1) != 0 && is_direct(in_window(i)); });
    const std::uint32_t moved = execute_direct(pair, n, direct);
    if ((ready & ~direct) != 0 && start(pair, n, ready & ~direct, pending))
      for (std::uint32_t left = ready & ~direct; left != 0; left &= left - 1)
        hand_out(pair, lowest(left), &pending[(pair.completed + lowest(left)) % kWindow]);
    publish();
    return moved != 0 && moved == ready;
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

  /// Executes those of `wanted` that the link has room for.
  SHOAL_HOST_DEVICE std::uint32_t execute_direct(Pair& pair, std::uint32_t n,
                                                 std::uint32_t wanted) {
    if (wanted == 0) return 0;
    const auto now = static_cast<std::uint32_t>(platform_.ask([&] {
      std::uint32_t granted = 0;
      for (std::uint32_t left = wanted; left != 0; left &= left - 1) {
        const std::uint32_t i = lowest(left);
        if (!take_link(pair.at(pair.completed + i).bytes)) break;
        granted |= 1U << i;
      }
      return granted;
    }));
    const std::uint32_t refused = platform_.mask(n, [&](std::uint32_t i) {
      if ((now >> i & 1) == 0) return false;
      Request& request = pair.at(pair.completed + i);
      run_direct(platform_, pair, own_keys_, request);
      request.executed_at = now_;
      request.state = RequestState::executed;
      return request.syndrome != Syndrome::none;
    });
    platform_.one([&] {
      pair.unfenced = pair.unfenced || now != 0;
      stop_at(pair, refused);
    });
    return now;
  }

  /// Finds the memory of those of `wanted` that are not started yet. Whether all may go on.
  SHOAL_HOST_DEVICE bool start(Pair& pair, std::uint32_t n, std::uint32_t wanted,
                               std::uint64_t* pending) {
    const std::uint32_t refused = platform_.mask(n, [&](std::uint32_t i) {
      Request& request = pair.at(pair.completed + i);
      if ((wanted >> i & 1) == 0 || request.state == RequestState::started) return false;
      request.syndrome = find_remote(platform_, pair, request);
      if (request.syndrome == Syndrome::none) {
        request.state = RequestState::started;
        count_jobs(request, &pending[(pair.completed + i) % kWindow]);
        return false;
      }
      request.state = RequestState::executed;
      request.executed_at = now_;
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

  /// Adds the jobs of the current part, none of which is handed out. The store of `published`
  /// comes after it.
  SHOAL_HOST_DEVICE void count_jobs(const Request& request, std::uint64_t* pending) const {
    const std::uint64_t count = Chunks(request).count();
    // Workers decrement only what they were handed out: the first part finds 0.
    if (request.moved == 0)
      platform_.template store<std::uint64_t>(reinterpret_cast<std::byte*>(pending), count);
    else
      platform_.add(pending, count);
  }

  /// Hands out as many jobs of request `i` of the window as there is room for on the link and in
  /// the ring of jobs.
  SHOAL_HOST_DEVICE void hand_out(Pair& pair, std::uint32_t i, std::uint64_t* pending) {
    Request& request = pair.at(pair.completed + i);
    while (hand_out_part(request, pending)) {
      const bool more = platform_.ask([&] {
        if (!next_part(platform_, pair.config, own_keys_, request)) return false;
        if (request.syndrome == Syndrome::none) {
          count_jobs(request, pending);
          return true;
        }
        stop_at(pair, 1U << i);  // the rest of it is not moved
        return false;
      }) != 0;
      if (!more) return;
    }
  }

  /// Of the current part. Whether all of it is handed out.
  SHOAL_HOST_DEVICE bool hand_out_part(Request& request, std::uint64_t* pending) {
    for (;;) {
      const std::uint64_t written = scratch_.written;
      const Chunks chunks(request);
      const std::uint32_t room = free_slots();
      const auto n = static_cast<std::uint32_t>(platform_.ask([&] {
        std::uint32_t taken = 0;
        while (taken < room && taken < chunks.count() && take_link(chunks.bytes(taken))) ++taken;
        return taken;
      }));
      if (n == 0) return request.offset == request.part_bytes;
      platform_.lanes(n, [&](std::uint32_t i) {
        Job& job = jobs_[(written + i) & (n_jobs_ - 1)];
        std::byte* const local = request.local + chunks.offset(i);
        std::byte* const remote = request.remote + request.moved + chunks.offset(i);
        const bool reads = request.opcode == Opcode::read;
        job = {reads ? local : remote, reads ? remote : local, chunks.bytes(i), pending};
      });
      platform_.one([&] {
        request.offset = chunks.offset(n);
        scratch_.written = written + n;
      });
      // Workers begin while the rest is written.
      if (scratch_.written - scratch_.published >= kLanes) publish();
    }
  }

  /// Slots of the ring of jobs that may be written, at most 32. Their last jobs are done.
  SHOAL_HOST_DEVICE std::uint32_t free_slots() {
    const auto known = static_cast<std::uint32_t>(scratch_.free_until - scratch_.written);
    if (known != 0) return known;
    const std::uint64_t written = scratch_.written;
    const std::uint32_t free = platform_.mask(kLanes, [&](std::uint32_t i) {
      const std::uint64_t number = written + i;
      if (i >= n_jobs_) return false;
      return number < n_jobs_ ||
             platform_.load_word(&done_[number & (n_jobs_ - 1)]) == number - n_jobs_ + 1;
    });
    const std::uint32_t count = free == ~0U ? kLanes : lowest(~free);
    platform_.one([&] { scratch_.free_until = written + count; });
    return count;
  }

  /// Makes the jobs that are written known to the workers.
  SHOAL_HOST_DEVICE void publish() {
    if (scratch_.published == scratch_.written) return;
    platform_.one([&] {
      scratch_.published = scratch_.written;
      platform_.store_word(published_, scratch_.written);
    });
  }

  /// Takes the link for `bytes` bytes, if it is free by now.
  SHOAL_HOST_DEVICE bool take_link(std::uint64_t bytes) {
    constexpr unsigned kShift = 16;
    if (timing_.byte_cost == 0) return true;
    const std::uint64_t now = now_ - scratch_.start, burst = timing_.burst;
    const std::uint64_t earliest = now > burst ? (now - burst) << kShift : 0;
    if (scratch_.free_at < earliest) scratch_.free_at = earliest;
    if (scratch_.free_at > now << kShift) return false;
    scratch_.free_at += bytes * timing_.byte_cost;
    return true;
  }

  /// Notes the requests whose jobs are done.
  SHOAL_HOST_DEVICE void settle(Pair& pair, const std::uint64_t* pending) {
    const auto n = static_cast<std::uint32_t>(pair.issued - pair.completed);
    const std::uint32_t done = platform_.mask(n, [&](std::uint32_t i) {
      Request& request = pair.at(pair.completed + i);
      if (request.state != RequestState::started || !request.all_handed_out() ||
          platform_.load_word(&pending[(pair.completed + i) % kWindow]) != 0)
        return false;
      request.state = RequestState::executed;
      request.executed_at = now_;
      return true;
    });
    if (done != 0) platform_.one([&] { pair.unfenced = true; });
  }

  /// Completes requests in their order. Whether there were any.
  SHOAL_HOST_DEVICE bool complete(Pair& pair, std::uint32_t number, const std::uint64_t* pending) {
    const auto n = static_cast<std::uint32_t>(pair.issued - pair.completed);
    const std::uint32_t good = platform_.mask(n, [&](std::uint32_t i) {
      const Request& request = pair.at(pair.completed + i);
      return request.syndrome == Syndrome::none && is_acknowledged(request);
    });
    const std::uint32_t count = good == ~0U ? kLanes : lowest(~good);
    if (count != 0) pop(pair, count, Syndrome::none);
    const Syndrome cause = cause_of_failure(pair);
    if (cause != Syndrome::none && is_idle(pair, pending)) fail(pair, number, cause);
    return count != 0 || pair.failed;
  }

  SHOAL_HOST_DEVICE bool is_acknowledged(const Request& request) const {
    return request.state == RequestState::executed && now_ >= request.executed_at + timing_.delay;
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
    return silent && now_ > front.arrival + timing_.retry ? Syndrome::retry_exceeded
                                                          : Syndrome::none;
  }

  /// Whether no worker moves data of the queue pair.
  SHOAL_HOST_DEVICE bool is_idle(const Pair& pair, const std::uint64_t* pending) {
    const auto n = static_cast<std::uint32_t>(pair.issued - pair.completed);
    return platform_.mask(n, [&](std::uint32_t i) {
      const Request& request = pair.at(pair.completed + i);
      // Without the jobs that are not handed out.
      return request.state == RequestState::started &&
             platform_.load_word(&pending[(pair.completed + i) % kWindow]) !=
                 Chunks(request).count();
    }) == 0;
  }

  SHOAL_HOST_DEVICE void fail(Pair& pair, std::uint32_t number, Syndrome cause) {
    if (cause != Syndrome::flushed) pop(pair, 1, cause);
    platform_.one([&] {
      pair.failed = true;
      pair.report.failed = 1;
      report(pair, number);
      const bool refused = cause == Syndrome::remote_access ||
                           cause == Syndrome::remote_invalid_request ||
                           cause == Syndrome::remote_operation;
      if (pair.config.peer_ended != nullptr)
        platform_.store_far(
            pair.config.peer_ended,
            static_cast<std::uint64_t>(refused ? Ended::refused : Ended::peer_is_gone));
    });
  }

  /// In the error state: completes everything that is posted.
  SHOAL_HOST_DEVICE void flush(Pair& pair, std::uint32_t number) {
    fetch(pair);
    const auto n = static_cast<std::uint32_t>(pair.fetched - pair.completed);
    if (n != 0) pop(pair, n, Syndrome::flushed);
    platform_.one([&] {
      pair.issued = pair.fetched;
      report(pair, number);
    });
  }

  /// Completes the first `n` requests: signalled ones, or all of them with an error.
  SHOAL_HOST_DEVICE void pop(Pair& pair, std::uint32_t n, Syndrome syndrome) {
    const CompletionQueueConfig& queue = pair.queue;
    const std::uint64_t produced = scratch_.produced[pair.config.completions];
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
    if (written != 0) fence(pair);
    platform_.lanes(n, [&](std::uint32_t i) {
      if (is_written(i))
        finish_entry(platform_, queue, entry_of(i), pair.at(pair.completed + i), syndrome);
    });
    platform_.one([&] {
      const std::uint32_t count = count_bits(written);
      scratch_.produced[pair.config.completions] = produced + count;
      pair.report.completions += count;
      for (std::uint32_t i = 0; i < n; ++i)
        if (failed)
          ++pair.report.errors;
        else
          pair.report.bytes += pair.at(pair.completed + i).bytes;
      pair.completed += n;
      if (pair.issued < pair.completed) pair.issued = pair.completed;
    });
  }

  SHOAL_HOST_DEVICE void report(const Pair& pair, std::uint32_t number) const {
    reports_[number] = pair.report;
  }

  const Timing timing_;
  const std::uint64_t* const n_pairs_word_;
  const NicState& state_;
  std::uint32_t n_pairs_ = 0;
  const KeyTable own_keys_;
  std::uint64_t* const pending_;
  QueuePairReport* const reports_;
  Control& control_;
  std::uint64_t* const published_;
  Job* const jobs_;
  std::uint64_t* const done_;
  const std::uint32_t n_jobs_;
  Scratch& scratch_;
  Pair* const pairs_;
  const Platform& platform_;
  std::uint64_t now_ = 0;
};

}  // namespace shoal::emulator::gpu
