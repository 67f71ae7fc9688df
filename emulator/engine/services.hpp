// SPDX-License-Identifier: Apache-2.0
// services.hpp: what queue pairs use of their NIC; options of a NIC.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <span>

#include "engine/memory_keys.hpp"
#include "engine/wire.hpp"
#include "engine/work_request.hpp"

namespace shoal::emulator {

/// Limits of a device and its answers to capability queries.
struct NicLimits {
  std::uint32_t queue_pairs = 1 << 17;
  std::uint32_t completion_queues = 1 << 17;
  std::uint32_t receive_queues = 1 << 16;  ///< shared ones
  std::uint32_t keys = 1 << 20;
  std::uint32_t queue_blocks = 32768;  ///< of a send queue
  std::uint32_t completion_entries = 1 << 22;
  std::uint32_t receive_requests = 32768;
  std::uint32_t segments = 30;           ///< data segments of a request
  std::uint32_t inline_bytes = 956;      ///< of a request of 16 blocks
  std::uint32_t reads_and_atomics = 16;  ///< in flight per queue pair, at either end
  std::uint64_t message_bytes = 1 << 30;
};

/// Order in which a NIC serves queue pairs that have something to send.
enum class Arbitration : std::uint8_t {
  by_number,        ///< round robin by queue-pair number
  random,           ///< drawn anew for each turn
  oldest_doorbell,  ///< round robin in the order in which queue pairs became ready
};

struct Counters {
  std::uint64_t doorbells = 0, requests = 0, completions = 0, errors = 0;
  std::uint64_t packets_sent = 0, packets_received = 0, bytes_sent = 0, bytes_received = 0;
  std::uint64_t resent = 0, duplicates = 0, out_of_order = 0, timeouts = 0, naks = 0,
                receiver_not_ready = 0;
};

struct TraceEvent {
  enum class Kind : std::uint8_t {
    doorbell,
    sent,
    resent,
    received,
    executed,
    duplicate,
    out_of_order,
    dropped,
    completion,
    timeout,
    state,
    destroyed,
  };
  Kind kind = Kind::sent;
  Time time{};
  std::uint16_t nic = 0;
  std::uint32_t qp_number = 0;
  std::uint32_t value = 0;  ///< PSN; completion: syndrome; state: QpState
  PacketKind packet = PacketKind::send;
  std::uint32_t bytes = 0;
  const Counters* counters = nullptr;  ///< destroyed: what the queue pair did; else null
};

struct NicOptions {
  std::uint16_t lid = 1;
  NicLimits limits;
  Arbitration arbitration = Arbitration::by_number;
  std::uint32_t quantum = 1;     ///< packets that a queue pair sends in its turn
  std::uint32_t window = 128;    ///< packets of a queue pair without acknowledgement
  std::uint32_t ack_every = 64;  ///< packets after which a requester asks for an acknowledgement
  /// Packets that arrive after a missing one before it is reported lost (orderings other than
  /// strict).
  std::uint32_t reorder_limit = 256;
  /// Adaptive retransmission: a requester without progress for this time sends the oldest packet in
  /// flight again, then after twice as long, and so on until the timeout of the queue pair, which
  /// alone takes a retry. 0: off.
  Time first_resend{0};
  std::uint64_t seed = 1;
  /// Number of the first queue pair. NICs that take over a LID begin elsewhere than its last owner.
  std::uint32_t first_queue_pair = 1;
  /// Numbers that queue pairs have. After the last one comes the lowest again.
  std::uint32_t lowest_queue_pair = 1, queue_pair_numbers = kPsnMask;
  /// Atomics of this NIC are atomic with respect to CPUs as well.
  bool global_atomics = true;
  /// Aligned words are placed by one store, as by DMA. Otherwise byte by byte, as by the processor
  /// that a device in software copies with.
  bool whole_words = true;
  /// Time by which the bus delays writes to memory with relaxed ordering.
  Time relaxed_delay{0};
  /// Messages move no bytes and need no keys: for studies of timing.
  bool timing_only = false;
  std::function<void(const TraceEvent&)> trace;
};

class RelaxedWrites;

struct Services {
  NicOptions& options;
  MemoryKeys& keys;
  Wire& wire;
  std::mt19937_64& random;
  RelaxedWrites& relaxed;
};

/// Copies between a message and the memory of its data segments, at `offset` bytes of the message.
/// Bytes that segments do not cover, or whose keys do not allow the access, make it fail before
/// anything is copied.
bool scatter(const Services& services, std::uint32_t domain, const std::vector<DataSegment>& data,
             std::uint64_t offset, std::span<const std::byte> bytes);
bool gather(const Services& services, std::uint32_t domain, const std::vector<DataSegment>& data,
            std::uint64_t offset, std::span<std::byte> bytes);

/// True if all data segments lie in memory with the rights `access`.
bool covered(const Services& services, std::uint32_t domain, const std::vector<DataSegment>& data,
             std::uint32_t access);

/// Copies to memory that a client may poll: aligned words of 4 and 8 bytes are stored as a whole,
/// after everything that this thread has copied before.
void place(std::byte* to, std::span<const std::byte> bytes);
/// The same byte by byte; the processor may be taken away within a word.
void place_in_pieces(std::byte* to, std::span<const std::byte> bytes);

}  // namespace shoal::emulator
