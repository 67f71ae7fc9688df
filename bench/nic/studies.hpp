// SPDX-License-Identifier: Apache-2.0
// studies.hpp: experiments on emulated NICs. Each returns a JSON object of its parameters and
// results; times are microseconds of virtual time.
#pragma once

#include <nlohmann/json.hpp>

#include "nic/mesh.hpp"

namespace shoal::bench::nic {

/// A low-latency dispatch on all PEs at once: every token goes to `top_k` experts, a message each,
/// and every (peer, lane) gets a signal after its messages.
struct AllToAllOptions {
  MeshOptions mesh = {};
  std::uint32_t tokens = 128, top_k = 8, experts = 256;
  std::uint32_t message_bytes = 7392;  ///< 7168 channels in FP8 with scales
  double start_skew_us = 1;            ///< PEs start within this time
  std::uint64_t seed = 1;
};
nlohmann::json all_to_all(const AllToAllOptions& options);

/// Put with signal between two PEs: when the data and when the signal arrives.
nlohmann::json put_with_signal(emulator::Ordering ordering, std::uint32_t bytes, Time latency);

/// Several PEs send to one, whose receives are shared or independent; the one that serves PE 0's
/// messages never posts receives again.
nlohmann::json stalled_peer(bool shared, std::uint32_t senders, std::uint32_t messages);

/// Queue pairs of one NIC to different targets with unequal messages, over a fixed time.
nlohmann::json fairness(emulator::Arbitration arbitration, std::uint32_t quantum,
                        std::uint32_t queue_pairs, bool one_target);

}  // namespace shoal::bench::nic
