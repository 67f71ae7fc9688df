// SPDX-License-Identifier: Apache-2.0
// pages.hpp: whole pages of memory, to be registered with a port.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/align.hpp"
#include "base/check.hpp"

namespace shoal::transport::verbs {

struct FreePages {
  void operator()(std::byte* memory) const noexcept { std::free(memory); }
};
using Pages = std::unique_ptr<std::byte, FreePages>;

/// At least `bytes` bytes, each `fill`. Throws Error{system}.
inline Pages allocate_pages(std::size_t bytes, std::byte fill = {}) {
  const std::size_t size = align_up(bytes, kPageBytes);
  Pages pages(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, size)));
  require(pages != nullptr, Code::system, "SHOAL-N390: transport verbs: no memory for {} bytes",
          size);
  std::memset(pages.get(), static_cast<int>(fill), size);
  return pages;
}

}  // namespace shoal::transport::verbs
