// SPDX-License-Identifier: Apache-2.0
// The calls of shoal/cuda_collective.hpp: checks of arguments, then one kernel.
#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "collective/call.hpp"
#include "collective/launch.hpp"
#include "collective/nccl/engine.hpp"
#include "collective/reduce_kernel.hpp"
#include "collective/stream/by_requests.hpp"
#include "device/device_side.hpp"
#include "fabric/fabric.hpp"
#include "pe/memory.hpp"
#include "shoal/cuda_collective.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal {

const char* collective::kernels::load_once(const memory::Device& gpu) {
  static std::mutex mutex;
  static auto* const loaded = new std::map<int, const char*>;
  const std::lock_guard lock(mutex);
  const auto found = loaded->find(gpu.device);
  if (found != loaded->end()) return found->second;
  gpu.activate();
  return loaded->emplace(gpu.device, load()).first->second;
}

}  // namespace shoal

namespace shoal::cuda {
namespace {

using collective::ByRequests;
using collective::Call;
using collective::Operation;
using collective::kernels::Launch;
using collective::nccl::Engine;
using collective::nccl::Kind;
namespace kernels = collective::kernels;

/// A call on this PE whose team can run collectives of GPUs.
class StreamCall : public Call {
 public:
  StreamCall(const Team& team, Operation operation) : Call(team, operation) {
    const detail::DeviceSide* const side = world().device_side();
    require(side != nullptr, Code::unsupported,
            "SHOAL-N451: {} on a stream: the symmetric heap of this world is on the host; "
            "SHOAL_HEAP=cuda puts it into GPU memory",
            name());
    one_kernel_ =
        n_pes() <= static_cast<std::size_t>(device::Team::kMaxCollectivePes) && in_one_domain();
    for (const Pe pe : this->team().pes)
      require(
          world().fabric().peer_base(pe) != nullptr || side->world().proxy != nullptr,
          Code::unsupported,
          "SHOAL-N452: {} on a stream: the GPU of PE {} does not reach the heap of PE {} of team "
          "{} by loads and stores, and there is no proxy that sends messages for its streams; set "
          "SHOAL_PROXY_SLOTS above 0",
          name(), world().my_pe(), pe, this->team().index);
    view_ = detail::describe_team(*side, this->team());
  }

  /// True if one kernel can run the collective: the team is not too large for it, and all GPUs
  /// reach the heaps of all its PEs. The same on all of them.
  bool one_kernel() const noexcept { return one_kernel_; }

  /// Checks the ranges as the host's collectives do. `own_block`: the shorter one may be block
  /// my_pe of the longer one.
  void check_ranges(const void* target, std::size_t target_blocks, const void* source,
                    std::size_t source_blocks, std::size_t bytes, std::size_t alignment,
                    bool in_place, bool own_block = false) const {
    const std::size_t to = checked_offset("target", target, bytes, target_blocks, alignment);
    const std::size_t from = checked_offset("source", source, bytes, source_blocks, alignment);
    const std::size_t mine = me() * bytes;
    if (own_block && (target_blocks == 1 ? to == from + mine : from == to + mine)) return;
    check_overlap(to, bytes * target_blocks, from, bytes * source_blocks, in_place);
  }
  /// `bytes` bytes of an array of 64-bit words that this GPU can use.
  void check_table(const char* what, const void* table) const {
    require(table != nullptr && reinterpret_cast<std::uintptr_t>(table) % 8 == 0,
            Code::invalid_argument,
            "SHOAL-N457: {}: {} is {}; allowed: an aligned array of {} 64-bit words", name(), what,
            table, n_pes());
    side().check_local(name(), table, n_pes() * sizeof(std::uint64_t));
  }
  const detail::DeviceSide& side() const { return *world().device_side(); }

  /// The engine for a collective of this size; nullptr: kernels of Shoal. Waits for all PEs at the
  /// first use of a team.
  const Engine* engine(Stream stream, Kind kind, std::size_t bytes) const {
    const Settings& settings = world().settings();
    if (!collective::nccl::wanted(settings, kind, bytes, n_pes())) return nullptr;
    if (collective::nccl::is_automatic(settings)) {
      // An engine cannot be made while a stream is captured.
      const bool can_make = !share_gpus() && !side().captures(stream);
      if (!one_kernel() || (team().engine == nullptr && !can_make)) return nullptr;
      (void)ready_gpu();
      return Engine::find(team(), side().launch().pes_on_device);
    }
    (void)ready_gpu();
    return &Engine::of(team(), side().launch().pes_on_device);
  }

