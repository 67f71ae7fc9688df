// SPDX-License-Identifier: Apache-2.0
// Sharing buffers of the program. One exchange says who offers what; ranges that were shared before
// are known by number, and nothing more happens. New ranges are passed piece by piece, in rounds
// that all PEs take part in.
#include "world/memory/shared_buffers.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.hpp"
#include "world/parts.hpp"
#include "world/startup/outcome.hpp"

namespace shoal {
namespace detail {

// What the layers above ask for.

const SharedRanges& shared_ranges(const WorldState& state) noexcept {
  return state.parts().shared_ranges;
}

SharedRanges::Place SharedRanges::find(const void* pointer, std::size_t bytes) const {
  const auto* const first = static_cast<const std::byte*>(pointer);
  const std::lock_guard lock(mutex_);
  for (const auto& [id, range] : own_)
    if (first >= range.base && first + bytes <= range.base + range.bytes &&
        mappings_->is_current(range))
      return {id, static_cast<std::uint64_t>(first - range.base)};
  return {};
}

std::vector<SharedRanges::Range> SharedRanges::of(Pe pe) const {
  const std::lock_guard lock(mutex_);
  std::vector<Range> found;
  for (auto at = ranges_.lower_bound({pe, 0}); at != ranges_.end() && at->first.first == pe; ++at)
    found.push_back({at->first.second, at->second});
  return found;
}

void SharedRanges::add(Pe pe, std::uint64_t id, std::byte* base) {
  const std::lock_guard lock(mutex_);
  ranges_[{pe, id}] = base;
  ++version_;
}

void SharedRanges::add_own(Pe my_pe, std::uint64_t id, const SharedBufferTable::Own& own,
                           const memory::SharedBuffers& mappings) {
  add(my_pe, id, own.range.base);
  const std::lock_guard lock(mutex_);
  my_pe_ = my_pe;
  mappings_ = &mappings;
  if (own.everywhere) own_[id] = own.range;
}

void SharedRanges::remove(Pe pe, std::uint64_t id) noexcept {
  const std::lock_guard lock(mutex_);
  ranges_.erase({pe, id});
  if (pe == my_pe_) own_.erase(id);
  ++version_;
}

void SharedRanges::clear() noexcept {
  const std::lock_guard lock(mutex_);
  ranges_.clear();
  own_.clear();
  mappings_ = nullptr;
  ++version_;
}

namespace {

constexpr const char* kCall = "share_buffer";

/// What a PE shares in one call; travels as bytes.
struct Offer {
  FailureRecord failure;
  std::uint64_t id = 0;       ///< of the range; 0: nothing, or the symmetric heap
  std::uint64_t is_new = 0;   ///< the others do not have it yet
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
static_assert(sizeof(Offer) <= WorldState::kExchangeBytes);

/// One round: a piece of each PE that has one left.
struct Round {
  FailureRecord failure;
  memory::ExportedPiece piece;
};
static_assert(sizeof(Round) <= WorldState::kExchangeBytes);

template <typename T>
std::vector<T> exchange_values(WorldState& state, const T& mine) {
  const auto blobs = state.exchange(state.world_team(), &mine, sizeof mine, kCall);
  std::vector<T> all(blobs.size() / sizeof mine);
  std::memcpy(all.data(), blobs.data(), blobs.size());
  return all;
}

/// One collective call on one PE.
class Sharing {
 public:
  explicit Sharing(WorldState& state)
      : state_(state), world_(state.parts()), table_(*world_.shared_buffers) {}

  void run(const void* pointer, std::size_t bytes);
  std::byte* address(Pe pe) const;
  const Offer& offer(Pe pe) const { return offers_[static_cast<std::size_t>(pe)]; }

 private:
  void fill_offer(Offer& offer, const void* pointer, std::size_t bytes);
  bool same_process(Pe pe) const { return device(pe).process == device(world_.my_pe).process; }
  bool passes_fds(Pe pe) const {
    const auto& host = world_.placement.host_of;
    return !same_process(pe) &&
           host[static_cast<std::size_t>(pe)] == host[static_cast<std::size_t>(world_.my_pe)] &&
           device(pe).network_namespace == device(world_.my_pe).network_namespace;
  }
  /// Whether every PE that maps this one's heap can be given a descriptor, or needs none.
  bool fds_reach_all() const {
    for (Pe pe = 0; pe < world_.n_pes; ++pe)
      if (reached(pe) && !same_process(pe) && !passes_fds(pe)) return false;
    return true;
  }
  bool reached(Pe pe) const { return world_.device_heap->obstacle(pe).empty(); }
  const memory::DeviceDescription& device(Pe pe) const {
    return world_.devices[static_cast<std::size_t>(pe)];
  }
  void pass_pieces();
  std::vector<memory::ReceivedFd> pass_fds(const memory::FileDescriptor& mine) const;
  void import_round(std::uint64_t round, const std::vector<Round>& all,
                    const std::vector<memory::ReceivedFd>& fds);
  void adopt_threads();
  void publish_ranges();
  void roll_back() noexcept;

