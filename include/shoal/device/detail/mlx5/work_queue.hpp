// SPDX-License-Identifier: Apache-2.0
// work_queue.hpp: send queues and completion queues of mlx5 NICs that their owner drives by memory
// alone. For host and device code.
//
//   SendQueue queue{ring, blocks, number, &record->sends, doorbell};
//   Posted last = write_data(queue, index, Opcode::write, remote, parts, 1, {.signalled = true});
//   publish(queue, last, bus);             // after the last of several requests
//   index = last.next;
//   ...
//   if (next(completions, consumed, bus, completion)) ...
//
// A Bus orders and stores what the NIC reads: host_bus.hpp for processors. Its functions:
//   store_record(word, value)  stores a doorbell record after all earlier stores of this thread
//   order_record()             orders the record before the doorbell
//   ring(doorbell, value)      stores the doorbell register
//   load_entry(word)           loads before all later loads of this thread
//
// The caller bounds what is in flight: at most `blocks` blocks, and as many signalled requests as
// the completion queue has entries. Numbers of blocks are free-running; of them, 16 bits stand in
// requests, records and completions.
#pragma once

#include <shoal/device/detail/mlx5/format.hpp>

namespace shoal::mlx5 {

struct SendQueue {
  Segment* ring = nullptr;
  std::uint32_t blocks = 0;  ///< a power of two, at most kMostBlocks
  std::uint32_t number = 0;  ///< of the queue pair
  std::uint32_t* record = nullptr;
  std::uint64_t* doorbell = nullptr;

