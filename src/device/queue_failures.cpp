// SPDX-License-Identifier: Apache-2.0
#include "device/queue_failures.hpp"

#include <algorithm>
#include <atomic>

#include "base/check.hpp"
#include "base/mlx5/host_bus.hpp"

namespace shoal::detail {
namespace {

namespace gda = device::gda;

/// For a queue whose shared words are a copy, which one thread has; its completions are not.
struct CopyPlatform : mlx5::HostBus {
  std::uint64_t load(const std::uint64_t* word) const noexcept { return *word; }
  void raise(std::uint64_t* word, std::uint64_t value) const noexcept {
    *word = std::max(*word, value);
  }
  bool replace(std::uint64_t* word, std::uint64_t& seen, std::uint64_t value) const noexcept {
    if (*word == seen) {
      *word = value;
      return true;
    }
    seen = *word;
    return false;
  }
  std::uint32_t load_cause(const std::uint32_t* word) const noexcept {
    return std::atomic_ref(*const_cast<std::uint32_t*>(word)).load(std::memory_order_relaxed);
  }
};

/// The names that libibverbs gives them (ibv_wc_status_str).
const char* name_of(mlx5::Syndrome syndrome) {
  using mlx5::Syndrome;
  switch (syndrome) {
    case Syndrome::none:
      return "success";
    case Syndrome::local_length:
      return "local length error";
    case Syndrome::local_qp_operation:
      return "local QP operation error";
    case Syndrome::local_protection:
      return "local protection error";
    case Syndrome::flushed:
      return "Work Request Flushed Error";
    case Syndrome::memory_window_bind:
      return "memory bind operation error";
    case Syndrome::bad_response:
      return "bad response error";
    case Syndrome::local_access:
      return "local access error";
    case Syndrome::remote_invalid_request:
      return "remote invalid request error";
    case Syndrome::remote_access:
      return "remote access error";
    case Syndrome::remote_operation:
      return "remote operation error";
    case Syndrome::retry_exceeded:
      return "transport retry counter exceeded";
    case Syndrome::rnr_retry_exceeded:
      return "RNR retry counter exceeded";
    case Syndrome::remote_aborted:
      return "remote aborted error";
  }
  return "unknown error";
}

/// Remedy for the error, to follow its description.
const char* advice_for(mlx5::Syndrome syndrome) {
  using mlx5::Syndrome;
  if (syndrome == Syndrome::flushed)
    return "; the peer or an earlier error has ended the queue pair";
  if (syndrome == Syndrome::retry_exceeded)
    return "; the peer or the link is lost; settings: SHOAL_VERBS_RETRIES, SHOAL_VERBS_TIMEOUT";
  return "";
}

const char* name_of(mlx5::Opcode opcode) {
  switch (opcode) {
    case mlx5::Opcode::nop:
      return "none";
    case mlx5::Opcode::write:
      return "RDMA write";
    case mlx5::Opcode::read:
      return "RDMA read";
    case mlx5::Opcode::compare_swap:
    case mlx5::Opcode::fetch_add:
      return "atomic";
  }
  return "unknown operation";
}

const char* name_of(gda::Step step) {
  constexpr const char* names[] = {"nothing", "room in the queue", "the order of requests",
                                   "the doorbell", "a completion"};
  const auto i = static_cast<std::size_t>(step);
  return i < std::size(names) ? names[i] : "unknown";
}

}  // namespace

QueueState look_at(const gda::Queue& queue, const gda::Shared& shared) {
  gda::Queue copy = queue;
  gda::Shared words = shared;
  copy.shared = &words;
  CopyPlatform platform;
  // One after another: the last may have no completion yet where one before it has an error.
  for (std::uint64_t next = words.completed; next < words.rung && words.failure == 0; ++next)
    (void)gda::poll(copy, next + 1, platform);
  return {gda::failure_of(copy, platform), words.completed, words.published};
}

std::string describe(const gda::Failure& failure) {
  if (failure.cause == gda::Cause::nic)
    return fmt::format("SHOAL-N472: request {} ({}) ended with {} (syndrome {:#x}, vendor {:#x}){}",
                       failure.index, name_of(failure.opcode), name_of(failure.syndrome),
                       static_cast<unsigned>(failure.syndrome), failure.vendor,
                       advice_for(failure.syndrome));
  if (failure.cause == gda::Cause::aborted)
    return fmt::format("SHOAL-N474: request {} was given up, since the world ended", failure.index);
  return fmt::format("SHOAL-N471: request {} waited too long for {}; setting: SHOAL_TIMEOUT_MS",
                     failure.index, name_of(failure.step));
}

std::optional<Error> failure_of(std::span<const QueueState> queues, Pe pe) {
  const QueueState* found = nullptr;
  for (const QueueState& queue : queues) {
    if (queue.failure.cause == gda::Cause::none) continue;
    if (found == nullptr || static_cast<Pe>(queue.failure.peer) == pe) found = &queue;
    if (static_cast<Pe>(queue.failure.peer) == pe) break;
  }
  if (found != nullptr) {
    const gda::Failure& failure = found->failure;
    const Code code = failure.cause == gda::Cause::nic       ? Code::peer_failed
                      : failure.cause == gda::Cause::aborted ? Code::closed
                                                             : Code::timeout;
    return Error(code, fmt::format("SHOAL-N472: queue pair {:#x} to PE {} has ended: {}",
                                   failure.queue_pair, failure.peer, describe(failure)));
  }
  for (const QueueState& queue : queues)
    if (static_cast<Pe>(queue.failure.peer) == pe && queue.completed < queue.published)
      return Error(
          Code::timeout,
          fmt::format(
              "SHOAL-N471: queue pair {:#x} to PE {}: the NIC has completed {} of {} requests: it "
              "lost the doorbell, or the PE does not acknowledge them",
              queue.failure.queue_pair, pe, queue.completed, queue.published));
  return std::nullopt;
}

}  // namespace shoal::detail
