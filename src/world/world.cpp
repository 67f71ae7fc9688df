// SPDX-License-Identifier: Apache-2.0
#include "shoal/world.hpp"

#include <cstdint>
#include <cstring>

#include "base/check.hpp"
#include "memory/host/segment.hpp"
#include "world/parts.hpp"
#include "world/rma/address_checks.hpp"
#include "world/startup/init.hpp"
#include "world/teams/team.hpp"

namespace shoal {
namespace {

namespace capability = transport::capability;
using detail::check_local;
using detail::check_pe;
using detail::checked;
using detail::checked_signal;
using detail::checked_word;
using detail::extent;
using detail::HeapRoute;
using detail::PredefinedTeam;
using detail::WorldParts;
using detail::WorldState;

Team predefined_team(const std::shared_ptr<WorldState>& state, PredefinedTeam which) {
  // Shares the ownership of the world: the team lives in it.
  return Team(std::shared_ptr<detail::TeamState>(
      state, state->parts().predefined[static_cast<std::size_t>(which)].get()));
}

}  // namespace

World World::open(WorldOptions options) {
  World world;
  world.state_ = detail::open_world(std::move(options));
  return world;
}

std::future<World> World::open_async(WorldOptions options) {
  return std::async(std::launch::async,
                    [options = std::move(options)]() mutable { return open(std::move(options)); });
}

void World::close() {
  if (state_) state_->close();
}

void World::abort(const std::string& reason) const noexcept {
  if (state_) state_->fail_world(reason);
}

bool World::is_open() const noexcept {
  return state_ && state_->is_open();
}

WorldState& World::state() const {
  require(is_open(), Code::closed, "the world is closed");
  return *state_;
}

Pe World::my_pe() const {
  return state().my_pe();
}
Pe World::n_pes() const {
  return state().n_pes();
}
Pe World::my_pe_on_node() const {
  const WorldParts& world = state().parts();
  return world.placement.index_on_node[static_cast<std::size_t>(world.my_pe)];
}
Pe World::pes_per_node() const {
  return state().parts().placement.pes_per_node;
}

Team World::team() const {
  return state(), predefined_team(state_, PredefinedTeam::world);
}
Team World::node_team() const {
  return state(), predefined_team(state_, PredefinedTeam::node);
}
Team World::shared_team() const {
  return state(), predefined_team(state_, PredefinedTeam::shared);
}
Team World::same_index_team() const {
  return state(), predefined_team(state_, PredefinedTeam::same_index);
}
Team World::self_team() const {
  return state(), predefined_team(state_, PredefinedTeam::self);
}

std::uint64_t World::make_team_id() const {
  state();
  const memory::Token random = memory::make_token();
  std::uint64_t id = 0;
  std::memcpy(&id, random.data(), sizeof id);
  return id;
}

Team World::make_team(std::uint64_t id, Pe size, Pe index) const {
  return detail::join_team(state(), id, size, index);
}

SymmetricHeap& World::heap() const {
  return state().heap();
}
const Settings& World::settings() const {
  return state().settings();
}
const std::vector<InitPhase>& World::init_phases() const {
  return state().parts().phases;
}

std::string World::describe_transport(Pe pe) const {
  const WorldParts& world = state().parts();
  check_pe(world, "describe_transport", pe);
  const auto i = static_cast<std::size_t>(pe);
  std::string control = fmt::format("{}: {}", world.route(pe).name(),
                                    transport::describe(world.connectivity.capabilities[i]));
  if (!world.device_heap) return control;
  const detail::Connectivity& heap = world.heap_connectivity;
  if (heap.capabilities[i] == 0)
    return fmt::format("none: {}; control {}", detail::why_not(heap, world.my_pe, world.my_pe, pe),
                       world.route(pe).name());
  const std::size_t chosen = heap.transport_of[i];
  std::string text = fmt::format("{}: {}; control {}", heap.names[chosen],
                                 transport::describe(heap.capabilities[i]), world.route(pe).name());
  for (std::size_t t = 0; t < chosen; ++t)
    if (!heap.reasons[i][t].empty())
      text += fmt::format("; {}: {}", heap.names[t], heap.reasons[i][t]);
  return text;
}

void World::check_counts(std::size_t target, std::size_t source) {
  require(target == source, Code::invalid_argument,
          "source has {} elements, target {}; they must be equal", source, target);
}

void World::check_strided(std::size_t available, std::ptrdiff_t remote_stride,
                          std::ptrdiff_t local_stride, std::size_t count) {
  require(remote_stride >= 1 && local_stride >= 1, Code::invalid_argument,
          "strides of {} elements (remote) and {} (local); both must be at least 1", remote_stride,
          local_stride);
  require(extent(1, static_cast<std::size_t>(remote_stride), count) <= available,
          Code::invalid_argument, "{} elements {} apart leave the remote span of {} elements",
          count, remote_stride, available);
}

void World::put_bytes(RemoteAddress target, const void* source, std::size_t bytes) const {
  const WorldParts& world = state().parts();
  const std::size_t offset = checked(world, "put", target, bytes);
  check_local("put", source, bytes);
  const HeapRoute route = world.heap_route(target.pe, capability::put);
  route.transport.put(target.pe, route.start + offset, source, bytes);
}

void World::get_bytes(void* target, RemoteAddress source, std::size_t bytes) const {
  const WorldParts& world = state().parts();
  const std::size_t offset = checked(world, "get", source, bytes);
  check_local("get", target, bytes);
  const HeapRoute route = world.heap_route(source.pe, capability::get);
  route.transport.get(target, source.pe, route.start + offset, bytes);
}

void World::put_bytes_nbi(RemoteAddress target, const void* source, std::size_t bytes) const {
  const WorldParts& world = state().parts();
  const std::size_t offset = checked(world, "put_nbi", target, bytes);
  check_local("put_nbi", source, bytes);
  const HeapRoute route = world.heap_route(target.pe, capability::put);
  route.transport.put_nbi(target.pe, route.start + offset, source, bytes);
}

void World::get_bytes_nbi(void* target, RemoteAddress source, std::size_t bytes) const {
  const WorldParts& world = state().parts();
  const std::size_t offset = checked(world, "get_nbi", source, bytes);
  check_local("get_nbi", target, bytes);
  const HeapRoute route = world.heap_route(source.pe, capability::get);
  route.transport.get_nbi(target, source.pe, route.start + offset, bytes);
}

void World::put_strided_bytes(RemoteAddress target, std::size_t target_stride, const void* source,
                              std::size_t source_stride, std::size_t element,
                              std::size_t count) const {
  const WorldParts& world = state().parts();
  const std::size_t offset =
      checked(world, "put_strided", target, extent(element, target_stride, count));
  check_local("put_strided", source, count);
  const HeapRoute route = world.heap_route(target.pe, capability::put);
  route.transport.put_strided(target.pe, route.start + offset, target_stride, source, source_stride,
                              element, count);
}

void World::get_strided_bytes(void* target, std::size_t target_stride, RemoteAddress source,
                              std::size_t source_stride, std::size_t element,
                              std::size_t count) const {
  const WorldParts& world = state().parts();
  const std::size_t offset =
      checked(world, "get_strided", source, extent(element, source_stride, count));
  check_local("get_strided", target, count);
  const HeapRoute route = world.heap_route(source.pe, capability::get);
  route.transport.get_strided(target, target_stride, source.pe, route.start + offset, source_stride,
                              element, count);
}

std::uint64_t World::atomic_word(AtomicOp op, RemoteAddress target, std::uint64_t operand,
                                 std::uint64_t compare, std::size_t width) const {
  const WorldParts& world = state().parts();
  const std::size_t offset = checked_word(world, "atomic", target, width);
  const HeapRoute route = world.heap_route(target.pe, capability::atomics);
  return route.transport.atomic(target.pe, op, route.start + offset, operand, compare, width);
}

void World::signal(RemoteSpan<std::uint64_t> target, SignalOp op, std::uint64_t value) const {
  const WorldParts& world = state().parts();
  const std::size_t offset = checked_signal(world, "signal", target);
  const HeapRoute route = world.heap_route(target.address.pe, capability::signals);
  route.transport.signal(target.address.pe, route.start + offset, op, value);
}

void World::put_signal_bytes(RemoteAddress target, const void* source, std::size_t bytes,
                             RemoteSpan<std::uint64_t> flag, SignalOp op,
                             std::uint64_t value) const {
  const WorldParts& world = state().parts();
  const std::size_t offset = checked(world, "put_signal", target, bytes);
  const std::size_t flag_offset = checked_signal(world, "put_signal", flag);
  require(flag.address.pe == target.pe, Code::invalid_argument,
          "put_signal: data for PE {}, but a signal of PE {}; they must be one PE", target.pe,
          flag.address.pe);
  check_local("put_signal", source, bytes);
  const HeapRoute route = world.heap_route(target.pe, capability::put | capability::signals);
  route.transport.put_signal(target.pe, route.start + offset, source, bytes,
                             route.start + flag_offset, op, value);
}

void World::fence() const {
  const WorldParts& world = state().parts();
  for (Pe pe = 0; pe < world.n_pes; ++pe) {
    world.route(pe).fence(pe);
    for (const auto& transport : world.heap_transports) transport->fence(pe);
  }
}

void World::quiet() const {
  state().quiet();
}

}  // namespace shoal
