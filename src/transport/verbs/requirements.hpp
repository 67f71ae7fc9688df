// SPDX-License-Identifier: Apache-2.0
// requirements.hpp: what a world needs of a port's queues. Pure functions.
//
// Less than required() is correct, but calls wait for room where they would not have to. Less than
// least() cannot work: a message is two requests, which are posted together.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "transport/message/pieces.hpp"
#include "transport/transport.hpp"
#include "transport/verbs/ring.hpp"

namespace shoal::transport::verbs {

/// Resources that a device offers and a world uses, per port.
struct Demand {
  std::string port{};             ///< "mlx5_0:1"
  std::size_t network_depth = 0;  ///< SHOAL_NETWORK_DEPTH
  std::size_t depth = 0;          ///< SHOAL_VERBS_DEPTH
  std::size_t queue_pairs = 0;    ///< of this PE on the port
  std::size_t each = 1;           ///< SHOAL_VERBS_QUEUE_PAIRS
  std::size_t most_depth = 0;     ///< of the device
  std::size_t completions = 0;    ///< entries of the completion queue that was made
  std::size_t most_atomics = 0;   ///< reads and atomics that the device serves; 0: not known
};

/// Requests that one queue pair holds where no call waits for room: SHOAL_NETWORK_DEPTH transfers,
/// the messages and replies that a ring takes, each with its atomic, the return of slots, and the
/// write of a quiet.
constexpr std::size_t required_depth(std::size_t network_depth) {
  return network_depth + 2 * std::min(2 * network_depth, kSlots) + 2;
}

/// Reads and atomics that each queue pair may have in flight: `wanted`, or an equal share of what
/// the device serves.
constexpr std::size_t atomics_of(const Demand& demand, std::size_t wanted) {
  if (demand.most_atomics == 0 || demand.queue_pairs == 0) return wanted;
  return std::min(wanted, demand.most_atomics / demand.queue_pairs);
}

/// Why the world cannot open; empty where it can.
inline std::string refusal(const Demand& demand) {
  const std::size_t least = 2 * demand.queue_pairs;
  if (demand.completions < least)
    return fmt::format(
        "SHOAL-N396: the completion queue of {} has {} entries, the most of the device; {} queue "
        "pairs need at least {}. Settings: SHOAL_VERBS_QUEUE_PAIRS ({}), SHOAL_NIC_LIST (more "
        "ports)",
        demand.port, demand.completions, demand.queue_pairs, least, demand.each);
  if (atomics_of(demand, 1) == 0)
    return fmt::format(
        "SHOAL-N396: {} serves {} reads and atomics at a time; {} queue pairs need one each. "
        "Settings: SHOAL_VERBS_QUEUE_PAIRS ({}), SHOAL_NIC_LIST (more ports)",
        demand.port, demand.most_atomics, demand.queue_pairs, demand.each);
  return "";
}

/// Limits that make calls wait for room, each with its remedy.
inline std::vector<std::string> shortfalls(const Demand& demand) {
  std::vector<std::string> found;
  const std::size_t needed = required_depth(demand.network_depth);
  if (demand.depth < needed)
    found.push_back(fmt::format(
        "SHOAL-N398: send queues of {} have {} requests, SHOAL_NETWORK_DEPTH={} fills {}, so calls "
        "wait for room: {}",
        demand.port, demand.depth, demand.network_depth, needed,
        needed <= demand.most_depth
            ? fmt::format("set SHOAL_VERBS_DEPTH={} (device: at most {})", needed,
                          demand.most_depth)
            : fmt::format("the device has at most {}: set SHOAL_VERBS_DEPTH={} and a smaller "
                          "SHOAL_NETWORK_DEPTH",
                          demand.most_depth, demand.most_depth)));
  const std::size_t entries = demand.queue_pairs * std::min(needed, demand.depth);
  if (demand.completions < entries)
    found.push_back(fmt::format(
        "SHOAL-N398: the completion queue of {} has {} entries, the most of the device; {} queue "
        "pairs fill {}, so calls wait for room: set SHOAL_VERBS_QUEUE_PAIRS (now {}) or "
        "SHOAL_NETWORK_DEPTH (now {}) lower, or use more ports (SHOAL_NIC_LIST)",
        demand.port, demand.completions, demand.queue_pairs, entries, demand.each,
        demand.network_depth));
  return found;
}

/// The queue pairs of one peer, and what its calls may use.
struct PeerQueues {
  std::size_t queue_pairs = 1;    ///< on all ports
  std::size_t piece_bytes = 0;    ///< longest request
  std::size_t depth = 0;          ///< SHOAL_VERBS_DEPTH
  std::size_t most_depth = 0;     ///< of the device
  std::size_t network_depth = 0;  ///< SHOAL_NETWORK_DEPTH
};

/// RMA requests of a load. Long puts are cut into pieces.
constexpr std::size_t requests_of(const Load& load, const PeerQueues& queues) {
  if (load.bytes == 0) return 0;
  const std::size_t piece =
      message::piece_bytes(load.bytes, queues.queue_pairs, queues.piece_bytes);
  return load.puts * ((load.bytes + piece - 1) / piece);
}

/// Requests that a load keeps in flight on the queue pair of messages: its share of long puts, or
/// all short ones; each message with its atomic; the return of slots and the write of a quiet.
constexpr std::size_t required_depth(const Load& load, const PeerQueues& queues) {
  const std::size_t all = std::min(requests_of(load, queues), queues.network_depth);
  const std::size_t spread = load.bytes < message::kSpreadBytes ? 1 : queues.queue_pairs;
  return (all + spread - 1) / spread + 2 * std::min(load.signals, kSlots) + 2;
}

/// Limits that make calls with these loads wait for room, each with its remedy.
inline std::vector<std::string> shortfalls(const PeerQueues& queues, std::span<const Load> loads) {
  std::vector<std::string> found;
  for (const Load& load : loads) {
    const std::size_t requests = requests_of(load, queues);
    if (requests > queues.network_depth)
      found.push_back(fmt::format(
          "SHOAL-N398: {} has {} requests for one PE in flight, SHOAL_NETWORK_DEPTH={} allows "
          "fewer, so it waits for room: set SHOAL_NETWORK_DEPTH={} and a SHOAL_VERBS_DEPTH that "
          "fits, or a larger SHOAL_NETWORK_CHUNK",
          load.call, requests, queues.network_depth, requests));
    const std::size_t needed = required_depth(load, queues);
    if (queues.depth < needed)
      found.push_back(fmt::format(
          "SHOAL-N398: {} has {} requests on one queue pair in flight, send queues have {}, so it "
          "waits for room: {}",
          load.call, needed, queues.depth,
          needed <= queues.most_depth
              ? fmt::format("set SHOAL_VERBS_DEPTH={} (device: at most {})", needed,
                            queues.most_depth)
              : fmt::format("the device has at most {}: set a larger SHOAL_VERBS_QUEUE_PAIRS or "
                            "SHOAL_NETWORK_CHUNK",
                            queues.most_depth)));
  }
  return found;
}

}  // namespace shoal::transport::verbs
