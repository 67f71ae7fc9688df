// SPDX-License-Identifier: Apache-2.0
#include "fake_gpu/fake_gpu.hpp"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace shoal::test::fake_gpu {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;
/// Changes of fibers without any progress, after which no fiber can go on.
constexpr std::uint64_t kIdleChanges = 5'000'000;

struct Fiber {
  ucontext_t context{};
  std::vector<char> stack = std::vector<char>(kStackBytes);
  Indices indices{};
  bool ended = false;
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
  ucontext_t scheduler{};
  const std::function<void()>* kernel = nullptr;
} block;

void change() {
  if (++block.idle > kIdleChanges) {
    std::fprintf(stderr, "fake GPU: block %u waits for what never comes (thread %u)\n",
                 indices.block.x, indices.thread.x);
    std::abort();
  }
  Fiber& me = *block.fibers[block.now];
  swapcontext(&me.context, &block.scheduler);
  indices = me.indices;
}

void enter() {
  (*block.kernel)();
  Fiber& me = *block.fibers[block.now];
  me.ended = true;
  --block.running;
  block.idle = 0;
  swapcontext(&me.context, &block.scheduler);
}

void prepare(std::uint32_t number, std::uint32_t blocks, std::uint32_t threads) {
  block.warps.assign((threads + 31) / 32, {});
  block.barriers = {};
  block.running = threads;
  block.idle = 0;
  while (block.fibers.size() < threads) block.fibers.push_back(std::make_unique<Fiber>());
  for (std::uint32_t thread = 0; thread < threads; ++thread) {
    Fiber& fiber = *block.fibers[thread];
    fiber.ended = false;
    fiber.indices = {{thread, 0, 0}, {number, 0, 0}, dim3(threads), dim3(blocks)};
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }
}

}  // namespace

Indices indices;

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
  change();
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
        swapcontext(&block.scheduler, &fiber.context);
      }
  }
}

}  // namespace shoal::test::fake_gpu
