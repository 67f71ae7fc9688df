// SPDX-License-Identifier: Apache-2.0
// library.hpp: libibverbs, loaded at run time. Only this folder includes its header.
//
// Calls of the data path (ibv_post_send, ibv_poll_cq) are inline functions that go through the
// device's context: they need no symbol.
#pragma once

#include <infiniband/verbs.h>

#include <cstring>
#include <memory>
#include <string>

namespace shoal::transport::verbs {

/// An attribute structure of libibverbs, all zeros. Some of its enumerations have no name for zero,
/// so it is not value-initialized.
template <typename Attributes>
Attributes zeroed() {
  Attributes attributes;
  std::memset(&attributes, 0, sizeof attributes);
  return attributes;
}

struct Library {
  std::string file;       ///< as SHOAL_VERBS_LIBRARY names it
  bool emulated = false;  ///< Shoal's emulated NIC, which serves peers when this process polls

  decltype(&::ibv_get_device_list) get_device_list = nullptr;
  decltype(&::ibv_free_device_list) free_device_list = nullptr;
  decltype(&::ibv_get_device_name) get_device_name = nullptr;
  decltype(&::ibv_open_device) open_device = nullptr;
  decltype(&::ibv_close_device) close_device = nullptr;
  decltype(&::ibv_query_device) query_device = nullptr;
  decltype(&::ibv_query_port) query_port_short = nullptr;
  decltype(&::ibv_query_gid) query_gid = nullptr;
  decltype(&::ibv_alloc_pd) alloc_pd = nullptr;
  decltype(&::ibv_dealloc_pd) dealloc_pd = nullptr;
  decltype(&::ibv_reg_mr) reg_mr = nullptr;
  decltype(&::ibv_reg_dmabuf_mr) reg_dmabuf_mr = nullptr;  ///< nullptr before rdma-core 34
  decltype(&::ibv_dereg_mr) dereg_mr = nullptr;
  decltype(&::ibv_create_cq) create_cq = nullptr;
  decltype(&::ibv_destroy_cq) destroy_cq = nullptr;
  decltype(&::ibv_create_qp) create_qp = nullptr;
  decltype(&::ibv_modify_qp) modify_qp = nullptr;
  decltype(&::ibv_query_qp) query_qp = nullptr;
  decltype(&::ibv_destroy_qp) destroy_qp = nullptr;
  decltype(&::ibv_create_ah) create_ah = nullptr;
  decltype(&::ibv_destroy_ah) destroy_ah = nullptr;
  decltype(&::ibv_get_async_event) get_async_event = nullptr;
  decltype(&::ibv_ack_async_event) ack_async_event = nullptr;
  decltype(&::ibv_wc_status_str) wc_status_str = nullptr;
  decltype(&::_ibv_query_gid_ex) query_gid_ex = nullptr;  ///< nullptr before rdma-core 33

  /// Error number, 0 for success.
  int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr& attributes) const;
};

/// Loads the library; it stays loaded until the process ends. Throws Error{unsupported}.
std::shared_ptr<const Library> load_library(const std::string& file);

}  // namespace shoal::transport::verbs
