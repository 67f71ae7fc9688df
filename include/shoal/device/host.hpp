// SPDX-License-Identifier: Apache-2.0
// shoal/device/host.hpp: what the host needs to run kernels of a world: their parameters, their
// failures and the context of launches. shoal/cuda.hpp includes it and states when calls throw.
#pragma once

#include <optional>
#include <string>

#include <shoal/device/types.hpp>
#include <shoal/stream.hpp>

namespace shoal {

class Team;
class World;

namespace cuda {

using shoal::Stream;

/// The world as a kernel parameter of this PE. Valid until the world is closed.
[[nodiscard]] device::World device_world(const shoal::World& world);
/// The team as a kernel parameter of its PEs. Throws Error{unsupported} in worlds of more than
/// device::Team::kMaxPes PEs. Logs (info) the reason where kernels cannot run collectives of the
/// team (shoal/device/collective.cuh).
[[nodiscard]] device::Team device_team(const shoal::Team& team);

/// Throws the first failure on this PE's GPU since the last call, and clears it: Error{timeout}
/// naming the wait, Error{invalid_argument} for an address, Error{unsupported} for a PE that is not
/// reachable. Does not wait for the GPU: synchronize with the stream first. take_failure returns
/// the message instead; nullopt when nothing failed.
void check_failures(const shoal::World& world);
[[nodiscard]] std::optional<std::string> take_failure(const shoal::World& world);

/// The input of launch_collective (shoal/device/launch.cuh).
struct LaunchContext {
  int device = 0;             ///< this PE's GPU, as CUDA numbers the devices of this process
  int pes_on_device = 1;      ///< PEs of the world that share this GPU
  Stream priority = nullptr;  ///< this PE's stream of the highest priority, while the world is open
};
[[nodiscard]] LaunchContext launch_context(const shoal::World& world);
/// Orders work queued on `after` from now on after the work queued on `before` so far. Can be
/// captured. A graph does not wait for work outside of it: where `after` is captured and `before`
/// is not, the call has no effect.
void order(const shoal::World& world, Stream before, Stream after);

/// True if this PE's GPU reaches the heaps of all PEs of the team by load and store. The proxy
/// carries most operations to the others (StreamOperations, shoal/device.hpp). False without a
/// device side, and in worlds of more than device::Team::kMaxPes PEs.
[[nodiscard]] bool reaches(const shoal::Team& team);

}  // namespace cuda
}  // namespace shoal
