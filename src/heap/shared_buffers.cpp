// SPDX-License-Identifier: Apache-2.0
// Sharing buffers of the program. One exchange carries the offers of all PEs. A range that was
// shared before is known by its number, and the exchange is all that happens. New ranges are passed
// piece by piece, in rounds that all PEs take part in.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.hpp"
#include "fabric/fabric.hpp"
#include "pe/forks.hpp"
#include "pe/memory.hpp"
#include "team/outcome.hpp"
#include "team/teams.hpp"
#include "world/state.hpp"

namespace shoal {
namespace detail {

namespace {

constexpr const char* kCall = "share_buffer";

/// Range that a PE shares in one call; travels as bytes.
struct Offer {
  std::uint64_t id = 0;       ///< of the range; 0: nothing, or the symmetric heap
  std::uint64_t is_new = 0;   ///< the other PEs do not have it yet
  std::uint64_t in_heap = 0;  ///< offset counts from the start of the heap
  std::uint64_t dropped = 0;  ///< a range of this PE that no longer exists; 0: none
  std::uint64_t base = 0;     ///< of the range, in its own process
  std::uint64_t range_bytes = 0;
  std::uint64_t pieces = 0;
  std::uint64_t offset = 0;  ///< of the buffer in the range
  std::uint64_t bytes = 0;   ///< of the buffer
  std::uint64_t socket_name_length = 0;
  char socket_name[108] = {};
};

using Pieces = std::vector<memory::ExportedPiece>;  // by PE

/// Removes a range of `pe` that no longer exists.
void drop_range(Memory& memory, Pe pe, std::uint64_t id) noexcept {
  memory.shared_ranges().remove(pe, id);
  memory.shared_buffers().mappings->drop(pe, id);
}

/// One collective call on one PE.
class Sharing {
 public:
  explicit Sharing(WorldState& state)
      : state_(state),
        placement_(state.placement()),
        memory_(state.memory()),
        table_(memory_.shared_buffers()) {}

  void run(const void* pointer, std::size_t bytes);
  std::byte* address(Pe pe) const;
  const Offer& offer(Pe pe) const { return offers_[static_cast<std::size_t>(pe)]; }

 private:
  void fill_offer(Offer& offer, const void* pointer, std::size_t bytes);
  const memory::DeviceDescription& device(Pe pe) const { return memory_.device_of(pe); }
  bool same_process(Pe pe) const { return device(pe).process == device(placement_.my_pe).process; }
  /// True if a file descriptor can be passed to `pe`.
  bool passes_fds(Pe pe) const {
    return !same_process(pe) && placement_.same_host(pe) &&
           device(pe).network_namespace == device(placement_.my_pe).network_namespace;
  }
  bool reached(Pe pe) const { return memory_.device_heap()->obstacle(pe).empty(); }
  /// True if every PE that maps this PE's heap can receive a descriptor, or needs none.
  bool fds_reach_all() const {
    for (Pe pe = 0; pe < placement_.n_pes; ++pe)
      if (reached(pe) && !same_process(pe) && !passes_fds(pe)) return false;
    return true;
  }
  /// True if there is something new of `pe` that this PE has to map.
  bool maps(Pe pe) const { return pe != placement_.my_pe && reached(pe) && offer(pe).is_new != 0; }
  void pass_pieces();
  std::vector<memory::ReceivedFd> pass_fds(const memory::FileDescriptor& mine) const;
  void import_pieces(std::uint64_t round, const Pieces& pieces,
                     const std::vector<memory::ReceivedFd>& fds);
  void adopt_threads();
  void publish_ranges();
  void roll_back() noexcept;

