// SPDX-License-Identifier: Apache-2.0
#include "pe/closers.hpp"

#include <utility>

#include "base/check.hpp"

namespace shoal::detail {

void Closers::add(std::weak_ptr<Closable> object) {
  const std::lock_guard lock(mutex_);
  require(!ended_, Code::closed, "SHOAL-N172: the world is closed");
  std::erase_if(objects_, [](const auto& one) { return one.expired(); });
  objects_.push_back(std::move(object));
}

void Closers::close(WorldEnd end) noexcept {
  std::vector<std::weak_ptr<Closable>> objects;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    objects.swap(objects_);
  }
  for (auto at = objects.rbegin(); at != objects.rend(); ++at)
    if (const auto object = at->lock()) object->close_with_world(end);
}

}  // namespace shoal::detail
