// SPDX-License-Identifier: Apache-2.0
#include "checks/collective/reference.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <thread>

#include "shoal/numeric.hpp"
#include "support/made_up.hpp"

namespace shoal::test {
namespace {

constexpr std::byte kUntouched{0xa5};

std::uint64_t pe_seed(std::uint64_t seed, std::size_t pe) {
  return seed * 1000 + pe;
}

template <typename T>
T element(const Bytes& bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

template <typename T>
void set_element(Bytes& bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof value, &value, sizeof value);
}

std::int64_t combine_integers(ReduceOp op, std::int64_t a, std::int64_t b) {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  switch (op) {
    case ReduceOp::sum:
      return static_cast<std::int64_t>(x + y);
    case ReduceOp::prod:
      return static_cast<std::int64_t>(x * y);
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::bit_and:
      return a & b;
    case ReduceOp::bit_or:
      return a | b;
    case ReduceOp::bit_xor:
      return a ^ b;
  }
  return 0;
}

template <typename T>
T combine_floats(ReduceOp op, T a, T b) {
  if (op == ReduceOp::sum) return a + b;
  if (op == ReduceOp::prod) return a * b;
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
  return op == ReduceOp::min ? std::min(a, b) : std::max(a, b);
}

/// Reduces element `i`, read with `load` into an accumulator and combined with `combine`.
auto fold(const std::vector<Bytes>& sources, std::size_t i, auto load, auto combine) {
  auto value = load(sources[0], i);
  for (std::size_t pe = 1; pe < sources.size(); ++pe) value = combine(value, load(sources[pe], i));
  return value;
}

}  // namespace

bool is_integer(DataType dtype) {
  return dtype == DataType::int32 || dtype == DataType::int64;
}

bool is_bit_operation(ReduceOp op) {
  return op == ReduceOp::bit_and || op == ReduceOp::bit_or || op == ReduceOp::bit_xor;
}

Bytes random_bytes(std::size_t count, std::uint64_t seed) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; i += 8) {
    const std::uint64_t word = mix(mix(seed) + i);
    std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, count - i));
  }
  return bytes;
}

Bytes random_elements(DataType dtype, std::size_t count, std::uint64_t seed) {
  if (is_integer(dtype)) return random_bytes(count * size_of(dtype), seed);
  Bytes bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const float value = 8 * made_up(mix(mix(seed) + i));
    if (dtype == DataType::float32) set_element(bytes, i, value);
    if (dtype == DataType::float64) set_element(bytes, i, static_cast<double>(value) * 1.0000001);
    if (dtype == DataType::bfloat16) set_element(bytes, i, bfloat16_from_float(value));
    if (dtype == DataType::float16) set_element(bytes, i, float16_from_float(value));
  }
  return bytes;
}

Bytes reduce_naively(DataType dtype, ReduceOp op, const std::vector<Bytes>& sources) {
  Bytes result(sources[0].size());
  const auto integers = [op](std::int64_t a, std::int64_t b) { return combine_integers(op, a, b); };
  const auto floats = [op](auto a, auto b) { return combine_floats(op, a, b); };
  for (std::size_t i = 0; i < result.size() / size_of(dtype); ++i) {
    switch (dtype) {
      case DataType::int32:
        set_element(result, i,
                    static_cast<std::int32_t>(fold(
                        sources, i,
                        [](auto& s, auto k) -> std::int64_t { return element<std::int32_t>(s, k); },
                        integers)));
        break;
      case DataType::int64:
        set_element(result, i, fold(sources, i, element<std::int64_t>, integers));
        break;
      case DataType::float32:
        set_element(result, i, fold(sources, i, element<float>, floats));
        break;
      case DataType::float64:
        set_element(result, i, fold(sources, i, element<double>, floats));
        break;
      case DataType::bfloat16:
        set_element(
            result, i,
            bfloat16_from_float(fold(
                sources, i,
                [](auto& s, auto k) { return float_from_bfloat16(element<std::uint16_t>(s, k)); },
                floats)));
        break;
      default:
        set_element(
            result, i,
            float16_from_float(fold(
                sources, i,
                [](auto& s, auto k) { return float_from_float16(element<std::uint16_t>(s, k)); },
                floats)));
    }
  }
  return result;
}

CollectiveCheck::CollectiveCheck(World& world, std::size_t capacity)
    : capacity_(capacity),
      target_(world.heap().allocate<std::byte>(capacity + 2 * kGuard)),
      source_(world.heap().allocate<std::byte>(capacity + 2 * kGuard)) {}

void CollectiveCheck::load(std::byte* where, const Bytes& contents) {
  ASSERT_LE(contents.size(), capacity_);
  std::copy(contents.begin(), contents.end(), where);
}

