// SPDX-License-Identifier: Apache-2.0
// The public calls of shoal/cuda.hpp. Each checks its arguments; the device side of the world
// starts the work.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/log.hpp"
#include "device/device_side.hpp"
#include "fabric/fabric.hpp"
#include "rma/address_checks.hpp"
#include "shoal/cuda.hpp"
#include "shoal/detail/stream_steps.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal::cuda {
namespace {

namespace capability = transport::capability;
using detail::checked;
using detail::checked_signal;
using detail::checked_word;
using detail::DeviceSide;
using detail::extent;
using detail::Posts;
using detail::WorldState;
using device::proxy::Kind;

/// CUDA's cudaStreamLegacy.
auto* const kLegacyStream = reinterpret_cast<Stream>(std::uintptr_t{1});

DeviceSide& side_of(const WorldState& state) {
  require(state.device_side() != nullptr, Code::unsupported,
          "SHOAL-N800: the symmetric heap of this world is on the host, so a GPU cannot use it; "
          "SHOAL_HEAP=cuda puts it into GPU memory");
  return *state.device_side();
}

/// The address of byte `offset` of the heap of `pe` for this PE's GPU; nullptr where the proxy
/// serves it.
std::byte* find(const WorldState& world, const char* what, Pe pe, std::size_t offset,
                transport::Capabilities needed) {
  world.fabric().heap_route(pe, needed);  // throws where the pair of PEs lacks a capability
  std::byte* const base = world.fabric().peer_base(pe);
  require(base != nullptr || world.device_side()->world().proxy != nullptr, Code::unsupported,
          "SHOAL-N801: {}: PE {} reaches the heap of PE {} by messages only, and there is no proxy "
          "that sends them for its streams; set SHOAL_PROXY_SLOTS above 0",
          what, world.my_pe(), pe);
  return base == nullptr ? nullptr : base + offset;
}

/// The same for operations that no proxy serves.
std::byte* reached(const WorldState& world, const char* what, Pe pe, std::size_t offset,
                   transport::Capabilities needed) {
  world.fabric().heap_route(pe, needed);
  std::byte* const base = world.fabric().peer_base(pe);
  require(base != nullptr, Code::unsupported,
          "SHOAL-N802: {}: PE {} reaches the heap of PE {} by messages only; this operation on a "
          "stream needs loads and stores",
          what, world.my_pe(), pe);
  return base + offset;
}

/// A put or get of `bytes` bytes between `local` and `remote`.
device::proxy::Request move_request(device::proxy::Kind kind, RemoteAddress remote,
                                    std::size_t offset, const void* local, std::size_t bytes) {
  device::proxy::Request request{};
  request.kind = kind;
  request.pe = remote.pe;
  request.offset = offset;
  request.source = reinterpret_cast<std::uintptr_t>(local);
  request.bytes = bytes;
  return request;
}

void set_signal(device::proxy::Request& request, std::size_t offset, SignalOp op,
                std::uint64_t value) {
  request.flags = op == SignalOp::set ? device::proxy::kSignalSet : device::proxy::kSignalAdd;
  request.signal_offset = offset;
  request.signal_value = value;
}

/// A condition on a variable of this PE's heap.
detail::Condition checked_condition(WorldState& state, const char* what, const void* variable,
                                    Compare compare, std::uint64_t value, std::size_t width,
                                    bool is_signed) {
  const SymmetricHeap& heap = state.heap();
  require(
      heap.contains(variable, width) && reinterpret_cast<std::uintptr_t>(variable) % width == 0,
      Code::invalid_argument,
      "SHOAL-N803: {}: {} is no aligned word of {} bytes of this PE's symmetric heap of {} bytes "
      "at {}",
      what, variable, width, heap.size(), static_cast<const void*>(heap.base()));
  return {variable, compare, value, width, is_signed, -1};
}

/// Bytes of this PE's heap.
void check_in_heap(WorldState& state, const char* what, const void* address, std::size_t bytes) {
  const SymmetricHeap& heap = state.heap();
  require(
      bytes == 0 || heap.contains(address, bytes), Code::invalid_argument,
      "SHOAL-N803: {}: {} with {} bytes does not lie in this PE's symmetric heap of {} bytes at {}",
      what, address, bytes, heap.size(), static_cast<const void*>(heap.base()));
}

/// A signal of this PE's heap, or nullptr.
void check_ready(WorldState& state, const char* what, const std::uint64_t* ready) {
  if (ready != nullptr)
    (void)checked_condition(state, what, ready, Compare::greater_equal, 0, sizeof *ready, false);
}

/// An array of this PE's heap with a signal for each PE of the world.
void check_flags(WorldState& state, const char* what, const std::uint64_t* flags) {
  (void)checked_condition(state, what, flags, Compare::greater_equal, 0, sizeof *flags, false);
  check_in_heap(state, what, flags, static_cast<std::size_t>(state.n_pes()) * sizeof *flags);
}

void check_local(const DeviceSide& side, const char* what, const void* buffer, std::size_t bytes) {
  detail::check_local(what, buffer, bytes);
  if (bytes != 0) side.check_local(what, buffer, bytes);
}

}  // namespace

