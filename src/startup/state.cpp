// SPDX-License-Identifier: Apache-2.0
// Creation and end of the parts that a WorldState owns.
#include "world/state.hpp"

#include <exception>
#include <utility>

#include "base/attempt.hpp"
#include "base/check.hpp"
#include "base/log.hpp"
#include "device/device_side.hpp"
#include "fabric/fabric.hpp"
#include "pe/memory.hpp"
#include "team/exchange.hpp"
#include "team/teams.hpp"

namespace shoal::detail {

WorldState::WorldState()
    : memory_(std::make_unique<Memory>()),
      fabric_(std::make_unique<Fabric>(placement_, *memory_)),
      teams_(std::make_unique<Teams>()),
      progress_(open_, placement_, *memory_, *fabric_, recorder_),
      health_(open_, placement_, *memory_, *fabric_),
      waits_(open_, settings_, placement_, *memory_, *fabric_, health_, progress_),
      heap_(*this) {}

WorldState::~WorldState() {
  if (!open_) return;
  closers_.close(WorldEnd::failed);
  const auto cause = health_.failure();
  if (std::uncaught_exceptions() > 0) {
    health_.fail_world(cause ? fmt::format("left the world after {}", *cause)
                             : "left the world while an exception was thrown");
  } else {
    if (cause) health_.publish_cause(parse_cause(*cause));
    health_.announce(PeerStatus::left, "left the world without closing it");
  }
  release();
}

std::shared_ptr<DeviceSide> WorldState::set_device_side(std::shared_ptr<DeviceSide> side) noexcept {
  return std::exchange(device_side_, std::move(side));
}

void WorldState::close() {
  if (!open_) return;
  closers_.close(WorldEnd::closed);
  TeamState& team = teams_->world_team();
  const auto barrier = attempt([&] {
    progress_.set(Activity::closing, team.epoch + 1, "barrier");
    fabric_->quiet();
    sync(team, "World::close");
  });
  health_.announce(PeerStatus::closed, "");
  if (!barrier && fabric_->uses_network()) {
    // The last messages of a network, such as acknowledgements, need both ends.
    const auto failure = attempt([&] { bootstrap_->barrier("World::close"); });
    if (failure) log::debug("PE {}: closing: {}", my_pe(), failure->what());
  }
  release();
  if (!barrier) return;
  if (!may_leave_early_ || barrier->code() != Code::timeout) throw Error(*barrier);
  log::warn(
      "SHOAL-N192: PE {} has closed its world alone: the other PEs may run on without it "
      "(GroupOptions.mask_failed): {}",
      my_pe(), reason_of(*barrier));
}

void WorldState::release() noexcept {
  open_ = false;
  device_side_.reset();
  fabric_->release();
  health_.stop();  // after the threads of the transports, which query it
  memory_->release();
  bootstrap_->close();
  bootstrap_.reset();
}

}  // namespace shoal::detail
