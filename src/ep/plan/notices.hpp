// SPDX-License-Identifier: Apache-2.0
// notices.hpp: values with the same meaning in the notices of all backends.
#pragma once

#include <cstdint>

#include "shoal/config.hpp"
#include "shoal/ep/formats.hpp"

namespace shoal::ep::detail {

/// In place of an offset: the rank has no room, or no such array.
constexpr std::uint64_t kNoRoom = ~std::uint64_t{0};

/// Distinguishes a dispatch from a combine with the same epoch.
enum class Operation : std::uint64_t { dispatch = 1, combine = 2 };

/// The encoding of the rows of a combine. fp8 and mxfp8: codes in e4m3, a byte for each channel,
/// then scales as Quantize has them. Normal mode has no log_fmt.
enum class CombineEncoding : std::uint32_t { bfloat16, log_fmt, fp8, mxfp8 };

/// Returns the encoding that `quantize` names: none, fp8 or mxfp8.
SHOAL_HOST_DEVICE constexpr CombineEncoding encoding_of(Quantize quantize) {
  return quantize == Quantize::fp8     ? CombineEncoding::fp8
         : quantize == Quantize::mxfp8 ? CombineEncoding::mxfp8
                                       : CombineEncoding::bfloat16;
}

/// The combine rows that one rank provides to another in low-latency mode: a weighted sum over its
/// experts per token, or a row per expert, in each CombineEncoding. Sums are rounded to bfloat16
/// before they are encoded. Bit 0: a row per expert; the bits above it: the encoding.
enum class CombineRowForm : std::uint32_t {
  sums,
  rows,
  log_fmt_sums,
  log_fmt,
  fp8_sums,
  fp8,
  mxfp8_sums,
  mxfp8
};

SHOAL_HOST_DEVICE constexpr bool is_sums(CombineRowForm form) {
  return (static_cast<std::uint32_t>(form) & 1) == 0;
}
SHOAL_HOST_DEVICE constexpr CombineEncoding encoding_of(CombineRowForm form) {
  return static_cast<CombineEncoding>(static_cast<std::uint32_t>(form) >> 1);
}
SHOAL_HOST_DEVICE constexpr bool is_encoded(CombineRowForm form) {
  return encoding_of(form) != CombineEncoding::bfloat16;
}
/// The form of a row per expert in the encoding of `form`.
SHOAL_HOST_DEVICE constexpr CombineRowForm unsummed_form(CombineRowForm form) {
  return static_cast<CombineRowForm>(static_cast<std::uint32_t>(form) | 1);
}
static_assert(unsummed_form(CombineRowForm::sums) == CombineRowForm::rows);
static_assert(unsummed_form(CombineRowForm::log_fmt_sums) == CombineRowForm::log_fmt);
static_assert(unsummed_form(CombineRowForm::fp8_sums) == CombineRowForm::fp8);
static_assert(encoding_of(CombineRowForm::mxfp8) == CombineEncoding::mxfp8);

/// The form in which the ranks of a combine must agree. `quantize`: none, fp8 or mxfp8.
constexpr CombineRowForm agreed_form(bool log_fmt, Quantize quantize, bool exact) {
  const CombineRowForm sums = log_fmt                       ? CombineRowForm::log_fmt_sums
                              : quantize == Quantize::fp8   ? CombineRowForm::fp8_sums
                              : quantize == Quantize::mxfp8 ? CombineRowForm::mxfp8_sums
                                                            : CombineRowForm::sums;
  return exact ? unsummed_form(sums) : sums;
}

/// The name of an encoding in messages, as the options name it; empty: bfloat16.
constexpr const char* name_of(CombineEncoding encoding) {
  constexpr const char* kNames[] = {"", "log_fmt", "fp8", "mxfp8"};
  return kNames[static_cast<std::uint32_t>(encoding)];
}

/// True if a rank that sends sums sends expert outputs in their place because it must not wait for
/// the weights: they did not travel with the dispatch, and its receive is deferred, or the group
/// masks ranks and spans nodes, where the send could not report that it waits for a third rank.
constexpr bool sends_unsummed(bool weights_travelled, bool deferred, bool masks_between_nodes) {
  return !weights_travelled && (deferred || masks_between_nodes);
}

/// Value of the `failed` word that a rank which gives up the group writes at every rank: the rank
/// that it waited for; never 0. `gave_up`: that rank had given the group up before, so that the
/// cause is in its `failed` word. Otherwise that rank is the cause: it is late, for instance.
/// `other_mode`: the one that writes is in an operation of low-latency mode, that rank in one of
/// normal mode.
SHOAL_HOST_DEVICE constexpr std::uint64_t failed_word(std::int32_t rank, bool gave_up,
                                                      bool other_mode = false) {
  return (static_cast<std::uint64_t>(other_mode) << 33) |
         (static_cast<std::uint64_t>(gave_up) << 32) | (static_cast<std::uint32_t>(rank) + 1);
}
SHOAL_HOST_DEVICE constexpr bool says_gave_up(std::uint64_t failed_word) {
  return (failed_word >> 32 & 1) != 0;
}
SHOAL_HOST_DEVICE constexpr bool says_other_mode(std::uint64_t failed_word) {
  return (failed_word >> 33 & 1) != 0;
}

/// The first cause of the failure of rank `by`, which has given the group up. `word(rank)` is the
/// `failed` word of a rank, or 0. Ends at a word that names no rank of the group.
template <typename Word>
std::int32_t first_cause(std::int32_t by, std::int32_t ranks, const Word& word) {
  std::int32_t cause = by;
  for (std::int32_t links = 0; links < ranks; ++links) {
    const std::uint64_t value = word(cause);
    const auto named = static_cast<std::uint32_t>(value);
    if (named == 0 || named > static_cast<std::uint32_t>(ranks)) break;
    cause = static_cast<std::int32_t>(named - 1);
    if (!says_gave_up(value)) break;
  }
  return cause;
}

}  // namespace shoal::ep::detail
