// SPDX-License-Identifier: Apache-2.0
#include "collective/nccl/engine.hpp"

#include <cstring>
#include <future>
#include <iterator>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "base/log.hpp"
#include "pe/memory.hpp"
#include "team/exchange.hpp"

namespace shoal::collective::nccl {
namespace {

/// Indexed by cuda::ElementType.
constexpr std::optional<DataType> kTypes[] = {
    DataType::int8,    DataType::uint8,    std::nullopt,      std::nullopt,
    DataType::int32,   DataType::uint32,   DataType::int64,   DataType::uint64,
    DataType::float16, DataType::bfloat16, DataType::float32, DataType::float64};
static_assert(std::size(kTypes) == static_cast<std::size_t>(cuda::ElementType::float64) + 1);
std::optional<DataType> type_of(cuda::ElementType type) {
  const auto index = static_cast<std::size_t>(type);
  return index < std::size(kTypes) ? kTypes[index] : std::nullopt;
}

/// Indexed by ReduceOp.
constexpr Op kOperators[] = {Op::sum, Op::prod, Op::min, Op::max};
std::optional<Op> op_of(ReduceOp op) {
  if (op > ReduceOp::max) return std::nullopt;
  return kOperators[static_cast<std::size_t>(op)];
}

// SHOAL_COLLECTIVE_NCCL=automatic gives NCCL the collectives that it runs faster than Shoal's
// kernels. In graphs on four H200 with NCCL 2.30.7 (commit 46572794), Shoal / NCCL in us:
// broadcast of 64 KiB 4.6 / 8.3, 1 MiB 16.2 / 13.9, 16 MiB 142 / 90; all-reduce of 1 MiB 14.0 /
// 18.5, 16 MiB 103 / 96; reduce-scatter of 1 MiB 11.9 / 11.8, 16 MiB 66 / 58; all-gather of 16 MiB
// 151 / 188, all-to-all of 1 MiB 10.6 / 15.0. On two H200 Shoal was as fast at every size.
constexpr std::size_t kFewestPes = 4;
constexpr std::size_t automatic_from(Kind kind) {
  switch (kind) {
    case Kind::broadcast:
      return std::size_t{1} << 20;
    case Kind::reduction:
      return std::size_t{16} << 20;
    case Kind::move:
      break;
  }
  return std::numeric_limits<std::size_t>::max();
}

/// Contribution of a PE to the creation of a communicator. Sent as bytes.
struct Offer {
  UniqueId id{};    ///< that of PE 0 counts
  char why[256]{};  ///< why this PE cannot; empty: it can
};
static_assert(sizeof(Offer) <= detail::kExchangeBytes);

Offer make_offer(const detail::TeamState& team, const Library* library, std::string why,
                 int pes_on_device) {
  Offer offer;
  if (why.empty() && pes_on_device > 1)
    why = fmt::format("{} PEs share a GPU, and NCCL needs one for each", pes_on_device);
  if (why.empty() && team.my_pe == 0)
    if (const int result = library->get_unique_id(&offer.id); result != 0)
      why = fmt::format("ncclGetUniqueId: {}", library->error_text(result));
  why.copy(offer.why, sizeof offer.why - 1);
  return offer;
}

/// ncclCommInitRank waits for all ranks and knows no deadline, so a thread of its own calls it. A
/// call that does not return keeps its thread.
Communicator make(const Library& library, const UniqueId& id, const detail::TeamState& team,
                  std::chrono::milliseconds timeout) {
  struct Result {
    int code = 0;
    Communicator communicator = nullptr;
  };
  auto promise = std::make_shared<std::promise<Result>>();
  auto future = promise->get_future();
  const int ranks = static_cast<int>(team.size()), rank = team.my_pe;
  detail::WorldState* const world = team.world.get();
  std::thread([promise, &library, id, ranks, rank, world] {
    Result result;
    try {
      if (world->memory().cuda() != nullptr) world->memory().cuda()->activate();
      result.code = library.make(&result.communicator, ranks, id, rank);
      promise->set_value(result);
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  require(future.wait_for(timeout) == std::future_status::ready, Code::timeout,
          "SHOAL-N446: ncclCommInitRank of team {} timed out after {} ms on PE {}; Setting: "
          "SHOAL_TIMEOUT_MS.",
          team.index, timeout.count(), world->my_pe());
  const Result result = future.get();
  require(result.code == 0, Code::system, "SHOAL-N446: ncclCommInitRank of team {}: {}", team.index,
          library.error_text(result.code));
  return result.communicator;
}

}  // namespace

bool is_automatic(const Settings& settings) {
  return settings.collective_nccl == "automatic";
}

bool wanted(const Settings& settings, Kind kind, std::size_t bytes, std::size_t pes) {
  if (settings.collective_nccl == "off") return false;
  if (is_automatic(settings)) return pes >= kFewestPes && bytes >= automatic_from(kind);
  if (bytes < settings.collective_nccl_from) return false;
  return kind != Kind::reduction || settings.collective_nccl == "all";
}

bool has(cuda::ElementType type, ReduceOp op) {
  return type_of(type).has_value() && op_of(op).has_value();
}

Engine& Engine::of(detail::TeamState& team, int pes_on_device) {
  if (team.engine != nullptr) return *static_cast<Engine*>(team.engine.get());
  detail::WorldState& world = *team.world;
  std::string why;
  const Library* const library = load(world.settings().nccl_library, why);
  const Offer mine = make_offer(team, library, why, pes_on_device);
  const std::vector<std::byte> all = detail::exchange(team, &mine, sizeof mine, "NCCL of a team");
  Offer first;
  for (std::size_t pe = 0; pe < team.size(); ++pe) {
    Offer offer;
    std::memcpy(&offer, all.data() + pe * sizeof offer, sizeof offer);
    require(offer.why[0] == '\0', Code::unsupported,
            "SHOAL-N447: a collective by NCCL (SHOAL_COLLECTIVE_NCCL={}): PE {}: {}",
            world.settings().collective_nccl, team.pes[pe], offer.why);
    if (pe == 0) first = offer;
  }
  const auto timeout = world.settings().timeout;
  std::shared_ptr<Engine> engine(
      new Engine(*library, make(*library, first.id, team, timeout), static_cast<Pe>(team.size())));
  team.engine = engine;
  return *engine;
}

Engine* Engine::find(detail::TeamState& team, int pes_on_device) {
  if (team.no_engine) return nullptr;
  try {
    return &of(team, pes_on_device);
  } catch (const Error& error) {
    if (error.code() != Code::unsupported) throw;
    team.no_engine = true;
    log::info("PE {}: kernels of Shoal run all collectives of team {}: {}", team.world->my_pe(),
              team.index, reason_of(error));
    return nullptr;
  }
}

Engine::~Engine() {
  if (communicator_ != nullptr) library_.destroy(communicator_);
}

void Engine::check(int result, const char* what) const {
  require(result == 0, Code::system, "SHOAL-N446: {}: {}", what, library_.error_text(result));
}

void Engine::broadcast(cuda::Stream stream, void* target, const void* source, std::size_t bytes,
                       Pe root) const {
  check(library_.broadcast(source, target, bytes, DataType::int8, root, communicator_, stream),
        "ncclBroadcast");
}

void Engine::all_gather(cuda::Stream stream, void* target, const void* source,
                        std::size_t bytes) const {
  check(library_.all_gather(source, target, bytes, DataType::int8, communicator_, stream),
        "ncclAllGather");
}

void Engine::all_to_all(cuda::Stream stream, void* target, const void* source,
                        std::size_t bytes) const {
  check(library_.group_start(), "ncclGroupStart");
  int result = 0;  // the group is ended in any case
  for (Pe pe = 0; pe < pes_ && result == 0; ++pe) {
    const std::size_t at = static_cast<std::size_t>(pe) * bytes;
    result = library_.send(static_cast<const std::byte*>(source) + at, bytes, DataType::int8, pe,
                           communicator_, stream);
    if (result == 0)
      result = library_.receive(static_cast<std::byte*>(target) + at, bytes, DataType::int8, pe,
                                communicator_, stream);
  }
  const int ended = library_.group_end();
  check(result, "ncclSend and ncclRecv");
  check(ended, "ncclGroupEnd");
}

void Engine::reduce(cuda::Stream stream, cuda::ElementType type, ReduceOp op, void* target,
                    const void* source, std::size_t count) const {
  check(
      library_.all_reduce(source, target, count, *type_of(type), *op_of(op), communicator_, stream),
      "ncclAllReduce");
}

void Engine::reduce_scatter(cuda::Stream stream, cuda::ElementType type, ReduceOp op, void* target,
                            const void* source, std::size_t count) const {
  check(library_.reduce_scatter(source, target, count, *type_of(type), *op_of(op), communicator_,
                                stream),
        "ncclReduceScatter");
}

}  // namespace shoal::collective::nccl
