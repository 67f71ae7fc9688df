// SPDX-License-Identifier: Apache-2.0
// The one-sided operations of World: each checks its arguments and passes them to the transport of
// the target PE.
#include <cstdint>

#include "base/check.hpp"
#include "fabric/fabric.hpp"
#include "rma/address_checks.hpp"
#include "shoal/world.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal {

namespace capability = transport::capability;
using detail::check_local;
using detail::checked;
using detail::checked_signal;
using detail::checked_word;
using detail::extent;
using detail::HeapRoute;
using detail::WorldState;
using detail::record::WorldOperation;

void World::check_counts(std::size_t target, std::size_t source) {
  detail::check_equal_counts(target, source);
}

void World::check_strided(std::size_t available, std::ptrdiff_t remote_stride,
                          std::ptrdiff_t local_stride, std::size_t count) {
  detail::check_strides(available, remote_stride, local_stride, count);
}

namespace {

/// Checks an operation on `bytes` bytes of `remote` with a local buffer of `local_bytes` bytes, and
/// returns the route to the PE, which starts at `remote`.
HeapRoute checked_route(WorldState& world, const char* what, RemoteAddress remote,
                        std::size_t bytes, const void* local, std::size_t local_bytes,
                        transport::Capabilities needed) {
  const std::size_t offset = checked(world, what, remote, bytes);
  check_local(what, local, local_bytes);
  const HeapRoute route = world.fabric().heap_route(remote.pe, needed);
  world.recorder().count_one_sided(
      needed == capability::put ? WorldOperation::put : WorldOperation::get, remote.pe,
      local_bytes);
  return {route.transport, route.start + offset};
}

}  // namespace

void World::put_bytes(RemoteAddress target, const void* source, std::size_t bytes) const {
  const auto [transport, at] =
      checked_route(state(), "put", target, bytes, source, bytes, capability::put);
  transport.put(target.pe, at, source, bytes);
}

void World::get_bytes(void* target, RemoteAddress source, std::size_t bytes) const {
  const auto [transport, at] =
      checked_route(state(), "get", source, bytes, target, bytes, capability::get);
  transport.get(target, source.pe, at, bytes);
}

void World::put_bytes_nbi(RemoteAddress target, const void* source, std::size_t bytes) const {
  const auto [transport, at] =
      checked_route(state(), "put_nbi", target, bytes, source, bytes, capability::put);
  transport.put_nbi(target.pe, at, source, bytes);
}

void World::get_bytes_nbi(void* target, RemoteAddress source, std::size_t bytes) const {
  const auto [transport, at] =
      checked_route(state(), "get_nbi", source, bytes, target, bytes, capability::get);
  transport.get_nbi(target, source.pe, at, bytes);
}

void World::put_strided_bytes(RemoteAddress target, std::size_t target_stride, const void* source,
                              std::size_t source_stride, std::size_t element,
                              std::size_t count) const {
  const auto [transport, at] =
      checked_route(state(), "put_strided", target, extent(element, target_stride, count), source,
                    element * count, capability::put);
  transport.put_strided(target.pe, at, target_stride, source, source_stride, element, count);
}

void World::get_strided_bytes(void* target, std::size_t target_stride, RemoteAddress source,
                              std::size_t source_stride, std::size_t element,
                              std::size_t count) const {
  const auto [transport, at] =
      checked_route(state(), "get_strided", source, extent(element, source_stride, count), target,
                    element * count, capability::get);
  transport.get_strided(target, target_stride, source.pe, at, source_stride, element, count);
}

std::uint64_t World::atomic_word(AtomicOp op, RemoteAddress target, std::uint64_t operand,
                                 std::uint64_t compare, std::size_t width) const {
  WorldState& world = state();
  const std::size_t offset = checked_word(world, "atomic", target, width);
  const HeapRoute route = world.fabric().heap_route(target.pe, capability::atomics);
  world.recorder().count_one_sided(WorldOperation::atomic, target.pe, width);
  return route.transport.atomic(target.pe, op, route.start + offset, operand, compare, width);
}

void World::signal(RemoteSpan<std::uint64_t> target, SignalOp op, std::uint64_t value) const {
  WorldState& world = state();
  const std::size_t offset = checked_signal(world, "signal", target);
  const HeapRoute route = world.fabric().heap_route(target.address.pe, capability::signals);
  world.recorder().count_one_sided(WorldOperation::signal, target.address.pe, sizeof value);
  route.transport.signal(target.address.pe, route.start + offset, op, value);
}

void World::put_signal_bytes(RemoteAddress target, const void* source, std::size_t bytes,
                             RemoteSpan<std::uint64_t> flag, SignalOp op,
                             std::uint64_t value) const {
  WorldState& world = state();
  const std::size_t offset = checked(world, "put_signal", target, bytes);
  const std::size_t flag_offset = checked_signal(world, "put_signal", flag);
  detail::check_same_pe(target, flag);
  check_local("put_signal", source, bytes);
  const HeapRoute route =
      world.fabric().heap_route(target.pe, capability::put | capability::signals);
  world.recorder().count_one_sided(WorldOperation::put, target.pe, bytes);
  world.recorder().count_one_sided(WorldOperation::signal, target.pe, sizeof value);
  route.transport.put_signal(target.pe, route.start + offset, source, bytes,
                             route.start + flag_offset, op, value);
}

void World::fence() const {
  state().fabric().fence();
}

void World::quiet() const {
  state().fabric().quiet();
}

}  // namespace shoal
