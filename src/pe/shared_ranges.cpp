// SPDX-License-Identifier: Apache-2.0
#include "pe/shared_ranges.hpp"

namespace shoal::detail {

SharedRanges::Place SharedRanges::find(const void* pointer, std::size_t bytes) const {
  const auto* const first = static_cast<const std::byte*>(pointer);
  const std::lock_guard lock(mutex_);
  for (const auto& [id, range] : own_)
    if (first >= range.base && first + bytes <= range.base + range.bytes &&
        mappings_->is_current(range))
      return {id, static_cast<std::uint64_t>(first - range.base)};
  return {};
}

std::vector<SharedRanges::Range> SharedRanges::of(Pe pe) const {
  const std::lock_guard lock(mutex_);
  std::vector<Range> found;
  for (auto at = ranges_.lower_bound({pe, 0}); at != ranges_.end() && at->first.first == pe; ++at)
    found.push_back({at->first.second, at->second});
  return found;
}

void SharedRanges::add(Pe pe, std::uint64_t id, std::byte* base) {
  const std::lock_guard lock(mutex_);
  ranges_[{pe, id}] = base;
  ++version_;
}

void SharedRanges::add_own(Pe my_pe, std::uint64_t id, const SharedBufferTable::Own& own,
                           const memory::SharedBuffers& mappings) {
  add(my_pe, id, own.range.base);
  const std::lock_guard lock(mutex_);
  my_pe_ = my_pe;
  mappings_ = &mappings;
  if (own.everywhere) own_[id] = own.range;
}

void SharedRanges::remove(Pe pe, std::uint64_t id) noexcept {
  const std::lock_guard lock(mutex_);
  ranges_.erase({pe, id});
  if (pe == my_pe_) own_.erase(id);
  ++version_;
}

void SharedRanges::clear() noexcept {
  const std::lock_guard lock(mutex_);
  ranges_.clear();
  own_.clear();
  mappings_ = nullptr;
  ++version_;
}

}  // namespace shoal::detail
