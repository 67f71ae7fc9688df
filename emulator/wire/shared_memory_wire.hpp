// SPDX-License-Identifier: Apache-2.0
// shared_memory_wire.hpp: packets between the processes of a host through shared memory.
//
// All processes map one file (wire_file.hpp). It has a slot for each process, and a ring of bytes
// for each pair of slots: one process writes it, one reads it. Slot i has the LID first_lid + i.
//
// The file has holes, and a store to one ends the process where the file system is full. So memory
// is reserved first: that of a slot when it is taken, and a part of a ring before its first packet.
// A ring grows in steps and stays smaller where there is no more memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "wire/live_wire.hpp"
#include "wire/wire_file.hpp"

namespace shoal::emulator {

struct SharedMemoryOptions {
  std::string file;  ///< created where it does not exist; its folder must exist
  std::uint32_t slots = WireFile::kMostSlots;  ///< processes at the same time; of a new file
  std::uint32_t ring_bytes = 1 << 19;          ///< a power of two; of a new file
  std::uint16_t first_lid = 1;
};

class SharedMemoryWire final : public LiveWire {
 public:
  /// Throws std::runtime_error where the file cannot be used, no slot is free or the file system is
  /// full.
  explicit SharedMemoryWire(const SharedMemoryOptions& options);
  ~SharedMemoryWire() override;
  SharedMemoryWire(const SharedMemoryWire&) = delete;
  SharedMemoryWire& operator=(const SharedMemoryWire&) = delete;

  std::uint16_t lid() const { return static_cast<std::uint16_t>(first_lid_ + slot_); }
  /// True if packets for `lid` travel on this wire.
  bool reaches(std::uint16_t lid) const;
  /// Reserves memory for packets to `lid`; false where there is none. Packets are dropped then.
  bool prepare(std::uint16_t lid);
  const std::string& file() const { return file_->path(); }

  bool ready() const override { return waiting_ == 0; }
  void send(Packet&& packet) override;
  bool poll(std::size_t most, const Deliver& deliver) override;
  bool busy() const override { return !backlogs_.empty(); }
  bool sleep(Time longest) override;
  void wake() override;
  /// Packets that were dropped: for ended processes, or for more than a stopped one may be sent.
  std::uint64_t dropped() const { return dropped_; }

 private:
  struct Header;
  struct Slot;
  struct Ring;
  /// Packets that wait for room in the ring to one target.
  struct Target {
    std::deque<Packet> backlog;
    Time since{};                ///< of the last packet that went
    bool stalled = false;        ///< does not hold up packets for others
    Time checked{};              ///< when it was last seen alive
    std::uint64_t reserved = 0;  ///< bytes of the ring that have memory, from its start
  };

  void map_file(const SharedMemoryOptions& options);
  void create(const SharedMemoryOptions& options, std::uint64_t size);
  void take_slot();
  bool is_alive(std::uint32_t slot) const;
  Slot& slot(std::uint32_t index) const;
  Ring& ring(std::uint32_t target, std::uint32_t source) const;
  std::byte* data(std::uint32_t target, std::uint32_t source) const;
  bool reserve(const void* from, std::uint64_t bytes) const;
  bool has_spare_memory() const;
  [[noreturn]] void fail_full() const;
  bool prepare_ring(std::uint32_t target);
  std::uint64_t end_of_ring(std::uint32_t target, std::uint64_t wanted);
  bool push(std::uint32_t target, const Packet& packet);
  void announce(std::uint32_t target);
  bool flush() override;
  std::size_t drain(std::uint32_t source, std::size_t most, const Deliver& deliver);

  struct Unmap {
    std::uint64_t bytes;
    void operator()(std::byte* base) const;
  };

  std::optional<WireFile> file_;
  std::unique_ptr<std::byte, Unmap> base_;
  std::uint32_t slots_ = 0, slot_ = 0;
  std::uint32_t ring_bytes_ = 0;
  std::uint16_t first_lid_ = 1;
  std::vector<Target> targets_;
  std::vector<std::uint32_t> backlogs_;  ///< targets with a backlog
  std::uint32_t waiting_ = 0;            ///< those of them that are not stalled
  std::uint64_t dropped_ = 0;
};

}  // namespace shoal::emulator
