// SPDX-License-Identifier: Apache-2.0
// device_side.hpp: operations of a world with its heap in GPU memory on streams and in kernels, for
// code that includes no CUDA header. The public calls (rma/stream_operations.cpp) check arguments,
// the implementation (cuda/) starts the work.
//
// Every call starts work on a stream and returns. None allocates or waits for the GPU, so streams
// can be captured. Addresses are those of this process, where the heaps of other PEs are mapped.
// All calls throw Error{system} with CUDA's reason where the work cannot start.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "shoal/detail/stream_steps.hpp"
#include "shoal/device/detail/proxy_ring.hpp"
#include "shoal/device/types.hpp"

namespace shoal::detail {

class Memory;
class Fabric;
class WorldState;
struct Placement;
struct TeamState;

/// The parts of a world that its device side is made from.
struct DeviceSideContext {
  const Settings& settings;
  const Placement& placement;
  Memory& memory;
  const Fabric& fabric;
};

/// A wait or test: a variable of this PE's heap and the value to compare it with.
struct Condition {
  const void* variable = nullptr;
  Compare compare{};
  std::uint64_t value = 0;
  std::size_t width = 0;  ///< 4 or 8
  bool is_signed = false;
  Pe setter = -1;  ///< the PE that sets the variable, for failures; -1: not known
};

/// A wait, a copy and a signal (StreamOperations::put_when and take_when).
struct Transfer {
  const std::uint64_t* ready = nullptr;  ///< nullptr: no wait
  std::uint64_t at_least = 0;
  Pe setter = -1;  ///< of `ready`
  void* target = nullptr;
  const void* source = nullptr;
  std::size_t bytes = 0;
  std::uint64_t* flag = nullptr;
  std::uint64_t value = 0;
};

/// Requests to the proxy, in the order of a stream: `count` times `request`, each the strides
/// further on. With `result`, of one atomic: where the value before goes, `request.width` bytes.
struct Posts {
  device::proxy::Request request{};
  std::size_t count = 1;
  std::size_t offset_stride = 0, source_stride = 0;
  void* result = nullptr;
  /// True if the stream waits until they are complete; otherwise DeviceSide::drain does.
  bool complete = true;
};

/// Limits of collectives from the settings (device::Team).
struct CollectiveLimits {
  std::uint64_t packet_limit = 0;
  std::uint64_t one_shot_limit = 0;
};
CollectiveLimits collective_limits(const Settings& settings);
/// Bytes for the packets of a team other than the world's, one of DeviceSide::kPacketParts equal
/// parts, in a heap whose first step has `mapped` bytes: a multiple of 256.
std::size_t packet_part(std::size_t scratch, std::size_t mapped);

class DeviceSide {
 public:
  virtual ~DeviceSide() = default;
  DeviceSide(const DeviceSide&) = delete;
  DeviceSide& operator=(const DeviceSide&) = delete;

  const device::World& world() const noexcept { return world_; }
  const cuda::LaunchContext& launch() const noexcept { return launch_; }
  /// The words of the team with this index in this PE's heap; zero at the start of the world.
  std::uint64_t* team_words(std::int32_t team) const noexcept {
    return team_words_ + static_cast<std::size_t>(team) * team_stride(world_.n_pes);
  }
  static std::size_t team_stride(Pe n_pes) noexcept { return static_cast<std::size_t>(n_pes) + 2; }

  /// Teams of an index below this one have memory for packets: the predefined ones and three more.
  static constexpr std::int32_t kPacketTeams = 8;
  /// The area of the world's team, index 0, has more parts than the others.
  static constexpr std::size_t kWorldParts = 4, kPacketParts = kWorldParts + kPacketTeams - 1;
  /// Memory of packets of such a team.
  struct Packets {
    std::byte* start = nullptr;  ///< nullptr: none
    std::size_t bytes = 0;
  };
  Packets packets(std::int32_t team) const noexcept {
    if (packet_part_ == 0 || team >= kPacketTeams) return {};
    if (team == 0) return {packets_, kWorldParts * packet_part_};
    return {packets_ + (kWorldParts + static_cast<std::size_t>(team) - 1) * packet_part_,
            packet_part_};
  }
  const CollectiveLimits& limits() const noexcept { return limits_; }

  /// Throws Error{invalid_argument}, naming `what`, unless the GPU can use [memory, memory +
  /// bytes).
  virtual void check_local(const char* what, const void* memory, std::size_t bytes) const = 0;

