// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include "base/check.hpp"
#include "base/log.hpp"
#include "memory/host/fd_exchange.hpp"
#include "memory/process_id.hpp"
#include "transport/mapped.hpp"

namespace shoal::transport {
namespace {

using memory::FdSocket;
using memory::FileDescriptor;
using memory::ProcessId;
using memory::Segment;
using memory::Token;

/// Data with which another PE maps this PE's segment. Travels through the bootstrap as bytes.
struct Address {
  ProcessId process;
  Token segment{};
  std::uint64_t segment_bytes = 0;
  std::uint64_t network_namespace = 0;  // abstract socket names are visible only inside
  std::uint64_t socket_name_length = 0;
  char socket_name[104] = {};
};

class ShmTransport final : public MappedTransport {
 public:
  explicit ShmTransport(const Context& context)
      : MappedTransport(context),
        context_(context),
        reach_(static_cast<std::size_t>(context.n_pes)) {}

  std::string_view name() const noexcept override { return "shm"; }
  std::vector<std::byte> address() override;
  void connect(std::span<const std::vector<std::byte>> blobs) override;
  Reach reach(Pe pe) const override { return reach_[static_cast<std::size_t>(pe)]; }
  std::byte* base(Pe pe) const noexcept override {
    return (reach_[static_cast<std::size_t>(pe)].capabilities & capability::load_store) != 0
               ? mapping(pe)
               : nullptr;
  }
  std::span<const Ended> ended() noexcept override;

 private:
  /// The process of a PE, watched through its pidfd.
  struct Watched {
    Pe pe;
    pid_t pid;
    FileDescriptor pidfd;
  };

  std::optional<std::string> obstacle(Pe pe, const Address& mine, const Address& theirs) const;
  void map_processes(std::span<const Address> addresses, std::span<const Pe> pes);
  void lose(Pe pe, const std::string& reason);

