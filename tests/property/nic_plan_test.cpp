// SPDX-License-Identifier: Apache-2.0
// The NIC plan on random machines. Compares plans made for each job alone with plans made for the
// whole host.
#include "topology/nic_plan.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace shoal::topology {
namespace {

constexpr int kMachines = 2000;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  int from(int least, int most) { return std::uniform_int_distribution(least, most)(engine_); }
  bool chance(int percent) { return from(1, 100) <= percent; }
  void shuffle(auto& items) { std::ranges::shuffle(items, engine_); }

 private:
  std::mt19937_64 engine_;
};

/// Switches within switches, devices anywhere, several planes, cards of several functions and
/// ports.
struct RandomMachine {
  RandomMachine(Random& random, int most_gpus, int most_nics) : random_(random) {
    machine.numa_nodes = random.from(1, 3);
    const int bridges = random.from(1, 4);
    for (int i = 0; i < bridges; ++i) {
      const std::string bus = fmt::format("{:02x}", 16 * (i + 1));
      places_.push_back(
          {{"pci0000:" + bus}, random.chance(15) ? -1 : random.from(0, machine.numa_nodes - 1)});
      for (int level = random.from(0, 3); level > 0; --level) branch();
    }
    for (int i = random.from(1, most_gpus); i > 0; --i) machine.gpus.push_back({new_device()});
    const int planes = random.chance(25) ? 2 : 1;
    for (int i = random.from(0, most_nics); i > 0;) {
      Nic nic;
      nic.name = fmt::format("mlx5_{}", i);
      nic.at = new_device();
      nic.rate = random.chance(20) ? 0 : 100 * random.from(1, 4);
      const int ports = random.chance(20) ? 2 : 1;
      for (nic.port = 1; nic.port <= ports && i > 0; ++nic.port, --i) {
        nic.plane = random.from(0, planes - 1);
        nic.up = random.chance(90);
        machine.nics.push_back(nic);
      }
    }
    put_in_order(machine);
  }

  Machine machine;

 private:
  void branch() {
    Location place =
        places_[static_cast<std::size_t>(random_.from(0, static_cast<int>(places_.size()) - 1))];
    place.path.push_back(next_address());
    places_.push_back(place);
  }
  Location new_device() {
    branch();
    Location device = places_.back();
    places_.pop_back();
    return device;
  }
  std::string next_address() {
    ++next_;
    return fmt::format("0000:{:02x}:{:02x}.{}", next_ / 32, next_ % 32, 0);
  }

  Random& random_;
  std::vector<Location> places_;
  int next_ = 0;
};

using Labels = std::vector<std::string>;

/// The NICs of each seat by name.
std::vector<Labels> labels_of(const Machine& machine, const NicPlan& plan) {
  std::vector<Labels> result;
  for (const auto& nics : plan.of_seat) {
    result.emplace_back();
    for (const NicUse& use : nics)
      result.back().push_back(machine.nics[static_cast<std::size_t>(use.nic)].label());
  }
  return result;
}

/// Checks the guarantees of the plan for one seat and one plane.
void check_seat(const Machine& machine, const NicPlan& plan, const Location& seat,
                const std::vector<std::int32_t>& plane, const std::set<std::int32_t>& used,
                std::size_t seats) {
  const auto from_seat = [&](std::int32_t nic) {
    return distance(seat, machine.nics[static_cast<std::size_t>(nic)].at);
  };
  Distance nearest = Distance::sys;
  for (const std::int32_t nic : plane) nearest = std::min(nearest, from_seat(nic));
  std::set<std::int32_t> mine;
  for (const std::int32_t nic : plane)
    if (used.contains(nic)) mine.insert(nic);
  EXPECT_FALSE(mine.empty()) << "a PE without a NIC";
  EXPECT_LE(mine.size(), std::max<std::size_t>(1, plane.size() / seats));
  for (const std::int32_t held : mine) {
    EXPECT_EQ(from_seat(held), nearest) << "a farther NIC than necessary";
    for (const std::int32_t other : plane)
      if (from_seat(other) == nearest && !mine.contains(other))
        EXPECT_LE(
            plan.load[static_cast<std::size_t>(held)] - plan.load[static_cast<std::size_t>(other)],
            1)
            << "loads of equally near NICs";
  }
}

