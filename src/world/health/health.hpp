// SPDX-License-Identifier: Apache-2.0
// health.hpp: which PEs of the world have closed it, left it, failed or ended, from every source
// that tells.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shoal/bootstrap.hpp"
#include "transport/transport.hpp"
#include "world/control.hpp"

namespace shoal::detail {

/// Sources: the status board in this PE's control block, which the others write; transports, which
/// see processes end; the bootstrap. Used by the thread of this PE alone.
class Health {
 public:
  Health(Pe n_pes, const ControlLayout& layout, std::byte* control,
         std::span<const std::unique_ptr<transport::Transport>> transports,
         std::shared_ptr<Bootstrap> bootstrap);

  /// Looks at all sources. Takes a microsecond or so.
  void update() noexcept;

  /// "PE 3: ..." for the first failure that concerns a wait for `awaited` (negative: for anybody).
  std::optional<std::string> failure(Pe awaited) const;
  bool has_failed(Pe pe) const noexcept {
    return !peers_[static_cast<std::size_t>(pe)].failure.empty();
  }

 private:
  struct Peer {
    PeerStatus status = PeerStatus::running;
    std::string failure;  ///< empty: none
  };

  void read_board();
  void read_ended();
  void read_bootstrap();
  void record(Pe pe, PeerStatus status, const std::string& reason);

  const ControlLayout layout_;
  std::byte* control_;
  std::span<const std::unique_ptr<transport::Transport>> transports_;
  std::shared_ptr<Bootstrap> bootstrap_;
  std::uint64_t alerts_seen_ = 0;
  std::vector<Peer> peers_;
  std::vector<std::size_t> ended_seen_;  // per transport
  std::string world_failure_;            // the first failure of any PE that did not merely leave
};

}  // namespace shoal::detail