  WorldState& state_;
  const Placement& placement_;
  Memory& memory_;
  SharedBufferTable& table_;
  std::vector<Offer> offers_;     // by PE
  std::optional<Error> failure_;  // of this PE; the other PEs learn of it at the end
};

void Sharing::fill_offer(Offer& offer, const void* pointer, std::size_t bytes) {
  if (bytes == 0) return;
  require(pointer != nullptr, Code::invalid_argument,
          "SHOAL-N780: share_buffer: the buffer of {} bytes is null", bytes);
  offer.bytes = bytes;
  if (state_.heap().contains(pointer, bytes)) {
    offer.in_heap = 1;
    offer.offset = state_.heap().offset_of(pointer);
    return;
  }
  const auto* const first = static_cast<const std::byte*>(pointer);
  for (auto& [id, own] : table_.own) {
    if (first < own.range.base || first + bytes > own.range.base + own.range.bytes) continue;
    offer.offset = static_cast<std::uint64_t>(first - own.range.base);
    if (table_.mappings->is_current(own.range)) {
      offer.id = id;
      ++own.uses;
      return;
    }
    offer.dropped = id;
    table_.own.erase(id);
    break;
  }
  memory::BufferRange range = table_.mappings->locate(pointer, bytes);
  offer.id = ++table_.last;
  offer.is_new = 1;
  offer.base = reinterpret_cast<std::uint64_t>(range.base);
  offer.range_bytes = range.bytes;
  offer.pieces = range.pieces.size();
  offer.offset = static_cast<std::uint64_t>(first - range.base);
  table_.own[offer.id] = {std::move(range), 1};
}

void Sharing::run(const void* pointer, std::size_t bytes) {
  Offer mine;
  failure_ = attempt([&] {
    fill_offer(mine, pointer, bytes);
    if (table_.socket) {
      const std::string& name = table_.socket->name();
      require(name.size() <= sizeof mine.socket_name, Code::system,
              "SHOAL-N714: the kernel chose a socket name of {} bytes; allowed: up to {}",
              name.size(), sizeof mine.socket_name);
      mine.socket_name_length = name.size();
      std::memcpy(mine.socket_name, name.data(), name.size());
    }
  });
  const auto outcomes = exchange_outcomes(state_, mine, failure_, kCall);
  for (const Outcome<Offer>& outcome : outcomes) offers_.push_back(outcome.value);
  try {
    for (Pe pe = 0; pe < placement_.n_pes; ++pe)
      if (offer(pe).dropped != 0) drop_range(memory_, pe, offer(pe).dropped);
    rethrow_first(outcomes, failure_);
    const bool any_new = std::any_of(offers_.begin(), offers_.end(),
                                     [](const Offer& one) { return one.is_new != 0; });
    if (!any_new) return;
    pass_pieces();
    adopt_threads();
    agree_on_outcome(state_, failure_, kCall);
    publish_ranges();
  } catch (...) {
    roll_back();
    throw;
  }
}

void Sharing::pass_pieces() {
  const auto& devices = memory_.devices();
  const bool one_process = std::all_of(devices.begin(), devices.end(), [&](const auto& one) {
    return one.process == devices.front().process;
  });
  if (one_process) return;  // threads use the addresses as they are
  std::uint64_t rounds = 0;
  for (const Offer& one : offers_)
    if (one.is_new != 0) rounds = std::max(rounds, one.pieces);
  const Offer& mine = offer(placement_.my_pe);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    memory::ExportedPiece piece;
    memory::FileDescriptor fd;
    const auto exported = attempt([&] {
      if (mine.is_new != 0 && round < mine.pieces)
        piece = table_.mappings->export_piece(table_.own.at(mine.id).range, round, fd);
      if (piece.kind == memory::PieceKind::fd && !fds_reach_all())
        table_.own.at(mine.id).everywhere = false;
    });
    const Pieces all = exchange_or_throw(state_, piece, exported, kCall);
    const bool any_fd = std::any_of(all.begin(), all.end(), [](const memory::ExportedPiece& one) {
      return one.kind == memory::PieceKind::fd;
    });
    // All PEs pass descriptors as soon as one does: the sockets queue one call at a time.
    import_pieces(round, all, any_fd ? pass_fds(fd) : std::vector<memory::ReceivedFd>());
  }
}

std::vector<memory::ReceivedFd> Sharing::pass_fds(const memory::FileDescriptor& mine) const {
  if (!table_.socket) return {};
  std::vector<memory::FdPeer> peers;
  for (Pe pe = 0; pe < placement_.n_pes; ++pe) {
    if (!passes_fds(pe)) continue;
    const Offer& theirs = offer(pe);
    const std::size_t length =
        std::min<std::size_t>(theirs.socket_name_length, sizeof theirs.socket_name);
    peers.push_back({pe, std::string(theirs.socket_name, length)});
  }
  const auto check = [&] {
    if (const auto reason = state_.health().failure()) fail(Code::peer_failed, "{}", *reason);
  };
  // A PE without a piece sends its socket, which no PE imports.
  return memory::exchange_fds(*table_.socket, mine ? mine.get() : table_.socket->get(), peers,
                              {placement_.token,
                               placement_.my_pe,
                               state_.settings().timeout,
                               check,
                               {},
                               "SHOAL_TIMEOUT_MS"});
}

void Sharing::import_pieces(std::uint64_t round, const Pieces& pieces,
                            const std::vector<memory::ReceivedFd>& fds) {
  static const memory::FileDescriptor kNoDescriptor;
  for (Pe pe = 0; pe < placement_.n_pes; ++pe) {
    const Offer& theirs = offer(pe);
    if (!maps(pe) || same_process(pe) || round >= theirs.pieces) continue;
    const memory::ExportedPiece& piece = pieces[static_cast<std::size_t>(pe)];
    const auto fd =
        std::find_if(fds.begin(), fds.end(), [&](const auto& one) { return one.pe == pe; });
    if (piece.kind == memory::PieceKind::fd && fd == fds.end()) continue;  // of another host
    const auto failed = attempt([&] {
      table_.mappings->import_piece(pe, theirs.id, piece, fd == fds.end() ? kNoDescriptor : fd->fd);
    });
    if (failed && !failure_) failure_ = failed;
  }
}

void Sharing::adopt_threads() {
  for (Pe pe = 0; pe < placement_.n_pes; ++pe) {
    const Offer& theirs = offer(pe);
    if (!maps(pe) || !same_process(pe)) continue;
    const auto failed = attempt([&] {
      table_.mappings->adopt(pe, theirs.id, reinterpret_cast<std::byte*>(theirs.base),
                             theirs.range_bytes);
    });
    if (failed && !failure_) failure_ = failed;
  }
}

void Sharing::publish_ranges() {
  SharedRanges& ranges = memory_.shared_ranges();
  for (Pe pe = 0; pe < placement_.n_pes; ++pe) {
    const std::uint64_t id = offer(pe).id;
    if (offer(pe).is_new == 0) continue;
    if (pe == placement_.my_pe)
      ranges.add_own(pe, id, table_.own.at(id), *table_.mappings);
    else
      ranges.add(pe, id, table_.mappings->base(pe, id));
  }
}

void Sharing::roll_back() noexcept {
  for (Pe pe = 0; pe < placement_.n_pes; ++pe)
    if (pe != placement_.my_pe && offer(pe).is_new != 0) table_.mappings->drop(pe, offer(pe).id);
  const Offer& mine = offer(placement_.my_pe);
  const auto own = table_.own.find(mine.id);
  if (own != table_.own.end() && --own->second.uses == 0) table_.own.erase(own);
}

std::byte* Sharing::address(Pe pe) const {
  const Offer& theirs = offer(pe);
  if (theirs.bytes == 0) return nullptr;
  std::byte* base = nullptr;
  if (theirs.in_heap != 0) {
    base = state_.fabric().peer_base(pe);
  } else if (pe == placement_.my_pe) {
    base = table_.own.at(theirs.id).range.base;
  } else {
    base = table_.mappings->base(pe, theirs.id);
  }
  return base == nullptr ? nullptr : base + theirs.offset;
}

/// The world's table, with the GPU's context current.
SharedBufferTable& open_table(const WorldState& state, const char* call) {
  if (!state.is_open()) fail(Code::closed, "SHOAL-N172: {}: {}", call, why_closed(&state));
  Memory& memory = state.memory();
  require(
      memory.heap_on_gpu(), Code::unsupported,
      "SHOAL-N783: {}: the symmetric heap is on the host; buffers are shared between GPUs, where "
      "SHOAL_HEAP is cuda",
      call);
  SharedBufferTable& table = memory.shared_buffers();
  memory.device()->activate();
  return table;
}

}  // namespace
}  // namespace detail