  /// Segment `i` of the request at `index`; requests wrap at the end of the ring.
  SHOAL_HOST_DEVICE Segment& at(std::uint32_t index, std::uint32_t i) const {
    return ring[(index * kBlockSegments + i) & (blocks * kBlockSegments - 1)];
  }
};

/// A request that was written.
struct Posted {
  std::uint32_t next = 0;     ///< number of the block after it
  std::uint64_t control = 0;  ///< its first 8 bytes as stored: the value of a doorbell
};

/// Completes a request of `segments` segments with its first one.
SHOAL_HOST_DEVICE inline Posted finish(const SendQueue& queue, std::uint32_t index, Opcode opcode,
                                       std::uint32_t segments, Flags flags) {
  const Segment control =
      control_segment(opcode, static_cast<std::uint16_t>(index), queue.number, segments, flags);
  queue.at(index, 0) = control;
  return {index + blocks_of(segments), std::uint64_t{control.words[1]} << 32 | control.words[0]};
}

/// A part of a gather list.
struct Part {
  Memory local;
  std::uint32_t bytes = 0;
};

/// An RDMA write from, or an RDMA read to, local memory in `count` parts.
SHOAL_HOST_DEVICE inline Posted write_data(const SendQueue& queue, std::uint32_t index,
                                           Opcode opcode, const Memory& remote, const Part* parts,
                                           std::uint32_t count, Flags flags) {
  queue.at(index, 1) = remote_segment(remote);
  std::uint32_t segments = 2;
  for (std::uint32_t i = 0; i < count; ++i)
    if (parts[i].bytes != 0)  // a length of 0 means 2^31
      queue.at(index, segments++) = data_segment(parts[i].local, parts[i].bytes);
  return finish(queue, index, opcode, segments, flags);
}

/// An RDMA write of `bytes` bytes that the request holds, at most kMostInline.
SHOAL_HOST_DEVICE inline Posted write_inline(const SendQueue& queue, std::uint32_t index,
                                             const Memory& remote, const std::byte* from,
                                             std::uint32_t bytes, Flags flags) {
  constexpr std::uint32_t kInlineFlag = std::uint32_t{1} << 31;
  queue.at(index, 1) = remote_segment(remote);
  const std::uint32_t segments = inline_segments(bytes);
  for (std::uint32_t i = 2; i < segments; ++i) {
    Segment segment{};
    auto* const to = reinterpret_cast<std::byte*>(&segment);
    if (i == 2) segment.words[0] = big(bytes | kInlineFlag);
    for (std::uint32_t at = i == 2 ? kInlineHeader : 0; at < kSegmentBytes; ++at) {
      const std::uint32_t source = (i - 2) * kSegmentBytes + at - kInlineHeader;
      if (source < bytes) to[at] = from[source];
    }
    queue.at(index, i) = segment;
  }
  return finish(queue, index, Opcode::write, segments, flags);
}

/// Fetch-and-add or compare-and-swap of 8 bytes. The value before goes to `before`.
SHOAL_HOST_DEVICE inline Posted write_atomic(const SendQueue& queue, std::uint32_t index,
                                             Opcode opcode, const Memory& remote,
                                             std::uint64_t swap_or_add, std::uint64_t compare,
                                             const Memory& before, Flags flags) {
  queue.at(index, 1) = remote_segment(remote);
  queue.at(index, 2) = atomic_segment(swap_or_add, compare);
  queue.at(index, 3) = data_segment(before, sizeof(std::uint64_t));
  return finish(queue, index, opcode, 4, flags);
}

/// Hands all requests up to `last` to the NIC. Requests, record, doorbell: in this order.
template <typename Bus>
SHOAL_HOST_DEVICE void publish(const SendQueue& queue, const Posted& last, Bus& bus) {
  bus.store_record(queue.record, big(last.next & 0xffff));
  bus.order_record();
  bus.ring(queue.doorbell, last.control);
}

/// Blocks of the request at `index`, which is in the ring still.
SHOAL_HOST_DEVICE inline std::uint32_t blocks_at(const SendQueue& queue, std::uint32_t index) {
  return blocks_of(big(queue.at(index, 0).words[1]) & kMostSegments);
}

/// The number of blocks that are complete once the request whose first block is `index` is:
/// `completed` of the `posted` were before. Indices of requests that completed earlier change
/// nothing.
SHOAL_HOST_DEVICE inline std::uint32_t completed_after(const SendQueue& queue,
                                                       std::uint32_t completed,
                                                       std::uint32_t posted, std::uint16_t index) {
  const std::uint32_t ahead = static_cast<std::uint16_t>(index - completed);
  if (ahead >= posted - completed) return completed;
  return completed + ahead + blocks_at(queue, completed + ahead);
}

struct CompletionQueue {
  const CompletionEntry* entries = nullptr;
  std::uint32_t log_size = 0;
  std::uint32_t* record = nullptr;  ///< CompletionRecord::consumed
};

SHOAL_HOST_DEVICE inline Completion completion_of(const CompletionEntry& entry,
                                                  std::uint32_t index_state) {
  constexpr std::uint32_t kNumberMask = 0xffffff;
  Completion completion;
  completion.failed = (index_state >> 4 & 0xf) == kCompletionError;
  completion.syndrome = completion.failed ? static_cast<Syndrome>(entry.syndrome) : Syndrome::none;
  completion.vendor = completion.failed ? entry.vendor : std::uint8_t{0};
  completion.index = static_cast<std::uint16_t>(index_state >> 16);
  completion.queue_pair = big(entry.operation) & kNumberMask;
  return completion;
}

/// Reads entry number `consumed` and steps it. False when it is not written yet: its owner bit is
/// that of the lap before.
template <typename Bus>
SHOAL_HOST_DEVICE bool next(const CompletionQueue& queue, std::uint32_t& consumed, Bus& bus,
                            Completion& completion) {
  const std::uint32_t size = std::uint32_t{1} << queue.log_size;
  const CompletionEntry& entry = queue.entries[consumed & (size - 1)];
  const std::uint32_t state = big(bus.load_entry(&entry.index_state));
  if ((state >> 4 & 0xf) == kCompletionInvalid || (state & 1) != (consumed >> queue.log_size & 1))
    return false;
  completion = completion_of(entry, state);
  ++consumed;
  return true;
}

/// Gives the entries before `consumed` back to the NIC.
template <typename Bus>
SHOAL_HOST_DEVICE void release(const CompletionQueue& queue, std::uint32_t consumed, Bus& bus) {
  bus.store_record(queue.record, big(consumed & kConsumedMask));
}

/// Reads the only entry of a collapsed queue, which each completion of a queue pair overwrites.
/// False when there was none yet. What it names completes all earlier requests: completed_after().
/// An error stays visible, but its syndrome may be that of a request flushed after it.
template <typename Bus>
SHOAL_HOST_DEVICE bool newest(const CompletionQueue& queue, Bus& bus, Completion& completion) {
  const CompletionEntry& entry = *queue.entries;
  const std::uint32_t state = big(bus.load_entry(&entry.index_state));
  if ((state >> 4 & 0xf) == kCompletionInvalid) return false;
  completion = {};  // one load has all of it: the NIC may be writing the next entry
  completion.index = static_cast<std::uint16_t>(state >> 16);
  completion.failed = (state >> 4 & 0xf) == kCompletionError;
  if (completion.failed) completion.syndrome = static_cast<Syndrome>(entry.syndrome);
  return true;
}

}  // namespace shoal::mlx5