device::World device_world(const shoal::World& world) {
  return side_of(state_of(world)).world();
}

device::Team device_team(const Team& team) {
  const detail::TeamState& state = state_of(team);
  const device::Team view = detail::describe_team(side_of(*state.world), state);
  if (const std::string why = detail::kernel_collectives_obstacle(*state.world, state);
      !why.empty())
    log::info(
        "PE {}: team {} has no collectives in kernels: {}; those on streams and of the host "
        "serve it",
        state.world->my_pe(), state.index, why);
  return view;
}

namespace {

/// The proxy knows more about its failure than a kernel that waited for it. Its failure lasts:
/// requests that no kernel waits for are lost as well.
std::optional<Error> failure_in_kernels(const shoal::World& world) {
  const DeviceSide& side = side_of(state_of(world));
  const device::World& view = side.world();
  const auto report = detail::take_report(*view.failure);
  const bool of_proxy = !report || report->kind == device::FailureKind::proxy_failed;
  if (of_proxy)
    if (auto failure = side.proxy_failure()) return failure;
  if (!report) return std::nullopt;
  return detail::describe_report(*report, view.my_pe, view.n_pes);
}

}  // namespace

void check_failures(const shoal::World& world) {
  if (const auto failure = failure_in_kernels(world)) throw Error(*failure);
}

std::optional<std::string> take_failure(const shoal::World& world) {
  const auto failure = failure_in_kernels(world);
  if (!failure) return std::nullopt;
  return failure->what();
}

LaunchContext launch_context(const shoal::World& world) {
  return side_of(state_of(world)).launch();
}

void order(const shoal::World& world, Stream before, Stream after) {
  const DeviceSide& side = side_of(state_of(world));
  if (before != after) side.order(before, after);
}

bool reaches(const Team& team) {
  const detail::TeamState& state = state_of(team);
  const WorldState& world = *state.world;
  return state.world->device_side() != nullptr && world.n_pes() <= device::Team::kMaxPes &&
         std::ranges::all_of(state.pes,
                             [&](Pe pe) { return world.fabric().peer_base(pe) != nullptr; });
}

StreamOperations::StreamOperations(shoal::World world, Stream stream)
    : world_(std::move(world)), stream_(stream) {
  const int sharing = side().launch().pes_on_device;
  require(
      (stream != nullptr && stream != kLegacyStream) || sharing == 1, Code::invalid_argument,
      "SHOAL-N804: StreamOperations: the legacy default stream waits for all other streams of the "
      "process, and {} PEs share this GPU; use a stream made with cudaStreamNonBlocking",
      sharing);
}

DeviceSide& StreamOperations::side() const {
  return side_of(state_of(world_));
}

void StreamOperations::check_counts(std::size_t target, std::size_t source) {
  detail::check_equal_counts(target, source);
}

void StreamOperations::check_strided(std::size_t available, std::ptrdiff_t remote_stride,
                                     std::ptrdiff_t local_stride, std::size_t count) {
  detail::check_strides(available, remote_stride, local_stride, count);
}

void StreamOperations::put_bytes(RemoteAddress target, const void* source,
                                 std::size_t bytes) const {
  const DeviceSide& device = side();
  const WorldState& world = state_of(world_);
  const std::size_t offset = checked(world, "put", target, bytes);
  check_local(device, "put", source, bytes);
  std::byte* const to = find(world, "put", target.pe, offset, capability::put);
  if (bytes == 0) return;
  if (to == nullptr)
    return device.post(stream_, {move_request(Kind::put, target, offset, source, bytes)});
  device.copy(stream_, to, source, bytes);
}