TEST(NicPlanProperty, NearestAndBalanced) {
  for (std::uint64_t seed = 1; seed <= kMachines; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const Machine machine = RandomMachine(random, 9, 12).machine;
    const auto seats = host_seats(machine, 0);
    const NicPlan plan = plan_nics(machine, seats, {});
    std::map<std::int32_t, std::vector<std::int32_t>> planes;
    for (const std::int32_t nic : usable_nics(machine, {}).nics)
      planes[machine.nics[static_cast<std::size_t>(nic)].plane].push_back(nic);
    std::vector<std::int32_t> load(machine.nics.size());
    const bool any_up = std::ranges::any_of(machine.nics, &Nic::up);
    EXPECT_EQ(planes.empty(), !any_up);
    for (std::size_t seat = 0; seat < seats.size(); ++seat) {
      std::set<std::int32_t> used;
      for (const NicUse& use : plan.of_seat[seat]) {
        EXPECT_TRUE(used.insert(use.nic).second) << "the same NIC twice";
        EXPECT_EQ(use.distance,
                  distance(seats[seat], machine.nics[static_cast<std::size_t>(use.nic)].at));
        ++load[static_cast<std::size_t>(use.nic)];
      }
      for (const auto& [number, nics] : planes)
        check_seat(machine, plan, seats[seat], nics, used, seats.size());
    }
    EXPECT_EQ(load, plan.load);
    for (std::size_t nic = 0; nic < load.size(); ++nic)
      EXPECT_EQ(load[nic] == 0, !plan.unused[nic].empty());
  }
}

// Any table of distances, trees or not, so that the second round of the plan has work.
TEST(NicPlanProperty, BalancedForAnyDistances) {
  for (std::uint64_t seed = 1; seed <= kMachines; ++seed) {
    Random random(seed);
    const int seats = random.from(1, 10), nics = random.from(1, 8), per_seat = random.from(1, 3);
    std::vector<std::vector<Distance>> table(static_cast<std::size_t>(seats));
    for (auto& row : table)
      for (int i = 0; i < nics; ++i)
        row.push_back(random.chance(50) ? Distance::pix : Distance::node);
    std::vector<std::int32_t> card;
    for (int i = 0; i < nics; ++i) card.push_back(i / 2);
    const auto plan = assign_by_distance(table, card, per_seat);
    std::vector<int> load(static_cast<std::size_t>(nics));
    for (const auto& held : plan)
      for (const std::int32_t nic : held) ++load[static_cast<std::size_t>(nic)];
    for (std::size_t seat = 0; seat < table.size(); ++seat) {
      const std::set<std::int32_t> held(plan[seat].begin(), plan[seat].end());
      const Distance nearest = std::ranges::min(table[seat]);
      EXPECT_EQ(static_cast<std::int64_t>(held.size()),
                std::min<std::int64_t>(per_seat, std::ranges::count(table[seat], nearest)))
          << "seed " << seed;
      for (const std::int32_t mine : held) {
        EXPECT_EQ(table[seat][static_cast<std::size_t>(mine)], nearest) << "seed " << seed;
        for (std::int32_t other = 0; other < nics; ++other)
          if (!held.contains(other) && table[seat][static_cast<std::size_t>(other)] == nearest)
            EXPECT_LE(load[static_cast<std::size_t>(mine)] - load[static_cast<std::size_t>(other)],
                      1)
                << "seed " << seed;
      }
    }
  }
}

/// The least sum of squared loads of all ways to give each seat one of its nearest NICs.
int best_squares(std::span<const std::vector<std::int32_t>> choices, std::vector<int>& load) {
  if (choices.empty()) {
    int sum = 0;
    for (const int of_nic : load) sum += of_nic * of_nic;
    return sum;
  }
  int best = 1 << 20;
  for (const std::int32_t nic : choices.front()) {
    ++load[static_cast<std::size_t>(nic)];
    best = std::min(best, best_squares(choices.subspan(1), load));
    --load[static_cast<std::size_t>(nic)];
  }
  return best;
}

TEST(NicPlanProperty, NoBetterBalanceExistsOnTrees) {
  for (std::uint64_t seed = 1; seed <= kMachines; ++seed) {
    Random random(seed);
    Machine machine = RandomMachine(random, 6, 4).machine;
    for (Nic& nic : machine.nics) nic.plane = 0;
    const auto seats = host_seats(machine, 0);
    const auto usable = usable_nics(machine, {}).nics;
    if (usable.empty() || usable.size() / seats.size() > 1) continue;
    std::vector<std::vector<std::int32_t>> choices;
    for (const Location& seat : seats) {
      const auto from_seat = [&](std::int32_t nic) {
        return distance(seat, machine.nics[static_cast<std::size_t>(nic)].at);
      };
      const Distance nearest = from_seat(*std::ranges::min_element(usable, {}, from_seat));
      choices.emplace_back();
      std::ranges::copy_if(usable, std::back_inserter(choices.back()),
                           [&](std::int32_t nic) { return from_seat(nic) == nearest; });
    }
    std::vector<int> load(machine.nics.size());
    const int best = best_squares(choices, load);
    int squares = 0;
    for (const std::int32_t of_nic : plan_nics(machine, seats, {}).load) squares += of_nic * of_nic;
    EXPECT_EQ(squares, best) << "seed " << seed;
  }
}

