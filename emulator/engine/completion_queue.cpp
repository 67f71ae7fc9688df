// SPDX-License-Identifier: Apache-2.0
#include "engine/completion_queue.hpp"

#include <array>
#include <atomic>
#include <cstring>

#include "engine/big_endian.hpp"

namespace shoal::emulator {
namespace {

using Entry = std::array<std::byte, kCqeBytes>;

/// All of an entry but its last byte.
Entry encode(const Completion& completion) {
  Entry entry{};
  std::byte* const at = entry.data();
  store_be(at + 24, completion.remote_qp & kPsnMask);
  store_be(at + 32, completion.user_index);
  std::memcpy(at + 36, &completion.immediate, sizeof completion.immediate);
  store_be(at + 44, completion.bytes);
  store_be(at + 48, static_cast<std::uint64_t>(completion.time.count()));
  store_be(at + 56, std::uint32_t{static_cast<std::uint8_t>(completion.sent)} << 24 |
                        (completion.qp_number & kPsnMask));
  store_be(at + 60, completion.request_index);
  if (completion.syndrome != Syndrome::none) at[55] = static_cast<std::byte>(completion.syndrome);
  return entry;
}

/// Stores all of an entry but its last word while clients may read the entry that it replaces.
void store_words(std::byte* to, const Entry& entry) {
  for (std::size_t at = 0; at + sizeof(std::uint32_t) < kCqeBytes; at += sizeof(std::uint32_t)) {
    std::uint32_t word;
    std::memcpy(&word, entry.data() + at, sizeof word);
    std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(to + at))
        .store(word, std::memory_order_relaxed);
  }
}

}  // namespace

CompletionQueue::CompletionQueue(std::uint32_t number, const CompletionQueueAttributes& attributes)
    : number_(number), attributes_(attributes) {}

bool CompletionQueue::full() const {
  if (attributes_.collapsed || attributes_.ignore_overrun || attributes_.doorbell_record == nullptr)
    return false;
  const std::uint32_t consumed = load_shared_be32(attributes_.doorbell_record) & kPsnMask;
  return ((produced_ - consumed) & kPsnMask) >= attributes_.size;
}

bool CompletionQueue::push(const Completion& completion) {
  if (failed_) return false;
  if (full()) {
    failed_ = true;
    if (on_overrun) on_overrun();
    return false;
  }
  const std::uint64_t number = produced_++;
  const std::size_t slot = attributes_.collapsed ? 0 : number & (attributes_.size - 1);
  std::byte* const to = attributes_.entries + slot * kCqeBytes;
  Entry entry = encode(completion);
  const std::uint32_t owner = attributes_.collapsed ? 0 : (number / attributes_.size) & 1;
  const std::uint32_t last = static_cast<std::uint32_t>(completion.opcode) << 4 |
                             std::uint32_t{completion.solicited} << 1 | owner;
  // The last word, which clients poll, holds request index, signature and owner. It is stored as a
  // whole, after the rest.
  if (attributes_.collapsed)
    store_words(to, entry);
  else
    std::memcpy(to, entry.data(), kCqeBytes - 4);
  std::uint32_t word;
  entry[63] = static_cast<std::byte>(last);
  std::memcpy(&word, entry.data() + 60, sizeof word);
  std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(to + 60))
      .store(word, std::memory_order_release);
  if (armed_ == Armed::any || (armed_ == Armed::solicited &&
                               (completion.solicited || completion.syndrome != Syndrome::none))) {
    notify();
  }
  return true;
}

void CompletionQueue::notify() {
  armed_ = Armed::no;
  notified_ = produced_;
  if (on_event) on_event();
}

void CompletionQueue::arm(std::uint32_t command_and_counter) {
  const bool solicited_only = (command_and_counter >> 24 & 1) != 0;
  // CQEs between the client's last poll and this call count: the client would not be woken. Those
  // that an event has announced do not: clients that ask for the next event before they poll would
  // get one without a CQE.
  if ((produced_ & kPsnMask) != (command_and_counter & kPsnMask) && produced_ != notified_)
    return notify();
  armed_ = solicited_only ? Armed::solicited : Armed::any;
}

}  // namespace shoal::emulator
