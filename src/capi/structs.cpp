// SPDX-License-Identifier: Apache-2.0
// structs.cpp: checks of the sizes of structs from headers of other versions.
#include "capi/structs.hpp"

namespace shoal::capi {

void check_size(const char* name, std::size_t size, std::size_t least) {
  constexpr std::size_t kMost = 4096;  // far above every struct: larger means not initialized
  require(size >= least && size <= kMost && size % 8 == 0, Code::invalid_argument,
          "SHOAL-N882: {}.size is {}; it must be the size of the struct: start with its _INIT",
          name, size);
}

void check_unknown(const char* name, const void* given, std::size_t known, std::size_t size) {
  const auto* bytes = static_cast<const std::byte*>(given);
  for (std::size_t i = known; i < size; ++i)
    require(
        bytes[i] == std::byte{0}, Code::invalid_argument,
        "SHOAL-N883: {} has {} bytes, and byte {} is not zero; this library knows the first {}: it "
        "is older than the program's header, which asks for something that it cannot do",
        name, size, i, known);
}

}  // namespace shoal::capi