  WorldState& state_;
  WorldParts& world_;
  SharedBufferTable& table_;
  std::vector<Offer> offers_;
  std::optional<Error> failure_;  // of this PE; told to the others at the end
};

void Sharing::fill_offer(Offer& offer, const void* pointer, std::size_t bytes) {
  if (bytes == 0) return;
  require(pointer != nullptr, Code::invalid_argument,
          "share_buffer: the buffer of {} bytes is null", bytes);
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
              "the kernel chose a socket name of {} bytes", name.size());
      mine.socket_name_length = name.size();
      std::memcpy(mine.socket_name, name.data(), name.size());
    }
  });
  mine.failure = FailureRecord(failure_);
  offers_ = exchange_values(state_, mine);
  try {
    for (Pe pe = 0; pe < world_.n_pes; ++pe) {
      if (offer(pe).dropped != 0) {
        world_.shared_ranges.remove(pe, offer(pe).dropped);
        table_.mappings->drop(pe, offer(pe).dropped);
      }
      offer(pe).failure.rethrow(pe, failure_);
    }
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
  Pe pe = 0;
  while (pe < world_.n_pes && device(pe).process == device(0).process) ++pe;
  if (pe == world_.n_pes) return;  // threads of one process pass nothing
  std::uint64_t rounds = 0;
  for (const Offer& one : offers_)
    if (one.is_new != 0) rounds = std::max(rounds, one.pieces);
  const Offer& mine = offer(world_.my_pe);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    Round out;
    memory::FileDescriptor fd;
    const auto exported = attempt([&] {
      if (mine.is_new != 0 && round < mine.pieces)
        out.piece = table_.mappings->export_piece(table_.own.at(mine.id).range, round, fd);
      if (out.piece.kind == memory::PieceKind::fd && !fds_reach_all())
        table_.own.at(mine.id).everywhere = false;
    });
    out.failure = FailureRecord(exported);
    const auto all = exchange_values(state_, out);
    for (Pe other = 0; other < world_.n_pes; ++other)
      all[static_cast<std::size_t>(other)].failure.rethrow(other, exported);
    const bool any_fd = std::any_of(all.begin(), all.end(), [](const Round& one) {
      return one.piece.kind == memory::PieceKind::fd;
    });
    // Everybody takes part in passing descriptors as soon as anybody does: the sockets queue one
    // call at a time.
    import_round(round, all, any_fd ? pass_fds(fd) : std::vector<memory::ReceivedFd>());
  }
}

std::vector<memory::ReceivedFd> Sharing::pass_fds(const memory::FileDescriptor& mine) const {
  if (!table_.socket) return {};
  std::vector<memory::FdPeer> peers;
  for (Pe pe = 0; pe < world_.n_pes; ++pe)
    if (passes_fds(pe)) {
      const Offer& theirs = offer(pe);
      const std::size_t length =
          std::min<std::size_t>(theirs.socket_name_length, sizeof theirs.socket_name);
      peers.push_back({pe, std::string(theirs.socket_name, length)});
    }
  const auto check = [&] {
    if (const auto reason = state_.failure()) fail(Code::peer_failed, "{}", *reason);
  };
  // Who has nothing to pass sends its socket, which nobody imports.
  return memory::exchange_fds(*table_.socket, mine ? mine.get() : table_.socket->get(), peers,
                              {world_.token, world_.my_pe, world_.settings.timeout, check});
}

void Sharing::import_round(std::uint64_t round, const std::vector<Round>& all,
                           const std::vector<memory::ReceivedFd>& fds) {
  static const memory::FileDescriptor kNoDescriptor;
  for (Pe pe = 0; pe < world_.n_pes; ++pe) {
    const Offer& theirs = offer(pe);
    if (pe == world_.my_pe || same_process(pe) || !reached(pe) || theirs.is_new == 0 ||
        round >= theirs.pieces)
      continue;
    const memory::ExportedPiece& piece = all[static_cast<std::size_t>(pe)].piece;
    const auto fd =
        std::find_if(fds.begin(), fds.end(), [&](const auto& one) { return one.pe == pe; });
    if (piece.kind == memory::PieceKind::fd && fd == fds.end())
      continue;  // from another host: out of reach
    const auto failed = attempt([&] {
      table_.mappings->import_piece(pe, theirs.id, piece, fd == fds.end() ? kNoDescriptor : fd->fd);
    });
    if (failed && !failure_) failure_ = failed;
  }
}

