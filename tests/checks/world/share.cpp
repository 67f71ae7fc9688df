// SPDX-License-Identifier: Apache-2.0
#include "checks/world/share.hpp"
#ifdef SHOAL_WITH_CUDA

#include <gtest/gtest.h>

#include "memory/cuda/driver.hpp"
#include "memory/cuda/window.hpp"
#include "pe/memory.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

using memory::cuda::address;
using memory::cuda::driver;

CUmemAllocationHandleType handle_type(const World& world, ForeignMemory::Kind kind) {
  if (kind == ForeignMemory::Kind::mapped_without_handle ||
      state_of(world).memory().cuda()->description().has_fd == 0)
    return CU_MEM_HANDLE_TYPE_NONE;
  return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

}  // namespace

ForeignMemory::ForeignMemory(const World& world, std::size_t bytes, Kind kind)
    : world_(world), kind_(kind), bytes_(bytes) {
  const memory::Device& gpu = *state_of(world).memory().cuda();
  gpu.activate();
  CUdeviceptr start{};
  if (kind == Kind::malloc) {
    check(driver(), driver().mem_alloc(&start, bytes), "mem_alloc");
    base_ = reinterpret_cast<std::byte*>(start);
    return;
  }
  const std::size_t pieces = kind == Kind::mapped_in_two_pieces ? 2 : 1;
  piece_ = (bytes / pieces + gpu.granularity - 1) / gpu.granularity * gpu.granularity;
  bytes_ = piece_ * pieces;
  check(driver(), driver().address_reserve(&start, bytes_, gpu.granularity, 0, 0),
        "address_reserve");
  base_ = reinterpret_cast<std::byte*>(start);
  const CUmemAllocationProp properties =
      memory::cuda::heap_properties(gpu.device, handle_type(world, kind));
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  for (std::size_t at = 0; at < bytes_; at += piece_) {
    CUmemGenericAllocationHandle memory{};
    check(driver(), driver().mem_create(&memory, piece_, &properties, 0), "mem_create");
    check(driver(), driver().mem_map(start + at, piece_, 0, memory, 0), "mem_map");
    check(driver(), driver().mem_release(memory), "mem_release");
    check(driver(), driver().mem_set_access(start + at, piece_, &access, 1), "mem_set_access");
  }
}

ForeignMemory::~ForeignMemory() {
  state_of(world_).memory().cuda()->activate();
  if (kind_ == Kind::malloc) {
    driver().mem_free(address(base_));
    return;
  }
  for (std::size_t at = 0; at < bytes_; at += piece_)
    driver().mem_unmap(address(base_ + at), piece_);
  driver().address_free(address(base_), bytes_);
}

void copy_bytes(const World& world, void* target, const void* source, std::size_t bytes) {
  const memory::Device& gpu = *state_of(world).memory().cuda();
  gpu.activate();
  check(driver(), driver().copy(address(target), address(source), bytes, gpu.stream), "copy");
  gpu.synchronize("copy");
}

