// SPDX-License-Identifier: Apache-2.0
// The symmetric heap. Every PE keeps its own allocator, and all PEs make the same calls, so that an
// allocation has the same offset on every PE.
#include "shoal/heap.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <span>

#include <fmt/compile.h>

#include "base/check.hpp"
#include "fabric/fabric.hpp"
#include "pe/agreement.hpp"
#include "pe/forks.hpp"
#include "pe/memory.hpp"
#include "team/exchange.hpp"
#include "team/outcome.hpp"
#include "team/teams.hpp"
#include "world/state.hpp"

namespace shoal {
namespace detail {
namespace {

constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kTooMuch = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kMaximumAlignment = memory::Segment::kAlignment;

enum class HeapCall : std::uint64_t { none, allocate, release };

/// The arguments of one PE's heap call and the place that its own allocator chose. Every heap call
/// exchanges it, so it is small: what is rare follows in an exchange of its own.
struct HeapRequest {
  HeapCall call;
  std::uint64_t bytes;
  std::uint64_t alignment;    ///< of an allocation; else 0
  std::uint64_t offset;       ///< kNone: no room
  std::uint32_t failed = 0;   ///< 1: this PE's part of the call has failed
  std::uint32_t dropped = 0;  ///< 1: this PE has dropped arrays that it has not yet named

  bool same_call(const HeapRequest& other) const {
    return call == other.call && bytes == other.bytes && alignment == other.alignment &&
           offset == other.offset;
  }
};

/// Formatted at compile time and without an allocation: the text travels with every heap call, for
/// a PE that makes another one.
class RequestText {
 public:
  explicit RequestText(const HeapRequest& request) {
    if (request.call == HeapCall::release) {
      add(FMT_COMPILE("free of {} bytes"), request.bytes);
    } else if (request.bytes == kTooMuch) {
      add(FMT_COMPILE("malloc of more bytes than can be counted"));
    } else {
      add(FMT_COMPILE("malloc of {} bytes"), request.bytes);
    }
    if (request.alignment > memory::Allocator::kMinimumAlignment)
      add(FMT_COMPILE(" aligned to {}"), request.alignment);
    if (request.offset != kNone) add(FMT_COMPILE(" at offset {}"), request.offset);
    text_.push_back('\0');
  }
  const char* c_str() const { return text_.data(); }

 private:
  template <typename Format, typename... Values>
  void add(const Format& format, const Values&... values) {
    fmt::format_to(std::back_inserter(text_), format, values...);
  }

