// shared_buffers.hpp: buffers of the program that all PEs map from each other (SymmetricHeap::share_buffer).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "memory/fd_exchange.hpp"
#include "memory/shared_buffers.hpp"
#include "shoal/heap.hpp"

namespace shoal::detail {

/// What this PE has shared, by a number that only grows and that the others know it by; and what it has mapped.
struct SharedBufferTable {
  struct Own {
    memory::BufferRange range;
    int uses = 0;
  };
  std::unique_ptr<memory::SharedBuffers> mappings;
  std::map<std::uint64_t, Own> own;
  std::uint64_t last = 0;
  std::optional<memory::FdSocket> socket;
};

}  // namespace shoal::detail
