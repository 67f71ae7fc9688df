// SPDX-License-Identifier: Apache-2.0
#include "world/state.hpp"

#include <cstring>
#include <exception>
#include <limits>

#include "base/check.hpp"
#include "base/log.hpp"
#include "transport/scoped_timeout.hpp"
#include "world/parts.hpp"
#include "world/startup/outcome.hpp"

namespace shoal::detail {
namespace {

template <typename Tell>
void unless_out_of_reach(Tell&& tell) noexcept {
  try {
    tell();
  } catch (const std::exception&) {
  }
}

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

constexpr std::size_t kPhaseWords = sizeof(ProgressRecord::phase) / sizeof(std::uint64_t);
constexpr std::size_t kWord = sizeof(std::uint64_t);

}  // namespace

HeapRoute WorldParts::heap_route(Pe pe, transport::Capabilities needed) const {
  if (!device_heap) return {route(pe), layout.bytes()};
  const auto i = static_cast<std::size_t>(pe);
  require((heap_connectivity.capabilities[i] & needed) == needed, Code::unsupported,
          "PE {} cannot do {} on the heap of PE {} in GPU memory: {}", my_pe,
          [&] { return transport::describe(needed); }, pe,
          [&] { return why_not(heap_connectivity, my_pe, my_pe, pe); });
  device->activate();
  return {*heap_transports[heap_connectivity.transport_of[i]], 0};
}

std::string why_out_of_reach(const WorldState& state, Pe pe) {
  const WorldParts& world = state.parts();
  if (!world.device_heap)
    return "they are on different nodes (SHOAL_NODE_SIZE or the hosts say so)";
  return why_not(world.heap_connectivity, world.my_pe, world.my_pe, pe);
}

WorldState::WorldState() : parts_(std::make_unique<WorldParts>()), heap_(*this) {}

WorldState::~WorldState() {
  if (!parts_->open) return;
  closers_.close(WorldEnd::failed);
  if (std::uncaught_exceptions() > 0) {
    const auto cause = failure();  // another PE's failure, where that is why
    fail_world(cause ? fmt::format("left the world after {}", *cause)
                     : "left the world while an exception was thrown");
  } else {
    announce(PeerStatus::left, "left the world without closing it");
  }
  parts_->bootstrap->close();
}

Pe WorldState::my_pe() const noexcept {
  return parts_->my_pe;
}
Pe WorldState::n_pes() const noexcept {
  return parts_->n_pes;
}
const Settings& WorldState::settings() const noexcept {
  return parts_->settings;
}
SymmetricHeap& WorldState::heap() noexcept {
  return heap_;
}
TeamState& WorldState::world_team() noexcept {
  return parts_->world_team();
}
bool WorldState::is_open() const noexcept {
  return parts_->open;
}

const memory::Device* WorldState::cuda() const noexcept {
  return parts_->device.get();
}

std::byte* WorldState::peer_base(Pe pe) const noexcept {
  const auto i = static_cast<std::size_t>(pe);
  return i < parts_->peer_base.size() ? parts_->peer_base[i] : nullptr;
}

void WorldState::pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

WaitOutcome WorldState::check_health(bool late, Pe awaited) noexcept {
  set_awaited(awaited);
  {
    const std::lock_guard lock(parts_->health_mutex);
    parts_->health->update();
    if (parts_->health->failure(awaited)) return WaitOutcome::peer_failed;
  }
  return late ? WaitOutcome::timeout : WaitOutcome::ready;
}

std::optional<std::string> WorldState::failure() noexcept {
  if (!parts_->open) return std::nullopt;
  const std::lock_guard lock(parts_->health_mutex);
  parts_->health->update();
  return parts_->health->failure(kAnyPe);
}

bool WorldState::has_failed(Pe pe) noexcept {
  if (!parts_->open) return false;
  const std::lock_guard lock(parts_->health_mutex);
  parts_->health->update();
  return parts_->health->has_failed(pe);
}

void WorldState::throw_wait_failed(WaitOutcome outcome, const std::string& what,
                                   const std::string& detail) const {
  const std::lock_guard lock(parts_->health_mutex);
  if (outcome == WaitOutcome::peer_failed)
    fail(Code::peer_failed, "{} failed on PE {} of {}: {}; it was {}", what, my_pe(), n_pes(),
         parts_->health->failure(kAnyPe).value_or("a PE of the world failed"), detail);
  fail(Code::timeout, "{} timed out after {} ms on PE {} of {}: {}; Setting: SHOAL_TIMEOUT_MS.",
       what, settings().timeout.count(), my_pe(), n_pes(), detail);
}

void WorldState::set_progress(Activity activity, std::uint64_t epoch, const char* phase) noexcept {
  if (!parts_->open) return;
  std::uint64_t text[kPhaseWords] = {};
  std::memcpy(text, phase, strnlen(phase, sizeof text - 1));
  auto& record = *reinterpret_cast<ProgressRecord*>(parts_->control(parts_->layout.progress()));
  const auto store = [](std::uint64_t& word, std::uint64_t value) {
    std::atomic_ref(word).store(value, std::memory_order_relaxed);
  };
  store(record.activity, static_cast<std::uint64_t>(activity));
  store(record.epoch, epoch);
  for (std::size_t i = 0; i < kPhaseWords; ++i) store(record.phase[i], text[i]);
  store(record.awaited, 0);
}

std::string WorldState::describe_progress(Pe pe) const {
  if (!parts_->open) return fmt::format("PE {} is unknown: the world is closed", pe);
  const transport::ScopedTimeout patience(
      transport::kPatience);  // it may be why this is asked that `pe` cannot be reached
  try {
    return read_progress(pe);
  } catch (const Error&) {
    return fmt::format("PE {} does not answer", pe);
  }
}

void WorldState::set_awaited(Pe pe) noexcept {
  auto& record = *reinterpret_cast<ProgressRecord*>(parts_->control(parts_->layout.progress()));
  std::atomic_ref(record.awaited)
      .store(static_cast<std::uint64_t>(pe) + 1, std::memory_order_relaxed);
}

Awaited WorldState::awaited_by(Pe pe) const {
  if (!parts_->open) return {};
  const transport::ScopedTimeout patience(transport::kPatience);
  try {
    const std::size_t word = parts_->layout.progress() + offsetof(ProgressRecord, awaited);
    const std::uint64_t awaited = parts_->route(pe).atomic(pe, AtomicOp::fetch, word, 0, 0, kWord);
    return {true,
            awaited <= static_cast<std::uint64_t>(n_pes()) ? static_cast<Pe>(awaited) - 1 : -1};
  } catch (const Error&) {
    return {};
  }
}

std::string WorldState::read_progress(Pe pe) const {
  const std::size_t record = parts_->layout.progress();
  const auto fetch = [&](std::size_t offset) {
    return parts_->route(pe).atomic(pe, AtomicOp::fetch, record + offset, 0, 0, kWord);
  };
  const auto activity = static_cast<Activity>(fetch(offsetof(ProgressRecord, activity)));
  const std::uint64_t epoch = fetch(offsetof(ProgressRecord, epoch));
  std::uint64_t text[kPhaseWords];
  for (std::size_t i = 0; i < kPhaseWords; ++i)
    text[i] = fetch(offsetof(ProgressRecord, phase) + i * kWord);
  char phase[sizeof text + 1] = {};
  std::memcpy(phase, text, sizeof text);
  if (activity == Activity::idle && phase[0] == '\0')
    return fmt::format("PE {} reported nothing yet", pe);
  if (activity == Activity::idle)
    return fmt::format("PE {} last reported {} {} as complete", pe, phase, epoch);
  const std::uint64_t awaited = fetch(offsetof(ProgressRecord, awaited));
  return fmt::format("PE {} last reported {} {}, phase {}{}", pe, name_of(activity), epoch, phase,
                     awaited == 0 ? "" : fmt::format(", waiting for PE {}", awaited - 1));
}

void WorldState::announce(PeerStatus status, const std::string& message) noexcept {
  WorldParts& world = *parts_;
  if (!world.open || world.announced) return;
  world.announced = true;
  std::optional<transport::ScopedTimeout> patience;
  if (status != PeerStatus::closed) patience.emplace(transport::kPatience);
  char text[StatusEntry::kMessageBytes] = {};
  std::memcpy(text, message.data(), std::min(message.size(), sizeof text - 1));
  const std::size_t entry = world.layout.status(world.my_pe);
  // A PE that cannot be told finds out by the bootstrap or by its deadline.
  for (Pe pe = 0; pe < world.n_pes; ++pe) {
    if (pe == world.my_pe) continue;
    transport::Transport& route = world.route(pe);
    unless_out_of_reach([&] {
      route.put_signal(pe, entry + offsetof(StatusEntry, message), text, sizeof text, entry,
                       SignalOp::set, static_cast<std::uint64_t>(status));
      route.signal(pe, world.layout.alerts(), SignalOp::add, 1);
    });
  }
  for (const auto& transport : world.transports) unless_out_of_reach([&] { transport->quiet(); });
}

void WorldState::get_nbi(void* target, RemoteAddress source, std::size_t bytes) {
  const HeapRoute route = parts_->heap_route(source.pe, transport::capability::get);
  route.transport.get_nbi(target, source.pe, route.start + source.offset, bytes);
}

void WorldState::put(RemoteAddress target, const void* source, std::size_t bytes) {
  const HeapRoute route = parts_->heap_route(target.pe, transport::capability::put);
  route.transport.put(target.pe, route.start + target.offset, source, bytes);
}

bool WorldState::progress_networks() noexcept {
  bool any = false;
  for (std::size_t i = transport::factories().size(); i < parts_->transports.size(); ++i)
    any |= parts_->transports[i]->progress();
  return any;
}

std::byte* WorldState::host_base(Pe pe) const noexcept {
  return pe == parts_->my_pe ? parts_->segment->base() : parts_->route(pe).base(pe);
}
std::size_t WorldState::host_offset(std::size_t heap_offset) const noexcept {
  return parts_->layout.bytes() + heap_offset;
}
void WorldState::host_put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  parts_->route(pe).put(pe, offset, source, bytes);
}
void WorldState::host_put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  parts_->route(pe).put_nbi(pe, offset, source, bytes);
}
void WorldState::host_signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) {
  parts_->route(pe).signal(pe, offset, op, value);
}
std::vector<std::int32_t> WorldState::host_domains() const {
  return detail::load_store_domains(parts_->connectivity);
}

