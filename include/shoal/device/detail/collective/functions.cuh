// SPDX-License-Identifier: Apache-2.0
// functions.cuh: the definitions of what contract/collective.cuh declares and explains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <shoal/device/contract/collective.cuh>
#include <shoal/device/detail/collective/arrival.cuh>
#include <shoal/device/detail/collective/crew.cuh>
#include <shoal/device/detail/collective/movement.cuh>
#include <shoal/device/detail/collective/reduction.cuh>

namespace shoal::device {

namespace detail {

/// Type as which elements of `bytes` bytes are moved.
template <std::size_t bytes>
using MovedAs = UnitOf<bytes % 8 == 0   ? 8
                       : bytes % 4 == 0 ? 4
                       : bytes % 2 == 0 ? 2
                                        : 1>;

}  // namespace detail

template <SHOAL_SCOPE S>
__device__ bool sync(S scope, const World& world, const Team& team) {
  const detail::ScopeCrew<S> crew{scope};
  if (!crew.all(detail::usable(world, team, nullptr, 0, nullptr, 0))) return false;
  const std::uint64_t epoch = detail::next_epoch(team, *team.epoch);
  return detail::meet_and_finish(crew, world, team, epoch, true);
}

template <SHOAL_SCOPE S, typename T>
__device__ bool broadcast(S scope, const World& world, const Team& team, T* target,
                          const Exactly<T>* source, std::size_t count, Pe root) {
  static_assert(std::is_trivially_copyable_v<T>);
  return detail::broadcast_by<detail::MovedAs<sizeof(T)>>(
      detail::ScopeCrew<S>{scope}, world, team, reinterpret_cast<std::byte*>(target),
      reinterpret_cast<const std::byte*>(source), detail::total_bytes(count, sizeof(T), 1), root);
}

template <SHOAL_SCOPE S, typename T>
__device__ bool all_gather(S scope, const World& world, const Team& team, T* target,
                           const Exactly<T>* source, std::size_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  return detail::spread_by<detail::MovedAs<sizeof(T)>>(
      detail::ScopeCrew<S>{scope}, world, team, reinterpret_cast<std::byte*>(target),
      reinterpret_cast<const std::byte*>(source), detail::total_bytes(count, sizeof(T), 1), 0);
}

template <SHOAL_SCOPE S, typename T>
__device__ bool all_to_all(S scope, const World& world, const Team& team, T* target,
                           const Exactly<T>* source, std::size_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::size_t bytes = detail::total_bytes(count, sizeof(T), 1);
  return detail::spread_by<detail::MovedAs<sizeof(T)>>(
      detail::ScopeCrew<S>{scope}, world, team, reinterpret_cast<std::byte*>(target),
      reinterpret_cast<const std::byte*>(source), bytes, bytes);
}

template <SHOAL_SCOPE S>
__device__ bool all_to_all_v(S scope, const World& world, const Team& team,
                             const AllToAllV& arguments) {
  return detail::all_to_all_v_by(detail::ScopeCrew<S>{scope}, world, team, arguments);
}

template <SHOAL_SCOPE S, typename Op, typename T>
SHOAL_REQUIRES_REDUCTION(Op, T)
__device__ bool reduce(S scope, const World& world, const Team& team, Op op, T* target,
                       const Exactly<T>* source, std::size_t count) {
  return detail::reduce_by<Op, T>(detail::ScopeCrew<S>{scope}, world, team, op, target, source,
                                  count);
}

template <SHOAL_SCOPE S, typename Op, typename T>
SHOAL_REQUIRES_REDUCTION(Op, T)
__device__ bool reduce_scatter(S scope, const World& world, const Team& team, Op op, T* target,
                               const Exactly<T>* source, std::size_t count) {
  return detail::reduce_scatter_by<Op, T>(detail::ScopeCrew<S>{scope}, world, team, op, target,
                                          source, count);
}

}  // namespace shoal::device