void StreamOperations::get_bytes(void* target, RemoteAddress source, std::size_t bytes) const {
  const DeviceSide& device = side();
  const WorldState& world = state_of(world_);
  const std::size_t offset = checked(world, "get", source, bytes);
  check_local(device, "get", target, bytes);
  const std::byte* const from = find(world, "get", source.pe, offset, capability::get);
  if (bytes == 0) return;
  if (from == nullptr)
    return device.post(stream_, {move_request(Kind::get, source, offset, target, bytes)});
  device.copy(stream_, target, from, bytes);
}

void StreamOperations::put_small(RemoteAddress target, const void* value, std::size_t bytes,
                                 std::size_t count) const {
  const DeviceSide& device = side();
  const WorldState& world = state_of(world_);
  detail::check_element("put_value", "target", count);
  const std::size_t offset = checked(world, "put_value", target, bytes);
  require(offset % bytes == 0, Code::invalid_argument,
          "SHOAL-N805: put_value: offset {} of PE {} is not a multiple of the value's {} bytes",
          offset, target.pe, bytes);
  std::uint64_t bits = 0;
  std::memcpy(&bits, value, bytes);
  if (std::byte* const to = find(world, "put_value", target.pe, offset, capability::put))
    return device.store(stream_, to, bits, bytes);
  Posts posts;
  posts.request.kind = Kind::put_value;
  posts.request.width = static_cast<std::uint8_t>(bytes);
  posts.request.pe = target.pe;
  posts.request.offset = offset;
  posts.request.operand = bits;
  device.post(stream_, posts);
}

void StreamOperations::put_strided_bytes(RemoteAddress target, std::size_t target_stride,
                                         const void* source, std::size_t source_stride,
                                         std::size_t element, std::size_t count) const {
  const DeviceSide& device = side();
  const WorldState& world = state_of(world_);
  const std::size_t offset =
      checked(world, "put_strided", target, extent(element, target_stride, count));
  check_local(device, "put_strided", source, extent(element, source_stride, count));
  std::byte* const to = find(world, "put_strided", target.pe, offset, capability::put);
  if (element == 0 || count == 0) return;
  if (to == nullptr)
    return device.post(stream_, {move_request(Kind::put, target, offset, source, element), count,
                                 target_stride, source_stride});
  device.copy_strided(stream_, to, target_stride, source, source_stride, element, count);
}

void StreamOperations::get_strided_bytes(void* target, std::size_t target_stride,
                                         RemoteAddress source, std::size_t source_stride,
                                         std::size_t element, std::size_t count) const {
  const DeviceSide& device = side();
  const WorldState& world = state_of(world_);
  const std::size_t offset =
      checked(world, "get_strided", source, extent(element, source_stride, count));
  check_local(device, "get_strided", target, extent(element, target_stride, count));
  const std::byte* const from = find(world, "get_strided", source.pe, offset, capability::get);
  if (element == 0 || count == 0) return;
  if (from == nullptr)
    return device.post(stream_, {move_request(Kind::get, source, offset, target, element), count,
                                 source_stride, target_stride});
  device.copy_strided(stream_, target, target_stride, from, source_stride, element, count);
}

void StreamOperations::atomic_word(AtomicOp op, RemoteAddress target, std::uint64_t operand,
                                   std::uint64_t compare, std::size_t width, void* result) const {
  const DeviceSide& device = side();
  const WorldState& world = state_of(world_);
  const std::size_t offset = checked_word(world, "atomic", target, width);
  if (result != nullptr) device.check_local("atomic", result, width);
  if (std::byte* const word = find(world, "atomic", target.pe, offset, capability::atomics))
    return device.atomic(stream_, op, word, operand, compare, width, result);
  Posts posts;
  posts.request.kind = Kind::atomic;
  posts.request.op = op;
  posts.request.width = static_cast<std::uint8_t>(width);
  posts.request.pe = target.pe;
  posts.request.offset = offset;
  posts.request.operand = operand;
  posts.request.compare = compare;
  posts.result = result;
  device.post(stream_, posts);
}

void StreamOperations::signal(RemoteSpan<std::uint64_t> target, SignalOp op,
                              std::uint64_t value) const {
  const DeviceSide& device = side();
  const WorldState& world = state_of(world_);
  const std::size_t offset = checked_signal(world, "signal", target);
  const Pe pe = target.address.pe;
  if (std::byte* const word = find(world, "signal", pe, offset, capability::signals))
    return device.signal(stream_, reinterpret_cast<std::uint64_t*>(word), op, value);
  Posts posts;
  posts.request.kind = Kind::signal;
  posts.request.pe = pe;
  set_signal(posts.request, offset, op, value);
  device.post(stream_, posts);
}

