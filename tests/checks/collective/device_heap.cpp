// SPDX-License-Identifier: Apache-2.0
#include "checks/collective/device_heap.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "collective/reduce_kernel.hpp"
#include "shoal/collective.hpp"

namespace shoal::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kLongest = 300'008;

/// `bytes` bytes of the source of PE `pe`: floats, whose sums depend on their order. For bfloat16,
/// floats whose lower halves are zero: no half is a NaN, whose bits depend on the processor.
Bytes made_up(Pe pe, int round, std::size_t bytes, DataType dtype) {
  const std::size_t steps = dtype == DataType::bfloat16 ? 128 : 4099;
  std::vector<float> values((bytes + sizeof(float) - 1) / sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t mixed =
        i * 31 + static_cast<std::size_t>(pe) * 7919 + static_cast<std::size_t>(round) * 104'729;
    values[i] = 0.5F + static_cast<float>(mixed % steps) / static_cast<float>(steps);
  }
  Bytes result(bytes);
  if (bytes != 0) std::memcpy(result.data(), values.data(), bytes);
  return result;
}

class Check {
 public:
  /// `memory`: a source and a target of `room` bytes each.
  Check(World& world, const Team& team, const SymmetricArray<std::uint8_t>& memory,
        std::size_t room)
      : world_(world),
        team_(team),
        memory_(memory),
        n_(static_cast<std::size_t>(team.size())),
        me_(static_cast<std::size_t>(team.my_pe())),
        room_(room) {}

  int run(std::size_t bytes) {
    for (std::size_t root = 0; root < n_; ++root) {
      const bool in_place = root % 2 == 1;
      fill(bytes);
      broadcast_bytes(team_, in_place ? source() : target(), source(), bytes,
                      static_cast<Pe>(root));
      expect(in_place ? 0 : room_, of(root, bytes), "broadcast");
    }
    fill(bytes);
    all_gather_bytes(team_, target(), source(), bytes);
    for (std::size_t pe = 0; pe < n_; ++pe) expect(room_ + pe * bytes, of(pe, bytes), "all_gather");
    fill(n_ * bytes);
    all_to_all_bytes(team_, target(), source(), bytes);
    for (std::size_t pe = 0; pe < n_; ++pe)
      expect(room_ + pe * bytes, part(of(pe, n_ * bytes), me_ * bytes, bytes), "all_to_all");
    int calls = static_cast<int>(n_) + 2;
    for (const DataType dtype : {DataType::float32, DataType::bfloat16, DataType::int64}) {
      const std::size_t count = bytes / size_of(dtype);
      if (count == 0) continue;
      dtype_ = dtype;
      for (const bool in_place : {false, true}) {
        fill(bytes);
        reduce(team_, dtype, ReduceOp::sum, in_place ? source() : target(), source(), count);
        expect(in_place ? 0 : room_, reduced(dtype, count, 0, count), "reduce");
      }
      fill(n_ * bytes);
      reduce_scatter(team_, dtype, ReduceOp::sum, target(), source(), count);
      expect(room_, reduced(dtype, n_ * count, me_ * count, count), "reduce_scatter");
      calls += 3;
    }
    return calls;
  }

 private:
  std::uint8_t* source() const { return memory_.data(); }
  std::uint8_t* target() const { return memory_.data() + room_; }
  Bytes of(std::size_t pe, std::size_t bytes) const {
    return made_up(static_cast<Pe>(pe), round_, bytes, dtype_);
  }
  static Bytes part(const Bytes& all, std::size_t first, std::size_t bytes) {
    const auto start = all.begin() + static_cast<std::ptrdiff_t>(first);
    return {start, start + static_cast<std::ptrdiff_t>(bytes)};
  }
  /// The source of a new round. Other PEs have read the last one.
  void fill(std::size_t bytes) {
    ++round_;
    put(0, made_up(team_.my_pe(), round_, bytes, dtype_));
    put(room_, Bytes(bytes, 0xEE));
    barrier(team_);
  }
  void put(std::size_t at, const Bytes& bytes) const {
    if (!bytes.empty()) world_.put(memory_.on(world_.my_pe()).subspan(at, bytes.size()), bytes);
  }
  void expect(std::size_t at, const Bytes& expected, const char* what) const {
    Bytes seen(expected.size());
    if (!seen.empty())
      world_.get(std::span(seen), memory_.on(world_.my_pe()).subspan(at, seen.size()));
    EXPECT_TRUE(seen == expected) << what << " of " << expected.size() << " bytes on PE " << me_
                                  << " of " << n_;
    barrier(team_);  // before the next fill
  }
  /// The elements [first, first + count) of the sum over all sources of `elements` elements.
  Bytes reduced(DataType dtype, std::size_t elements, std::size_t first, std::size_t count) const {
    const std::size_t element = size_of(dtype);
    std::vector<Bytes> all;
    std::vector<const void*> sources;
    for (std::size_t pe = 0; pe < n_; ++pe) all.push_back(of(pe, elements * element));
    for (const Bytes& bytes : all) sources.push_back(bytes.data() + first * element);
    Bytes result(count * element);
    collective::kernel_of(dtype, ReduceOp::sum)(result.data(), sources, count);
    return result;
  }

  World& world_;
  const Team& team_;
  const SymmetricArray<std::uint8_t>& memory_;
  std::size_t n_, me_, room_;
  int round_ = 0;
  DataType dtype_ = DataType::float32;
};

}  // namespace

int check_collectives_on_device_heap(World& world) {
  int calls = 0;
  const std::size_t room = kLongest * static_cast<std::size_t>(world.n_pes());
  const auto memory = world.heap().allocate<std::uint8_t>(2 * room);
  const Team all = world.team();
  Check on_all(world, all, memory, room);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{1000},
                                  std::size_t{65'536}, kLongest}) {
    const int made = on_all.run(bytes);
    if (bytes != 0) calls += made;
  }
  const Pe half = (world.n_pes() + 1) / 2;
  Team backwards = all.split_strided(2 * (half - 1), half == 1 ? 1 : -2, half);
  if (backwards.valid()) {
    calls += Check(world, backwards, memory, room).run(1000);
    barrier(backwards);
    backwards.free();
  }
  barrier(all);
  return calls;
}

}  // namespace shoal::test
