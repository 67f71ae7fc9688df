// SPDX-License-Identifier: Apache-2.0
#include "world/state.hpp"

#include <exception>

#include "base/check.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "device/device_side.hpp"
#include "fabric/fabric.hpp"
#include "pe/health.hpp"
#include "pe/memory.hpp"
#include "team/outcome.hpp"
#include "team/teams.hpp"
#include "transport/scoped_timeout.hpp"

namespace shoal::detail {

WorldState::WorldState()
    : placement_(std::make_unique<Placement>()),
      memory_(std::make_unique<Memory>()),
      fabric_(std::make_unique<Fabric>(*placement_, *memory_)),
      teams_(std::make_unique<Teams>()),
      progress_(std::make_unique<ProgressBoard>(*placement_, *memory_, *fabric_)),
      heap_(*this) {}

WorldState::~WorldState() {
  if (!open_) return;
  closers_.close(WorldEnd::failed);
  const auto cause = failure();
  if (std::uncaught_exceptions() > 0) {
    fail_world(cause ? fmt::format("left the world after {}", *cause)
                     : "left the world while an exception was thrown");
  } else {
    if (cause) health_->publish_cause(parse_cause(*cause));
    health_->announce(PeerStatus::left, "left the world without closing it");
  }
  release();
}

Pe WorldState::my_pe() const noexcept {
  return placement_->my_pe;
}
Pe WorldState::n_pes() const noexcept {
  return placement_->n_pes;
}
std::shared_ptr<DeviceSide> WorldState::set_device_side(std::shared_ptr<DeviceSide> side) noexcept {
  return std::exchange(device_side_, std::move(side));
}
const memory::Device* WorldState::cuda() const noexcept {
  return memory_->device().get();
}
std::byte* WorldState::peer_base(Pe pe) const noexcept {
  return fabric_->peer_base(pe);
}
TeamState& WorldState::world_team() noexcept {
  return teams_->world_team();
}

void WorldState::pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

WaitOutcome WorldState::check_health(bool late, Pe awaited, LongWait& wait,
                                     Clock::time_point now) noexcept {
  set_awaited(awaited);
  if (health_->failure(awaited)) return WaitOutcome::peer_failed;
  if (interrupted()) return WaitOutcome::interrupted;
  if (!late && !wait.reported && now - wait.start >= settings_.warn_after) {
    wait.reported = true;
    warn_of(awaited, now - wait.start);
  }
  return late ? WaitOutcome::timeout : WaitOutcome::ready;
}

/// Names this PE's operation and where the PEs are that it may be waiting for.
void WorldState::warn_of(Pe awaited, Clock::duration waited) const noexcept {
  constexpr Pe kMostNamed = 8;
  // PEs that do not answer must not hold up the wait.
  const Clock::time_point end = Clock::now() + transport::kFailureReportTimeout;
  try {
    std::string others;
    Pe named = 0;
    for (Pe pe = 0; pe < n_pes() && named < kMostNamed && Clock::now() < end; ++pe) {
      if (pe == my_pe() || (awaited != kAnyPe && pe != awaited)) continue;
      others += "; " + describe_progress(pe);
      ++named;
    }
    log::warn(
        "PE {} of {} has waited for {} s and goes on: {}{}; Settings: SHOAL_WARN_AFTER_MS, "
        "SHOAL_TIMEOUT_MS.",
        my_pe(), n_pes(), std::chrono::duration_cast<std::chrono::seconds>(waited).count(),
        describe_progress(my_pe()), others);
  } catch (const std::exception&) {  // no memory for a message
  }
}

void WorldState::wake(Pe pe) noexcept {
  if (open_) fabric_->route(pe).wake(pe);
}

WaitPoint& WorldState::wait_point() const noexcept {
  return *reinterpret_cast<WaitPoint*>(memory_->control(memory_->layout().wait_point()));
}

bool WorldState::progress_networks() noexcept {
  return fabric_->progress();
}

void WorldState::throw_wait_failed(WaitOutcome outcome, const std::string& what,
                                   const std::string& detail, Pe awaited) const {
  if (outcome == WaitOutcome::peer_failed)
    fail(Code::peer_failed, "{} failed on PE {} of {}: {}; it was {}", what, my_pe(), n_pes(),
         health_->failure(awaited).value_or("a PE of the world failed"), detail);
  if (outcome == WaitOutcome::interrupted)
    fail(Code::system, "{} was interrupted on PE {} of {}: {}", what, my_pe(), n_pes(), detail);
  fail(Code::timeout, "{} timed out after {} ms on PE {} of {}: {}; Setting: SHOAL_TIMEOUT_MS.",
       what, settings_.timeout.count(), my_pe(), n_pes(), detail);
}

std::optional<std::string> WorldState::failure() noexcept {
  if (!open_) return std::nullopt;
  return health_->failure(kAnyPe);
}
bool WorldState::has_failed(Pe pe) noexcept {
  return open_ && health_->has_failed(pe);
}
std::optional<FailureCause> WorldState::first_cause() noexcept {
  if (!open_) return std::nullopt;
  return health_->first_cause();
}
void WorldState::publish_cause(const FailureCause& cause) noexcept {
  if (open_) health_->publish_cause(cause);
}
std::optional<FailureCause> WorldState::published_cause(Pe by) noexcept {
  if (!open_) return std::nullopt;
  return health_->published_cause(by);
}
void WorldState::fail_world(const std::string& reason) noexcept {
  if (!open_) return;
  bootstrap_->abort(health_->announce_failure(reason));
  wake(my_pe());
}

void WorldState::set_progress(Activity activity, std::uint64_t epoch, const char* phase) noexcept {
  if (!open_) return;
  progress_->set(activity, epoch, phase);
  if (activity < Activity::dispatch) recorder_.set(phase, epoch, activity != Activity::idle);
}
std::string WorldState::describe_progress(Pe pe) const {
  if (!open_) return fmt::format("PE {} is unknown: the world is closed", pe);
  return progress_->describe(pe);
}
void WorldState::publish_refusal(const CallId& call, std::string_view why) noexcept {
  if (open_) progress_->set_refusal(call, why);
}
std::string WorldState::refusal(std::span<const Pe> pes, const CallId& call) const {
  // PEs that do not answer must not hold up the message.
  const Clock::time_point end = Clock::now() + transport::kFailureReportTimeout;
  for (const Pe pe : pes) {
    if (!open_ || Clock::now() > end) break;
    if (const std::string why = progress_->refusal(pe, call); !why.empty())
      return fmt::format("; PE {} refused its call: {}", pe, why);
  }
  return {};
}
void WorldState::set_awaited(Pe pe) noexcept {
  progress_->set_awaited(pe);
  recorder_.set_awaited(pe);
}
Awaited WorldState::awaited_by(Pe pe) const {
  if (!open_) return {};
  return progress_->awaited_by(pe);
}

void WorldState::get_nbi(void* target, RemoteAddress source, std::size_t bytes) {
  const HeapRoute route = fabric_->heap_route(source.pe, transport::capability::get);
  route.transport.get_nbi(target, source.pe, route.start + source.offset, bytes);
}
void WorldState::put(RemoteAddress target, const void* source, std::size_t bytes) {
  const HeapRoute route = fabric_->heap_route(target.pe, transport::capability::put);
  route.transport.put(target.pe, route.start + target.offset, source, bytes);
}
void WorldState::quiet() {
  fabric_->quiet();
}
void WorldState::keep(std::shared_ptr<const void> memory) noexcept {
  fabric_->keep(std::move(memory));
}

std::byte* WorldState::host_base(Pe pe) const noexcept {
  return pe == my_pe() ? memory_->segment()->base() : fabric_->route(pe).base(pe);
}
std::size_t WorldState::host_offset(std::size_t heap_offset) const noexcept {
  return memory_->layout().bytes() + heap_offset;
}
void WorldState::host_put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  fabric_->route(pe).put(pe, offset, source, bytes);
}
void WorldState::host_put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  fabric_->route(pe).put_nbi(pe, offset, source, bytes);
}
void WorldState::host_signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) {
  fabric_->route(pe).signal(pe, offset, op, value);
}
std::vector<std::int32_t> WorldState::host_domains() const {
  return detail::load_store_domains(fabric_->host_map());
}
std::vector<std::int32_t> WorldState::load_store_domains() const {
  return detail::load_store_domains(fabric_->heap_map());
}

