// SPDX-License-Identifier: Apache-2.0
#include "fake_gpu/fake_gpu.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "support/fiber_context.hpp"

namespace shoal::test::fake_gpu {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;
/// Changes of fibers without any progress, after which no fiber can continue.
constexpr std::uint64_t kIdleChanges = 5'000'000;

struct BulkStore {
  void* to;
  std::uint32_t from, bytes;
  std::vector<std::byte> data;  // once shared memory has been read
  void read() {
    if (data.empty()) data.assign(at_shared(from), at_shared(from) + bytes);
  }
};
struct Fiber {
  FiberContext context;
  // Not cleared: a block of 1024 threads touches a small part of its 256 MiB.
  std::unique_ptr<std::byte[]> stack{new std::byte[kStackBytes]};
  Indices indices{};
  bool ended = false;
  std::vector<BulkStore> stores;                    // of the group that is open
  std::deque<std::vector<BulkStore>> store_groups;  // not awaited yet
};
/// A barrier of bulk copies.
struct BulkBarrier {
  std::uint32_t arrivals = 0, awaited = 0, phase = 0;
  std::int64_t bytes = 0;  // announced and not loaded

  void settle() {
    if (awaited > 0 || bytes != 0) return;
    awaited = arrivals;
    ++phase;
  }
};
struct BulkLoad {
  std::uint32_t to;
  const void* from;
  std::uint32_t bytes, barrier;
};
struct Warp {
  WarpWords given{}, taken{};
  std::uint32_t arrived = 0, turn = 0;
};
struct Barrier {
  std::uint32_t arrived = 0, turn = 0;
  bool all = true, result = true;

  void open() {
    arrived = 0;
    ++turn;
    result = std::exchange(all, true);
  }
};

/// The block that runs.
struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  std::array<Barrier, 16> barriers;
  std::uint32_t now = 0, running = 0;
  std::uint64_t idle = 0;
  FiberContext scheduler;
  const std::function<void()>* kernel = nullptr;
  std::map<std::uint32_t, BulkBarrier> bulk_barriers;
  std::vector<BulkLoad> loads;  // that wait
  std::uint32_t all_loads = 0;
  bool concurrent = false;
};
thread_local Block block;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "fake GPU: block %u, thread %u: %s\n", indices.block.x, indices.thread.x,
               what);
  std::abort();
}

void change() {
  if (++block.idle > kIdleChanges && !block.concurrent) fail("waits for what never comes");
  Fiber& me = *block.fibers[block.now];
  me.context.change_to(block.scheduler);
  indices = me.indices;
}

void enter() {
  (*block.kernel)();
  Fiber& me = *block.fibers[block.now];
  if (!me.stores.empty() || !me.store_groups.empty()) fail("ends before its bulk stores");
  me.ended = true;
  --block.running;
  block.idle = 0;
  me.context.change_to(block.scheduler);
}

void prepare(std::uint32_t number, std::uint32_t blocks, std::uint32_t threads) {
  block.warps.assign((threads + 31) / 32, {});
  block.barriers = {};
  block.bulk_barriers.clear();
  if (!block.loads.empty()) fail("the block before ended before its bulk loads");
  block.running = threads;
  block.idle = 0;
  while (block.fibers.size() < threads) block.fibers.push_back(std::make_unique<Fiber>());
  for (std::uint32_t thread = 0; thread < threads; ++thread) {
    Fiber& fiber = *block.fibers[thread];
    fiber.ended = false;
    fiber.indices = {{thread, 0, 0}, {number, 0, 0}, dim3(threads), dim3(blocks)};
    fiber.context.prepare(fiber.stack.get(), kStackBytes, enter);
  }
}

}  // namespace

thread_local Indices indices;
alignas(128) thread_local std::byte dynamic_shared[228 << 10];

WarpWords exchange(std::uint64_t word) {
  Warp& warp = block.warps[indices.thread.x / 32];
  const std::uint32_t turn = warp.turn;
  warp.given[indices.thread.x % 32] = word;
  if (++warp.arrived == 32) {
    warp.arrived = 0;
    warp.taken = warp.given;
    ++warp.turn;
    block.idle = 0;
  } else {
    while (warp.turn == turn) change();
  }
  return warp.taken;
}

void arrive_barrier(std::uint32_t number, std::uint32_t threads) {
  Barrier& barrier = block.barriers[number];
  if (++barrier.arrived < threads) return;
  barrier.open();
  block.idle = 0;
}

