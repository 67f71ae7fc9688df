// SPDX-License-Identifier: Apache-2.0
// limits.hpp: sizes and times that networks have in common.
#pragma once

#include <chrono>
#include <cstddef>

namespace shoal::transport::message {

/// Registered buffers for local memory that the library cannot use itself: their size, and their
/// number for each rail.
inline constexpr std::size_t kBounceBytes = std::size_t{64} << 10, kBounces = 32;
/// A poll takes this many completions at a time, and ends after this many times: it holds the lock.
inline constexpr int kPollEntries = 32, kPollRounds = 4;
/// Polls without success before a waiting call yields its core, where no other PE wants it: a yield
/// costs as much as a poll of a socket.
inline constexpr int kPollsPerYield = 64;
/// For the last messages of a PE that closes its world, and for closing its endpoints.
inline constexpr std::chrono::milliseconds kCloseTimeout{1000};

}  // namespace shoal::transport::message
