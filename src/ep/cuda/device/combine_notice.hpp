// SPDX-License-Identifier: Apache-2.0
// combine_notice.hpp: the word by which ranks agree on a low-latency combine.
#pragma once

#include <cstdint>

#include "ep/plan/notices.hpp"
#include "shoal/config.hpp"

namespace shoal::ep::cuda {

using detail::CombineRowForm;  // ranks must agree on it

/// The notice of a combine, and the flag of a combine row, one word: the epoch (low 32 bits) and
/// what ranks must agree on: form, reduction, which dispatch is combined (24 bits of its epoch),
/// and whether weights travelled with that dispatch.
struct CombineNoticeWord {
  CombineRowForm form;
  bool exact, weights_travelled;
  std::uint64_t dispatch_epoch;

  /// In notices: the sender has masked the receiver.
  static constexpr std::uint64_t kLeftOut = std::uint64_t{1} << 37;
  /// With sums: the sender does not wait for weights and sends a row for each expert output, which
  /// the receiver sums in the same order. Ranks need not agree on this.
  static constexpr std::uint64_t kUnsummed = std::uint64_t{1} << 38;

  /// True if two words agree in all that ranks must agree on.
  SHOAL_HOST_DEVICE static constexpr bool agree(std::uint64_t a, std::uint64_t b) {
    return ((a ^ b) & ~kUnsummed) == 0;
  }

  SHOAL_HOST_DEVICE constexpr std::uint64_t word(std::uint64_t epoch) const {
    return (epoch & 0xffff'ffffu) | static_cast<std::uint64_t>(form) << 32 |
           std::uint64_t{exact} << 35 | std::uint64_t{weights_travelled} << 36 |
           (dispatch_epoch & 0xff'ffffu) << 40;
  }
  static constexpr CombineRowForm form_of(std::uint64_t word) {
    return static_cast<CombineRowForm>(word >> 32 & 7);
  }
  static constexpr bool has_weights(std::uint64_t word) { return (word >> 36 & 1) != 0; }
  /// The low 24 bits of the epoch of the dispatch.
  static constexpr std::uint64_t dispatch_of(std::uint64_t word) { return word >> 40; }
};

}  // namespace shoal::ep::cuda