std::size_t WorldState::allocate_staging(std::size_t bytes) {
  const auto offset = parts_->staging.allocate(bytes, memory::Allocator::kMinimumAlignment);
  std::optional<Error> failure;
  if (!offset)
    failure =
        Error(Code::exhausted, fmt::format("staging has no room for {} bytes: {} of {} are free; "
                                           "SHOAL_STAGING_SIZE sets the size",
                                           bytes, parts_->staging.free(), parts_->staging.size()));
  try {
    agree_on_outcome(*this, failure, "staging");
  } catch (...) {
    if (offset) parts_->staging.release(*offset);
    throw;
  }
  return parts_->layout.bytes() + *offset;
}

void WorldState::release_staging(std::size_t offset) {
  sync(world_team(), "staging");
  parts_->staging.release(offset - parts_->layout.bytes());
}

std::vector<std::int32_t> WorldState::load_store_domains() const {
  return detail::load_store_domains(parts_->device_heap ? parts_->heap_connectivity
                                                        : parts_->connectivity);
}

void WorldState::quiet() {
  for (const auto& transport : parts_->heap_transports) transport->quiet();
  for (const auto& transport : parts_->transports) transport->quiet();
}

void WorldState::keep(std::shared_ptr<const void> memory) noexcept {
  parts_->kept.push_back(std::move(memory));
}

