// SPDX-License-Identifier: Apache-2.0
#include "transport/ofi/rail.hpp"

#include <rdma/fi_errno.h>
#include <sys/random.h>

#include <cstring>

#include "base/check.hpp"

namespace shoal::transport::ofi {
namespace {

/// A key that cannot be guessed, of as many bytes as the provider takes.
std::uint64_t random_key(std::size_t bytes) {
  std::uint64_t key = 0;
  if (getrandom(&key, sizeof key, 0) != static_cast<ssize_t>(sizeof key))
    fail_errno("SHOAL-N337: transport ofi: getrandom");
  return bytes >= sizeof key ? key : key & ((std::uint64_t{1} << (8 * bytes)) - 1);
}

/// True if the device itself reads and writes GPU memory. A provider that copies by calls of CUDA
/// in its progress could wait for a kernel that waits for the data.
bool accesses_gpus_directly(fid_ep& endpoint) {
  int required = FI_HMEM_P2P_REQUIRED;
  if (fi_setopt(&endpoint.fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &required, sizeof required) !=
      0)
    return false;
#if FI_VERSION_GE(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), FI_VERSION(1, 18))
  bool permitted = false;
  return fi_setopt(&endpoint.fid, FI_OPT_ENDPOINT, FI_OPT_CUDA_API_PERMITTED, &permitted,
                   sizeof permitted) == 0;
#else
  return true;
#endif
}

}  // namespace

void Rail::refuse(const char* call, long code) const {
  fail(Code::system,
       "SHOAL-N333: transport ofi: {} on {} of provider {} failed: {}. Setting: SHOAL_OFI_PROVIDER",
       call, domain_name_, info_->fabric_attr->prov_name, error_text(code));
}

Rail::Rail(Info info, std::size_t queue)
    : info_(std::move(info)),
      domain_name_(info_->domain_attr->name != nullptr ? info_->domain_attr->name : "?") {
  const auto check = [&](const char* call, int code) {
    if (code != 0) refuse(call, code);
  };
  fid_fabric* fabric = nullptr;
  check("fi_fabric", fi_fabric(info_->fabric_attr, &fabric, nullptr));
  fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  check("fi_domain", fi_domain(fabric, info_.get(), &domain, nullptr));
  domain_.reset(domain);
  fi_cq_attr queue_attributes{};
  queue_attributes.size = queue;
  queue_attributes.format = FI_CQ_FORMAT_MSG;
  queue_attributes.wait_obj = FI_WAIT_NONE;
  fid_cq* completions = nullptr;
  check("fi_cq_open", fi_cq_open(domain, &queue_attributes, &completions, nullptr));
  queue_.reset(completions);
  fi_av_attr peer_attributes{};
  peer_attributes.type =
      info_->domain_attr->av_type == FI_AV_UNSPEC ? FI_AV_TABLE : info_->domain_attr->av_type;
  fid_av* peers = nullptr;
  check("fi_av_open", fi_av_open(domain, &peer_attributes, &peers, nullptr));
  peers_.reset(peers);
  fid_ep* endpoint = nullptr;
  check("fi_endpoint", fi_endpoint(domain, info_.get(), &endpoint, nullptr));
  endpoint_.reset(endpoint);
  check("fi_ep_bind", fi_ep_bind(endpoint, &peers->fid, 0));
  check("fi_ep_bind", fi_ep_bind(endpoint, &completions->fid, FI_TRANSMIT | FI_RECV));
  if ((info_->caps & FI_HMEM) != 0) direct_ = accesses_gpus_directly(*endpoint);
  check("fi_enable", fi_enable(endpoint));
}

Registered Rail::register_memory(void* memory, std::size_t bytes, Peers peers, int gpu) {
  const auto mode = static_cast<std::uint64_t>(info_->domain_attr->mr_mode);
  const bool used_here = local_registration() || gpu != kHost;
  const std::uint64_t access = (peers == Peers::access ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0) |
                               (used_here ? FI_READ | FI_WRITE | FI_SEND | FI_RECV : 0);
  const bool own_key = (mode & FI_MR_PROV_KEY) == 0;
  iovec range{memory, bytes};
  fi_mr_attr attributes{};
  attributes.mr_iov = &range;
  attributes.iov_count = 1;
  attributes.access = access;
  if (gpu != kHost) {
    attributes.iface = FI_HMEM_CUDA;
    attributes.device.cuda = gpu;
  }
  Registered registered;
  // The provider refuses a key that is in use: try another one.
  for (int tries = 0;; ++tries) {
    fid_mr* region = nullptr;
    attributes.requested_key = own_key ? random_key(info_->domain_attr->mr_key_size) : 0;
    const int code = fi_mr_regattr(domain_.get(), &attributes, 0, &region);
    if (code == -FI_ENOKEY && own_key && tries < 16) continue;
    if (code != 0)
      fail(Code::system,
           "SHOAL-N335: transport ofi: fi_mr_regattr of {} bytes on {} of provider {} failed: {}. "
           "Settings: SHOAL_SYMMETRIC_SIZE, SHOAL_OFI_PROVIDER; limit: ulimit -l",
           bytes, domain_name_, info_->fabric_attr->prov_name, error_text(code));
    registered.region.reset(region);
    break;
  }
  fid_mr* const region = registered.region.get();
  if ((mode & FI_MR_ENDPOINT) != 0) {
    if (const int code = fi_mr_bind(region, &endpoint_->fid, 0); code != 0)
      refuse("fi_mr_bind", code);
    if (const int code = fi_mr_enable(region); code != 0) refuse("fi_mr_enable", code);
  }
  registered.remote.key = fi_mr_key(region);
  registered.remote.base =
      (mode & FI_MR_VIRT_ADDR) != 0 ? reinterpret_cast<std::uintptr_t>(memory) : 0;
  registered.descriptor = fi_mr_desc(region);
  return registered;
}

void Rail::name(RailAddress& address) const {
  std::size_t bytes = sizeof address.name;
  if (const int code = fi_getname(&endpoint_->fid, address.name, &bytes); code != 0)
    refuse("fi_getname", code);
  address.name_bytes = bytes;
  std::strncpy(address.domain, domain_name_.c_str(), sizeof address.domain - 1);
}

fi_addr_t Rail::insert(const RailAddress& address) {
  fi_addr_t handle = FI_ADDR_UNSPEC;
  const int inserted = fi_av_insert(peers_.get(), address.name, 1, &handle, 0, nullptr);
  if (inserted != 1) refuse("fi_av_insert", inserted < 0 ? inserted : -FI_EINVAL);
  return handle;
}

ssize_t Rail::write(fi_addr_t to, RemoteMemory memory, const void* source, std::size_t bytes,
                    void* descriptor, bool delivery, void* context) {
  iovec local{const_cast<void*>(source), bytes};
  fi_rma_iov remote{memory.base, bytes, memory.key};
  fi_msg_rma message{};
  message.msg_iov = &local;
  message.desc = &descriptor;
  message.iov_count = 1;
  message.addr = to;
  message.rma_iov = &remote;
  message.rma_iov_count = 1;
  message.context = context;
  return fi_writemsg(endpoint_.get(), &message,
                     FI_COMPLETION | (delivery ? FI_DELIVERY_COMPLETE : 0));
}

ssize_t Rail::poll(std::span<fi_cq_msg_entry> entries) {
  const ssize_t count = fi_cq_read(queue_.get(), entries.data(), entries.size());
  return count == -FI_EAGAIN ? 0 : count;
}

Rail::Fault Rail::fault() {
  fi_cq_err_entry entry{};
  Fault fault;
  if (fi_cq_readerr(queue_.get(), &entry, 0) != 1) return fault;
  fault.context = entry.op_context;
  fault.code = entry.err;
  char buffer[128] = {};
  const char* const detail =
      fi_cq_strerror(queue_.get(), entry.prov_errno, entry.err_data, buffer, sizeof buffer);
  fault.text = error_text(entry.err);
  if (detail != nullptr && detail[0] != '\0' && fault.text != detail)
    fault.text += fmt::format(" ({})", detail);
  return fault;
}

}  // namespace shoal::transport::ofi