SharedBuffer SymmetricHeap::share_buffer(const void* pointer, std::size_t bytes) {
  detail::open_table(*state_, "share_buffer");
  detail::Sharing sharing(*state_);
  sharing.run(pointer, bytes);
  SharedBuffer result;
  for (Pe pe = 0; pe < state_->n_pes(); ++pe) {
    result.addresses_.push_back(sharing.address(pe));
    result.bytes_.push_back(sharing.offer(pe).bytes);
  }
  result.id_ = sharing.offer(state_->my_pe()).id;
  return result;
}

void SymmetricHeap::unshare_buffer(const SharedBuffer& buffer) {
  detail::SharedBufferTable& table = detail::open_table(*state_, "unshare_buffer");
  const auto own = table.own.find(buffer.id_);
  const bool known = buffer.id_ == 0 || own != table.own.end();
  const auto failure = detail::attempt([&] {
    require(known, Code::invalid_argument,
            "SHOAL-N784: unshare_buffer of a buffer that is not shared, or no longer");
  });
  const bool last = known && buffer.id_ != 0 && own->second.uses == 1;
  const std::uint64_t mine = last ? buffer.id_ : 0;
  const auto dropped = detail::exchange_or_throw(*state_, mine, failure, "unshare_buffer");
  for (std::size_t pe = 0; pe < dropped.size(); ++pe)
    if (dropped[pe] != 0) detail::drop_range(state_->memory(), static_cast<Pe>(pe), dropped[pe]);
  if (buffer.id_ != 0 && --own->second.uses == 0) table.own.erase(own);
  // After this call a PE may free its memory, so all PEs must have unmapped it.
  detail::sync(state_->teams().world_team(), "unshare_buffer");
}

}  // namespace shoal
