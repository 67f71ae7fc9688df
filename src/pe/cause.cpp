// SPDX-License-Identifier: Apache-2.0
#include "pe/cause.hpp"

#include <fmt/format.h>

#include <charconv>

namespace shoal::detail {
namespace {

constexpr std::string_view kPe = "PE ";
constexpr std::string_view kConsequence = "gave up after ";

}  // namespace

std::string FailureCause::text() const {
  return pe < 0 ? reason : fmt::format("{}{}: {}", kPe, pe, reason);
}

std::string describe_consequence(const FailureCause& cause) {
  return fmt::format("{}{}", kConsequence, cause.text());
}

FailureCause parse_cause(std::string_view text) {
  constexpr std::string_view kSeparator = ": ";
  FailureCause unknown{-1, std::string(text)};
  if (!text.starts_with(kPe)) return unknown;
  Pe pe = -1;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data() + kPe.size(), end, pe);
  if (error != std::errc()) return unknown;
  const std::string_view rest(after, static_cast<std::size_t>(end - after));
  if (!rest.starts_with(kSeparator)) return {pe, std::string(text)};
  return {pe, std::string(rest.substr(kSeparator.size()))};
}

std::optional<FailureCause> parse_consequence(std::string_view text) {
  if (!text.starts_with(kConsequence)) return std::nullopt;
  FailureCause cause = parse_cause(text.substr(kConsequence.size()));
  if (cause.pe < 0) return std::nullopt;
  return cause;
}

}  // namespace shoal::detail
