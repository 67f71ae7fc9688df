// SPDX-License-Identifier: Apache-2.0
// reduce_kernels.cuh: the kernels of reductions, by element type and operator. The algorithm is
// chosen on the host by the function that device forms use, so that a kernel holds one of them.
#pragma once

#include "collective/cuda/start.cuh"
#include "shoal/device/collective.cuh"

namespace shoal::collective::kernels {

namespace dd = device::detail;

/// A reduction as a kernel gets it: addresses, and the block of each PE that it reads.
struct Reduce {
  std::byte* target;
  const std::byte* source;
  std::size_t count;
  std::size_t stride;  ///< packets: bytes from a PE's block to the next; 0: all get the same
  bool divided;        ///< two shots
};

template <typename T, typename Op>
__global__ void __launch_bounds__(kMaxThreads)
    packets_kernel(const __grid_constant__ device::World world,
                   const __grid_constant__ device::Team team,
                   const __grid_constant__ Reduce reduce) {
  begin();
  const std::uint64_t epoch = dd::next_epoch(team, *team.epoch);
  dd::reduce_packets<Op, T>(dd::GridCrew{}, world, team, epoch, Op{}, reduce.target, reduce.source,
                            reduce.count * sizeof(T), reduce.stride);
}

template <typename T, typename Op>
__global__ void __launch_bounds__(kMaxThreads)
    bulk_kernel(const __grid_constant__ device::World world,
                const __grid_constant__ device::Team team, const __grid_constant__ Reduce reduce) {
  begin();
  const std::uint64_t epoch = dd::next_epoch(team, *team.epoch);
  dd::reduce_between_barriers<Op, T>(dd::GridCrew{}, world, team, epoch, Op{}, reduce.target,
                                     reduce.source, reduce.count, reduce.divided);
}

/// Reduces blocks in this GPU's memory, in their order.
template <typename T, typename Op>
__global__ void __launch_bounds__(kMaxThreads)
    parts_kernel(std::byte* target, const std::byte* source, std::size_t count, std::size_t parts,
                 std::size_t stride) {
  begin();
  const dd::GridCrew crew;
  for (std::size_t i = crew.rank(); i < count; i += crew.size()) {
    dd::AccumulatorOf<T> sum = device::Elements<T>::load(reinterpret_cast<const T*>(source)[i]);
    for (std::size_t part = 1; part < parts; ++part)
      sum = Op{}(sum,
                 device::Elements<T>::load(reinterpret_cast<const T*>(source + part * stride)[i]));
    reinterpret_cast<T*>(target)[i] = device::Elements<T>::store(sum);
  }
}

/// launch: nullptr loads the kernels.
template <typename T, typename Op>
const char* reduce_with(const Launch* launch, const ReduceArguments& arguments) {
  if (launch == nullptr)
    return load_kernels(packets_kernel<T, Op>, bulk_kernel<T, Op>, parts_kernel<T, Op>);
  const device::Team& team = launch->team;
  const std::size_t bytes = arguments.count * sizeof(T);
  if (arguments.parts != 0)
    return start(*launch, bulk_shape(bytes * arguments.parts, launch->pes_on_device),
                 parts_kernel<T, Op>, static_cast<std::byte*>(arguments.target),
                 static_cast<const std::byte*>(arguments.source), arguments.count, arguments.parts,
                 arguments.stride);
  Reduce reduce{static_cast<std::byte*>(arguments.target),
                static_cast<const std::byte*>(arguments.source), arguments.count,
                arguments.scatter ? bytes : 0, false};
  const bool in_place = !arguments.scatter && arguments.target == arguments.source;
  const dd::Reduction how =
      dd::choose_reduction({bytes, team.size, in_place,
                            team.packets != nullptr ? team.packet_limit : 0, team.one_shot_limit});
  if (how == dd::Reduction::packets && team.packets != nullptr)
    return start(*launch, packet_shape(bytes, launch->pes_on_device), packets_kernel<T, Op>,
                 launch->world, team, reduce);
  reduce.divided = !arguments.scatter && how == dd::Reduction::two_shot;
  if (arguments.scatter) reduce.source += static_cast<std::size_t>(team.my_pe) * bytes;
  const std::size_t part =
      reduce.divided ? dd::share_of(arguments.count, sizeof(T), team.size, 0).count * sizeof(T)
                     : bytes;
  return start(*launch, bulk_shape(part, launch->pes_on_device), bulk_kernel<T, Op>, launch->world,
               team, reduce);
}

/// Sum, product and bit operators have the same bits for signed and unsigned integers, so they are
/// those of the unsigned type.
template <typename Signed>
const char* reduce_integers(const Launch* launch, bool is_signed, ReduceOp op,
                            const ReduceArguments& arguments) {
  using Unsigned = std::make_unsigned_t<Signed>;
  switch (op) {
    case ReduceOp::sum:
      return reduce_with<Unsigned, device::Sum>(launch, arguments);
    case ReduceOp::prod:
      return reduce_with<Unsigned, device::Prod>(launch, arguments);
    case ReduceOp::min:
      return is_signed ? reduce_with<Signed, device::Min>(launch, arguments)
                       : reduce_with<Unsigned, device::Min>(launch, arguments);
    case ReduceOp::max:
      return is_signed ? reduce_with<Signed, device::Max>(launch, arguments)
                       : reduce_with<Unsigned, device::Max>(launch, arguments);
    case ReduceOp::bit_and:
      return reduce_with<Unsigned, device::BitAnd>(launch, arguments);
    case ReduceOp::bit_or:
      return reduce_with<Unsigned, device::BitOr>(launch, arguments);
    case ReduceOp::bit_xor:
      return reduce_with<Unsigned, device::BitXor>(launch, arguments);
  }
  return "an operator that is not known";
}

template <typename T>
const char* reduce_floating(const Launch* launch, ReduceOp op, const ReduceArguments& arguments) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_with<T, device::Sum>(launch, arguments);
    case ReduceOp::prod:
      return reduce_with<T, device::Prod>(launch, arguments);
    case ReduceOp::min:
      return reduce_with<T, device::Min>(launch, arguments);
    case ReduceOp::max:
      return reduce_with<T, device::Max>(launch, arguments);
    default:
      return "an operator that takes integers only";
  }
}

}  // namespace shoal::collective::kernels