void StreamOperations::put_signal_bytes(RemoteAddress target, const void* source, std::size_t bytes,
                                        RemoteSpan<std::uint64_t> flag, SignalOp op,
                                        std::uint64_t value) const {
  const DeviceSide& device = side();
  const WorldState& world = state_of(world_);
  const std::size_t offset = checked(world, "put_signal", target, bytes);
  const std::size_t flag_offset = checked_signal(world, "put_signal", flag);
  detail::check_same_pe(target, flag);
  check_local(device, "put_signal", source, bytes);
  std::byte* const base =
      find(world, "put_signal", target.pe, 0, capability::put | capability::signals);
  if (base == nullptr) {
    Posts posts{move_request(Kind::put, target, offset, source, bytes)};
    set_signal(posts.request, flag_offset, op, value);
    return device.post(stream_, posts);
  }
  device.copy_signal(stream_, base + offset, source, bytes,
                     reinterpret_cast<std::uint64_t*>(base + flag_offset), op, value);
}

void StreamOperations::wait_word(const void* variable, Compare compare, std::uint64_t value,
                                 std::size_t width, bool is_signed) const {
  const DeviceSide& device = side();
  device.wait(stream_, checked_condition(state_of(world_), "wait_until", variable, compare, value,
                                         width, is_signed));
}

void StreamOperations::test_word(const void* variable, Compare compare, std::uint64_t value,
                                 std::size_t width, bool is_signed, int* result) const {
  const DeviceSide& device = side();
  const detail::Condition condition =
      checked_condition(state_of(world_), "test", variable, compare, value, width, is_signed);
  check_local(device, "test", result, sizeof *result);
  device.test(stream_, condition, result);
}

// A stream completes its operations in order, so fence and quiet only check the world.
void StreamOperations::fence() const {
  side();
}
void StreamOperations::quiet() const {
  side();
}

device::Team StreamOperations::reached_team(const char* what, const Team& team,
                                            std::uint32_t needed) const {
  const detail::TeamState& state = state_of(team);
  const WorldState& world = state_of(world_);
  require(state.world.get() == &world, Code::invalid_argument,
          "SHOAL-N807: {}: a team of another world", what);
  for (const Pe pe : state.pes) reached(world, what, pe, 0, needed);
  return detail::describe_team(side(), state);
}

void StreamOperations::barrier(const Team& team) const {
  const DeviceSide& device = side();
  const detail::TeamState& state = state_of(team);
  const WorldState& world = state_of(world_);
  require(state.world.get() == &world, Code::invalid_argument,
          "SHOAL-N807: barrier: a team of another world");
  for (const Pe pe : state.pes) find(world, "barrier", pe, 0, capability::signals);
  device.barrier(stream_, detail::describe_team(device, state));
}

void StreamOperations::put_when(const std::uint64_t* ready, std::uint64_t at_least,
                                RemoteAddress target, const void* source, std::size_t bytes,
                                RemoteSpan<std::uint64_t> flag, std::uint64_t value) const {
  detail::StreamSteps(world_, stream_)
      .put_when(ready, at_least, target, source, bytes, flag, value);
}
void StreamOperations::take_when(const std::uint64_t* ready, std::uint64_t at_least, void* target,
                                 const void* source, std::size_t bytes,
                                 RemoteSpan<std::uint64_t> flag, std::uint64_t value) const {
  detail::StreamSteps(world_, stream_)
      .take_when(ready, at_least, target, source, bytes, flag, value);
}
void StreamOperations::put_to_all(const Team& team, std::span<const detail::StreamBlock> blocks,
                                  std::uint64_t* flags, std::uint64_t value) const {
  detail::StreamSteps(world_, stream_).put_to_all(team, blocks, flags, value);
}
void StreamOperations::wait_for_all(const Team& team, const std::uint64_t* flags,
                                    std::uint64_t value) const {
  detail::StreamSteps(world_, stream_).wait_for_all(team, flags, value);
}
void StreamOperations::fetch_entries(const detail::EntryFetch& fetch) const {
  detail::StreamSteps(world_, stream_).fetch_entries(fetch);
}

}  // namespace shoal::cuda

