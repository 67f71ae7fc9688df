// SPDX-License-Identifier: Apache-2.0
// The symmetric heap: every PE keeps an allocator of its own, and all of them do the same.
#include "shoal/heap.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>

#include "base/check.hpp"
#include "base/log.hpp"
#include "world/parts.hpp"
#include "world/startup/agreement.hpp"
#include "world/startup/outcome.hpp"

namespace shoal {
namespace detail {
namespace {

constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kTooMuch = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kMaximumAlignment = memory::Segment::kAlignment;

enum class HeapCall : std::uint64_t { allocate = 1, release };

/// What every PE passes to a heap call, and where its own allocator puts it.
struct HeapRequest {
  HeapCall call;
  std::uint64_t bytes;
  std::uint64_t alignment;
  std::uint64_t offset;  ///< kNone: no room, or not the address of an allocation
};

std::string describe(const HeapRequest& request) {
  if (request.call == HeapCall::release)
    return request.offset == kNone ? "free of an address that was not allocated"
                                   : fmt::format("free at offset {}", request.offset);
  std::string text = request.bytes == kTooMuch ? "malloc of more bytes than can be counted"
                                               : fmt::format("malloc of {} bytes", request.bytes);
  if (request.alignment > memory::Allocator::kMinimumAlignment)
    text += fmt::format(" aligned to {}", request.alignment);
  return text + (request.offset == kNone ? "" : fmt::format(" at offset {}", request.offset));
}

/// Returns when all PEs are in this call with the same arguments and the same outcome; throws
/// Error{mismatch} on all PEs otherwise.
void agree(WorldState& state, const HeapRequest& mine) {
  TeamState& team = state.parts().world_team();
  state.set_progress(Activity::allocating, team.epoch + 1,
                     mine.call == HeapCall::allocate ? "malloc" : "free");
  const auto blobs =
      state.exchange(team, &mine, sizeof mine, mine.call == HeapCall::allocate ? "malloc" : "free");
  std::vector<HeapRequest> all(team.members.size());
  std::memcpy(all.data(), blobs.data(), blobs.size());
  std::vector<std::string> texts;
  for (const HeapRequest& request : all) texts.push_back(describe(request));
  const bool equal = std::all_of(texts.begin(), texts.end(),
                                 [&](const auto& text) { return text == texts.front(); });
  require(
      equal, Code::mismatch,
      "PEs make different calls on the symmetric heap: {}; all must make the same, in the same order",
      group_by_text(texts, team.members));
  state.set_progress(Activity::idle, team.epoch, "heap call");
}

WorldParts& open_parts(WorldState& state, const char* what) {
  require(state.is_open(), Code::closed, "{}: the world is closed", what);
  return state.parts();
}

std::size_t product(std::size_t count, std::size_t size) {
  return size != 0 && count > kTooMuch / size ? kTooMuch : count * size;
}

/// Puts memory behind the first `bytes` bytes of the heap of every PE. Collective. Throws on all
/// PEs or on none, and changes nothing when it throws.
void grow(WorldState& state, std::size_t bytes) {
  WorldParts& world = state.parts();
  memory::DeviceHeap& heap = *world.device_heap;
  TeamState& team = world.world_team();
  state.set_progress(Activity::allocating, team.epoch + 1, "grow");
  std::vector<std::byte> mine;
  const auto added = attempt([&] {
    world.device->activate();
    mine = heap.add(heap.step(bytes));
  });
  try {
    agree_on_outcome(state, added, "heap growth");
    const auto all = state.exchange(team, mine.data(), mine.size(), "heap growth");
    std::vector<std::vector<std::byte>> blobs;
    for (auto at = all.begin(); at != all.end(); at += static_cast<std::ptrdiff_t>(mine.size()))
      blobs.emplace_back(at, at + static_cast<std::ptrdiff_t>(mine.size()));
    const auto check = [&] {
      if (const auto failure = state.failure()) fail(Code::peer_failed, "{}", *failure);
    };
    const auto connected = attempt(
        [&] { heap.connect(blobs, {world.token, world.my_pe, world.settings.timeout, check}); });
    agree_on_outcome(state, connected, "heap growth");
  } catch (...) {
    heap.roll_back();
    throw;
  }
  heap.commit();
  state.set_progress(Activity::idle, team.epoch, "heap call");
}

/// Starts and completes setting newly allocated memory of this PE to zero.
void clear(WorldState& state, std::size_t offset, std::size_t bytes) {
  WorldParts& world = state.parts();
  if (bytes == 0) return;
  if (!world.device) {
    std::memset(world.heap_base() + offset, 0, bytes);
    return;
  }
  world.device->activate();
  world.device->zero(world.heap_base() + offset, bytes);
  world.device->synchronize("calloc");
}

void* allocate(WorldState& state, std::size_t bytes, std::size_t alignment, bool zero) {
  WorldParts& world = open_parts(state, "malloc");
  require(alignment != 0 && (alignment & (alignment - 1)) == 0 && alignment <= kMaximumAlignment,
          Code::invalid_argument, "align: an alignment of {}; allowed: powers of two up to {}",
          alignment, kMaximumAlignment);
  memory::Allocator& allocator = world.allocator;
  const std::size_t touched = allocator.high_water();
  const auto offset = allocator.allocate(bytes, alignment);
  // New pages of the host are zero, new memory of a GPU need not be.
  const bool grows = offset && *offset + bytes > world.heap_mapped();
  const std::size_t to_clear = !offset || !zero     ? 0
                               : world.device       ? bytes
                               : *offset >= touched ? 0
                                                    : std::min(bytes, touched - *offset);
  try {
    // Zeroed before the others know of it: afterwards they may write there.
    if (!grows) clear(state, offset.value_or(0), to_clear);
    agree(state, {HeapCall::allocate, bytes, alignment, offset ? *offset : kNone});
    if (grows) {
      grow(state, *offset + bytes);
      clear(state, *offset, to_clear);
      state.sync(world.world_team(), "malloc");
    }
  } catch (...) {
    if (offset) allocator.release(*offset);
    throw;
  }
  if (offset) return state.heap().base() + *offset;
  if (bytes == 0) return nullptr;
  fail(
      Code::exhausted,
      "the symmetric heap has no room for {} bytes aligned to {}: {} of {} bytes are free, the largest block has {}; "
      "SHOAL_SYMMETRIC_SIZE sets the size",
      bytes, std::max(alignment, memory::Allocator::kMinimumAlignment), allocator.free(),
      allocator.size(), allocator.largest_free());
}

void release(WorldState& state, const void* pointer) {
  WorldParts& world = open_parts(state, "free");
  const auto offset =
      static_cast<std::size_t>(static_cast<const std::byte*>(pointer) - state.heap().base());
  const bool known = state.heap().contains(pointer) && world.allocator.size_of(offset) != 0;
  for (const auto& transport : world.transports) transport->quiet();
  agree(state, {HeapCall::release, 0, 0, known ? offset : kNone});
  require(known, Code::invalid_argument,
          "free of {}, which malloc, calloc and align did not return or which is free already",
          pointer);
  world.allocator.release(offset);
}

/// What a SymmetricArray does when it goes. While an exception is on its way the other PEs do not
/// come to the collective call: the memory stays allocated then, and the next heap call sees that
/// the PEs differ.
void release_quietly(const std::weak_ptr<WorldState>& weak, void* pointer) noexcept {
  const auto state = weak.lock();
  if (!state || !state->is_open() || std::uncaught_exceptions() > 0 || state->failure()) return;
  try {
    release(*state, pointer);
  } catch (const std::exception& error) {
    log::warn("PE {}: symmetric memory was not released: {}", state->my_pe(), error.what());
  }
}

}  // namespace

std::shared_ptr<void> allocate_symmetric(WorldState& state, std::size_t count, std::size_t size,
                                         std::size_t alignment) {
  void* const pointer = allocate(state, product(count, size), alignment, true);
  if (pointer == nullptr) return nullptr;
  return {pointer,
          [weak = state.weak_from_this()](void* memory) { release_quietly(weak, memory); }};
}

}  // namespace detail

void* SymmetricHeap::malloc(std::size_t bytes) {
  return detail::allocate(*state_, bytes, 1, false);
}

void* SymmetricHeap::align(std::size_t alignment, std::size_t bytes) {
  return detail::allocate(*state_, bytes, alignment, false);
}

void* SymmetricHeap::calloc(std::size_t count, std::size_t size) {
  return detail::allocate(*state_, detail::product(count, size), 1, true);
}

void SymmetricHeap::free(void* pointer) {
  if (pointer != nullptr) detail::release(*state_, pointer);
}

void SymmetricHeap::register_buffer(void* pointer, std::size_t bytes) {
  auto& world = detail::open_parts(*state_, "register_buffer");
  const auto* const start = static_cast<const std::byte*>(pointer);
  require(
      start + bytes <= base() || start >= base() + size(), Code::invalid_argument,
      "register_buffer of {} bytes at {}: this lies in the symmetric heap, which needs no registration",
      bytes, pointer);
  world.registered.add(pointer, bytes);
}

void SymmetricHeap::unregister_buffer(void* pointer) {
  detail::open_parts(*state_, "unregister_buffer").registered.remove(pointer);
}

void* SymmetricHeap::peer_pointer(const void* local, Pe pe) const {
  const std::size_t offset = offset_of(local);
  require(pe >= 0 && pe < state_->n_pes(), Code::invalid_argument,
          "peer_pointer: PE {}; the world has PEs 0 to {}", pe, state_->n_pes() - 1);
  std::byte* const peer = state_->peer_base(pe);
  return peer == nullptr ? nullptr : peer + offset;
}

std::size_t SymmetricHeap::offset_of(const void* local) const {
  detail::open_parts(*state_, "offset_of");
  require(contains(local), Code::invalid_argument,
          "{} is not in this PE's symmetric heap of {} bytes at {}", local, size(),
          static_cast<const void*>(base()));
  return static_cast<std::size_t>(static_cast<const std::byte*>(local) - base());
}

bool SymmetricHeap::contains(const void* local, std::size_t bytes) const noexcept {
  if (!state_->is_open()) return false;
  const auto start = reinterpret_cast<std::uintptr_t>(base());
  const auto address = reinterpret_cast<std::uintptr_t>(local);
  return address >= start && address - start <= size() && bytes <= size() - (address - start) &&
         address - start < size();
}

Device SymmetricHeap::device() const noexcept {
  const memory::Device* const gpu = state_->cuda();
  return gpu != nullptr ? Device{DeviceKind::cuda, gpu->device} : Device{};
}

std::shared_ptr<void> SymmetricHeap::memory_owner() const {
  struct Owner {  // members are destroyed in reverse order: the heap before the GPU's context
    std::shared_ptr<memory::Device> device;
    std::shared_ptr<memory::Segment> segment;
    std::shared_ptr<memory::DeviceHeap> heap;
  };
  const detail::WorldParts& parts = state_->parts();
  return std::make_shared<Owner>(Owner{parts.device, parts.segment, parts.device_heap});
}

std::byte* SymmetricHeap::base() const noexcept {
  return state_->is_open() ? state_->parts().heap_base() : nullptr;
}

std::size_t SymmetricHeap::size() const noexcept {
  return state_->is_open() ? state_->parts().heap_size() : 0;
}
std::size_t SymmetricHeap::used() const {
  return detail::open_parts(*state_, "used").allocator.used();
}
std::size_t SymmetricHeap::largest_free() const {
  return detail::open_parts(*state_, "largest_free").allocator.largest_free();
}

}  // namespace shoal
