// SPDX-License-Identifier: Apache-2.0
// host_checks: one PE of a world between hosts, for the tests in this folder. The environment says
// which PE it is and how it finds the others, as for any program. The arguments name the checks,
// which run in order in one world:
//
//   bootstrap            no world: the PEs exchange the names of their hosts
//   identity, world, collectives, ep
//                        the checks in tests/checks
//   traffic              4 MiB to the PE with the same local index on each other node
//   copies               dispatch and combine with all experts on other nodes; prints the bytes
//                        that this host has sent
//   threads              prints the number of threads of each network transport
//   soak                 rounds of both modes of EP with skewed PEs
//   masks                low latency in a group that masks failed ranks, until all ranks of other
//                        nodes are masked, and then without them
//   fault-collective, fault-normal, fault-low-latency
//                        repeats the operation until an error occurs, and prints it with its code
//   again=FILE           after the fault: waits for FILE, which has the session id of a new world,
//                        and opens that world
//
// Prints one line, "PE 1 of 4 on host0 ...", and exits with 0 if all checks succeeded.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "checks/collective/reference.hpp"
#include "checks/ep/rounds.hpp"
#include "checks/world/operations.hpp"
#include "shoal/world.hpp"
#include "support/process/threads_called.hpp"

namespace shoal::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kUnsupported = 77;  // exit status for Error{unsupported}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

/// True if PE i is on node i modulo their number; else the PEs of a node are consecutive.
bool dealt_round_robin(const World& world) {
  const std::vector<Pe> numbers = [&] {
    std::vector<Pe> node;
    for (Pe pe = 0; pe < world.node_team().size(); ++pe)
      node.push_back(world.node_team().world_pe(pe));
    return node;
  }();
  return numbers.size() > 1 && numbers[1] != numbers[0] + 1;
}

EpCase shape(const World& world) {
  const std::int32_t ranks = world.n_pes();
  return {.ranks = ranks,
          .experts = ranks * 4,
          .top_k = 6,
          .hidden = 512,
          .max_tokens = 30,
          .nodes = ranks / world.pes_per_node(),
          .round_robin = dealt_round_robin(world)};
}

void check_ep(World& world) {
  EpCase c = shape(world);
  ep::Group group(world.team(), options_for(c));
  for (c.seed = 1; c.seed <= 3; ++c.seed) {
    check_normal(group, c);
    for (const bool early_weights : {false, true})
      check_low_latency(group, c, ep::Reduction::per_rank, c.seed % 2 == 0, early_weights);
    check_low_latency(group, c, ep::Reduction::exact, c.seed % 2 == 1);
    check_low_latency_quantized(group, c, ep::Quantize::fp8_ue8m0);
  }
  for (const Load load : {Load::all_to_one, Load::none, Load::some_idle}) {
    c.load = load;
    check_normal(group, c);
    check_low_latency(group, c, ep::Reduction::per_rank, true);
  }
  group.close();
}

/// The ranks sleep in different rounds, so some are an operation ahead of others.
void soak(World& world) {
  const EpCase c = shape(world);
  ep::Group group(world.team(), options_for(c));
  const NormalRound normal(c, world.my_pe());
  const LowLatencyRound low_latency(c, world.my_pe(), ep::Reduction::per_rank);
  for (int i = 0; i < 100; ++i) {
    if ((i + world.my_pe()) % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (i % 3 == 0)
      normal.run(group);
    else
      low_latency.run(group, i % 2 == 0);
  }
  group.close();
}

/// Sends 4 MiB to the PE with the same local index on each other node, for the interface counters.
void traffic(World& world) {
  const std::vector<std::byte> mine(std::size_t{4} << 20, std::byte{1});
  const Pe per_node = world.pes_per_node();
  const auto room = world.heap().allocate<std::byte>(mine.size());
  for (Pe pe = world.my_pe() % per_node; pe < world.n_pes(); pe += per_node)
    if (pe != world.my_pe()) world.put(room.on(pe), mine);
  world.quiet();
  barrier(world.team());
  EXPECT_TRUE(world.n_pes() == per_node || std::equal(mine.begin(), mine.end(), room.data()));
}

/// Bytes that this host has sent on all rails so far.
std::uint64_t sent_by_host() {
  std::uint64_t sum = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net")) {
    std::uint64_t bytes = 0;
    if (entry.path().filename().string().starts_with("rail"))
      std::ifstream(entry.path() / "statistics/tx_bytes") >> bytes;
    sum += bytes;
  }
  return sum;
}