void WorldState::fail_world(const std::string& reason) noexcept {
  if (!parts_->open) return;
  announce(PeerStatus::failed, reason);
  parts_->bootstrap->abort(reason);
}

void WorldState::close() {
  WorldParts& world = *parts_;
  if (!world.open) return;
  closers_.close(WorldEnd::closed);
  std::exception_ptr failure;
  try {
    set_progress(Activity::closing, world.world_team().epoch + 1, "barrier");
    quiet();
    sync(world.world_team(), "World::close");
  } catch (...) {
    failure = std::current_exception();
  }
  announce(PeerStatus::closed, "");
  if (!failure && world.transports.size() > transport::factories().size()) {
    // What a network still has on its way, such as acknowledgements, needs both ends.
    try {
      world.bootstrap->barrier("World::close");
    } catch (const std::exception& error) {
      log::debug("PE {}: closing: {}", world.my_pe, error.what());
    }
  }
  release();
  if (failure) std::rethrow_exception(failure);
}

void WorldState::release() noexcept {
  WorldParts& world = *parts_;
  world.open = false;
  world.health.reset();
  world.peer_base.clear();
  world.device_side.reset();
  world.heap_transports.clear();
  world.transports.clear();
  world.kept.clear();
  world.shared_ranges.clear();
  world.shared_buffers.reset();
  world.device_heap.reset();
  world.device.reset();
  world.segment.reset();
  world.bootstrap->close();
  world.bootstrap.reset();
}

}  // namespace shoal::detail
