// SPDX-License-Identifier: Apache-2.0
// apply.hpp: the effect of a request on the memory of its target.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/message/message.hpp"

namespace shoal::transport::message {

/// True if the request is well formed, stays inside a segment of `segment_bytes` bytes, and is
/// followed by the `payload_bytes` bytes that it needs. `reply_bytes`: the longest payload of a
/// reply.
bool is_valid(const Message& request, std::size_t payload_bytes, std::size_t segment_bytes,
              std::size_t reply_bytes) noexcept;

/// Applies a valid request to the segment that starts at `segment`, its signal last. Words are
/// accessed atomically. Returns the value before (Kind::fetch), else 0.
std::uint64_t apply(const Message& request, const std::byte* payload, std::byte* segment) noexcept;

}  // namespace shoal::transport::message
