// SPDX-License-Identifier: Apache-2.0
// An NCCL for threads of one process, whose "GPU" memory is the host's. Every operation waits for
// all ranks, moves the data and returns, so streams do not matter. FAKE_NCCL_VERSION is its
// version.
#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace {

struct Id {
  char bytes[128];
};

struct Arguments {
  const void* source = nullptr;
  void* target = nullptr;
};

struct Team {
  explicit Team(int ranks) : meet(ranks), arguments(static_cast<std::size_t>(ranks)) {}
  std::barrier<> meet;
  std::vector<Arguments> arguments;
};

struct Communicator {
  std::shared_ptr<Team> team;
  int ranks = 0, rank = 0;
};

std::mutex mutex;
std::map<std::uint64_t, std::shared_ptr<Team>> teams;
std::uint64_t ids = 0;
thread_local std::vector<Arguments> sent;  // of an open group, by peer

constexpr std::size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
constexpr int kInvalid = 4;

/// body(arguments of all ranks), between two meetings of all ranks.
template <typename Body>
int together(void* communicator, const Arguments& mine, Body&& body) {
  auto& c = *static_cast<Communicator*>(communicator);
  c.team->arguments[static_cast<std::size_t>(c.rank)] = mine;
  c.team->meet.arrive_and_wait();
  body(c, c.team->arguments);
  c.team->meet.arrive_and_wait();
  return 0;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  const char* const text = std::getenv("FAKE_NCCL_VERSION");
  *version = text == nullptr ? 22803 : std::atoi(text);
  return 0;
}

int ncclGetUniqueId(Id* id) {
  const std::lock_guard lock(mutex);
  std::memset(id, 0, sizeof *id);
  ++ids;
  std::memcpy(id->bytes, &ids, sizeof ids);
  return 0;
}

const char* ncclGetErrorString(int result) {
  return result == kInvalid ? "invalid argument" : "no error";
}

int ncclCommInitRank(void** communicator, int ranks, Id id, int rank) {
  std::uint64_t number = 0;
  std::memcpy(&number, id.bytes, sizeof number);
  std::shared_ptr<Team> team;
  {
    const std::lock_guard lock(mutex);
    auto& known = teams[number];
    if (known == nullptr) known = std::make_shared<Team>(ranks);
    team = known;
  }
  team->meet.arrive_and_wait();
  *communicator = new Communicator{team, ranks, rank};
  return 0;
}

int ncclCommDestroy(void* communicator) {
  delete static_cast<Communicator*>(communicator);
  return 0;
}

int ncclBroadcast(const void* source, void* target, std::size_t count, int type, int root,
                  void* communicator, void*) {
  return together(communicator, {source, target}, [&](const Communicator&, const auto& all) {
    std::memmove(target, all[static_cast<std::size_t>(root)].source, count * kBytes[type]);
  });
}

int ncclAllGather(const void* source, void* target, std::size_t count, int type, void* communicator,
                  void*) {
  const std::size_t bytes = count * kBytes[type];
  return together(communicator, {source, target}, [&](const Communicator&, const auto& all) {
    for (std::size_t pe = 0; pe < all.size(); ++pe)
      std::memmove(static_cast<char*>(target) + pe * bytes, all[pe].source, bytes);
  });
}

/// Sums of int32; everything else is refused.
int ncclReduceScatter(const void* source, void* target, std::size_t count, int type, int op,
                      void* communicator, void*) {
  if (type != 2 || op != 0) return kInvalid;
  return together(communicator, {source, target}, [&](const Communicator& c, const auto& all) {
    for (std::size_t i = 0; i < count; ++i) {
      std::int32_t sum = 0;
      for (const Arguments& of_rank : all)
        sum += static_cast<const std::int32_t*>(
            of_rank.source)[static_cast<std::size_t>(c.rank) * count + i];
      static_cast<std::int32_t*>(target)[i] = sum;
    }
  });
}

int ncclAllReduce(const void* source, void* target, std::size_t count, int type, int op,
                  void* communicator, void*) {
  if (type != 2 || op != 0) return kInvalid;
  std::vector<std::int32_t> sums(count);
  const int result =
      together(communicator, {source, target}, [&](const Communicator&, const auto& all) {
        for (std::size_t i = 0; i < count; ++i)
          for (const Arguments& of_rank : all)
            sums[i] += static_cast<const std::int32_t*>(of_rank.source)[i];
      });
  std::memcpy(target, sums.data(), count * sizeof(std::int32_t));
  return result;
}

int ncclGroupStart() {
  sent.clear();
  return 0;
}

int ncclSend(const void* source, std::size_t, int, int peer, void*, void*) {
  sent.resize(std::max(sent.size(), static_cast<std::size_t>(peer) + 1));
  sent[static_cast<std::size_t>(peer)].source = source;
  return 0;
}

/// The block from `peer` to this rank: at once, since all ranks are in the group.
int ncclRecv(void* target, std::size_t count, int type, int peer, void* communicator, void*) {
  const Arguments mine{sent[static_cast<std::size_t>(peer)].source, target};
  const auto& c = *static_cast<const Communicator*>(communicator);
  const std::size_t bytes = count * kBytes[type];
  // In step `peer` every rank offers what it sends to rank `peer`; all ranks pass all steps.
  return together(communicator, mine, [&](const Communicator&, const auto& all) {
    if (c.rank != peer) return;
    for (std::size_t from = 0; from < all.size(); ++from)
      std::memmove(
          static_cast<char*>(target) - static_cast<std::size_t>(peer) * bytes + from * bytes,
          all[from].source, bytes);
  });
}

int ncclGroupEnd() {
  return 0;
}
}
