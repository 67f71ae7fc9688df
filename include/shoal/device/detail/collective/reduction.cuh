// SPDX-License-Identifier: Apache-2.0
// reduction.cuh: reductions by the threads of a crew, always ascending by PE.
//
// | algorithm | bytes that a PE receives, of b bytes and n PEs | waits |
// |---|---|---|
// | packets | 2 (n - 1) b | one |
// | one_shot | (n - 1) b, read | two |
// | two_shot | 2 (n - 1) / n b, half read, half written by others | two |
//
// Between two barriers, 16 bytes of several PEs are in flight per thread and each is read once. The
// thread that has read an element of all PEs writes it, so two_shot works in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <shoal/device/detail/collective/arrival.cuh>
#include <shoal/device/detail/collective/packets.cuh>
#include <shoal/device/detail/collective/plan.hpp>
#include <shoal/device/detail/copy.cuh>
#include <shoal/device/reduction.hpp>

namespace shoal::device::detail {

template <typename T>
using AccumulatorOf = typename Elements<T>::Accumulator;

/// Element `index` of a unit of memory.
template <typename T, typename Unit>
__device__ T element_of(const Unit& unit, int index) {
  T element;
  memcpy(&element, reinterpret_cast<const char*>(&unit) + index * static_cast<int>(sizeof(T)),
         sizeof(T));
  return element;
}
template <typename T, typename Unit>
__device__ void set_element(Unit& unit, int index, T element) {
  memcpy(reinterpret_cast<char*>(&unit) + index * static_cast<int>(sizeof(T)), &element, sizeof(T));
}

/// The elements of a unit of every PE, as they come.
template <typename Op, typename T, typename Unit>
struct Accumulated {
  static constexpr int kElements = static_cast<int>(sizeof(Unit) / sizeof(T));
  AccumulatorOf<T> values[kElements];

  __device__ void add(const Op& op, const Unit& unit, bool first) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const AccumulatorOf<T> value = Elements<T>::load(element_of<T>(unit, i));
      values[i] = first ? value : op(values[i], value);
    }
  }
  __device__ Unit result() const {
    Unit unit;
#pragma unroll
    for (int i = 0; i < kElements; ++i) set_element(unit, i, Elements<T>::store(values[i]));
    return unit;
  }
};

/// A thread has packets of kPackets PEs in flight, or kUnits units of each of kPes PEs. Outside
/// kernels of their own, reductions must fit into 64 registers; narrow elements have wide sums.
template <typename T, typename Crew>
struct InFlight {
  static constexpr bool kOwn = Crew::kOwnKernel, kBytes = sizeof(T) == 1;
  static constexpr int kPackets = kOwn ? 4 : sizeof(T) == 1 ? 1 : sizeof(T) == 4 ? 3 : 2;
  static constexpr int kUnits = kOwn ? 4 : 1;
  static constexpr int kPes = kOwn || kBytes ? 2 : 4;
  static constexpr int kUnrolled = kOwn ? 4 : 1;  // loops over PEs
};

/// Addresses in this PE's heap that a reduction reads and writes.
struct Places {
  std::byte* target;
  const std::byte* source;
  bool to_all;  ///< to the targets of all PEs, or of this one alone
};

/// Units i, i + stride, ..., `kUnits` of them; those from `count` on are skipped. Flight: an
/// InFlight.
template <int kUnits, typename Flight, typename Op, typename T, typename Unit>
__device__ void reduce_units(const World& world, const Team& team, const Op& op,
                             const Places& places, std::size_t i, std::size_t stride,
                             std::size_t count) {
  constexpr int kTogether = Flight::kPes;
  [[maybe_unused]] constexpr int kUnrolled = Flight::kUnrolled;  // by the pragmas alone
  Accumulated<Op, T, Unit> sums[kUnits];
  const Pe n = team.size;
#pragma unroll kUnrolled
  for (Pe first = 0; first < n; first += kTogether) {
    Unit units[kTogether][kUnits];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (first + j >= n) break;
      const auto* const from =
          reinterpret_cast<const Unit*>(on_pe(world, team, places.source, first + j));
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
        if (i + u * stride < count)
          units[j][u] = load<Direction::get>(from + i + static_cast<std::size_t>(u) * stride);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (first + j >= n) break;
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
        if (i + u * stride < count) sums[u].add(op, units[j][u], first + j == 0);
    }
  }
  Unit results[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u)
    if (i + u * stride < count) results[u] = sums[u].result();
  const Pe targets = places.to_all ? n : 1;
#pragma unroll kUnrolled
  for (Pe step = 0; step < targets; ++step) {
    const Pe pe = team.my_pe + step < n ? team.my_pe + step : team.my_pe + step - n;
    auto* const to = reinterpret_cast<Unit*>(on_pe(world, team, places.target, pe));
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      if (i + u * stride < count) to[i + static_cast<std::size_t>(u) * stride] = results[u];
  }
}

template <typename Op, typename T, typename Unit, int kUnits, typename Crew>
__device__ void reduce_all_units(const Crew& crew, const World& world, const Team& team,
                                 const Op& op, const Places& places, std::size_t count) {
  const std::size_t stride = crew.size();
#pragma unroll 1
  for (std::size_t i = crew.rank(); i < count; i += kUnits * stride)
    reduce_units<kUnits, InFlight<T, Crew>, Op, T, Unit>(world, team, op, places, i, stride, count);
}

