// SPDX-License-Identifier: Apache-2.0
#include "pe/forks.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.hpp"

namespace shoal::detail {
namespace {

struct Watched {
  std::weak_ptr<const void> object;
  std::atomic<bool>* open;  ///< of a world, in it; nullptr: another object
  Pe pe;
};

struct Inherited {
  std::shared_ptr<const void> object;
  bool world;  ///< which was open
  Pe pe;
};

/// Never destroyed: the process may fork, and destroy worlds, while it exits.
struct Registry {
  std::mutex mutex;
  std::vector<Watched> watched;
  std::vector<Inherited> inherited;
};
Registry& registry() {
  static auto& kept = *new Registry;
  return kept;
}

// Threads that hold the mutex do not exist in the child, so the thread that forks takes it before.
void before_fork() noexcept {
  registry().mutex.lock();
}
void in_parent() noexcept {
  registry().mutex.unlock();
}
void in_child() noexcept {
  Registry& all = registry();
  for (const Watched& one : all.watched) {
    auto object = one.object.lock();
    if (object == nullptr) continue;
    const bool was_open = one.open != nullptr && one.open->exchange(false);
    all.inherited.push_back({std::move(object), was_open, one.pe});
  }
  all.watched.clear();
  all.mutex.unlock();
}

void watch(Watched one) {
  Registry& all = registry();
  static const int error = pthread_atfork(before_fork, in_parent, in_child);
  require(error == 0, Code::system, "SHOAL-N173: pthread_atfork returned {}", error);
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.watched, [](const Watched& other) { return other.object.expired(); });
  all.watched.push_back(std::move(one));
}

std::optional<Pe> pe_that_forked(const WorldState& world) noexcept {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const Inherited& one : all.inherited)
    if (one.world && one.object.get() == static_cast<const void*>(&world)) return one.pe;
  return std::nullopt;
}

}  // namespace

void keep_in_children(std::weak_ptr<const void> object) {
  watch({std::move(object), nullptr, -1});
}

void close_in_children(const std::shared_ptr<const WorldState>& world, std::atomic<bool>& open,
                       Pe pe) {
  watch({world, &open, pe});
}

bool is_inherited(const WorldState& world) noexcept {
  return pe_that_forked(world).has_value();
}

std::string why_closed(const WorldState* world) {
  const auto pe = world == nullptr ? std::nullopt : pe_that_forked(*world);
  return pe ? describe_fork(*pe) : "the world is closed";
}

std::string describe_fork(Pe pe) {
  return fmt::format(
      "this process is a fork of PE {} and no PE itself; it may call exec, use its own copy of "
      "ordinary memory, and exit",
      pe);
}

}  // namespace shoal::detail
