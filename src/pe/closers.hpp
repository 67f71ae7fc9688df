// SPDX-License-Identifier: Apache-2.0
// closers.hpp: objects that a world closes before it releases its memory.
//
// An object that uses the world's memory from its own thread or stream (an expert-parallel group
// with queued operations) registers itself. The world then ends that work first, so that no thread
// touches memory that is unmapped.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace shoal::detail {

/// End of a world on this PE.
enum class WorldEnd {
  closed,  ///< World::close: all PEs come, so queued work can complete
  failed,  ///< this PE has failed the world: queued work must end without the other PEs
};

class Closable {
 public:
  virtual ~Closable() = default;
  /// Completes or fails all work that uses the world's memory. No work is left when this returns,
  /// and later calls on the object throw Error{closed}. The thread that ends the world calls this
  /// at most once, before the closing barrier, while the world is still open. Must not start a
  /// collective call: other PEs may have registered other objects, or none.
  virtual void close_with_world(WorldEnd end) noexcept = 0;
};

/// The registered objects of one world. Any thread may call.
class Closers {
 public:
  /// Registers `object` until the world ends or the object is destroyed. Throws Error{closed} once
  /// the world has begun to end.
  void add(std::weak_ptr<Closable> object);
  /// Closes all registered objects, the last one first, and refuses new ones. A second call does
  /// nothing.
  void close(WorldEnd end) noexcept;

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Closable>> objects_;
  bool ended_ = false;
};

}  // namespace shoal::detail
