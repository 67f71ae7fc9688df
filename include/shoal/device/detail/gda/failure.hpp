// SPDX-License-Identifier: Apache-2.0
// failure.hpp: why a shared queue ended, in one word that all its users read. For host and device
// code.
#pragma once

#include <shoal/device/detail/mlx5/format.hpp>

namespace shoal::device::gda {

/// Outcome of a call.
enum class Outcome : std::uint8_t {
  ok,
  failed,   ///< the queue has ended: failure_of() says why
  timeout,  ///< the deadline passed; the queue stays usable
  aborted,  ///< the abort word is set
  refused,  ///< wrong arguments: nothing was posted
};

enum class Cause : std::uint8_t { none, nic, timeout, aborted };

/// Step for which a thread was waiting.
enum class Step : std::uint8_t {
  none,
  room,        ///< in the ring
  order,       ///< requests reserved earlier were not published
  doorbell,    ///< another thread held the doorbell
  completion,  ///< of requests that the NIC has
};

/// For the failure report of a world.
struct Failure {
  Cause cause = Cause::none;
  mlx5::Syndrome syndrome = mlx5::Syndrome::none;  ///< Cause::nic
  std::uint8_t vendor = 0;                         ///< Cause::nic
  mlx5::Opcode opcode = mlx5::Opcode::nop;         ///< Cause::nic: of the failed request
  Step step = Step::none;                          ///< other causes
  std::uint32_t index = 0;                         ///< of the request, modulo 2^28
  std::uint32_t peer = 0;
  std::uint32_t queue_pair = 0;  ///< number of the queue pair
};

inline constexpr unsigned kIndexBits = 28;
inline constexpr std::uint32_t kIndexMask = (1U << kIndexBits) - 1;

/// All of `failure` except peer and queue pair. Not 0 where it has a cause.
SHOAL_HOST_DEVICE constexpr std::uint64_t encode(const Failure& failure) {
  return std::uint64_t{static_cast<std::uint8_t>(failure.cause)} << 60 |
         std::uint64_t{static_cast<std::uint8_t>(failure.step)} << 56 |
         std::uint64_t{static_cast<std::uint8_t>(failure.syndrome)} << 48 |
         std::uint64_t{failure.vendor} << 40 |
         std::uint64_t{static_cast<std::uint8_t>(failure.opcode)} << 32 |
         (failure.index & kIndexMask);
}
SHOAL_HOST_DEVICE constexpr Failure decode(std::uint64_t word, std::uint32_t peer,
                                           std::uint32_t queue_pair) {
  return {.cause = static_cast<Cause>(word >> 60),
          .syndrome = static_cast<mlx5::Syndrome>(word >> 48 & 0xff),
          .vendor = static_cast<std::uint8_t>(word >> 40),
          .opcode = static_cast<mlx5::Opcode>(word >> 32 & 0xff),
          .step = static_cast<Step>(word >> 56 & 0xf),
          .index = static_cast<std::uint32_t>(word) & kIndexMask,
          .peer = peer,
          .queue_pair = queue_pair};
}

/// A request that failed because one before it had.
SHOAL_HOST_DEVICE constexpr bool is_flushed(std::uint64_t word) {
  const Failure failure = decode(word, 0, 0);
  return failure.cause == Cause::nic && failure.syndrome == mlx5::Syndrome::flushed;
}

}  // namespace shoal::device::gda
