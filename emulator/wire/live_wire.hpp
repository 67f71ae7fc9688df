// SPDX-License-Identifier: Apache-2.0
// live_wire.hpp: a wire in real time, which its owner polls.
#pragma once

#include <functional>

#include "engine/wire.hpp"

namespace shoal::emulator {

class LiveWire : public Wire {
 public:
  using Deliver = std::function<void(Packet&&)>;

  /// Nanoseconds since an arbitrary moment.
  Time now() const override;
  /// Sends what waits, and delivers up to `most` arrived packets. Returns whether it did anything.
  virtual bool poll(std::size_t most, const Deliver& deliver) = 0;
  /// Sends what send() has gathered. Returns whether there was anything.
  virtual bool flush() { return false; }
  /// Time at which poll() has something to do without a packet arriving; kNever without such a
  /// time.
  virtual Time next_event() const { return kNever; }
  /// True if packets wait to be sent.
  virtual bool busy() const = 0;
  /// Blocks until a packet arrives, wake() is called, or `longest` has passed; false for the last.
  /// One thread at a time.
  virtual bool sleep(Time longest) = 0;
  /// Ends a sleep() that has begun. Any thread may call it.
  virtual void wake() = 0;
};

}  // namespace shoal::emulator
