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

// Field and function.
#define SHOAL_VERBS_FUNCTIONS(X)            \
  X(get_device_list, ibv_get_device_list)   \
  X(free_device_list, ibv_free_device_list) \
  X(get_device_name, ibv_get_device_name)   \
  X(open_device, ibv_open_device)           \
  X(close_device, ibv_close_device)         \
  X(query_device, ibv_query_device)         \
  X(query_port_short, ibv_query_port)       \
  X(query_gid, ibv_query_gid)               \
  X(alloc_pd, ibv_alloc_pd)                 \
  X(dealloc_pd, ibv_dealloc_pd)             \
  X(reg_mr, ibv_reg_mr)                     \
  X(dereg_mr, ibv_dereg_mr)                 \
  X(create_cq, ibv_create_cq)               \
  X(destroy_cq, ibv_destroy_cq)             \
  X(create_qp, ibv_create_qp)               \
  X(modify_qp, ibv_modify_qp)               \
  X(query_qp, ibv_query_qp)                 \
  X(destroy_qp, ibv_destroy_qp)             \
  X(create_ah, ibv_create_ah)               \
  X(destroy_ah, ibv_destroy_ah)             \
  X(get_async_event, ibv_get_async_event)   \
  X(ack_async_event, ibv_ack_async_event)   \
  X(wc_status_str, ibv_wc_status_str)

struct Library {
  std::string file;       ///< as SHOAL_VERBS_LIBRARY names it
  bool emulated = false;  ///< Shoal's emulated NIC, which serves peers when this process polls

// NOLINTNEXTLINE(bugprone-macro-parentheses): the name of a member
#define SHOAL_VERBS_FIELD(field, function) decltype(&::function) field = nullptr;
  SHOAL_VERBS_FUNCTIONS(SHOAL_VERBS_FIELD)
#undef SHOAL_VERBS_FIELD
  decltype(&::ibv_reg_dmabuf_mr) reg_dmabuf_mr = nullptr;  ///< nullptr before rdma-core 34
  decltype(&::_ibv_query_gid_ex) query_gid_ex = nullptr;   ///< nullptr before rdma-core 33

  /// Error number, 0 for success.
  int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr& attributes) const;
};

/// Loads the library; it stays loaded until the process ends. Throws Error{unsupported}.
std::shared_ptr<const Library> load_library(const std::string& file);

}  // namespace shoal::transport::verbs
