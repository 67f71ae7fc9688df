// SPDX-License-Identifier: Apache-2.0
// shoal/detail/access.hpp: the state behind public handles, for Shoal's own layers and bindings.
//
// Headers in shoal/detail are installed for code that extends Shoal. They change without notice.
#pragma once

#include <memory>
#include <utility>

#include <shoal/config.hpp>

namespace shoal::detail {

/// The one friend of handles such as World, Team and ep::Handle.
struct Access {
  template <typename Handle>
  static decltype(auto) state(const Handle& handle) {
    return handle.state();
  }
  template <typename Handle, typename State>
  static Handle make(std::shared_ptr<State> state) {
    return Handle(std::move(state));
  }
};

/// The state of a handle. A closed World or Team throws as its calls do.
template <typename Handle>
decltype(auto) state_of(const Handle& handle) {
  return Access::state(handle);
}

}  // namespace shoal::detail
