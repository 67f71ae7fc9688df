// SPDX-License-Identifier: Apache-2.0
// port.hpp: a port whose queues device commands create (SHOAL_VERBS_INTERFACE=devx).
#pragma once

#include "transport/verbs/devx/device.hpp"
#include "transport/verbs/port/port.hpp"

namespace shoal::transport::verbs::devx {

class CommandPort final : public Port {
 public:
  /// Makes a completion queue for `completions` entries, or as many as the device has. Throws
  /// Error{unsupported}.
  CommandPort(const std::shared_ptr<const verbs::Library>& library, const PortOffer& offer,
              const Settings& settings, std::size_t completions);

  Device& commands() const noexcept { return *device_; }

  std::size_t completions() const noexcept override { return device_->completions(); }
  std::unique_ptr<QueuePair> make_queue_pair(const QueueLimits& limits, const QueuePairName& name,
                                             std::size_t existing) const override;
  int poll(std::span<ibv_wc> completions) const noexcept override {
    return device_->poll(completions);
  }

 private:
  CommandPort(const std::shared_ptr<const verbs::Library>& library,
              const std::shared_ptr<const Library>& commands, const PortOffer& offer,
              const Settings& settings, std::size_t completions);

  std::unique_ptr<Device> device_;
};

}  // namespace shoal::transport::verbs::devx
