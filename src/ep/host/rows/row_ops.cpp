// SPDX-License-Identifier: Apache-2.0
// row_ops.cpp: copies token rows; on request, the stores bypass the caches.
#include "ep/host/rows/row_ops.hpp"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ep/host/rows/row_ops.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "ep/host/rows/row_ops_simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace shoal::ep::host::HWY_NAMESPACE {

constexpr std::size_t kCacheLine = 64;
// The hardware prefetchers restart on every row.
constexpr std::size_t kPrefetchBytes = 1024;

// The parts before the first and after the last whole vector use cached stores. Streaming half a
// line costs a read and a write of memory, while a cached store merges with the neighboring row's
// stores to the same line.
void StreamRowKernel(void* target_row, const void* source_row, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t step = hn::Lanes(d);
  auto* target = static_cast<std::uint8_t*>(target_row);
  const auto* source = static_cast<const std::uint8_t*>(source_row);

  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(target) % kCacheLine;
  std::size_t i = misaligned == 0 ? 0 : HWY_MIN(kCacheLine - misaligned, bytes);
  std::memcpy(target, source, i);
  for (; i + 4 * step <= bytes; i += 4 * step) {
    if (i + kPrefetchBytes < bytes) {
      const std::uint8_t* const ahead = source + i + kPrefetchBytes;
      hwy::Prefetch(ahead);
      hwy::Prefetch(ahead + step);
      hwy::Prefetch(ahead + 2 * step);
      hwy::Prefetch(ahead + 3 * step);
    }
    const auto v0 = hn::LoadU(d, source + i);
    const auto v1 = hn::LoadU(d, source + i + step);
    const auto v2 = hn::LoadU(d, source + i + 2 * step);
    const auto v3 = hn::LoadU(d, source + i + 3 * step);
    hn::Stream(v0, d, target + i);
    hn::Stream(v1, d, target + i + step);
    hn::Stream(v2, d, target + i + 2 * step);
    hn::Stream(v3, d, target + i + 3 * step);
  }
  for (; i + step <= bytes; i += step) hn::Stream(hn::LoadU(d, source + i), d, target + i);
  std::memcpy(target + i, source + i, bytes - i);
}

const char* InstructionSetName() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace shoal::ep::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::ep::host {

HWY_EXPORT(StreamRowKernel);
HWY_EXPORT(InstructionSetName);

void copy_row(void* target, const void* source, std::size_t bytes, Store store) {
  if (store == Store::streamed)
    HWY_DYNAMIC_DISPATCH(StreamRowKernel)(target, source, bytes);
  else
    std::memcpy(target, source, bytes);
}

void flush_streamed_rows() {
  hwy::FlushStream();
}

// Writes one target after another. From the second target on, the source is in the first-level
// cache, and each target is one sequential stream. Writing all targets chunk by chunk is not faster
// with any chunk size.
void scatter_row(std::span<void* const> targets, const void* source, std::size_t bytes,
                 Store store) {
  for (void* const target : targets) copy_row(target, source, bytes, store);
}

const char* instruction_set() {
  return HWY_DYNAMIC_DISPATCH(InstructionSetName)();
}

bool use_instruction_set(int preference) {
  hwy::SetSupportedTargetsForTest(0);
  const auto targets = hwy::SupportedAndGeneratedTargets();
  if (preference < 0 || static_cast<std::size_t>(preference) >= targets.size()) return false;
  hwy::GetChosenTarget().Update(targets[static_cast<std::size_t>(preference)]);
  return true;
}

}  // namespace shoal::ep::host
#endif
