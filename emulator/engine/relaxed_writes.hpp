// SPDX-License-Identifier: Apache-2.0
// relaxed_writes.hpp: writes to memory that was registered with relaxed ordering.
//
// The bus may delay them: later writes and atomics to such memory overtake them. Accesses to other
// memory, reads, and completions of receives do not.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "engine/services.hpp"

namespace shoal::emulator {

class RelaxedWrites {
 public:
  /// Places the bytes at `due`, or with the next flush().
  void delay(std::byte* to, std::span<const std::byte> bytes, Time due) {
    writes_.push_back({to, {bytes.begin(), bytes.end()}, due});
  }
  void flush() {
    for (const Write& write : writes_) place(write.to, write.bytes);
    writes_.clear();
  }
  /// Places those that are due.
  void run(Time now) {
    for (; !writes_.empty() && writes_.front().due <= now; writes_.pop_front())
      place(writes_.front().to, writes_.front().bytes);
  }
  Time next() const { return writes_.empty() ? kNever : writes_.front().due; }

 private:
  struct Write {
    std::byte* to;
    std::vector<std::byte> bytes;
    Time due;
  };
  std::deque<Write> writes_;
};

}  // namespace shoal::emulator
