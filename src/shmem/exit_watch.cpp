// SPDX-License-Identifier: Apache-2.0
#include "shmem/exit_watch.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <ctime>
#include <exception>

#include "shmem/ending.hpp"

namespace shoal::shmem {
namespace {

// The word of a PE. Only the low 8 bits of a status reach the parent process.
constexpr std::uint32_t kRunning = 0;
constexpr std::uint32_t kStopped = 1;   ///< the thread may end
constexpr std::uint32_t kExit = 0x100;  ///< with the status in the low bits
/// Delay in ns after which a thread sees a word that a network has written.
constexpr long kLookNs = 50'000'000;

std::uint32_t load(std::uint32_t* word) noexcept {
  return std::atomic_ref(*word).load(std::memory_order_acquire);
}

/// PEs of other processes sleep on the same memory, so the futex is not private.
void futex(std::uint32_t* word, int operation, std::uint32_t value) noexcept {
  const timespec limit{0, kLookNs};
  syscall(SYS_futex, word, operation, value, operation == FUTEX_WAIT ? &limit : nullptr, nullptr,
          0);
}

}  // namespace

void ExitWatch::start(const World& world) {
  world_ = world;
  word_ = static_cast<std::uint32_t*>(world.heap().calloc(1, sizeof *word_));
  // Signals are for the threads of the program.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  thread_ = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ExitWatch::stop() noexcept {
  if (!thread_.joinable()) return;
  std::uint32_t running = kRunning;
  std::atomic_ref(*word_).compare_exchange_strong(running, kStopped);
  futex(word_, FUTEX_WAKE, 1);
  thread_.join();
  word_ = nullptr;
  world_ = World();
}

std::optional<int> ExitWatch::announced() const noexcept {
  if (word_ == nullptr) return std::nullopt;
  // Another PE of this host may read its word, and end, before this PE's word is written.
  for (Pe pe = 0; pe < world_.n_pes(); ++pe) {
    void* const word_of = world_.heap().peer_pointer(word_, pe);
    const std::uint32_t word =
        word_of == nullptr ? kRunning : load(static_cast<std::uint32_t*>(word_of));
    if (word >= kExit) return static_cast<int>(word & 0xff);
  }
  return std::nullopt;
}

void ExitWatch::watch() const noexcept {
  while (load(word_) == kRunning) futex(word_, FUTEX_WAIT, kRunning);
  if (const auto status = announced()) leave_process(*status);
}

void ExitWatch::exit_all(int status) noexcept {
  if (const auto other = announced()) leave_process(*other);
  const std::uint32_t word = kExit | (static_cast<std::uint32_t>(status) & 0xff);
  std::fflush(stdout);
  const std::size_t offset = world_.heap().offset_of(word_);
  for (Pe pe = 0; pe < world_.n_pes(); ++pe) {
    if (pe == world_.my_pe()) continue;
    try {
      world_.atomic_set(RemoteSpan<std::uint32_t>{{pe, offset}, 1}, word);
      if (void* const peer = world_.heap().peer_pointer(word_, pe))
        futex(static_cast<std::uint32_t*>(peer), FUTEX_WAKE, 1);
    } catch (const std::exception&) {
      // A PE that has ended or is out of reach: its launcher ends it.
    }
  }
  try {
    world_.quiet();
  } catch (const std::exception&) {
  }
  leave_process(status);
}

}  // namespace shoal::shmem
