// SPDX-License-Identifier: Apache-2.0
#include "pe/progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "pe/control.hpp"
#include "pe/memory.hpp"
#include "pe/placement.hpp"
#include "pe/routes.hpp"
#include "record/pe_recorder.hpp"
#include "transport/scoped_timeout.hpp"
#include "transport/transport.hpp"

namespace shoal::detail {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);
constexpr std::size_t kPhaseWords = sizeof(ProgressEntry::phase) / kWord;

const char* name_of(Activity activity) noexcept {
  switch (activity) {
    case Activity::idle:
      return "idle";
    case Activity::opening:
      return "opening";
    case Activity::closing:
      return "closing";
    case Activity::allocating:
      return "allocating";
    case Activity::team:
      return "team";
    case Activity::barrier:
      return "barrier";
    case Activity::collective:
      return "collective";
    case Activity::waiting:
      return "waiting";
    case Activity::dispatch:
      return "dispatch";
    case Activity::combine:
      return "combine";
    case Activity::low_latency_dispatch:
      return "low_latency_dispatch";
    case Activity::low_latency_combine:
      return "low_latency_combine";
  }
  return "unknown";
}

void store(std::uint64_t& word, std::uint64_t value,
           std::memory_order order = std::memory_order_relaxed) noexcept {
  std::atomic_ref(word).store(value, order);
}

ProgressEntry& own_record(const Memory& memory) noexcept {
  return *reinterpret_cast<ProgressEntry*>(memory.control(memory.layout().progress()));
}

}  // namespace

void ProgressBoard::set(Activity activity, std::uint64_t epoch, const char* phase) const noexcept {
  if (!open_) return;
  std::uint64_t text[kPhaseWords] = {};
  std::memcpy(text, phase, strnlen(phase, sizeof text - 1));
  ProgressEntry& record = own_record(memory_);
  store(record.activity, static_cast<std::uint64_t>(activity));
  store(record.epoch, epoch);
  for (std::size_t i = 0; i < kPhaseWords; ++i) store(record.phase[i], text[i]);
  store(record.awaited, 0);
  if (activity < Activity::dispatch) recorder_.set(phase, epoch, activity != Activity::idle);
}

void ProgressBoard::set_awaited(Pe pe) const noexcept {
  store(own_record(memory_).awaited, static_cast<std::uint64_t>(pe) + 1);
  recorder_.set_awaited(pe);
}

void ProgressBoard::publish_refusal(const CallId& call, std::string_view why) const noexcept {
  static_assert(static_cast<std::size_t>(CallKind::low_latency_combine) < ControlLayout::kRefusals);
  if (!open_) return;
  std::uint64_t text[RefusalEntry::kTextWords] = {};
  std::memcpy(text, why.data(), std::min(why.size(), sizeof text - 1));
  auto& record = *reinterpret_cast<RefusalEntry*>(
      memory_.control(memory_.layout().refusal(static_cast<std::size_t>(call.kind))));
  // A reader that has seen a new word sees the old number no longer.
  constexpr auto release = std::memory_order_release;
  store(record.number, 0);
  store(record.object, call.object, release);
  for (std::size_t i = 0; i < RefusalEntry::kTextWords; ++i)
    store(record.text[i], text[i], release);
  store(record.number, call.number, release);
}

std::string ProgressBoard::refusal(std::span<const Pe> pes, const CallId& call) const {
  using Clock = std::chrono::steady_clock;
  // PEs that do not answer must not hold up the message.
  const Clock::time_point end = Clock::now() + transport::kFailureReportTimeout;
  for (const Pe pe : pes) {
    if (!open_ || Clock::now() > end) break;
    if (const std::string why = reason_of_refusal(pe, call); !why.empty())
      return fmt::format("; PE {} refused its call: {}", pe, why);
  }
  return {};
}

/// Why `pe` refused the call; empty where it did not, or does not answer.
std::string ProgressBoard::reason_of_refusal(Pe pe, const CallId& call) const {
  const transport::ScopedTimeout limit(transport::kFailureReportTimeout);
  const std::size_t record = memory_.layout().refusal(static_cast<std::size_t>(call.kind));
  const auto fetch = [&](std::size_t offset) {
    return routes_.route(pe).atomic(pe, AtomicOp::fetch, record + offset, 0, 0, kWord);
  };
  const auto current = [&] {
    return fetch(offsetof(RefusalEntry, number)) == call.number &&
           fetch(offsetof(RefusalEntry, object)) == call.object;
  };
  try {
    if (!current()) return {};
    std::uint64_t text[RefusalEntry::kTextWords] = {};
    const auto* const letters = reinterpret_cast<const char*>(text);
    for (std::size_t i = 0; i < RefusalEntry::kTextWords; ++i) {
      text[i] = fetch(offsetof(RefusalEntry, text) + i * kWord);
      if (std::memchr(text + i, '\0', kWord) != nullptr) break;
    }
    if (!current()) return {};
    return letters;
  } catch (const Error&) {
    return {};
  }
}

std::string ProgressBoard::describe(Pe pe) const {
  if (!open_) return fmt::format("PE {} is unknown: the world is closed", pe);
  const transport::ScopedTimeout limit(transport::kFailureReportTimeout);
  try {
    return read(pe);
  } catch (const Error& error) {
    // A network that is cut in silence looks like a PE that is late.
    return fmt::format("PE {} does not answer{}", pe,
                       error.code() == Code::timeout ? routes_.other_transports(pe) : "");
  }
}

Awaited ProgressBoard::awaited_by(Pe pe) const {
  if (!open_) return {};
  const transport::ScopedTimeout limit(transport::kFailureReportTimeout);
  try {
    const std::size_t word = memory_.layout().progress() + offsetof(ProgressEntry, awaited);
    const std::uint64_t awaited = routes_.route(pe).atomic(pe, AtomicOp::fetch, word, 0, 0, kWord);
    const bool exists = awaited <= static_cast<std::uint64_t>(placement_.n_pes);
    return {true, exists ? static_cast<Pe>(awaited) - 1 : -1};
  } catch (const Error&) {
    return {};
  }
}

std::string ProgressBoard::read(Pe pe) const {
  const std::size_t record = memory_.layout().progress();
  const auto fetch = [&](std::size_t offset) {
    return routes_.route(pe).atomic(pe, AtomicOp::fetch, record + offset, 0, 0, kWord);
  };
  const auto activity = static_cast<Activity>(fetch(offsetof(ProgressEntry, activity)));
  const std::uint64_t epoch = fetch(offsetof(ProgressEntry, epoch));
  std::uint64_t text[kPhaseWords];
  for (std::size_t i = 0; i < kPhaseWords; ++i)
    text[i] = fetch(offsetof(ProgressEntry, phase) + i * kWord);
  char phase[sizeof text + 1] = {};
  std::memcpy(phase, text, sizeof text);
  if (activity == Activity::idle && phase[0] == '\0')
    return fmt::format("PE {} reported nothing yet", pe);
  if (activity == Activity::idle)
    return fmt::format("PE {} last reported {} {} as complete", pe, phase, epoch);
  const std::uint64_t awaited = fetch(offsetof(ProgressEntry, awaited));
  return fmt::format("PE {} last reported {} {}, phase {}{}", pe, name_of(activity), epoch, phase,
                     awaited == 0 ? "" : fmt::format(", waiting for PE {}", awaited - 1));
}

}  // namespace shoal::detail