/// Sends rows of 14 KiB, each to all experts of the other of two nodes, and prints the bytes that
/// this host sends in each operation.
void copies(World& world) {
  constexpr std::int64_t kTokens = 128, kHidden = 7168;
  const std::int32_t per_node = world.pes_per_node(), top_k = 8, experts = 2 * top_k;
  ep::GroupOptions options;
  options.max_tokens = kTokens;
  options.hidden = kHidden;
  options.top_k = top_k;
  options.experts = experts;
  ep::Group group(world.team(), options);
  Tensor x = Tensor::empty(DataType::bfloat16, {kTokens, kHidden});
  std::fill_n(x.as<std::uint16_t>(), x.size(), std::uint16_t{0x3f80});  // 1.0
  Tensor topk_idx = Tensor::empty(DataType::int64, {kTokens, top_k});
  const std::int64_t first = world.my_pe() < per_node ? top_k : 0;
  for (std::int64_t i = 0; i < topk_idx.size(); ++i)
    topk_idx.as<std::int64_t>()[i] = first + i % top_k;
  const ep::Routing routing = group.route(topk_idx);
  group.warmup();

  const auto start = [&] {
    barrier(world.team());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for acknowledgements
    const std::uint64_t bytes = sent_by_host();
    barrier(world.team());  // no PE continues before all PEs have read the counters
    return bytes;
  };
  const std::uint64_t before = start();
  const ep::Dispatched got = group.dispatch(x, routing);
  const std::uint64_t between = start();
  const ep::Combined back = group.combine(got.x, got.handle);
  const std::uint64_t after = start();
  EXPECT_EQ(got.rows, kTokens * per_node)
      << "every rank here receives every token of the other node";
  for (std::int64_t i = 0; i < back.x.size(); ++i)
    if (back.x.as<std::uint16_t>()[i] != 0x4000)
      throw std::runtime_error("the sum of two rows of 1.0 is not 2.0");
  if (world.my_pe_on_node() == 0)
    fmt::print("{} sent {} bytes to dispatch and {} to combine {} bytes of tokens\n", host_name(),
               between - before, after - between, kTokens * kHidden * 2 * per_node);
}

/// Calls `round` until it throws. Prints that it is running and, before any cleanup, the error.
void for_ever(World& world, const std::function<void()>& round) {
  try {
    for (int i = 0;; ++i) {
      round();
      if (i != 10) continue;
      fmt::print("PE {} is running\n", world.my_pe());
      std::fflush(stdout);
    }
  } catch (const Error& error) {
    fmt::print("PE {} has seen code {}: {}\n", world.my_pe(), name_of(error.code()), error.what());
    std::fflush(stdout);
    throw;
  }
}

void fault_collective(World& world) {
  const auto sums = world.heap().allocate<std::int64_t>(1024),
             terms = world.heap().allocate<std::int64_t>(1024);
  const Team team = world.team();
  for_ever(world,
           [&] { reduce(team, DataType::int64, ReduceOp::sum, sums.data(), terms.data(), 1024); });
}

void fault_normal(World& world) {
  const EpCase c = shape(world);
  ep::Group group(world.team(), options_for(c));
  const NormalRound round(c, world.my_pe());
  for_ever(world, [&] { round.run(group); });
}

void fault_low_latency(World& world) {
  const EpCase c = shape(world);
  ep::Group group(world.team(), options_for(c));
  const LowLatencyRound round(c, world.my_pe(), ep::Reduction::per_rank);
  for_ever(world, [&] { round.run(group, true); });
}

/// Rounds with all ranks, then with the remaining ranks while others are being masked, then with
/// the ranks of this node. A rank that has masked all ranks of other nodes publishes its round to
/// the ranks of its node, so that all of them stop after the same round.
void masks(World& world) {
  const EpCase c = shape(world);
  ep::GroupOptions options = options_for(c);
  options.mask_failed = true;
  options.timeout = std::chrono::milliseconds(1500);
  ep::Group group(world.team(), options);
  const Pe me = world.my_pe(), first = me - world.my_pe_on_node(),
           end = first + world.pes_per_node();
  const std::vector<int> none(static_cast<std::size_t>(c.ranks), 0);
  std::vector<int> others(none.size(), 1);
  std::fill(others.begin() + first, others.begin() + end, 0);
  const LowLatencyRound all(c, me, ep::Reduction::per_rank),
      here(c, me, ep::Reduction::per_rank, others);
  const auto alone_since = world.heap().allocate<std::int64_t>(none.size());  // a round, by PE
  const auto since = [&](Pe pe) {
    return std::atomic_ref(alone_since[static_cast<std::size_t>(pe)]).load();
  };
  std::vector<Clock::duration> times;  // of the rounds after all ranks of this node have masked
  bool all_masked = false;
  for (std::int64_t i = 1, last = -1; i != last; ++i) {
    const auto begin = Clock::now();
    if (since(me) != 0) {
      here.run(group, i % 2 == 0);
    } else {
      const ep::LowLatencyReceived got = all.send(group).receive();
      if (group.masked() == none) all.check(got);
      const Tensor out = all.combine(group, got, i % 2 == 0).receive();
      if (group.masked() == none) all.check(out);
      if (group.masked() == others)
        for (Pe pe = first; pe < end; ++pe)
          world.put_value(alone_since.on(pe)[static_cast<std::size_t>(me)], i);
    }
    if (i == 10) {
      fmt::print("PE {} is running\n", me);
      std::fflush(stdout);
    }
    std::int64_t slowest = 0, missing = 0;
    for (Pe pe = first; pe < end; ++pe) {
      slowest = std::max(slowest, since(pe));
      missing += since(pe) == 0 ? 1 : 0;
    }
    if (all_masked) times.push_back(Clock::now() - begin);
    if (missing != 0) continue;
    if (i == slowest + 2) all_masked = true;  // two rounds later, every rank knows
    last = slowest + 22;
  }
  EXPECT_EQ(group.masked(), others);
  // A round that waits for a masked rank takes at least the timeout; one without a wait takes
  // milliseconds. A loaded machine may delay two rounds by as much, but not a tenth of all.
  EXPECT_GE(times.size(), 19U);
  const auto slow = std::ranges::count_if(
      times, [&](const Clock::duration time) { return time >= options.timeout; });
  EXPECT_LE(slow, 2) << "rounds of " << times.size() << " wait for masked ranks";
  fmt::print("PE {} has masked {}\n", me, fmt::join(group.masked(), " "));
  std::fflush(stdout);
}

