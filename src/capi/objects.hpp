// SPDX-License-Identifier: Apache-2.0
// objects.hpp: the objects behind the opaque pointers of the C header.
#pragma once

#include <string>

#include "capi/guard.hpp"
#include "shoal/bootstrap.hpp"
#include "shoal/ep/group.hpp"
#include "shoal/world.hpp"

struct shoal_settings {
  shoal::Settings value;
};
struct shoal_unique_id {
  shoal::UniqueId value;
  std::string text;
};
struct shoal_world {
  shoal::World value;
};
struct shoal_shared_buffer {
  shoal::SharedBuffer value;
  shoal::Pe n_pes;
};
struct shoal_team {
  shoal::Team value;
  bool predefined = false;
};
struct shoal_ep_group {
  shoal::ep::Group value;
};
struct shoal_ep_handle {
  shoal::ep::Handle value;
};
struct shoal_ep_low_latency_handle {
  shoal::ep::LowLatencyHandle value;
};
struct shoal_ep_pending_dispatch {
  shoal::ep::PendingDispatch value;
};
struct shoal_ep_pending_combine {
  shoal::ep::PendingCombine value;
};

/// Owns the memory of one result.
struct shoal_owner {
  shoal_owner() = default;
  virtual ~shoal_owner() = default;
  shoal_owner(const shoal_owner&) = delete;
  shoal_owner& operator=(const shoal_owner&) = delete;
};

namespace shoal::capi {

/// Never throws: what can fail has a call of its own, such as shoal_world_close.
template <typename T>
shoal_status destroy(T* object) {
  delete object;
  return SHOAL_OK;
}

}  // namespace shoal::capi