  fmt::basic_memory_buffer<char, 128> text_;
};

/// Releases the arrays that all PEs have dropped; `mine` names those that this PE has dropped.
/// Returns the number of arrays released.
std::size_t release_dropped(WorldState& state, HeapArrays::Block mine) {
  TeamState& team = state.teams().world_team();
  Memory& memory = state.memory();
  std::vector<HeapArrays::Block> blocks(team.size());
  for (std::size_t released = 0;;) {
    const auto bytes = exchange(team, &mine, sizeof mine, "release of arrays");
    std::memcpy(static_cast<void*>(blocks.data()), bytes.data(), bytes.size());
    for (const std::size_t offset : memory.heap_arrays().take(blocks, team.me())) {
      memory.map().remove(offset);
      memory.heap().release(offset);
      ++released;
    }
    if (std::none_of(blocks.begin(), blocks.end(), [](const auto& one) { return one.more != 0; }))
      return released;
    mine = memory.heap_arrays().unnamed();
    if (mine.count != 0 && attempt([&] { state.fabric().quiet_segments(); })) mine = {};
  }
}

/// Returns when all PEs made this call with the same arguments and their allocators chose the same
/// place. Throws on all PEs otherwise: Error{mismatch}, or `failure` of the PE that has one.
/// Returns the number of arrays that the call has released because all PEs have dropped them.
std::size_t agree(WorldState& state, HeapRequest mine,
                  std::optional<Error> failure = std::nullopt) {
  TeamState& team = state.teams().world_team();
  HeapArrays::Block dropped = state.memory().heap_arrays().unnamed();
  // Operations on the arrays must be complete before another PE may use their memory again.
  if (dropped.count != 0 && !failure) failure = attempt([&] { state.fabric().quiet_segments(); });
  if (failure) dropped = {};
  mine.failed = failure ? 1 : 0;
  mine.dropped = dropped.count != 0 ? 1 : 0;
  state.progress().set(Activity::allocating, team.epoch + 1,
                       mine.call == HeapCall::allocate ? "malloc" : "free");
  const RequestText call(mine);
  const auto bytes = exchange(team, &mine, sizeof mine, call.c_str());
  const std::span all(reinterpret_cast<const HeapRequest*>(bytes.data()), team.size());
  const auto any = [&](auto what) { return std::any_of(all.begin(), all.end(), what); };
  std::size_t released = 0;
  if (any([](const HeapRequest& one) { return one.dropped != 0; }))
    released = release_dropped(state, dropped);
  if (any([](const HeapRequest& one) { return one.failed != 0; }))
    agree_on_outcome(state, failure, call.c_str());
  require(
      !any([&](const HeapRequest& one) { return !one.same_call(all.front()); }), Code::mismatch,
      "SHOAL-N770: PEs make different calls on the symmetric heap: {}; all must make the same "
      "calls in the same order{}",
      [&] {
        std::vector<std::string> texts;
        for (const HeapRequest& one : all) texts.emplace_back(RequestText(one).c_str());
        return group_by_text(texts, team.pes);
      },
      [&] { return state.progress().refusal(team.pes, team.call(team.epoch)); });
  state.progress().set(Activity::idle, team.epoch, "heap call");
  return released;
}

Memory& open_memory(const WorldState& state, const char* what) {
  if (!state.is_open()) fail(Code::closed, "SHOAL-N172: {}: {}", what, why_closed(&state));
  return state.memory();
}

std::size_t product(std::size_t count, std::size_t size) {
  return size != 0 && count > kTooMuch / size ? kTooMuch : count * size;
}

/// All-gather of `mine`, which has the same size on every PE.
std::vector<std::vector<std::byte>> exchange_blobs(WorldState& state,
                                                   const std::vector<std::byte>& mine,
                                                   const char* what) {
  std::vector<std::vector<std::byte>> blobs(state.teams().world_team().pes.size());
  for (std::size_t done = 0; done < mine.size();) {
    const std::size_t bytes = std::min(mine.size() - done, kExchangeBytes);
    const auto all = exchange(state.teams().world_team(), mine.data() + done, bytes, what);
    auto at = all.begin();
    for (auto& blob : blobs) {
      blob.insert(blob.end(), at, at + static_cast<std::ptrdiff_t>(bytes));
      at += static_cast<std::ptrdiff_t>(bytes);
    }
    done += bytes;
  }
  return blobs;
}

/// Backs the first `bytes` bytes of the heap of every PE with memory. Collective. Throws on all PEs
/// or on none, and changes nothing when it throws.
void grow(WorldState& state, std::size_t bytes) {
  constexpr const char* kGrow = "heap growth";
  const Placement& placement = state.placement();
  Memory& memory = state.memory();
  memory::DeviceHeap& heap = *memory.device_heap();
  state.progress().set(Activity::allocating, state.teams().world_team().epoch + 1, "grow");
  std::vector<std::byte> mine;
  const auto added = attempt([&] {
    memory.device()->activate();
    mine = heap.add(heap.step(bytes));
  });
  try {
    agree_on_outcome(state, added, kGrow);
    const auto blobs = exchange_blobs(state, mine, kGrow);
    const auto check = [&] {
      if (const auto failure = state.health().failure()) fail(Code::peer_failed, "{}", *failure);
    };
    const auto connected = attempt([&] {
      heap.connect(blobs, {placement.token,
                           placement.my_pe,
                           state.settings().timeout,
                           check,
                           {},
                           "SHOAL_TIMEOUT_MS"});
    });
    agree_on_outcome(state, connected, kGrow);
    if (state.fabric().uses_network()) {
      std::vector<std::byte> keys;
      const auto registered = attempt(
          [&] { keys = state.fabric().add_heap(heap.mapped(), heap.step(bytes) - heap.mapped()); });
      agree_on_outcome(state, registered, kGrow);
      state.fabric().connect_heap(exchange_blobs(state, keys, kGrow));
    }
  } catch (...) {
    state.fabric().roll_back_heap(heap.mapped());
    heap.roll_back();
    throw;
  }
  heap.commit();
  state.progress().set(Activity::idle, state.teams().world_team().epoch, "heap call");
}

/// Sets newly allocated memory of this PE to zero.
void clear(const Memory& memory, std::size_t offset, std::size_t bytes) {
  if (bytes == 0) return;
  std::byte* const start = memory.heap_base() + offset;
  if (!memory.heap_on_gpu()) {
    std::memset(start, 0, bytes);
    return;
  }
  memory.device()->activate();
  memory.device()->zero(start, bytes);
  memory.device()->synchronize("calloc");
}

/// Bytes of a new block that may hold old data. New pages of the host are zero; new memory of a GPU
/// need not be. `touched`: end of the heap that was ever in use.
std::size_t bytes_to_clear(const Memory& memory, std::size_t offset, std::size_t bytes,
                           std::size_t touched) {
  if (memory.heap_on_gpu()) return bytes;
  return offset >= touched ? 0 : std::min(bytes, touched - offset);
}

/// Allocates a block after all PEs have agreed on it; nullopt where there is no room. Sets `again`,
/// with nothing allocated, where dropped arrays were released that may make room.
std::optional<std::size_t> allocate_once(WorldState& state, std::size_t bytes,
                                         std::size_t alignment, bool zero, bool& again) {
  again = false;
  Memory& memory = state.memory();
  memory::Allocator& allocator = memory.heap();
  const std::size_t touched = allocator.high_water();
  const auto offset = allocator.allocate(bytes, alignment);
  const bool grows = offset && *offset + bytes > memory.heap_mapped();
  const std::size_t to_clear = offset && zero ? bytes_to_clear(memory, *offset, bytes, touched) : 0;
  try {
    // Cleared before the other PEs know of the block: afterwards they may write there.
    const auto cleared = attempt([&] {
      if (!grows) clear(memory, offset.value_or(0), to_clear);
    });
    const std::size_t released =
        agree(state, {HeapCall::allocate, bytes, alignment, offset ? *offset : kNone}, cleared);
    again = released != 0 && bytes != 0 && (!offset || grows);
    if (again) {
      if (offset) allocator.release(*offset);
      return std::nullopt;
    }
    if (grows) {
      grow(state, *offset + bytes);
      clear(memory, *offset, to_clear);
      sync(state.teams().world_team(), "malloc");
    }
  } catch (...) {
    if (offset) allocator.release(*offset);
    throw;
  }
  return offset;
}

void* allocate(WorldState& state, std::size_t bytes, std::size_t alignment, bool zero) {
  Memory& memory = open_memory(state, "malloc");
  state.progress().checked(state.teams().world_team().next_call(), [&] {
    require(alignment != 0 && (alignment & (alignment - 1)) == 0 && alignment <= kMaximumAlignment,
            Code::invalid_argument,
            "SHOAL-N771: align: an alignment of {}; allowed: powers of two up to {}", alignment,
            kMaximumAlignment);
  });
  memory::Allocator& allocator = memory.heap();
  bool again = false;
  std::optional<std::size_t> offset;
  do {
    offset = allocate_once(state, bytes, alignment, zero, again);
  } while (again);
  if (offset) {
    memory.map().add("allocation", *offset, allocator.size_of(*offset));
    memory.heap_arrays().count_allocation();
    return memory.heap_base() + *offset;
  }
  if (bytes == 0) return nullptr;
  fail(Code::exhausted,
       "SHOAL-N772: the symmetric heap has no room for {} bytes aligned to {}: {} of {} bytes are "
       "free, the largest block has {}; SHOAL_SYMMETRIC_SIZE sets the size",
       bytes, std::max(alignment, memory::Allocator::kMinimumAlignment), allocator.free(),
       allocator.size(), allocator.largest_free());
}

/// The offset of a block that is allocated.
std::size_t checked_block(WorldState& state, const void* pointer) {
  const SymmetricHeap& heap = state.heap();
  require(
      heap.contains(pointer), Code::invalid_argument,
      "SHOAL-N773: free of {}, which malloc, calloc and align did not return: it is not in this "
      "PE's symmetric heap of {} bytes at {}",
      pointer, heap.size(), static_cast<const void*>(heap.base()));
  const std::size_t offset = heap.offset_of(pointer);
  require(
      state.memory().heap().size_of(offset) != 0, Code::invalid_argument,
      "SHOAL-N773: free of {} at heap offset {}, which malloc, calloc and align did not return or "
      "which is free already",
      pointer, offset);
  return offset;
}

/// Checks the pointer before the collective part: a PE with a wrong pointer throws alone, and the
/// PEs stay in step. A failure to complete earlier operations is thrown on all PEs.
void release(WorldState& state, const void* pointer) {
  Memory& memory = open_memory(state, "free");
  const std::size_t offset = state.progress().checked(
      state.teams().world_team().next_call(), [&] { return checked_block(state, pointer); });
  const std::size_t bytes = memory.heap().size_of(offset);
  const auto completed = attempt([&] { state.fabric().quiet_segments(); });
  agree(state, {HeapCall::release, bytes, 0, offset}, completed);
  memory.map().remove(offset);
  memory.heap_arrays().remove(offset);
  memory.heap().release(offset);
}

}  // namespace

void fail_subspan(std::size_t first, std::size_t length, std::size_t count) {
  fail(Code::invalid_argument,
       "SHOAL-N775: RemoteSpan::subspan: {} elements from element {} leave the span of {}", length,
       first, count);
}

void fail_empty_span(const char* call, const char* role) {
  fail(Code::invalid_argument, "SHOAL-N794: {}: an empty span as {}", call, role);
}

/// Keeps the memory of an array readable, also after the world is closed.
struct ArrayMemory {
  std::shared_ptr<void> owner;
  std::weak_ptr<WorldState> world;
  std::shared_ptr<HeapArrays::Dropped> dropped;
  void* data = nullptr;
  std::size_t offset = 0, bytes = 0;