  /// Runs `operation` with the collectives for teams that one kernel cannot serve.
  template <typename Operation>
  void by_requests(Stream stream, const Operation& operation) const {
    const Launch launch{stream, side().world(), view_, side().launch().pes_on_device};
    operation(collective::ByRequests(*this, launch));
  }

  /// Starts the kernel that `start_kernel` starts.
  template <typename StartKernel>
  void start(Stream stream, const StartKernel& start_kernel) const {
    const memory::Device& gpu = ready_gpu();
    const int sharing = side().launch().pes_on_device;
    const Launch launch{stream, side().world(), view_, sharing,
                        sharing == 1 && gpu.compute_capability >= 90};
    const char* const failure = start_kernel(launch);
    require(failure == nullptr, Code::system, "SHOAL-N450: {} did not start on GPU {}: {}", name(),
            gpu.device, failure == nullptr ? "" : failure);
  }

 private:
  /// True if loads and stores reach the heaps of all PEs of the team from all of them. The same on
  /// all PEs, unlike peer_base where reach is not transitive.
  bool in_one_domain() const {
    std::optional<bool>& known = team().one_domain;
    if (!known) {
      const std::vector<std::int32_t> domains = world().fabric().heap_domains();
      const auto domain = [&](Pe pe) { return domains[static_cast<std::size_t>(pe)]; };
      known = std::ranges::all_of(team().pes,
                                  [&](Pe pe) { return domain(pe) == domain(team().pes.front()); });
    }
    return *known;
  }

  /// True if two PEs of the team use one GPU. The same on all PEs.
  bool share_gpus() const {
    const auto& devices = world().memory().devices();
    std::set<std::array<std::byte, 16>> used;
    for (const Pe pe : team().pes)
      if (!used.insert(devices[static_cast<std::size_t>(pe)].uuid).second) return true;
    return false;
  }

  const memory::Device& ready_gpu() const {
    require(world().memory().cuda() != nullptr, Code::unsupported,
            "SHOAL-N451: {} on a stream: PE {} has no GPU", name(), world().my_pe());
    world().memory().cuda()->activate();
    return *world().memory().cuda();
  }

  device::Team view_{};
  bool one_kernel_ = true;
};

bool is_integer(ElementType type) {
  return type <= ElementType::uint64;
}
/// 0: not a type.
std::size_t bytes_of(ElementType type) {
  constexpr std::size_t sizes[] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};  // by ElementType
  static_assert(std::size(sizes) == static_cast<std::size_t>(ElementType::float64) + 1);
  const auto index = static_cast<std::size_t>(type);
  return index < std::size(sizes) ? sizes[index] : 0;
}

void check_reduction(const StreamCall& call, ElementType type, ReduceOp op, std::size_t count,
                     std::size_t blocks) {
  require(bytes_of(type) != 0, Code::invalid_argument,
          "SHOAL-N448: {}: element type {}; allowed: 0 to {}", call.name(), static_cast<int>(type),
          static_cast<int>(ElementType::float64));
  require(
      op <= ReduceOp::max || (op <= ReduceOp::bit_xor && is_integer(type)), Code::invalid_argument,
      "SHOAL-N448: {} on a stream: operation {} on element type {}; allowed: sum, prod, min, max; "
      "bit_and, bit_or, bit_xor of integers",
      call.name(), collective::name_of(op), static_cast<int>(type));
  require(
      count <= call.world().heap().size() / bytes_of(type) / blocks, Code::invalid_argument,
      "SHOAL-N449: {}: count is {}; allowed: counts that fit {} times into the symmetric heap of "
      "{} bytes (SHOAL_SYMMETRIC_SIZE)",
      call.name(), count, blocks, call.world().heap().size());
}

/// all_to_all, or with `same` all_gather, whose ranges have been checked.
void spread(const StreamCall& call, Stream stream, void* target, const void* source,
            std::size_t bytes, bool same) {
  if (const Engine* const engine = call.engine(stream, Kind::move, bytes * call.n_pes()))
    return same ? engine->all_gather(stream, target, source, bytes)
                : engine->all_to_all(stream, target, source, bytes);
  if (!call.one_kernel())
    return call.by_requests(stream,
                            [&](const ByRequests& on) { on.spread(target, source, bytes, same); });
  call.start(stream, [&](const Launch& launch) {
    return kernels::spread(launch, target, source, bytes, same);
  });
}

/// The reduction, whose arguments have been checked, of `blocks` blocks.
void reduce_blocks(const StreamCall& call, Stream stream, ElementType type, ReduceOp op,
                   const kernels::ReduceArguments& on, std::size_t blocks) {
  const std::size_t element = bytes_of(type);
  if (collective::nccl::has(type, op))
    if (const Engine* const engine =
            call.engine(stream, Kind::reduction, on.count * element * blocks))
      return on.scatter ? engine->reduce_scatter(stream, type, op, on.target, on.source, on.count)
                        : engine->reduce(stream, type, op, on.target, on.source, on.count);
  if (!call.one_kernel())
    return call.by_requests(
        stream, [&](const ByRequests& requests) { requests.reduce(type, element, op, on); });
  call.start(stream, [&](const Launch& launch) { return kernels::reduce(launch, type, op, on); });
}

}  // namespace

