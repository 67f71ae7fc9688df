// SPDX-License-Identifier: Apache-2.0
// rma_rows.hpp: sizes and names of one-sided operations, which shoal-bench rma and its baselines
// share, so that their rows can be compared.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace shoal::bench {

inline constexpr std::size_t kLargest = std::size_t{4} << 20;  ///< bytes
inline constexpr std::size_t kSizes[] = {8,        64,        1 << 10, 4 << 10, 16 << 10,
                                         64 << 10, 256 << 10, 1 << 20, kLargest};
inline constexpr std::size_t kRoundTripSizes[] = {8, 1 << 10, 64 << 10};
/// Operations in flight in a bandwidth measurement.
inline constexpr std::uint64_t kWindow = 16;

inline std::string size_name(std::size_t bytes) {
  if (bytes >= 1 << 20) return fmt::format("{} MiB", bytes >> 20);
  return bytes >= 1 << 10 ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} B", bytes);
}
inline std::string put_name(std::size_t bytes) {
  return "put + quiet " + size_name(bytes);
}
inline std::string get_name(std::size_t bytes) {
  return "get " + size_name(bytes);
}
inline std::string window_name(std::size_t bytes) {
  return fmt::format("{} put_nbi {}", kWindow, size_name(bytes));
}
inline std::string round_trip_name(std::size_t bytes) {
  return "put_signal round trip " + size_name(bytes);
}

/// Enough repetitions to measure, few enough for large sizes. At most `iterations`, at least 16.
inline std::int64_t repetitions(std::size_t bytes, std::int64_t iterations) {
  return std::clamp<std::int64_t>(static_cast<std::int64_t>((std::size_t{256} << 20) / bytes), 16,
                                  iterations);
}

}  // namespace shoal::bench
