// SPDX-License-Identifier: Apache-2.0
// address_handle.hpp: where a packet goes, as clients of unreliable datagrams name it. Datagrams
// are not emulated; clients of device commands learn a MAC address from the address handle.
#pragma once

#include <infiniband/mlx5dv.h>

#include "verbs/objects.hpp"

namespace shoal::emulator {

struct Ah {
  ibv_ah base{};
  Pd* domain = nullptr;
  mlx5_wqe_av vector{};  ///< what mlx5dv_init_obj shows
};

inline Ah& of(ibv_ah* handle) {
  return *reinterpret_cast<Ah*>(handle);
}

}  // namespace shoal::emulator