/// `count` elements.
template <typename Op, typename T, typename Crew>
__device__ void reduce_elements(const Crew& crew, const World& world, const Team& team,
                                const Op& op, const Places& places, std::size_t count) {
  using Narrow = UnitOf<sizeof(T)>;
  constexpr std::size_t kWide = sizeof(ulonglong2) / sizeof(T);
  const auto both = reinterpret_cast<std::uintptr_t>(places.target) |
                    reinterpret_cast<std::uintptr_t>(places.source);
  const std::size_t units = both % sizeof(ulonglong2) == 0 ? count / kWide : 0;
  reduce_all_units<Op, T, ulonglong2, InFlight<T, Crew>::kUnits>(crew, world, team, op, places,
                                                                 units);
  const std::size_t done = units * sizeof(ulonglong2);
  reduce_all_units<Op, T, Narrow, 1>(crew, world, team, op,
                                     {places.target + done, places.source + done, places.to_all},
                                     count - units * kWide);
}

/// Sends, as packets, block `pe * stride` of every PE's source to PE `pe`.
template <typename Op, typename T, typename Crew>
__device__ bool reduce_packets(const Crew& crew, const World& world, const Team& team,
                               std::uint64_t epoch, const Op& op, std::byte* target,
                               const std::byte* source, std::size_t bytes, std::size_t stride) {
  Accumulated<Op, T, std::uint64_t> sums;
  const bool ok = exchange_packets<InFlight<T, Crew>::kPackets>(
      crew, world, team, epoch, packets_of(bytes), -1,
      [&](std::size_t k, Pe pe) {
        return load_data<T>(source + static_cast<std::size_t>(pe) * stride, bytes, k);
      },
      [&](std::size_t, Pe pe, std::uint64_t data) { sums.add(op, data, pe == 0); },
      [&](std::size_t k) { store_data<T>(target, bytes, k, sums.result()); });
  return crew.all(ok);
}

/// Between two barriers. `divided`: each PE reduces its share for all, else all elements for
/// itself.
template <typename Op, typename T, typename Crew>
__device__ bool reduce_between_barriers(const Crew& crew, const World& world, const Team& team,
                                        std::uint64_t epoch, const Op& op, std::byte* target,
                                        const std::byte* source, std::size_t count, bool divided) {
  const bool ok = meet(crew, world, team, epoch);
  const Share share = divided ? share_of(count, sizeof(T), team.size, team.my_pe) : Share{0, count};
  const std::size_t begin = share.begin * sizeof(T);
  if (ok)
    reduce_elements<Op, T>(crew, world, team, op, {target + begin, source + begin, divided},
                           share.count);
  return meet_and_finish(crew, world, team, epoch + 1, ok);
}

template <typename Op, typename T, typename Crew>
__device__ bool reduce_by(const Crew& crew, const World& world, const Team& team, const Op& op,
                          T* target, const T* source, std::size_t count) {
  const std::size_t bytes = total_bytes(count, sizeof(T), 1);
  if (!crew.all(usable(world, team, target, bytes, source, bytes))) return false;
  const std::uint64_t epoch = next_epoch(team, *team.epoch);
  auto* const to = reinterpret_cast<std::byte*>(target);
  const auto* const from = reinterpret_cast<const std::byte*>(source);
  const std::uint64_t packet_limit = team.packets != nullptr ? team.packet_limit : 0;
  const Reduction how =
      choose_reduction({bytes, team.size, target == source, packet_limit, team.one_shot_limit});
  if (how == Reduction::packets && team.packets != nullptr)
    return reduce_packets<Op, T>(crew, world, team, epoch, op, to, from, bytes, 0);
  return reduce_between_barriers<Op, T>(crew, world, team, epoch, op, to, from, count,
                                        how == Reduction::two_shot);
}

/// reduce_by() for elements of 16 bytes, which do not fit into packets.
template <typename Op, typename T, typename Crew>
__device__ bool reduce_wide(const Crew& crew, const World& world, const Team& team, const Op& op,
                            T* target, const T* source, std::size_t count) {
  static_assert(sizeof(T) == sizeof(ulonglong2) && alignof(T) == alignof(ulonglong2));
  const std::size_t bytes = total_bytes(count, sizeof(T), 1);
  if (!crew.all(usable(world, team, target, bytes, source, bytes))) return false;
  const Reduction how =
      choose_reduction({bytes, team.size, target == source, 0, team.one_shot_limit});
  return reduce_between_barriers<Op, T>(
      crew, world, team, next_epoch(team, *team.epoch), op, reinterpret_cast<std::byte*>(target),
      reinterpret_cast<const std::byte*>(source), count, how == Reduction::two_shot);
}

template <typename Op, typename T, typename Crew>
__device__ bool reduce_scatter_by(const Crew& crew, const World& world, const Team& team,
                                  const Op& op, T* target, const T* source, std::size_t count) {
  const std::size_t bytes = total_bytes(count, sizeof(T), 1);
  const std::size_t all = total_bytes(count, sizeof(T), team.size);
  if (!crew.all(usable(world, team, target, bytes, source, all))) return false;
  const std::uint64_t epoch = next_epoch(team, *team.epoch);
  auto* const to = reinterpret_cast<std::byte*>(target);
  const auto* const from = reinterpret_cast<const std::byte*>(source);
  if (team.packets != nullptr && bytes <= team.packet_limit)
    return reduce_packets<Op, T>(crew, world, team, epoch, op, to, from, bytes, bytes);
  return reduce_between_barriers<Op, T>(crew, world, team, epoch, op, to,
                                        from + static_cast<std::size_t>(team.my_pe) * bytes, count,
                                        false);
}

}  // namespace shoal::device::detail
