// SPDX-License-Identifier: Apache-2.0
// Locks: a ticket lock in PE 0's copy of the variable. Its high half is the next ticket, its low
// half the ticket that has the lock; the lock is free where they are equal.
#include "shmem/define.hpp"
#include "team/teams.hpp"

using namespace shoal::shmem;
using shoal::AtomicOp;

namespace {

static_assert(sizeof(long) == 8);

constexpr std::uint64_t kTicket = std::uint64_t{1} << 32;
constexpr std::uint32_t next_of(std::uint64_t lock) {
  return static_cast<std::uint32_t>(lock >> 32);
}
constexpr std::uint32_t holder_of(std::uint64_t lock) {
  return static_cast<std::uint32_t>(lock);
}

class Lock {
 public:
  Lock(Program& program, const long* lock)
      : program_(program), at_(program.target(SHMEM_CTX_DEFAULT, "lock", lock, sizeof *lock, 0)) {
    shoal::require(at_.offset % sizeof *lock == 0, shoal::Code::invalid_argument,
                   "SHOAL-N820: lock is {}; allowed: multiples of {}",
                   static_cast<const void*>(lock), sizeof *lock);
  }

  void set() {
    const std::uint32_t mine = next_of(apply(AtomicOp::add, kTicket));
    const auto holds = [&] { return holder_of(apply(AtomicOp::fetch, 0)) == mine; };
    const std::uint64_t epoch = program_.core.teams().world_team().epoch;
    program_.core.progress().set(shoal::detail::Activity::waiting, epoch, "set_lock");
    const auto outcome = program_.core.waits().poll_elsewhere(holds, Program::never());
    program_.core.progress().set(shoal::detail::Activity::idle, epoch, "set_lock");
    if (outcome != shoal::detail::WaitOutcome::ready)
      program_.core.waits().throw_failed(outcome, "shmem_set_lock", "waiting for the lock");
  }

  bool test() {
    const std::uint64_t seen = apply(AtomicOp::fetch, 0);
    return next_of(seen) == holder_of(seen) &&
           apply(AtomicOp::compare_swap, seen + kTicket, seen) == seen;
  }

  void clear() {
    const std::uint64_t seen = apply(AtomicOp::fetch, 0);
    shoal::require(next_of(seen) != holder_of(seen), shoal::Code::invalid_argument,
                   "SHOAL-N832: lock is free; allowed: a lock that this PE has set");
    program_.world.quiet();
    // Half of the word: a carry would change the next ticket.
    at_.transport.update(at_.pe, AtomicOp::add, at_.offset, 1, sizeof(std::uint32_t));
  }

 private:
  std::uint64_t apply(AtomicOp op, std::uint64_t operand, std::uint64_t compare = 0) {
    return at_.transport.atomic(at_.pe, op, at_.offset, operand, compare, sizeof(std::uint64_t));
  }

  Program& program_;
  Target at_;
};

}  // namespace

SHMEM_DEFINE(void, set_lock, (long* lock)) {
  guarded("shmem_set_lock", [&](Program& program) { Lock(program, lock).set(); });
}
SHMEM_DEFINE(void, clear_lock, (long* lock)) {
  guarded("shmem_clear_lock", [&](Program& program) { Lock(program, lock).clear(); });
}
SHMEM_DEFINE(int, test_lock, (long* lock)) {
  return guarded("shmem_test_lock",
                 [&](Program& program) { return Lock(program, lock).test() ? 0 : 1; });
}