void CollectiveCheck::clear_target() {
  std::fill_n(target_.data(), target_.size(), kUntouched);
}

void CollectiveCheck::expect_target(const Bytes& expected, const std::byte* where,
                                    const char* operation) const {
  const auto first = std::mismatch(expected.begin(), expected.end(), where).first;
  EXPECT_EQ(first, expected.end()) << operation << ": first wrong byte is "
                                   << first - expected.begin() << " of " << expected.size();
  const auto untouched = [](std::byte b) { return b == kUntouched; };
  if (where != target()) return;
  EXPECT_TRUE(
      std::all_of(target() - kGuard, target(), untouched) &&
      std::all_of(target() + expected.size(), target() + expected.size() + kGuard, untouched))
      << operation << ": bytes around the target changed";
}

void CollectiveCheck::broadcast(const Team& team, std::size_t bytes, Pe root, std::uint64_t seed,
                                bool in_place) {
  const auto contents = [&](Pe pe) {
    return random_bytes(bytes, pe_seed(seed, static_cast<std::size_t>(pe)));
  };
  clear_target();
  std::byte* from = in_place ? target() : source();
  load(from, contents(team.my_pe()));
  shoal::broadcast_bytes(team, target(), from, bytes, root);
  expect_target(contents(root), target(), "broadcast");
}

void CollectiveCheck::all_gather(const Team& team, std::size_t bytes, std::uint64_t seed) {
  clear_target();
  load(source(), random_bytes(bytes, pe_seed(seed, static_cast<std::size_t>(team.my_pe()))));
  shoal::all_gather_bytes(team, target(), source(), bytes);
  Bytes expected;
  for (std::size_t pe = 0; pe < static_cast<std::size_t>(team.size()); ++pe) {
    const Bytes block = random_bytes(bytes, pe_seed(seed, pe));
    expected.insert(expected.end(), block.begin(), block.end());
  }
  expect_target(expected, target(), "all_gather");
}

void CollectiveCheck::all_to_all(const Team& team, std::size_t bytes, std::uint64_t seed) {
  const auto n = static_cast<std::size_t>(team.size()), me = static_cast<std::size_t>(team.my_pe());
  clear_target();
  load(source(), random_bytes(bytes * n, pe_seed(seed, me)));
  shoal::all_to_all_bytes(team, target(), source(), bytes);
  Bytes expected;
  for (std::size_t pe = 0; pe < n; ++pe) {
    const Bytes sent = random_bytes(bytes * n, pe_seed(seed, pe));
    expected.insert(expected.end(), sent.begin() + static_cast<std::ptrdiff_t>(me * bytes),
                    sent.begin() + static_cast<std::ptrdiff_t>((me + 1) * bytes));
  }
  expect_target(expected, target(), "all_to_all");
}

void CollectiveCheck::all_to_all_v(const Team& team, std::size_t max_bytes, std::uint64_t seed) {
  const auto n = static_cast<std::size_t>(team.size()), me = static_cast<std::size_t>(team.my_pe());
  const auto pair_seed = [&](std::size_t from, std::size_t to) {
    return pe_seed(seed, from) * 1000 + to;
  };
  const auto size = [&](std::size_t from, std::size_t to) {
    return std::mt19937_64(pair_seed(from, to))() % 4 == 0
               ? 0
               : std::mt19937_64(pair_seed(from, to) + 7)() % (max_bytes + 1);
  };
  std::vector<std::size_t> send_bytes(n), send_offsets(n), receive_bytes(n), receive_offsets(n);
  Bytes expected(n * (max_bytes + 3), kUntouched);
  clear_target();
  for (std::size_t other = 0; other < n; ++other) {
    send_bytes[other] = size(me, other);
    send_offsets[other] = (n - 1 - other) * (max_bytes + 1);
    load(source() + send_offsets[other], random_bytes(send_bytes[other], pair_seed(me, other)));
    receive_bytes[other] = size(other, me);
    receive_offsets[other] = other * (max_bytes + 3);
    const Bytes received = random_bytes(receive_bytes[other], pair_seed(other, me));
    std::copy(received.begin(), received.end(),
              expected.begin() + static_cast<std::ptrdiff_t>(receive_offsets[other]));
  }
  shoal::all_to_all_v_bytes(team, target(), receive_bytes, receive_offsets, source(), send_bytes,
                            send_offsets);
  expect_target(expected, target(), "all_to_all_v");
}

