#include "collective/puller.hpp"

#include <cstring>

#include "world/parts.hpp"

namespace shoal::collective {

void Puller::pull(void* target, std::size_t member, std::size_t offset, std::size_t bytes) {
  const void* source = view(member, offset, bytes, target);
  if (source != target && bytes != 0) std::memcpy(target, source, bytes);
}

const void* Puller::view(std::size_t member, std::size_t offset, std::size_t bytes, void* scratch) {
  if (const std::byte* reached = base(member)) return reached + offset;
  if (bytes == 0) return scratch;
  detail::WorldParts& parts = team_.world->parts();
  const Pe pe = team_.members[member];
  parts.route(pe).get_nbi(scratch, pe, parts.layout.bytes() + offset, bytes);
  pending_ = true;
  return scratch;
}

void Puller::finish() {
  if (pending_) quiet(*team_.world);
  pending_ = false;
}

void quiet(detail::WorldState& world) {
  for (const auto& transport : world.parts().transports) transport->quiet();
}

}  // namespace shoal::collective