  virtual void copy(cuda::Stream stream, void* target, const void* source,
                    std::size_t bytes) const = 0;
  virtual void copy_strided(cuda::Stream stream, void* target, std::size_t target_stride,
                            const void* source, std::size_t source_stride, std::size_t element,
                            std::size_t count) const = 0;
  /// `width` is 1, 2, 4 or 8; the target is aligned to it.
  virtual void store(cuda::Stream stream, void* target, std::uint64_t value,
                     std::size_t width) const = 0;
  /// The value before, `width` bytes, goes to `result` where that is not nullptr.
  virtual void atomic(cuda::Stream stream, AtomicOp op, void* word, std::uint64_t operand,
                      std::uint64_t compare, std::size_t width, void* result) const = 0;
  virtual void signal(cuda::Stream stream, std::uint64_t* word, SignalOp op,
                      std::uint64_t value) const = 0;
  virtual void copy_signal(cuda::Stream stream, void* target, const void* source, std::size_t bytes,
                           std::uint64_t* word, SignalOp op, std::uint64_t value) const = 0;
  virtual void wait(cuda::Stream stream, const Condition& condition) const = 0;
  virtual void test(cuda::Stream stream, const Condition& condition, int* result) const = 0;
  virtual void barrier(cuda::Stream stream, const device::Team& team) const = 0;
  virtual void transfer(cuda::Stream stream, const Transfer& transfer) const = 0;
  virtual void put_to_all(cuda::Stream stream, const device::Team& team,
                          std::span<const detail::StreamBlock> blocks, std::uint64_t* flags,
                          std::uint64_t value) const = 0;
  virtual void wait_for_all(cuda::Stream stream, const device::Team& team,
                            const std::uint64_t* flags, std::uint64_t value) const = 0;
  virtual void fetch_entries(cuda::Stream stream, const detail::EntryFetch& fetch) const = 0;
  virtual void order(cuda::Stream before, cuda::Stream after) const = 0;
  /// True if the stream is being captured into a graph.
  virtual bool captures(cuda::Stream stream) const = 0;
  /// For heaps that this GPU does not reach. The world has a proxy (World::proxy).
  virtual void post(cuda::Stream stream, const Posts& posts) const = 0;
  /// One block of an all-to-all with sizes on the GPU: reads the size and place of what PE `pe`,
  /// which is `index` in the team, has for this PE, `me` in the team, then gets it.
  virtual void fetch_block(cuda::Stream stream, const device::AllToAllV& arguments, Pe index, Pe me,
                           Pe pe) const = 0;
  /// Holds the stream until all requests that this PE has posted before are complete.
  virtual void drain(cuda::Stream stream) const = 0;
  /// GPU memory for the collectives of the team with this index, of which one runs at a time. Lives
  /// as long as the world: the proxy may use it after the host has queued all work.
  virtual std::byte* scratch(std::int32_t team, std::size_t bytes) const = 0;
  /// The first error of the proxy, which serves heaps that this GPU does not reach.
  virtual std::optional<Error> proxy_failure() const { return std::nullopt; }
  /// True if World::gda serves all puts and signals of kernels between [offset, offset + bytes) of
  /// this heap and that of `pe`.
  virtual bool nic_reaches(Pe, std::size_t, std::size_t) const { return false; }
  /// Why a queue of World::gda has ended, first of those that lead to `pe`; else which requests to
  /// `pe` the NIC does not complete. Waits for a copy on `stream`, which no graph captures, and for
  /// requests in flight.
  virtual std::optional<Error> nic_failure(Pe, cuda::Stream) const { return std::nullopt; }

 protected:
  DeviceSide() = default;
  device::World world_{};
  cuda::LaunchContext launch_{};
  /// Per team: arrived, by PE, then epoch, then finished.
  std::uint64_t* team_words_ = nullptr;
  std::byte* packets_ = nullptr;
  std::size_t packet_part_ = 0;  ///< bytes
  CollectiveLimits limits_{};
};

/// The device side of a world whose heap is in GPU memory. Called while the world opens. Takes the
/// start of the heap's free memory, the same on every PE. Not collective. Throws Error{unsupported}
/// in a build without CUDA.
std::shared_ptr<DeviceSide> make_device_side(const DeviceSideContext& context);

/// A team for kernels. Throws Error{unsupported} for worlds of more than device::Team::kMaxPes PEs.
device::Team describe_team(const DeviceSide& side, const TeamState& team);

/// Why kernels cannot run collectives of the team, although its barrier and everything else work;
/// empty where they can.
std::string kernel_collectives_obstacle(const WorldState& world, const TeamState& team);

/// Takes a complete report, so that the next one can be written; nullopt where there is none.
std::optional<device::FailureReport> take_report(device::FailureReport& report);
/// The error of a report, on PE `my_pe` of `n_pes`.
Error describe_report(const device::FailureReport& report, Pe my_pe, Pe n_pes);

}  // namespace shoal::detail