  ~ArrayMemory() { dropped->store(true, std::memory_order_release); }
};

ArrayPlace allocate_symmetric(WorldState& state, std::size_t count, std::size_t size,
                              std::size_t alignment) {
  void* const pointer = allocate(state, product(count, size), alignment, true);
  if (pointer == nullptr) return {};
  const std::size_t offset = state.heap().offset_of(pointer);
  auto memory = std::make_shared<ArrayMemory>();
  memory->owner = state.heap().memory_owner();
  memory->world = state.weak_from_this();
  memory->dropped = state.memory().heap_arrays().add(offset);
  memory->data = pointer;
  memory->offset = offset;
  memory->bytes = count * size;
  return {std::move(memory), pointer, offset};
}

void free_symmetric(const ArrayMemory& memory) {
  const auto state = memory.world.lock();
  if (!state || !state->is_open())
    fail(Code::closed, "SHOAL-N172: SymmetricArray::free of {} bytes at heap offset {}: {}",
         memory.bytes, memory.offset, why_closed(state.get()));
  release(*state, memory.data);
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
  detail::Memory& memory = detail::open_memory(*state_, "register_buffer");
  const auto* const start = static_cast<const std::byte*>(pointer);
  require(
      start + bytes <= base() || start >= base() + size(), Code::invalid_argument,
      "SHOAL-N776: register_buffer of {} bytes at {}: this lies in the symmetric heap, which needs "
      "no registration",
      bytes, pointer);
  memory.registered_buffers().add(pointer, bytes);
}

void SymmetricHeap::unregister_buffer(void* pointer) {
  detail::open_memory(*state_, "unregister_buffer").registered_buffers().remove(pointer);
}

void* SymmetricHeap::peer_pointer(const void* local, Pe pe) const {
  const std::size_t offset = offset_of(local);
  require(pe >= 0 && pe < state_->n_pes(), Code::invalid_argument,
          "SHOAL-N790: peer_pointer: PE {}; the world has PEs 0 to {}", pe, state_->n_pes() - 1);
  std::byte* const peer = state_->fabric().peer_base(pe);
  return peer == nullptr ? nullptr : peer + offset;
}

std::size_t SymmetricHeap::offset_of(const void* local) const {
  detail::open_memory(*state_, "offset_of");
  require(contains(local), Code::invalid_argument,
          "SHOAL-N778: {} is not in this PE's symmetric heap of {} bytes at {}", local, size(),
          static_cast<const void*>(base()));
  return static_cast<std::size_t>(static_cast<const std::byte*>(local) - base());
}

bool SymmetricHeap::contains(const void* local, std::size_t bytes) const noexcept {
  if (!state_->is_open()) return false;
  const auto start = reinterpret_cast<std::uintptr_t>(base());
  const auto address = reinterpret_cast<std::uintptr_t>(local);
  return address >= start && address - start < size() && bytes <= size() - (address - start);
}

Device SymmetricHeap::device() const noexcept {
  const memory::Device* const gpu = state_->memory().cuda();
  return gpu != nullptr ? Device{DeviceKind::cuda, gpu->device} : Device{};
}

std::shared_ptr<void> SymmetricHeap::memory_owner() const {
  struct Owner {  // members are destroyed in reverse order: the heap before the GPU's context
    std::shared_ptr<memory::Device> device;
    std::shared_ptr<memory::Segment> segment;
    std::shared_ptr<memory::DeviceHeap> heap;
  };
  const detail::Memory& memory = state_->memory();
  return std::make_shared<Owner>(Owner{memory.device(), memory.segment(), memory.device_heap()});
}

std::byte* SymmetricHeap::base() const noexcept {
  return state_->is_open() ? state_->memory().heap_base() : nullptr;
}
std::size_t SymmetricHeap::size() const noexcept {
  return state_->is_open() ? state_->memory().heap_size() : 0;
}
std::size_t SymmetricHeap::used() const {
  return detail::open_memory(*state_, "used").heap().used();
}
std::size_t SymmetricHeap::largest_free() const {
  return detail::open_memory(*state_, "largest_free").heap().largest_free();
}

}  // namespace shoal
