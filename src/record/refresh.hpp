// SPDX-License-Identifier: Apache-2.0
// refresh.hpp: parts of the record that are copied to it from time to time, because what they show
// is written by no thread of the process: the counters of kernels.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace shoal::detail::record {

/// Calls `copy` every `interval` (0: never) on a thread that all Refreshes of the process share,
/// and at each refresh_all. One call at a time; none is under way once the Refresh is gone. `copy`
/// must end soon, whatever other PEs do.
class Refresh {
 public:
  Refresh(std::function<void()> copy, std::chrono::milliseconds interval);
  ~Refresh();
  Refresh(const Refresh&) = delete;
  Refresh& operator=(const Refresh&) = delete;

  struct Part;

 private:
  std::shared_ptr<Part> part_;
};

/// Copies all parts now.
void refresh_all() noexcept;

}  // namespace shoal::detail::record
