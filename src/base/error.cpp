// SPDX-License-Identifier: Apache-2.0
// error.cpp: names of codes, and ids of messages.
#include "shoal/error.hpp"

namespace shoal {

std::string_view name_of(Code code) noexcept {
  switch (code) {
    case Code::invalid_argument:
      return "invalid_argument";
    case Code::exhausted:
      return "exhausted";
    case Code::timeout:
      return "timeout";
    case Code::peer_failed:
      return "peer_failed";
    case Code::mismatch:
      return "mismatch";
    case Code::unsupported:
      return "unsupported";
    case Code::system:
      return "system";
    case Code::closed:
      return "closed";
  }
  return "unknown";
}

std::string_view Error::id() const noexcept {
  const std::string_view text = what();
  const std::size_t start = text.find(kIdPrefix);
  if (start == text.npos) return {};
  return text.substr(start, text.find_first_not_of("0123456789", start + kIdPrefix.size()) - start);
}

}  // namespace shoal
