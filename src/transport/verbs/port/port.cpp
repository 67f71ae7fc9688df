// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/port/port.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.hpp"
#include "base/system_error.hpp"

namespace shoal::transport::verbs {
namespace {

/// libibverbs' list of devices.
class Devices {
 public:
  explicit Devices(const Library& library)
      : library_(library), list_(library.get_device_list(&count_)) {
    // ENOSYS: this kernel has no RDMA.
    require(list_ != nullptr || errno == ENOSYS, Code::unsupported,
            "SHOAL-N391: {} cannot list RDMA devices: {}. Setting: SHOAL_VERBS_LIBRARY",
            library.file, error_text(errno));
  }
  ~Devices() {
    if (list_ != nullptr) library_.free_device_list(list_);
  }
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  std::span<ibv_device*> all() const { return {list_, static_cast<std::size_t>(count_)}; }
  ibv_device* find(const std::string& name) const {
    for (ibv_device* const device : all())
      if (library_.get_device_name(device) == name) return device;
    fail(Code::unsupported, "SHOAL-N391: RDMA device {} is not there any more", name);
  }

 private:
  const Library& library_;
  int count_ = 0;
  ibv_device** list_;
};

/// The vendor that soft-RoCE reports: none.
constexpr std::uint32_t kSoftRoceVendor = 0xffffff;

// Never with relaxed ordering: words and counters must not overtake the data before them.
constexpr int kPeersMayAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                                IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

bool is_zero(const ibv_gid& gid) {
  return gid.global.subnet_prefix == 0 && gid.global.interface_id == 0;
}

/// An IPv4 address as a GID: ::ffff:a.b.c.d.
bool is_ipv4(const ibv_gid& gid) {
  constexpr std::uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix, sizeof kPrefix) == 0;
}

/// The network interfaces of a RoCE port, by its GID table.
std::vector<std::string> interfaces_of(const Library& library, ibv_context* context,
                                       std::uint8_t number, const ibv_port_attr& port) {
  std::vector<std::string> names;
  if (library.query_gid_ex == nullptr || port.link_layer != IBV_LINK_LAYER_ETHERNET) return names;
  for (int i = 0; i < port.gid_tbl_len; ++i) {
    ibv_gid_entry entry{};
    char name[IF_NAMESIZE] = "";
    const int code = library.query_gid_ex(context, number, static_cast<std::uint32_t>(i), &entry, 0,
                                          sizeof entry);
    if (code != 0 || entry.ndev_ifindex == 0 || if_indextoname(entry.ndev_ifindex, name) == nullptr)
      continue;
    if (std::ranges::find(names, name) == names.end()) names.emplace_back(name);
  }
  return names;
}

}  // namespace

std::string error_text(int code) {
  return errno_text(code < 0 ? -code : code);
}

Handle<ibv_context> open_device(const Library& library, ibv_device* device) {
  Handle<ibv_context> context(library.open_device(device), library.close_device);
  require(context != nullptr, Code::unsupported, "SHOAL-N391: {} cannot open RDMA device {}: {}",
          library.file, library.get_device_name(device), error_text(errno));
  return context;
}

std::string PortOffer::label() const {
  return fmt::format("{}:{}", device, port);
}

bool PortOffer::is(std::string_view nic) const {
  return device == nic || label() == nic || std::ranges::find(interfaces, nic) != interfaces.end();
}

PortChoice choose_ports(std::span<const PortOffer> offers, std::span<const std::string> nics,
                        bool only_these) {
  PortChoice choice;
  const auto add = [&](auto&& fits) {
    const auto found = std::ranges::find_if(
        offers, [&](const PortOffer& offer) { return offer.active && fits(offer); });
    const auto index = static_cast<std::size_t>(found - offers.begin());
    if (found != offers.end() && std::ranges::find(choice.ports, index) == choice.ports.end())
      choice.ports.push_back(index);
  };
  for (const std::string& nic : nics) add([&](const PortOffer& offer) { return offer.is(nic); });
  if (choice.ports.empty() && (nics.empty() || !only_these))
    add([](const PortOffer&) { return true; });
  if (!choice.ports.empty()) return choice;
  std::vector<std::string> labels;
  for (const PortOffer& offer : offers)
    labels.push_back(offer.label() + (offer.active ? "" : " (not active)"));
  choice.reason =
      only_these && !nics.empty()
          ? fmt::format(
                "SHOAL-N392: none of the NICs {} is an active RDMA port; RDMA ports: {}. Setting: "
                "SHOAL_NIC_LIST",
                fmt::join(nics, ", "), fmt::join(labels, ", "))
          : fmt::format("SHOAL-N392: no RDMA port is active: {}", fmt::join(labels, ", "));
  return choice;
}

std::vector<PortAttributes> query_ports(const Library& library) {
  const Devices devices(library);
  std::vector<PortAttributes> ports;
  for (ibv_device* const device : devices.all()) {
    const Handle<ibv_context> context = open_device(library, device);
    ibv_device_attr attributes{};
    if (library.query_device(context.get(), &attributes) != 0) continue;
    for (std::uint8_t number = 1; number <= attributes.phys_port_cnt; ++number) {
      PortAttributes port;
      port.device = attributes;
      const bool known = library.query_port(context.get(), number, port.port) == 0;
      port.offer = {
          library.get_device_name(device), number,
          known && port.port.state == IBV_PORT_ACTIVE && device->transport_type == IBV_TRANSPORT_IB,
          interfaces_of(library, context.get(), number, port.port)};
      ports.push_back(std::move(port));
    }
  }
  require(!ports.empty(), Code::unsupported, "SHOAL-N391: {} finds no RDMA device", library.file);
  return ports;
}