bool wait_barrier(std::uint32_t number, std::uint32_t threads, bool value) {
  Barrier& barrier = block.barriers[number];
  const std::uint32_t turn = barrier.turn;
  barrier.all = barrier.all && value;
  ++barrier.arrived;
  while (barrier.turn == turn) {
    // Threads may end while others wait for all.
    if (barrier.arrived >= (threads == 0 ? block.running : threads)) {
      barrier.open();
      block.idle = 0;
    } else {
      change();
    }
  }
  return barrier.result;
}

void poll() {
  if (block.concurrent) std::this_thread::sleep_for(std::chrono::microseconds(20));
  change();
}
void run_concurrently() {
  block.concurrent = true;
}

namespace {

constexpr std::uint32_t kFirstAddress = 1 << 20;

BulkBarrier& bulk_barrier(std::uint32_t address) {
  const auto found = block.bulk_barriers.find(address);
  if (found == block.bulk_barriers.end()) fail("a bulk barrier is used before its start");
  return found->second;
}

void require_aligned(std::uint32_t shared, const void* global, std::uint32_t bytes) {
  if ((shared | reinterpret_cast<std::uintptr_t>(global) | bytes) % 16 != 0 || bytes == 0)
    fail("a bulk copy is not aligned, or empty");
}

void complete(const BulkLoad& load) {
  std::memcpy(at_shared(load.to), load.from, load.bytes);
  BulkBarrier& barrier = bulk_barrier(load.barrier);
  barrier.bytes -= load.bytes;
  barrier.settle();
  block.idle = 0;
}

}  // namespace

std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(kFirstAddress +
                                    (static_cast<const std::byte*>(pointer) - dynamic_shared));
}
std::byte* at_shared(std::uint32_t address) {
  return dynamic_shared + static_cast<std::int32_t>(address - kFirstAddress);
}

void init_bulk_barrier(std::uint32_t barrier, std::uint32_t arrivals) {
  if (!block.bulk_barriers.emplace(barrier, BulkBarrier{arrivals, arrivals}).second)
    fail("a bulk barrier is started twice");
}
void end_bulk_barrier(std::uint32_t barrier) {
  if (bulk_barrier(barrier).bytes != 0) fail("a bulk barrier ends before its loads");
  block.bulk_barriers.erase(barrier);
}
void arrive_bulk_barrier(std::uint32_t address, std::uint32_t bytes) {
  BulkBarrier& barrier = bulk_barrier(address);
  if (barrier.awaited == 0) fail("too many arrivals at a bulk barrier");
  --barrier.awaited;
  barrier.bytes += bytes;
  barrier.settle();
}
void wait_bulk_barrier(std::uint32_t address, std::uint32_t parity) {
  while ((bulk_barrier(address).phase & 1) == parity) {
    const auto load = std::find_if(block.loads.rbegin(), block.loads.rend(),
                                   [&](const BulkLoad& l) { return l.barrier == address; });
    if (load == block.loads.rend()) {
      change();
      continue;
    }
    complete(*load);
    block.loads.erase(std::next(load).base());
  }
}
void bulk_load(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier) {
  require_aligned(to, from, bytes);
  const BulkLoad load{to, from, bytes, barrier};
  if (block.all_loads++ % 3 == 0)
    complete(load);
  else
    block.loads.push_back(load);
}

void bulk_store(void* to, std::uint32_t from, std::uint32_t bytes) {
  require_aligned(from, to, bytes);
  block.fibers[block.now]->stores.push_back({to, from, bytes, {}});
}
void commit_bulk_stores() {
  Fiber& me = *block.fibers[block.now];
  me.store_groups.push_back(std::exchange(me.stores, {}));
}
void wait_bulk_stores(std::size_t pending) {
  Fiber& me = *block.fibers[block.now];
  read_bulk_stores(pending);
  for (; me.store_groups.size() > pending; me.store_groups.pop_front())
    for (const BulkStore& store : me.store_groups.front())
      std::memcpy(store.to, store.data.data(), store.bytes);
}
void read_bulk_stores(std::size_t pending) {
  Fiber& me = *block.fibers[block.now];
  for (std::size_t group = 0; group + pending < me.store_groups.size(); ++group)
    for (BulkStore& store : me.store_groups[group]) store.read();
}

void run(const std::function<void()>& kernel, std::uint32_t blocks, std::uint32_t threads) {
  block.kernel = &kernel;
  for (std::uint32_t number = 0; number < blocks; ++number) {
    prepare(number, blocks, threads);
    while (block.running > 0)
      for (block.now = 0; block.now < threads; ++block.now) {
        Fiber& fiber = *block.fibers[block.now];
        if (fiber.ended) continue;
        indices = fiber.indices;
        block.scheduler.change_to(fiber.context);
      }
  }
}

}  // namespace shoal::test::fake_gpu
