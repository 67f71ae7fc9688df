// SPDX-License-Identifier: Apache-2.0
// engine.hpp: the large collectives of a team by NCCL.
#pragma once

#include <cstddef>
#include <memory>

#include "collective/nccl/library.hpp"
#include "shoal/cuda_collective.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal::collective::nccl {

/// Kinds of collectives that NCCL can run (SHOAL_COLLECTIVE_NCCL).
enum class Kind { broadcast, move, reduction };

/// True if the settings give a collective of a team of `pes` PEs to NCCL. `bytes`: the longer of
/// the source and the target of a PE. The same on all PEs.
bool wanted(const Settings& settings, Kind kind, std::size_t bytes, std::size_t pes);
/// True if NCCL may be chosen without being asked for: SHOAL_COLLECTIVE_NCCL=automatic.
bool is_automatic(const Settings& settings);
/// True if NCCL has the type and the operator.
bool has(cuda::ElementType type, ReduceOp op);

/// A communicator of the PEs of a team, in the order of the team. Its calls queue work on a stream
/// and throw Error{system} with NCCL's reason.
class Engine {
 public:
  /// The engine of the team. The first call makes it: a collective call that waits, with the
  /// world's timeout. `pes_on_device`: PEs on this PE's GPU. Throws on all PEs of the team:
  /// Error{unsupported} where NCCL cannot be loaded on one PE, or PEs share a GPU.
  static Engine& of(detail::TeamState& team, int pes_on_device);
  /// The same; nullptr, on all PEs, where of() throws Error{unsupported}. Logs the reason once.
  static Engine* find(detail::TeamState& team, int pes_on_device);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void broadcast(cuda::Stream stream, void* target, const void* source, std::size_t bytes,
                 Pe root) const;
  void all_gather(cuda::Stream stream, void* target, const void* source, std::size_t bytes) const;
  void all_to_all(cuda::Stream stream, void* target, const void* source, std::size_t bytes) const;
  void reduce(cuda::Stream stream, cuda::ElementType type, ReduceOp op, void* target,
              const void* source, std::size_t count) const;
  void reduce_scatter(cuda::Stream stream, cuda::ElementType type, ReduceOp op, void* target,
                      const void* source, std::size_t count) const;

 private:
  Engine(const Library& library, Communicator communicator, Pe pes)
      : library_(library), communicator_(communicator), pes_(pes) {}
  void check(int result, const char* what) const;

  const Library& library_;
  Communicator communicator_;
  const Pe pes_;
};

}  // namespace shoal::collective::nccl