namespace shoal::detail {

namespace capability = transport::capability;
using cuda::check_flags;
using cuda::check_in_heap;
using cuda::check_local;
using cuda::check_ready;
using cuda::reached;

void StreamSteps::put_when(const std::uint64_t* ready, std::uint64_t at_least, RemoteAddress target,
                           const void* source, std::size_t bytes, RemoteSpan<std::uint64_t> flag,
                           std::uint64_t value) const {
  const DeviceSide& gpu = side();
  const WorldState& world = state_of(world_);
  const std::size_t offset = checked(world, "put_when", target, bytes);
  const std::size_t flag_offset = checked_signal(world, "put_when", flag);
  check_same_pe(target, flag);
  check_local(gpu, "put_when", source, bytes);
  check_ready(state_of(world_), "put_when", ready);
  std::byte* const base =
      reached(world, "put_when", target.pe, 0, capability::put | capability::signals);
  gpu.transfer(stream_, {ready, at_least, target.pe, base + offset, source, bytes,
                         reinterpret_cast<std::uint64_t*>(base + flag_offset), value});
}

void StreamSteps::take_when(const std::uint64_t* ready, std::uint64_t at_least, void* target,
                            const void* source, std::size_t bytes, RemoteSpan<std::uint64_t> flag,
                            std::uint64_t value) const {
  const DeviceSide& gpu = side();
  const WorldState& world = state_of(world_);
  const std::size_t flag_offset = checked_signal(world, "take_when", flag);
  check_in_heap(state_of(world_), "take_when", source, bytes);
  check_local(gpu, "take_when", target, bytes);
  check_ready(state_of(world_), "take_when", ready);
  std::byte* const base = reached(world, "take_when", flag.address.pe, 0, capability::signals);
  gpu.transfer(stream_, {ready, at_least, flag.address.pe, target, source, bytes,
                         reinterpret_cast<std::uint64_t*>(base + flag_offset), value});
}

void StreamSteps::put_to_all(const Team& team, std::span<const StreamBlock> blocks,
                             std::uint64_t* flags, std::uint64_t value) const {
  constexpr const char* kCall = "put_to_all";
  const DeviceSide& gpu = side();
  const shoal::device::Team members =
      reached_team(kCall, team, capability::put | capability::signals);
  check_flags(state_of(world_), kCall, flags);
  for (const StreamBlock& block : blocks) {
    check_in_heap(state_of(world_), kCall, block.place, block.bytes);
    check_local(gpu, kCall, block.source, block.bytes);
  }
  gpu.put_to_all(stream_, members, blocks, flags, value);
}

void StreamSteps::wait_for_all(const Team& team, const std::uint64_t* flags,
                               std::uint64_t value) const {
  const DeviceSide& gpu = side();
  const shoal::device::Team members = reached_team("wait_for_all", team, {});
  check_flags(state_of(world_), "wait_for_all", flags);
  gpu.wait_for_all(stream_, members, flags, value);
}

void StreamSteps::fetch_entries(const EntryFetch& fetch) const {
  constexpr const char* kCall = "fetch_entries";
  const DeviceSide& gpu = side();
  require(fetch.entry_bytes >= 1 && fetch.entries_per_pe >= 1, Code::invalid_argument,
          "SHOAL-N806: fetch_entries: {} entries of {} bytes on each PE; both must be at least 1",
          fetch.entries_per_pe, fetch.entry_bytes);
  require(
      fetch.count >= 0 && fetch.words >= 0 && fetch.per_row >= 1, Code::invalid_argument,
      "SHOAL-N806: fetch_entries: {} indices, {} to a row, {} words for each; allowed: at least 0, "
      "1 and 0",
      fetch.count, fetch.per_row, fetch.words);
  const auto entries = static_cast<std::size_t>(fetch.entries_per_pe);
  std::size_t bytes = 0;
  require(!__builtin_mul_overflow(entries, fetch.entry_bytes, &bytes), Code::invalid_argument,
          "SHOAL-N806: fetch_entries: {} entries of {} bytes are more bytes than can be counted",
          entries, fetch.entry_bytes);
  check_in_heap(state_of(world_), kCall, fetch.part, bytes);
  (void)reached_team(kCall, world_.team(), capability::get);
  if (fetch.count == 0) return;
  const auto count = static_cast<std::size_t>(fetch.count);
  check_local(gpu, kCall, fetch.indices, count * sizeof(std::int32_t));
  check_local(gpu, kCall, fetch.target, extent(fetch.entry_bytes, fetch.entry_bytes, count));
  if (fetch.words > 0) {
    check_local(gpu, kCall, fetch.words_table, sizeof(std::uint32_t));
    check_local(gpu, kCall, fetch.words_target, sizeof(std::uint32_t));
  }
  gpu.fetch_entries(stream_, fetch);
}

}  // namespace shoal::detail