std::vector<PortOffer> list_ports(const Library& library) {
  std::vector<PortOffer> offers;
  for (PortAttributes& port : query_ports(library)) offers.push_back(std::move(port.offer));
  return offers;
}

Port::Port(std::shared_ptr<const Library> library, const PortOffer& offer, const Settings& settings,
           const Opener& open)
    : library_(std::move(library)), label_(offer.label()), number_(offer.port) {
  const auto check = [&](const char* call, int code) {
    require(code == 0, Code::unsupported, "SHOAL-N393: {} of {} fails: {}", call, label_,
            error_text(code));
  };
  const Devices devices(*library_);
  context_ = open(devices.find(offer.device));
  if (const int flags = fcntl(context_->async_fd, F_GETFL); flags >= 0)
    fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK);  // take_event() does not wait
  check("ibv_query_device", library_->query_device(context_.get(), &device_));
  check("ibv_query_port", library_->query_port(context_.get(), number_, port_));
  require(device_.atomic_cap != IBV_ATOMIC_NONE, Code::unsupported,
          "SHOAL-N394: {} has no RDMA atomics, which tell a PE that data have arrived", label_);
  choose_gid(settings.verbs_gid_index);
  domain_ = {library_->alloc_pd(context_.get()), library_->dealloc_pd};
  check("ibv_alloc_pd", domain_ == nullptr ? errno : 0);
}

/// RoCE: the given entry, else the first RoCE v2 one with an IPv4 address, else the first RoCE v2
/// one, else entry 0. InfiniBand routes by LID unless an entry is given.
void Port::choose_gid(std::int64_t wanted) {
  routed_ = is_ethernet() || wanted >= 0;
  if (!routed_) return;
  const int entries = port_.gid_tbl_len;
  require(wanted < entries, Code::unsupported,
          "SHOAL-N395: SHOAL_VERBS_GID_INDEX is {}; {} has entries 0 to {}", wanted, label_,
          entries - 1);
  int best = static_cast<int>(std::max<std::int64_t>(wanted, 0));
  for (int i = 0, rank = 0; wanted < 0 && library_->query_gid_ex != nullptr && i < entries; ++i) {
    ibv_gid_entry entry{};
    const int code = library_->query_gid_ex(context_.get(), number_, static_cast<std::uint32_t>(i),
                                            &entry, 0, sizeof entry);
    if (code != 0 || entry.gid_type != IBV_GID_TYPE_ROCE_V2) continue;
    const int its_rank = is_ipv4(entry.gid) ? 2 : 1;
    if (its_rank > rank) rank = its_rank, best = i;
  }
  const int code = library_->query_gid(context_.get(), number_, best, &gid_);
  require(code == 0 && !is_zero(gid_), Code::unsupported,
          "SHOAL-N395: entry {} of the GID table of {} is empty. Setting: SHOAL_VERBS_GID_INDEX",
          best, label_);
  gid_index_ = static_cast<std::uint8_t>(best);
}

bool Port::is_software() const noexcept {
  return device_.vendor_id == kSoftRoceVendor;
}

PathAddress Port::path() const {
  PathAddress address;
  std::memcpy(address.gid, gid_.raw, sizeof address.gid);
  address.lid = port_.lid;
  address.mtu = static_cast<std::uint8_t>(port_.active_mtu);
  address.ethernet = is_ethernet() ? 1 : 0;
  address.software = is_software() ? 1 : 0;
  return address;
}

MemoryRegion Port::register_memory(void* memory, std::size_t bytes, Peers peers) const {
  const int access = peers == Peers::access ? kPeersMayAccess : IBV_ACCESS_LOCAL_WRITE;
  MemoryRegion region{{library_->reg_mr(domain_.get(), memory, bytes, access), library_->dereg_mr}};
  require(region.handle != nullptr, Code::unsupported,
          "SHOAL-N381: {} bytes cannot be registered with {} (at most {} bytes in {} regions): {}. "
          "Setting: SHOAL_SYMMETRIC_SIZE; limit: locked memory (ulimit -l)",
          bytes, label_, device_.max_mr_size, device_.max_mr, error_text(errno));
  return region;
}

MemoryRegion Port::register_dma_buf(int fd, std::byte* start, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  MemoryRegion region{
      {library_->reg_dmabuf_mr(domain_.get(), 0, bytes, address, fd, kPeersMayAccess),
       library_->dereg_mr}};
  require(
      region.handle != nullptr, Code::unsupported,
      "SHOAL-N404: {} bytes of GPU memory cannot be registered with {} as a dma-buf: {}. Setting: "
      "SHOAL_VERBS_GPU_MEMORY",
      bytes, label_, error_text(errno));
  return region;
}

MemoryRegion Port::register_address(std::byte* start, std::size_t bytes) const noexcept {
  return {{library_->reg_mr(domain_.get(), start, bytes, kPeersMayAccess), library_->dereg_mr}};
}

bool Port::take_event(ibv_async_event& event) const noexcept {
  if (library_->get_async_event(context_.get(), &event) != 0) return false;
  // At once: destroying its object waits until it is acknowledged.
  library_->ack_async_event(&event);
  return true;
}

}  // namespace shoal::transport::verbs