std::size_t WorldState::allocate_staging(std::size_t bytes) {
  memory::Allocator& staging = memory_->staging();
  const auto offset = staging.allocate(bytes, memory::Allocator::kMinimumAlignment);
  const auto failure = attempt([&] {
    require(offset.has_value(), Code::exhausted,
            "staging has no room for {} bytes: {} of {} are free; SHOAL_STAGING_SIZE sets the size",
            bytes, staging.free(), staging.size());
  });
  try {
    agree_on_outcome(*this, failure, "staging");
  } catch (...) {
    if (offset) staging.release(*offset);
    throw;
  }
  return memory_->layout().bytes() + *offset;
}

void WorldState::release_staging(std::size_t offset) {
  sync(world_team(), "staging");
  memory_->staging().release(offset - memory_->layout().bytes());
}

void WorldState::close() {
  if (!open_) return;
  closers_.close(WorldEnd::closed);
  const auto barrier = attempt([&] {
    set_progress(Activity::closing, world_team().epoch + 1, "barrier");
    quiet();
    sync(world_team(), "World::close");
  });
  health_->announce(PeerStatus::closed, "");
  if (!barrier && fabric_->uses_network()) {
    // The last messages of a network, such as acknowledgements, need both ends.
    const auto failure = attempt([&] { bootstrap_->barrier("World::close"); });
    if (failure) log::debug("PE {}: closing: {}", my_pe(), failure->what());
  }
  release();
  if (!barrier) return;
  if (!may_leave_early_ || barrier->code() != Code::timeout) throw Error(*barrier);
  log::warn(
      "PE {} has closed its world alone: the other PEs may run on without it "
      "(GroupOptions.mask_failed): {}",
      my_pe(), reason_of(*barrier));
}

void WorldState::release() noexcept {
  open_ = false;
  device_side_.reset();
  fabric_->release();
  health_.reset();  // after the threads of the transports, which query it
  memory_->release();
  bootstrap_->close();
  bootstrap_.reset();
}

}  // namespace shoal::detail