TEST(NicPlanProperty, OrderOfEnumerationChangesNothing) {
  for (std::uint64_t seed = 1; seed <= kMachines; ++seed) {
    Random random(seed);
    const Machine machine = RandomMachine(random, 9, 12).machine;
    const auto seats = host_seats(machine, 0);
    const auto expected = labels_of(machine, plan_nics(machine, seats, {}));
    Machine shuffled = machine;
    random.shuffle(shuffled.gpus);
    random.shuffle(shuffled.nics);
    put_in_order(shuffled);
    EXPECT_EQ(labels_of(shuffled, plan_nics(shuffled, host_seats(shuffled, 0), {})), expected)
        << "seed " << seed;

    std::vector<std::size_t> order(seats.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    random.shuffle(order);
    std::vector<Location> moved;
    for (const std::size_t seat : order) moved.push_back(seats[seat]);
    const auto found = labels_of(machine, plan_nics(machine, moved, {}));
    for (std::size_t i = 0; i < order.size(); ++i)
      EXPECT_EQ(found[i], expected[order[i]]) << "seed " << seed;
  }
}

/// Four switches with two GPUs and two NICs each.
Machine two_and_two() {
  Machine machine;
  for (int bus = 0; bus < 4; ++bus) {
    const auto path = [&](int device) {
      return std::vector<std::string>{
          fmt::format("pci0000:{}0", bus), fmt::format("0000:{}0:01.0", bus),
          fmt::format("0000:{}1:00.0", bus), fmt::format("0000:{}{}:00.0", bus, device)};
    };
    for (int i = 0; i < 2; ++i) {
      machine.gpus.push_back({{path(2 + i), bus / 2}});
      Nic nic;
      nic.name = fmt::format("mlx5_{}", 2 * bus + i);
      nic.at = {path(4 + i), bus / 2};
      machine.nics.push_back(nic);
    }
  }
  machine.numa_nodes = 2;
  put_in_order(machine);
  return machine;
}

/// Plans by job: a job plans only for its PEs on the host, one in each rail group. A transport that
/// uses one NIC takes the first of those that the plan gives it.
std::int32_t planned_by_job(const Machine& machine, const Location& only_pe,
                            const NicBinding& binding) {
  return plan_nics(machine, std::span(&only_pe, 1), binding).of_seat[0][0].nic;
}

std::int32_t planned_by_host(const Machine& machine, std::size_t gpu, const NicBinding& binding) {
  const auto seats = host_seats(machine, 0);
  const auto seat =
      seat_of(machine, static_cast<std::int32_t>(seats.size()), machine.gpus[gpu].at.pci(), 0);
  const auto nics = plan_nics(machine, seats, binding).of_seat[static_cast<std::size_t>(seat)];
  EXPECT_EQ(nics.size(), 1U);
  return nics[0].nic;
}

// Eight rail groups, eight jobs with one PE on each host.
TEST(NicPlanProperty, RailGroupsDoNotShareANic) {
  const Machine machine = two_and_two();
  for (const NicBinding& binding :
       {NicBinding{"", false, ""}, NicBinding{"", true, ""},
        NicBinding{"mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7", true, ""}}) {
    std::set<std::int32_t> by_job, by_host;
    for (std::size_t gpu = 0; gpu < machine.gpus.size(); ++gpu) {
      by_job.insert(planned_by_job(machine, machine.gpus[gpu].at, binding));
      by_host.insert(planned_by_host(machine, gpu, binding));
    }
    // In a plan by distance, both GPUs of a switch use its first NIC. Round robin gives every job
    // the first NIC of the host.
    EXPECT_EQ(by_job.size(), binding.round_robin ? 1U : 4U) << "a plan by job shares NICs";
    EXPECT_EQ(by_host.size(), 8U) << "a plan by host does not";
  }
}

// Jobs over any part of a host: a GPU's NICs are the same in all of them.
TEST(NicPlanProperty, JobsAgree) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    const Machine machine = RandomMachine(random, 9, 12).machine;
    const auto whole = labels_of(machine, plan_nics(machine, host_seats(machine, 0), {}));
    // A job sees some of the GPUs; it still plans for the host.
    for (int job = 0; job < 5; ++job) {
      const auto n = static_cast<std::int32_t>(machine.gpus.size());
      const auto seats = host_seats(machine, random.from(1, n));
      const int gpu = random.from(0, n - 1);
      const auto seat =
          seat_of(machine, static_cast<std::int32_t>(seats.size()),
                  machine.gpus[static_cast<std::size_t>(gpu)].at.pci(), random.from(0, n - 1));
      EXPECT_EQ(seat, gpu);
      EXPECT_EQ(labels_of(machine, plan_nics(machine, seats, {}))[static_cast<std::size_t>(seat)],
                whole[static_cast<std::size_t>(gpu)])
          << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace shoal::topology