void CollectiveCheck::reduce(const Team& team, DataType dtype, ReduceOp op, std::size_t count,
                             std::uint64_t seed, bool in_place) {
  std::vector<Bytes> sources;
  for (std::size_t pe = 0; pe < static_cast<std::size_t>(team.size()); ++pe)
    sources.push_back(random_elements(dtype, count, pe_seed(seed, pe)));
  clear_target();
  std::byte* from = in_place ? target() : source();
  load(from, sources[static_cast<std::size_t>(team.my_pe())]);
  shoal::reduce(team, dtype, op, target(), from, count);
  expect_target(reduce_naively(dtype, op, sources), target(), "reduce");
}

void CollectiveCheck::reduce_scatter(const Team& team, DataType dtype, ReduceOp op,
                                     std::size_t count, std::uint64_t seed, bool in_place) {
  const auto n = static_cast<std::size_t>(team.size()), me = static_cast<std::size_t>(team.my_pe());
  const std::size_t block = count * size_of(dtype);
  std::vector<Bytes> sources;
  for (std::size_t pe = 0; pe < n; ++pe)
    sources.push_back(random_elements(dtype, count * n, pe_seed(seed, pe)));
  clear_target();
  load(source(), sources[me]);
  std::byte* to = in_place ? source() : target();
  shoal::reduce_scatter(team, dtype, op, to, source(), count);
  const Bytes all = reduce_naively(dtype, op, sources);
  expect_target(Bytes(all.begin() + static_cast<std::ptrdiff_t>(me * block),
                      all.begin() + static_cast<std::ptrdiff_t>((me + 1) * block)),
                to, "reduce_scatter");
}

namespace {

/// The world, its parts, and overlapping strided teams; invalid where this PE is not in the team.
std::vector<Team> random_teams(World& world, std::mt19937_64& random) {
  std::vector<Team> teams = {world.team(), world.node_team(), world.self_team(),
                             world.same_index_team()};
  const auto n = static_cast<std::uint64_t>(world.n_pes());
  for (int i = 0; i < 4; ++i) {
    const auto start = random() % n;
    const auto stride = 1 + random() % n;
    const auto count = 1 + random() % ((n - 1 - start) / stride + 1);
    teams.push_back(world.team().split_strided(static_cast<Pe>(start), static_cast<Pe>(stride),
                                               static_cast<Pe>(count)));
  }
  return teams;
}

/// Sizes of every magnitude, often 0 and 1.
std::size_t random_size(std::mt19937_64& random, std::size_t limit) {
  const std::size_t magnitude = std::size_t{1} << random() % 20;
  return std::min(limit, random() % magnitude);
}

void run_random_collective(CollectiveCheck& check, const Team& team, std::mt19937_64& random,
                           std::size_t capacity) {
  const auto n = static_cast<std::size_t>(team.size());
  const DataType dtype = kReduceTypes[random() % std::size(kReduceTypes)];
  const ReduceOp op = kReduceOps[random() % (is_integer(dtype) ? 7 : 4)];
  const bool in_place = random() % 2 == 0;
  const std::uint64_t seed = random() % 1'000'000;
  switch (random() % 8) {
    case 0:
      return check.broadcast(team, random_size(random, capacity), static_cast<Pe>(random() % n),
                             seed, in_place);
    case 1:
      return check.all_gather(team, random_size(random, capacity / n), seed);
    case 2:
      return check.all_to_all(team, random_size(random, capacity / n), seed);
    case 3:
      return check.all_to_all_v(team, random_size(random, capacity / n - 3), seed);
    case 4:
      return check.reduce(team, dtype, op, random_size(random, capacity / 8), seed, in_place);
    case 5:
      return check.reduce_scatter(team, dtype, op, random_size(random, capacity / 8 / n), seed,
                                  in_place);
    case 6:
      return shoal::sync(team);
    default:
      return shoal::barrier(team);
  }
}

}  // namespace

void run_random_collectives(World& world, std::size_t count, std::uint64_t seed) {
  constexpr std::size_t kCapacity = 64 << 10;
  CollectiveCheck check(world, kCapacity);
  std::mt19937_64 shared(seed);
  std::mt19937_64 own(seed * 1000 + static_cast<std::uint64_t>(world.my_pe()));
  const std::vector<Team> teams = random_teams(world, shared);
  for (std::size_t i = 0; i < count; ++i) {
    SCOPED_TRACE(::testing::Message()
                 << "seed " << seed << ", operation " << i << ", PE " << world.my_pe());
    const std::size_t chosen = shared() % teams.size();
    std::mt19937_64 random(shared());
    if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 500));
    if (teams[chosen].valid()) run_random_collective(check, teams[chosen], random, kCapacity);
  }
  shoal::barrier(world.team());
}

}  // namespace shoal::test
