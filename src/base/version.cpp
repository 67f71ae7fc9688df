// SPDX-License-Identifier: Apache-2.0
#include "shoal/version.hpp"

namespace shoal {

Version loaded_version() noexcept {
  return kVersion;
}

}  // namespace shoal
