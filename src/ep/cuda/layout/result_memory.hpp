// SPDX-License-Identifier: Apache-2.0
// result_memory.hpp: which memory the rows of a low-latency result take.
//
// There are two blocks. The first one has room for a result in bfloat16, or for two in other
// encodings. The second one, for a result in any, is allocated when the first has no place next to
// the result before, which is still held. Addresses never change, because captured graphs contain
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ep/cuda/layout/result_layout.hpp"

namespace shoal::ep::cuda {

class ResultMemory {
 public:
  using Allocate = std::function<std::shared_ptr<void>(std::size_t bytes)>;

  /// Takes memory from `allocate`, which throws where there is none.
  ResultMemory(detail::ResultSizes sizes, Allocate allocate)
      : sizes_(sizes), allocate_(std::move(allocate)) {}

  /// Memory for the rows of a result. It stays as it is until the next but one is taken, and until
  /// the next is while a copy of the pointer exists. Of the places that this leaves, the one that
  /// was not used for longest.
  [[nodiscard]] std::shared_ptr<void> take(bool wide);
  /// Undoes the last take: its result was never sent.
  void undo();
  /// The first block.
  const std::shared_ptr<void>& first();

 private:
  /// Where a result can lie.
  struct Place {
    std::size_t block, begin, end;
  };
  struct Result {
    Place place;
    std::uint64_t number;
  };

  [[nodiscard]] std::vector<Place> places(bool wide) const;

  detail::ResultSizes sizes_;
  Allocate allocate_;
  std::array<std::shared_ptr<void>, 2> blocks_;
  std::vector<Result> results_;  ///< the last one at each place, if no later one overlaps it
  std::weak_ptr<void> last_;     ///< the last of all
  std::uint64_t taken_ = 0;
  std::vector<Result> results_before_;  ///< likewise before the last take
  std::weak_ptr<void> last_before_;
};

}  // namespace shoal::ep::cuda
