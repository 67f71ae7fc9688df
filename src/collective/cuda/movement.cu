// SPDX-License-Identifier: Apache-2.0
// movement.cu: kernels of broadcast, all-gather and all-to-all. Bytes on the links, of b bytes and
// n PEs: (n - 1) b from the root, (n - 1) b from each PE; twice that as packets. They wait once for
// all PEs as packets, else twice.
#include "collective/cuda/start.cuh"
#include "shoal/device/collective.cuh"

namespace shoal::collective::kernels {
namespace {

namespace dd = device::detail;

struct Move {
  std::byte* target;
  const std::byte* source;
  std::size_t bytes;
  std::size_t stride;
  Pe root;
};

__global__ void __launch_bounds__(kMaxThreads)
    broadcast_kernel(const __grid_constant__ device::World world,
                     const __grid_constant__ device::Team team, const __grid_constant__ Move move) {
  begin();
  dd::broadcast_by<std::uint8_t>(dd::GridCrew{}, world, team, move.target, move.source, move.bytes,
                                 move.root);
}

__global__ void __launch_bounds__(kMaxThreads)
    spread_kernel(const __grid_constant__ device::World world,
                  const __grid_constant__ device::Team team, const __grid_constant__ Move move) {
  begin();
  dd::spread_by<std::uint8_t>(dd::GridCrew{}, world, team, move.target, move.source, move.bytes,
                              move.stride);
}

__global__ void __launch_bounds__(kMaxThreads)
    all_to_all_v_kernel(const __grid_constant__ device::World world,
                        const __grid_constant__ device::Team team,
                        const __grid_constant__ device::AllToAllV arguments) {
  begin();
  dd::all_to_all_v_by(dd::GridCrew{}, world, team, arguments);
}

/// `moved`: bytes that this PE writes where they do not travel as packets.
LaunchShape shape_of(const Launch& launch, std::size_t bytes, std::uint64_t moved) {
  if (launch.team.packets != nullptr && bytes <= launch.team.packet_limit)
    return packet_shape(bytes, launch.pes_on_device);
  return bulk_shape(moved, launch.pes_on_device);
}

/// The part of load and reduce for a type.
decltype(&reduce_floats) part_of(cuda::ElementType type) {
  using cuda::ElementType;
  return type <= ElementType::uint16     ? reduce_small_integers
         : type <= ElementType::uint32   ? reduce_integers32
         : type <= ElementType::uint64   ? reduce_integers64
         : type <= ElementType::bfloat16 ? reduce_halves
                                         : reduce_floats;
}

}  // namespace

const char* broadcast(const Launch& launch, void* target, const void* source, std::size_t bytes,
                      Pe root) {
  const Move move{static_cast<std::byte*>(target), static_cast<const std::byte*>(source), bytes, 0,
                  root};
  return start(launch, shape_of(launch, bytes, bytes), broadcast_kernel, launch.world, launch.team,
               move);
}

const char* spread(const Launch& launch, void* target, const void* source, std::size_t bytes,
                   bool same) {
  const Move move{static_cast<std::byte*>(target), static_cast<const std::byte*>(source), bytes,
                  same ? 0 : bytes, -1};
  return start(launch, shape_of(launch, bytes, bytes), spread_kernel, launch.world, launch.team,
               move);
}

const char* all_to_all_v(const Launch& launch, const device::AllToAllV& arguments) {
  // The sizes are on the GPU: as many blocks as for large ones.
  return start(launch, {max_blocks(launch.pes_on_device), kMaxThreads}, all_to_all_v_kernel,
               launch.world, launch.team, arguments);
}

const char* reduce(const Launch& launch, cuda::ElementType type, ReduceOp op,
                   const ReduceArguments& arguments) {
  return part_of(type)(&launch, type, op, arguments);
}

const char* load() {
  using cuda::ElementType;
  if (const char* const failure =
          load_kernels(broadcast_kernel, spread_kernel, all_to_all_v_kernel))
    return failure;
  for (int type = 0; type <= static_cast<int>(ElementType::float64); ++type)
    for (int op = 0; op <= static_cast<int>(ReduceOp::bit_xor); ++op) {
      const auto element = static_cast<ElementType>(type);
      const auto operation = static_cast<ReduceOp>(op);
      if (element > ElementType::uint64 && operation >= ReduceOp::bit_and) continue;
      if (const char* const failure = part_of(element)(nullptr, element, operation, {}))
        return failure;
    }
  return nullptr;
}

}  // namespace shoal::collective::kernels