void Sharing::adopt_threads() {
  for (Pe pe = 0; pe < world_.n_pes; ++pe) {
    const Offer& theirs = offer(pe);
    if (pe == world_.my_pe || !same_process(pe) || !reached(pe) || theirs.is_new == 0) continue;
    const auto failed = attempt([&] {
      table_.mappings->adopt(pe, theirs.id, reinterpret_cast<std::byte*>(theirs.base),
                             theirs.range_bytes);
    });
    if (failed && !failure_) failure_ = failed;
  }
}

void Sharing::publish_ranges() {
  for (Pe pe = 0; pe < world_.n_pes; ++pe) {
    const std::uint64_t id = offer(pe).id;
    if (offer(pe).is_new == 0) continue;
    if (pe == world_.my_pe)
      world_.shared_ranges.add_own(pe, id, table_.own.at(id), *table_.mappings);
    else
      world_.shared_ranges.add(pe, id, table_.mappings->base(pe, id));
  }
}

void Sharing::roll_back() noexcept {
  for (Pe pe = 0; pe < world_.n_pes; ++pe)
    if (pe != world_.my_pe && offer(pe).is_new != 0) table_.mappings->drop(pe, offer(pe).id);
  const Offer& mine = offer(world_.my_pe);
  const auto own = table_.own.find(mine.id);
  if (own != table_.own.end() && --own->second.uses == 0) table_.own.erase(own);
}

std::byte* Sharing::address(Pe pe) const {
  const Offer& theirs = offer(pe);
  if (theirs.bytes == 0) return nullptr;
  std::byte* base = nullptr;
  if (theirs.in_heap != 0) {
    base = state_.peer_base(pe);
  } else if (pe == world_.my_pe) {
    base = table_.own.at(theirs.id).range.base;
  } else {
    base = table_.mappings->base(pe, theirs.id);
  }
  return base == nullptr ? nullptr : base + theirs.offset;
}

/// The world's table, made at the first call.
SharedBufferTable& open_table(WorldState& state) {
  require(state.is_open(), Code::closed, "share_buffer: the world is closed");
  WorldParts& world = state.parts();
  require(
      world.device_heap != nullptr, Code::unsupported,
      "share_buffer: the symmetric heap is on the host; buffers are shared between GPUs, where SHOAL_HEAP is cuda");
  if (!world.shared_buffers) {
    auto table = std::make_shared<SharedBufferTable>();
    table->mappings = memory::make_shared_buffers(world.device);
    for (const memory::DeviceDescription& one : world.devices)
      if (!(one.process == world.devices[static_cast<std::size_t>(world.my_pe)].process) &&
          !table->socket)
        table->socket.emplace();
    world.shared_buffers = std::move(table);
  }
  world.device->activate();
  return *world.shared_buffers;
}

}  // namespace
}  // namespace detail

SharedBuffer SymmetricHeap::share_buffer(const void* pointer, std::size_t bytes) {
  detail::open_table(*state_);
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
  detail::SharedBufferTable& table = detail::open_table(*state_);
  const auto own = table.own.find(buffer.id_);
  const bool known = buffer.id_ == 0 || own != table.own.end();
  struct Request {
    detail::FailureRecord failure;
    std::uint64_t dropped = 0;
  } mine;
  const auto failure = detail::attempt([&] {
    require(known, Code::invalid_argument,
            "unshare_buffer of a buffer that is not shared, or no longer");
  });
  mine.failure = detail::FailureRecord(failure);
  if (known && buffer.id_ != 0 && own->second.uses == 1) mine.dropped = buffer.id_;
  const auto all = detail::exchange_values(*state_, mine);
  for (std::size_t pe = 0; pe < all.size(); ++pe)
    all[pe].failure.rethrow(static_cast<Pe>(pe), failure);
  for (std::size_t pe = 0; pe < all.size(); ++pe)
    if (all[pe].dropped != 0) {
      state_->parts().shared_ranges.remove(static_cast<Pe>(pe), all[pe].dropped);
      table.mappings->drop(static_cast<Pe>(pe), all[pe].dropped);
    }
  if (buffer.id_ != 0 && --own->second.uses == 0) table.own.erase(own);
  // Who returns may free its memory: nobody maps it any more.
  state_->sync(state_->world_team(), "unshare_buffer");
}

}  // namespace shoal
