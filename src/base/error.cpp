// SPDX-License-Identifier: Apache-2.0
// error.cpp: names of codes.
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

}  // namespace shoal
