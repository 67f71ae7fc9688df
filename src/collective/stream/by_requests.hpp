// SPDX-License-Identifier: Apache-2.0
// by_requests.hpp: collectives on streams for teams that one kernel cannot serve: those whose PEs
// this GPU does not reach by loads and stores, and those of more than
// device::Team::kMaxCollectivePes PEs. Each call queues barriers, and a copy or a request to the
// proxy for each PE.
//
// Nothing here waits on the host, so streams can be captured. A kernel waits for the proxy's thread
// and for barriers of other PEs, each with a deadline.
#pragma once

#include <cstddef>

#include "collective/call.hpp"
#include "collective/launch.hpp"
#include "shoal/device/detail/proxy_ring.hpp"

namespace shoal::collective {

class ByRequests {
 public:
  /// `call` has checked the arguments. `launch`: the stream, and the team as barriers see it.
  ByRequests(const Call& call, const kernels::Launch& launch);

  void broadcast(void* target, const void* source, std::size_t bytes, Pe root) const;
  /// all_to_all, or with `same` all_gather.
  void spread(void* target, const void* source, std::size_t bytes, bool same) const;
  void all_to_all_v(const device::AllToAllV& arguments) const;
  /// Adds in ascending order of the PEs and rounds once, as all reductions do.
  void reduce(cuda::ElementType type, std::size_t element, ReduceOp op,
              const kernels::ReduceArguments& arguments) const;

 private:
  void barrier() const;
  /// Copies to `target`, an address in this PE's heap, on the PE with this index in the team.
  /// Complete after drain.
  void put(std::size_t to, std::byte* target, const std::byte* source, std::size_t bytes) const;
  void get(std::size_t from, std::byte* target, const std::byte* source, std::size_t bytes) const;
  void move(device::proxy::Kind kind, std::size_t index, const std::byte* in_heap,
            const std::byte* local, std::size_t bytes) const;
  void drain() const;
  /// The PE `step` after this one in the team, so that not all PEs begin with the same one.
  std::size_t after_me(std::size_t step) const { return (call_.me() + step) % call_.n_pes(); }

  const Call& call_;
  const kernels::Launch& launch_;
  const detail::DeviceSide& side_;
  bool posts_ = false;  ///< whether the proxy serves a PE of the team
};

}  // namespace shoal::collective
