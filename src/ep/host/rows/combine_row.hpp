// SPDX-License-Identifier: Apache-2.0
// combine_row.hpp: rows of a combine as they travel in an encoding, in both modes. In e4m3: the
// codes, then the scales (detail::RowFormat).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ep/plan/notices.hpp"

namespace shoal::ep::host {

/// Encodes a bfloat16 row. Not for CombineEncoding::bfloat16.
void encode_combine_row(detail::CombineEncoding encoding, std::span<const std::uint16_t> row,
                        std::byte* target);
/// The values of such a row.
void decode_combine_row(detail::CombineEncoding encoding, const std::byte* row,
                        std::span<float> values);

/// Sums of encoded rows; for one thread.
class EncodedSums {
 public:
  EncodedSums(detail::CombineEncoding encoding, std::size_t channels)
      : encoding_(encoding), row_(channels), sum_(channels) {}

  /// target = round(bias0 + bias1 + rows[0] + ...), as sum_rows of bfloat16 rows adds them. `rows`
  /// are encoded, biases are bfloat16 or nullptr.
  void sum(std::uint16_t* target, std::span<const void* const> rows, const void* bias0,
           const void* bias1);

 private:
  detail::CombineEncoding encoding_;
  std::vector<float> row_, sum_;
};

}  // namespace shoal::ep::host