const std::map<std::string, void (*)(World&)> kChecks = {
    {"identity", check_identity},
    {"world", [](World& world) { check_everything(world); }},
    {"collectives", [](World& world) { run_random_collectives(world, 40, 11); }},
    {"ep", check_ep},
    {"soak", soak},
    {"traffic", traffic},
    {"copies", copies},
    {"threads",
     [](World& world) {
       fmt::print("PE {}: threads: {} of ofi, {} of ucx, {} of verbs\n", world.my_pe(),
                  threads_called("shoal-ofi").size(), threads_called("shoal-ucx").size(),
                  threads_called("shoal-verbs").size());
     }},
    {"masks", masks},
};
const std::map<std::string, void (*)(World&)> kFaults = {
    {"fault-collective", fault_collective},
    {"fault-normal", fault_normal},
    {"fault-low-latency", fault_low_latency},
};

/// "PE 1 of 4 on host0 (index 1 of 2 on its node; shm, ofi)".
std::string describe(const World& world) {
  std::set<std::string> transports;
  for (Pe pe = 0; pe < world.n_pes(); ++pe)
    if (const std::string text = world.describe_transport(pe); pe != world.my_pe())
      transports.insert(text.substr(0, text.find(':')));
  return fmt::format("PE {} of {} on {} (index {} of {} on its node; {})", world.my_pe(),
                     world.n_pes(), host_name(), world.my_pe_on_node(), world.pes_per_node(),
                     fmt::join(transports, ", "));
}

std::string check_bootstrap() {
  const auto bootstrap = make_bootstrap(Settings::from_environment());
  const std::string name = host_name();
  std::string all;
  for (const auto& blob : bootstrap->all_gather(std::as_bytes(std::span(name)), "host names"))
    all += " " + std::string(reinterpret_cast<const char*>(blob.data()), blob.size());
  bootstrap->barrier("end");
  bootstrap->close();
  return fmt::format("PE {} of {} on {}: hosts{}", bootstrap->pe(), bootstrap->n_pes(), name, all);
}

/// Opens a world of the same PEs, named by the session id that the test writes to `file` after it
/// has repaired the network.
void open_again(const std::string& file) {
  WorldOptions options = WorldOptions::from_environment();
  while (!std::filesystem::exists(file))  // the test ends this program if it never writes the file
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::getline(std::ifstream(file), options.settings.session_id);
  World world = World::open(options);
  check_identity(world);
  check_rma(world);
  world.close();
}

std::string run(const std::vector<std::string>& arguments) {
  if (arguments.front() == "bootstrap") return check_bootstrap();
  World world = World::open();
  std::string line = describe(world), before = ": ";
  for (const std::string& argument : arguments) {
    if (const auto fault = kFaults.find(argument); fault != kFaults.end()) {
      EXPECT_THROW(fault->second(world), Error);
      world = World();
      line += before + "fault seen";
    } else if (argument.starts_with("again=")) {
      open_again(argument.substr(argument.find('=') + 1));
      line += before + "new world ok";
    } else {
      const auto check = kChecks.find(argument);
      if (check == kChecks.end())
        throw std::runtime_error("host_checks: there is no \"" + argument + "\"");
      check->second(world);
      line += fmt::format("{}{} {}", before, argument,
                          ::testing::UnitTest::GetInstance()->Failed() ? "FAILED" : "ok");
    }
    before = ", ";
  }
  if (world.is_open()) world.close();
  return line;
}

}  // namespace
}  // namespace shoal::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.empty()) throw std::runtime_error("host_checks: say what to check");
    fmt::print("{}\n", shoal::test::run(arguments));
  } catch (const shoal::Error& error) {
    fmt::print("failed with code {}: {}\n", name_of(error.code()), error.what());
    return error.code() == shoal::Code::unsupported ? shoal::test::kUnsupported : 1;
  } catch (const std::exception& error) {
    fmt::print("failed: {}\n", error.what());
    return 1;
  }
  return ::testing::UnitTest::GetInstance()->Failed() ? 1 : 0;
}