  Context context_;
  std::optional<FdSocket> socket_;  // open while the world starts
  std::string no_socket_;           // why there is none
  std::vector<Reach> reach_;
  std::vector<Watched> watched_;
  std::vector<pollfd> polled_;  // one per element of watched_
  std::vector<Ended> ended_;
};

std::vector<std::byte> ShmTransport::address() {
  Address address;
  try {
    socket_.emplace();
  } catch (const Error& error) {
    no_socket_ = error.reason();
  }
  address.process = memory::this_process();
  address.segment = context_.segment->token();
  address.segment_bytes = context_.segment->size();
  address.network_namespace = memory::network_namespace();
  if (socket_) {
    const std::string& name = socket_->name();
    address.socket_name_length = name.size();
    require(name.size() <= sizeof address.socket_name, Code::system,
            "SHOAL-N350: the kernel chose a socket name of {} bytes", name.size());
    std::memcpy(address.socket_name, name.data(), name.size());
  }
  std::vector<std::byte> bytes(sizeof address);
  std::memcpy(bytes.data(), &address, sizeof address);
  return bytes;
}

std::optional<std::string> ShmTransport::obstacle(Pe pe, const Address& mine,
                                                  const Address& theirs) const {
  if (pe == context_.my_pe) return "the PE itself";
  if (context_.host_of[static_cast<std::size_t>(pe)] !=
      context_.host_of[static_cast<std::size_t>(context_.my_pe)])
    return "on another host";
  if (mine.network_namespace != theirs.network_namespace)
    return "on this host, but in another network namespace, through which descriptors cannot be passed";
  return std::nullopt;
}

void ShmTransport::connect(std::span<const std::vector<std::byte>> blobs) {
  std::vector<Address> addresses(blobs.size());
  for (std::size_t pe = 0; pe < blobs.size(); ++pe) {
    require(blobs[pe].size() == sizeof(Address), Code::mismatch,
            "SHOAL-N351: PE {} describes its shared memory in {} bytes, expected {}", pe,
            blobs[pe].size(), sizeof(Address));
    std::memcpy(&addresses[pe], blobs[pe].data(), sizeof(Address));
  }
  const Address& mine = addresses[static_cast<std::size_t>(context_.my_pe)];
  std::vector<Pe> in_other_processes;
  for (Pe pe = 0; pe < context_.n_pes; ++pe) {
    const auto i = static_cast<std::size_t>(pe);
    if (auto reason = obstacle(pe, mine, addresses[i])) {
      reach_[i].reason = *reason;
      continue;
    }
    const bool same_node =
        context_.node_of[i] == context_.node_of[static_cast<std::size_t>(context_.my_pe)];
    reach_[i].capabilities = capability::all_operations | (same_node ? capability::load_store : 0);
    if (addresses[i].process == mine.process) {
      auto segment = Segment::find(addresses[i].segment);
      require(segment != nullptr, Code::system,
              "SHOAL-N352: PE {} is a thread of this process, but its memory is gone", pe);
      set_mapping(pe, std::move(segment));
    } else if (!socket_) {
      lose(pe, no_socket_);
    } else if (addresses[i].socket_name_length == 0) {
      lose(pe, "it has no local socket");
    } else {
      in_other_processes.push_back(pe);
    }
  }
  if (socket_) map_processes(addresses, in_other_processes);
  socket_.reset();
}

/// A pair of this host without shared memory: a network may carry it.
void ShmTransport::lose(Pe pe, const std::string& reason) {
  reach_[static_cast<std::size_t>(pe)] = {0, reason};
  log::warn(
      "SHOAL-N353: PE {}: transport shm does not reach PE {}: {}. Networks are tried in its place. "
      "Setting: SHOAL_TRANSPORT_INSIDE",
      context_.my_pe, pe, reason);
}

void ShmTransport::map_processes(std::span<const Address> addresses, std::span<const Pe> pes) {
  std::vector<memory::FdPeer> peers;
  for (const Pe pe : pes) {
    const Address& address = addresses[static_cast<std::size_t>(pe)];
    const std::size_t length =
        std::min<std::size_t>(address.socket_name_length, sizeof address.socket_name);
    peers.push_back({pe, std::string(address.socket_name, length)});
  }
  // Half of the time, so that a PE whose exchange fails is not late for the next step.
  const auto received =
      memory::exchange_fds(*socket_, context_.segment->descriptor().get(), peers,
                           {context_.world, context_.my_pe, context_.timeout / 2, context_.check,
                            [this](Pe pe, const std::string& reason) { lose(pe, reason); }});
  for (const memory::ReceivedFd& from : received) {
    const auto i = static_cast<std::size_t>(from.pe);
    try {
      if (reach_[i].reason.empty())
        set_mapping(from.pe, Segment::map(from.fd, addresses[i].segment_bytes));
    } catch (const Error& error) {
      lose(from.pe, std::string(error.reason()));
    }
    if (from.pid <= 0) continue;
    FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, from.pid, 0)));
    // A kernel without pidfd, or a process that has ended: the bootstrap notices it.
    if (!pidfd) continue;
    polled_.push_back({pidfd.get(), POLLIN, 0});
    watched_.push_back({from.pe, from.pid, std::move(pidfd)});
  }
}

std::span<const Transport::Ended> ShmTransport::ended() noexcept {
  if (polled_.empty() || poll(polled_.data(), polled_.size(), 0) <= 0) return ended_;
  for (std::size_t i = 0; i < polled_.size(); ++i) {
    if (polled_[i].revents == 0) continue;
    polled_[i].fd = -1;  // poll skips it
    polled_[i].revents = 0;
    ended_.push_back({watched_[i].pe, "pid " + std::to_string(watched_[i].pid) + " ended"});
  }
  return ended_;
}

}  // namespace

std::unique_ptr<Transport> make_shm(const Context& context) {
  return std::make_unique<ShmTransport>(context);
}

}  // namespace shoal::transport