namespace {

constexpr std::size_t kBytes = std::size_t{3} << 20;

/// Writes bytes that identify PE `pe` and offset `at`.
std::uint64_t mark(Pe pe, std::size_t at) {
  return static_cast<std::uint64_t>(pe) << 40 | at;
}

void expect_mark(const World& world, const std::byte* memory, Pe pe, std::size_t at) {
  std::uint64_t seen = 0;
  copy_bytes(world, &seen, memory + at, sizeof seen);
  EXPECT_EQ(seen, mark(pe, at)) << "PE " << pe << " byte " << at;
}

void set_mark(const World& world, std::byte* memory, Pe pe, std::size_t at) {
  const std::uint64_t value = mark(pe, at);
  copy_bytes(world, memory + at, &value, sizeof value);
}

void check_kind(World& world, ForeignMemory::Kind kind) {
  SymmetricHeap& heap = world.heap();
  const std::size_t last = kBytes - 8;
  {
    const ForeignMemory mine(world, kBytes, kind);
    set_mark(world, mine.data(), world.my_pe(), 0);
    set_mark(world, mine.data(), world.my_pe(), last);
    const SharedBuffer shared = heap.share_buffer(mine.data(), kBytes);
    EXPECT_EQ(shared.on(world.my_pe()), mine.data());
    for (Pe pe = 0; pe < world.n_pes(); ++pe) {
      ASSERT_NE(shared.on(pe), nullptr);
      EXPECT_EQ(shared.bytes(pe), kBytes);
      expect_mark(world, shared.on(pe), pe, 0);
      expect_mark(world, shared.on(pe), pe, last);
    }
    // A part of it, at a different place on each PE: nothing new is mapped.
    const std::size_t offset = 64 * static_cast<std::size_t>(world.my_pe() + 1);
    const SharedBuffer part = heap.share_buffer(mine.data() + offset, 128);
    for (Pe pe = 0; pe < world.n_pes(); ++pe)
      EXPECT_EQ(part.on(pe), shared.on(pe) + 64 * static_cast<std::size_t>(pe + 1));
    // Other PEs write in place.
    const Pe right = (world.my_pe() + 1) % world.n_pes();
    barrier(world.team());
    set_mark(world, part.on(right), right, 8);
    barrier(world.team());
    expect_mark(world, mine.data() + offset, world.my_pe(), 8);
    heap.unshare_buffer(shared);
    expect_mark(world, part.on(right), right, 8);  // the other use still holds it
    barrier(world.team());
    heap.unshare_buffer(part);
    expect_error(Code::invalid_argument, "not shared", [&] { heap.unshare_buffer(part); });
  }
  // Other memory at the same address, as an allocator may return it: the old mapping must not be
  // used.
  const ForeignMemory again(world, kBytes, kind);
  set_mark(world, again.data(), world.my_pe(), 16);
  const SharedBuffer shared = heap.share_buffer(again.data(), kBytes);
  for (Pe pe = 0; pe < world.n_pes(); ++pe) expect_mark(world, shared.on(pe), pe, 16);
  heap.unshare_buffer(shared);
}

}  // namespace

void check_sharing(World& world) {
  SymmetricHeap& heap = world.heap();
  for (const auto kind : {ForeignMemory::Kind::malloc, ForeignMemory::Kind::mapped,
                          ForeignMemory::Kind::mapped_in_two_pieces})
    check_kind(world, kind);

  // In one call, some PEs share nothing, some a part of the heap, some other memory.
  const auto box = heap.allocate<std::uint64_t>(8);
  const ForeignMemory mine(world, kBytes, ForeignMemory::Kind::malloc);
  const int what = world.my_pe() % 3;
  auto* const source = what == 0 ? mine.data() : reinterpret_cast<std::byte*>(box.data() + 2);
  const std::size_t bytes = what == 2 ? 0 : 32;
  if (bytes != 0) set_mark(world, source, world.my_pe(), 24);
  const SharedBuffer mixed = heap.share_buffer(bytes == 0 ? nullptr : source, bytes);
  for (Pe pe = 0; pe < world.n_pes(); ++pe) {
    EXPECT_EQ(mixed.bytes(pe), pe % 3 == 2 ? 0U : 32U);
    if (pe % 3 == 2) {
      EXPECT_EQ(mixed.on(pe), nullptr);
    } else {
      expect_mark(world, mixed.on(pe), pe, 24);
    }
  }
  barrier(world.team());
  heap.unshare_buffer(mixed);

  // A PE with a bad argument fails all PEs, and nothing is left behind.
  std::byte on_stack{};
  for (const Pe bad : {Pe{0}, static_cast<Pe>(world.n_pes() - 1)}) {
    const void* const pointer = world.my_pe() == bad ? &on_stack : mine.data();
    expect_error(Code::invalid_argument, "is not GPU memory",
                 [&] { heap.share_buffer(pointer, 1); });
  }
  const SharedBuffer good = heap.share_buffer(mine.data(), kBytes);
  EXPECT_EQ(good.on(world.my_pe()), mine.data());
  heap.unshare_buffer(good);
}

}  // namespace shoal::test

#endif
