// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/devx/port.hpp"

#include "transport/verbs/devx/queue_pair.hpp"

namespace shoal::transport::verbs::devx {

CommandPort::CommandPort(const std::shared_ptr<const verbs::Library>& library,
                         const PortOffer& offer, const Settings& settings, std::size_t completions)
    : CommandPort(library, load_library(settings.verbs_mlx5_library, settings.verbs_library), offer,
                  settings, completions) {}

CommandPort::CommandPort(const std::shared_ptr<const verbs::Library>& library,
                         const std::shared_ptr<const Library>& commands, const PortOffer& offer,
                         const Settings& settings, std::size_t completions)
    : Port(library, offer, settings,
           [&](ibv_device* found) {
             return Handle<ibv_context>(commands->open(found, offer.device), library->close_device);
           }),
      device_(
          std::make_unique<Device>(commands, Place{context(), domain(), label()}, completions)) {}

std::unique_ptr<QueuePair> CommandPort::make_queue_pair(const QueueLimits& limits,
                                                        const QueuePairName& name,
                                                        std::size_t existing) const {
  return std::make_unique<CommandQueuePair>(*this, limits, name, existing);
}

}  // namespace shoal::transport::verbs::devx
