// SPDX-License-Identifier: Apache-2.0
// port.hpp: a port of an RDMA device with its protection domain, completion queue and registered
// memory. library_port.hpp makes its queues by libibverbs, devx/port.hpp by device commands. Not
// thread-safe: the engine's lock guards it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/heap.hpp"
#include "shoal/settings.hpp"
#include "transport/verbs/port/address.hpp"
#include "transport/verbs/port/library.hpp"

namespace shoal::transport::verbs {

class QueuePair;
struct QueueLimits;

/// An object of libibverbs with the function that releases it.
template <typename T>
using Handle = std::unique_ptr<T, int (*)(T*)>;

/// "Invalid argument" for 22 and -22.
std::string error_text(int code);

struct PortOffer {
  std::string device;  ///< "mlx5_0"
  std::uint8_t port;   ///< from 1
  bool active;         ///< and of a device with reliable connections, which those of EFA have not
  std::vector<std::string> interfaces{};  ///< network interfaces of a RoCE port

  std::string label() const;  ///< "mlx5_0:1"
  /// True if a NIC of the plan is this port: its label, its device, or one of its interfaces.
  bool is(std::string_view nic) const;
};

/// A port with what libibverbs says of it.
struct PortAttributes {
  PortOffer offer;
  ibv_device_attr device{};
  ibv_port_attr port = zeroed<ibv_port_attr>();
};

struct PortChoice {
  std::vector<std::size_t> ports;  ///< indices of offers
  std::string reason;              ///< where there are none
};

/// One port for each of `nics` ("mlx5_0:1", "mlx5_0", or "eth2", the interface of a RoCE port) that
/// is an active RDMA port, in their order.
/// Without any: the first active port, unless `only_these` (the user named them). Pure function.
PortChoice choose_ports(std::span<const PortOffer> offers, std::span<const std::string> nics,
                        bool only_these);

/// All ports of all devices. Throws Error{unsupported} where there are none.
std::vector<PortAttributes> query_ports(const Library& library);
/// The same, names and states alone.
std::vector<PortOffer> list_ports(const Library& library);

/// Opens a device by libibverbs. Throws Error{unsupported}.
Handle<ibv_context> open_device(const Library& library, ibv_device* device);

/// Access of peers to registered memory.
enum class Peers : std::uint8_t { no_access, access };

/// Memory registered with a port.
struct MemoryRegion {
  Handle<ibv_mr> handle{nullptr, nullptr};

  std::uint32_t local_key() const noexcept { return handle->lkey; }
  RemoteMemory remote() const noexcept {
    return {reinterpret_cast<std::uintptr_t>(handle->addr), handle->rkey};
  }
};

/// Name of a queue pair, for messages: "queue pair 2 of 4 for PE 7 on mlx5_0:1 (PE 3)".
struct QueuePairName {
  Pe my_pe;
  Pe peer;
  std::size_t index;
  std::size_t count;
};

class Port {
 public:
  virtual ~Port() = default;
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  const Library& library() const noexcept { return *library_; }
  const std::string& label() const noexcept { return label_; }
  const ibv_device_attr& device() const noexcept { return device_; }
  const ibv_port_attr& attributes() const noexcept { return port_; }
  std::uint8_t number() const noexcept { return number_; }
  std::uint8_t gid_index() const noexcept { return gid_index_; }
  /// RoCE, not InfiniBand.
  bool is_ethernet() const noexcept { return port_.link_layer == IBV_LINK_LAYER_ETHERNET; }
  /// True if packets need a global route header: RoCE, or a GID that the user chose.
  bool routed() const noexcept { return routed_; }
  /// True if the device is a program of the kernel (soft-RoCE). It copies as processors do, so PEs
  /// may see half of a word that it places.
  bool is_software() const noexcept;
  PathAddress path() const;
  ibv_pd* domain() const noexcept { return domain_.get(); }
  /// Entries of the completion queue.
  virtual std::size_t completions() const noexcept = 0;
  /// A queue pair in state INIT. `existing`: queue pairs that the port has, for the message. Throws
  /// Error{unsupported}.
  virtual std::unique_ptr<QueuePair> make_queue_pair(const QueueLimits& limits,
                                                     const QueuePairName& name,
                                                     std::size_t existing) const = 0;

  /// Throws Error{unsupported} naming the limits.
  MemoryRegion register_memory(void* memory, std::size_t bytes, Peers peers) const;
  /// GPU memory at `start`, which peers may access, by a dma-buf that begins there. Throws
  /// Error{unsupported}.
  MemoryRegion register_dma_buf(int fd, std::byte* start, std::size_t bytes) const;
  /// The same by its address. Without a handle where that fails: errno says why.
  MemoryRegion register_address(std::byte* start, std::size_t bytes) const noexcept;
  /// Completed requests. Negative: the completion queue is in error.
  virtual int poll(std::span<ibv_wc> completions) const noexcept = 0;
  /// Takes an asynchronous event of the device; false without one.
  bool take_event(ibv_async_event& event) const noexcept;

 protected:
  using Opener = std::function<Handle<ibv_context>(ibv_device*)>;
  /// Opens a port of the device that `open` opens. Throws Error{unsupported}.
  Port(std::shared_ptr<const Library> library, const PortOffer& offer, const Settings& settings,
       const Opener& open);
  ibv_context* context() const noexcept { return context_.get(); }

 private:
  void choose_gid(std::int64_t wanted);

  std::shared_ptr<const Library> library_;
  std::string label_;
  std::uint8_t number_;
  bool routed_ = false;
  std::uint8_t gid_index_ = 0;
  ibv_gid gid_{};
  ibv_device_attr device_{};
  ibv_port_attr port_ = zeroed<ibv_port_attr>();
  Handle<ibv_context> context_{nullptr, nullptr};
  Handle<ibv_pd> domain_{nullptr, nullptr};
};

}  // namespace shoal::transport::verbs