StreamCollectives::StreamCollectives(Team team, Stream stream)
    : team_(std::move(team)), stream_(stream) {
  (void)StreamOperations(team_.world(), stream);  // checks the stream
  // A GPU whose kernels cannot be loaded fails the calls that start one.
  if (const memory::Device* const gpu = state_of(team_).world->memory().cuda(); gpu != nullptr)
    (void)kernels::load_once(*gpu);
}

void StreamCollectives::barrier() const {
  StreamOperations(team_.world(), stream_).barrier(team_);
}

void StreamCollectives::broadcast_bytes(void* target, const void* source, std::size_t bytes,
                                        Pe root) const {
  const StreamCall call(team_, Operation::broadcast);
  require(root >= 0 && static_cast<std::size_t>(root) < call.n_pes(), Code::invalid_argument,
          "SHOAL-N445: broadcast: root is {}; allowed: 0 to {}, the PEs of the team", root,
          call.n_pes() - 1);
  call.check_ranges(target, 1, source, 1, bytes, 1, true);
  if (const Engine* const engine = call.engine(stream_, Kind::broadcast, bytes))
    return engine->broadcast(stream_, target, source, bytes, root);
  if (!call.one_kernel())
    return call.by_requests(
        stream_, [&](const ByRequests& on) { on.broadcast(target, source, bytes, root); });
  call.start(stream_, [&](const Launch& launch) {
    return kernels::broadcast(launch, target, source, bytes, root);
  });
}

void StreamCollectives::all_gather_bytes(void* target, const void* source,
                                         std::size_t bytes) const {
  const StreamCall call(team_, Operation::all_gather);
  call.check_ranges(target, call.n_pes(), source, 1, bytes, 1, false, true);
  spread(call, stream_, target, source, bytes, true);
}

void StreamCollectives::all_to_all_bytes(void* target, const void* source,
                                         std::size_t bytes) const {
  const StreamCall call(team_, Operation::all_to_all);
  call.check_ranges(target, call.n_pes(), source, call.n_pes(), bytes, 1, false);
  spread(call, stream_, target, source, bytes, false);
}

void StreamCollectives::all_to_all_v_bytes(const device::AllToAllV& arguments) const {
  const StreamCall call(team_, Operation::all_to_all_v);
  const std::size_t n = call.n_pes();
  for (const auto& [what, table] : {std::pair{"send_bytes", arguments.send_bytes},
                                    std::pair{"send_offsets", arguments.send_offsets}}) {
    call.check_table(what, table);
    call.checked_offset(what, table, sizeof(std::uint64_t), n, sizeof(std::uint64_t));
  }
  call.check_table("receive_offsets", arguments.receive_offsets);
  if (arguments.receive_room != nullptr) call.check_table("receive_room", arguments.receive_room);
  if (arguments.received != nullptr) call.check_table("received", arguments.received);
  call.checked_offset("source", arguments.source, 1);
  if (!call.one_kernel())
    return call.by_requests(stream_, [&](const ByRequests& on) { on.all_to_all_v(arguments); });
  call.start(stream_,
             [&](const Launch& launch) { return kernels::all_to_all_v(launch, arguments); });
}

void StreamCollectives::reduce(ElementType type, ReduceOp op, void* target, const void* source,
                               std::size_t count) const {
  const StreamCall call(team_, Operation::reduce);
  check_reduction(call, type, op, count, 1);
  const std::size_t element = bytes_of(type);
  call.check_ranges(target, 1, source, 1, count * element, element, true);
  reduce_blocks(call, stream_, type, op, {target, source, count, false}, 1);
}

void StreamCollectives::reduce_scatter(ElementType type, ReduceOp op, void* target,
                                       const void* source, std::size_t count) const {
  const StreamCall call(team_, Operation::reduce_scatter);
  check_reduction(call, type, op, count, call.n_pes());
  const std::size_t element = bytes_of(type);
  call.check_ranges(target, 1, source, call.n_pes(), count * element, element, false, true);
  reduce_blocks(call, stream_, type, op, {target, source, count, true}, call.n_pes());
}

}  // namespace shoal::cuda
