// SPDX-License-Identifier: Apache-2.0
// apply.hpp: what a message does to the memory of the PE that receives it. Words are accessed
// atomically, so that it fits together with what PEs of the same host do to them through shared
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/ucx/message.hpp"

namespace shoal::transport::ucx {

/// Whether the message stays inside a segment of `bytes` bytes, and its own payload.
bool is_inside(const Header& message, std::size_t bytes);

/// For messages that are inside. `segment`: the start of the segment.
void apply_put(const Header& message, const std::byte* payload, std::byte* segment);
void apply_signal(const Header& message, std::byte* segment);
/// Returns the value before.
std::uint64_t apply_atomic(const Header& message, std::byte* segment);
/// Packs the elements one behind the other.
void gather(const Header& message, std::byte* segment, std::byte* packed);

/// Copies `bytes` bytes; an aligned 4- or 8-byte word in symmetric memory is one store or load.
void store(std::byte* symmetric, const void* source, std::size_t bytes);
void load(void* target, std::byte* symmetric, std::size_t bytes);

}  // namespace shoal::transport::ucx
