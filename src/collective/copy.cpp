// SPDX-License-Identifier: Apache-2.0
#include "collective/copy.hpp"

#include <cstring>

namespace shoal::collective {
namespace {

constexpr std::size_t kPiece = 2048;  ///< bytes
/// Shorter copies take so little time that looks at the clock would count.
constexpr std::size_t kLeastTimed = std::size_t{16} << 10;
/// Each range of lengths has a way of its own: which caches hold the data decides.
constexpr std::size_t kMedium = std::size_t{128} << 10, kLong = std::size_t{1} << 20;

void copy_pieces(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  while (bytes > kPiece) {
    std::memcpy(to, from, kPiece);
    to += kPiece;
    from += kPiece;
    bytes -= kPiece;
  }
  if (bytes != 0) std::memcpy(to, from, bytes);
}

void copy(CopyWay::Way way, void* target, const void* source, std::size_t bytes) noexcept {
  if (way == CopyWay::whole) {
    std::memcpy(target, source, bytes);
    return;
  }
  copy_pieces(static_cast<std::byte*>(target), static_cast<const std::byte*>(source), bytes);
}

}  // namespace

void copy_block(void* target, const void* source, std::size_t bytes) noexcept {
  if (bytes < kLeastTimed) return copy(CopyWay::pieces, target, source, bytes);
  static constinit CopyWay ways[3];
  CopyWay& choice = ways[bytes < kMedium ? 0 : bytes < kLong ? 1 : 2];
  const CopyWay::Turn turn = choice.next();
  if (!turn.timed) return copy(turn.way, target, source, bytes);
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  copy(turn.way, target, source, bytes);
  choice.record(turn.way, bytes, Clock::now() - start);
}

}  // namespace shoal::collective
