// SPDX-License-Identifier: Apache-2.0
// rail.hpp: one endpoint with its domain, completion queue and registered memory. Not thread-safe:
// the engine's lock guards it.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include <memory>
#include <span>
#include <string>

#include "transport/ofi/address.hpp"
#include "transport/ofi/provider.hpp"

namespace shoal::transport::ofi {

struct CloseFid {
  template <typename T>
  void operator()(T* object) const noexcept {
    fi_close(&object->fid);
  }
};
template <typename T>
using Fid = std::unique_ptr<T, CloseFid>;

/// Access of peers to registered memory.
enum class Peers : std::uint8_t { no_access, access };

/// Memory that this PE registered with a rail. Empty: none.
struct Registered {
  Fid<fid_mr> region;
  RemoteMemory remote;         ///< how peers name it
  void* descriptor = nullptr;  ///< how local calls name it
};

class Rail {
 public:
  /// Opens the endpoint. `queue`: completions that the queue must hold. Throws Error{system} naming
  /// provider, domain and call.
  Rail(Info info, std::size_t queue);

  const std::string& domain() const noexcept { return domain_name_; }
  const fi_info& info() const noexcept { return *info_; }
  /// True if buffers of local operations must be registered.
  bool local_registration() const noexcept {
    return (info_->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
  }
  /// True if a message arrives after the data of earlier writes to the same endpoint.
  bool messages_after_writes() const noexcept {
    return (info_->tx_attr->msg_order & info_->rx_attr->msg_order & FI_ORDER_SAW) != 0;
  }
  /// True if RMA advances only while the target polls.
  bool target_progresses() const noexcept {
    return info_->domain_attr->data_progress == FI_PROGRESS_MANUAL;
  }
  std::size_t longest() const noexcept { return info_->ep_attr->max_msg_size; }

  /// True if it accesses GPU memory (FI_HMEM), without calls of CUDA.
  bool accesses_gpus() const noexcept { return direct_; }
  /// "efa"
  const char* provider() const noexcept { return info_->fabric_attr->prov_name; }

  /// Registers memory for local operations and, where `peers` says so, for RMA by peers. `gpu`: the
  /// ordinal of the GPU whose memory it is.
  static constexpr int kHost = -1;
  Registered register_memory(void* memory, std::size_t bytes, Peers peers, int gpu = kHost);
  /// This endpoint's address, into `address`.
  void name(RailAddress& address) const;
  /// Adds a peer's endpoint to the address vector. Throws Error{system}.
  fi_addr_t insert(const RailAddress& address);

  /// For calls of libfabric, which return 0, -FI_EAGAIN (poll and try again) or an error.
  fid_ep* endpoint() const noexcept { return endpoint_.get(); }
  /// The same. `delivery`: completes only when the data are at the target (FI_DELIVERY_COMPLETE).
  ssize_t write(fi_addr_t to, RemoteMemory memory, const void* source, std::size_t bytes,
                void* descriptor, bool delivery, void* context);
  std::size_t inject_limit() const noexcept { return info_->tx_attr->inject_size; }

  /// Number of completions read, 0 when there are none, -FI_EAVAIL when the next one is an error.
  ssize_t poll(std::span<fi_cq_msg_entry> entries);
  /// The next error: its context and code, and the provider's text.
  struct Fault {
    void* context = nullptr;
    int code = 0;
    std::string text;
  };
  Fault fault();

 private:
  [[noreturn]] void refuse(const char* call, long code) const;

  Info info_;
  std::string domain_name_;
  bool direct_ = false;
  // Closed in the reverse order.
  Fid<fid_fabric> fabric_;
  Fid<fid_domain> domain_;
  Fid<fid_cq> queue_;
  Fid<fid_av> peers_;
  Fid<fid_ep> endpoint_;
};

}  // namespace shoal::transport::ofi
