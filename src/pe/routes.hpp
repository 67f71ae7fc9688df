// SPDX-License-Identifier: Apache-2.0
// routes.hpp: how a PE reaches the control blocks of the others, without knowing which networks
// there are. Fabric implements it.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "shoal/heap.hpp"

namespace shoal::transport {
class Transport;
}

namespace shoal::detail {

class Routes {
 public:
  /// The transport to the segment of `pe`.
  virtual transport::Transport& route(Pe pe) const noexcept = 0;
  /// All transports to segments; nullptr in place of networks that are not available.
  virtual std::span<const std::unique_ptr<transport::Transport>> transports() const noexcept = 0;
  /// Calls detail::other_transports for this PE and `pe`; empty until the transports are chosen.
  virtual std::string other_transports(Pe pe) const = 0;
  /// Advances the networks. Never waits. Returns whether anything advanced.
  virtual bool progress() noexcept = 0;

 protected:
  ~Routes() = default;
};

}  // namespace shoal::detail
