// SPDX-License-Identifier: Apache-2.0
// combine on GPUs with y outside the heap: memory of any allocator that share_buffer has mapped is
// fetched in place. The groups have no staging memory, so no copy can be made.
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "checks/ep/gpu_normal.hpp"
#include "checks/world/share.hpp"
#include "shoal/collective.hpp"
#include "support/cuda/graph.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using Kind = ForeignMemory::Kind;

/// Expert output of any dtype, no staging memory.
ep::GroupOptions options_of(const EpCase& c) {
  ep::GroupOptions options;
  options.max_tokens = c.max_tokens;
  options.hidden = c.hidden;
  options.top_k = c.top_k;
  options.experts = c.experts;
  options.first_expert = c.first_expert;
  options.dtype = DataType::float32;
  options.max_scales = 1;
  options.combine_staging = false;
  return options;
}

void run_group(const EpCase& c, const std::function<void(GpuGroup&)>& body) {
  SCOPED_TRACE(c.describe());
  const ep::GroupOptions options = options_of(c);
  const std::size_t bytes = size_hint(options, c.ranks, DeviceKind::cuda).total();
  run_threads(c.ranks, gpu_settings((bytes >> 20) + 16), [&](World& world) {
    GpuGroup group(world, options);
    body(group);
  });
}

/// A buffer that Shoal did not allocate, with room for all the rows of a case after `front` bytes.
class Buffer {
 public:
  static constexpr std::size_t kFront = 4096 + 16;
  Buffer(GpuGroup& owner, const EpCase& c, Kind kind)
      : owner_(owner),
        bytes_(kFront + static_cast<std::size_t>(c.ranks * c.max_tokens * c.hidden) * 4),
        memory_(owner.world, bytes_, kind) {}
  /// Queued combines read the buffer until they are complete on all ranks.
  ~Buffer() {
    if (std::uncaught_exceptions() == 0) owner_.tensors.settle();
  }

  void share() { shared_ = owner_.world.heap().share_buffer(memory_.data(), bytes_); }
  void unshare() {
    owner_.group.synchronize();
    owner_.world.heap().unshare_buffer(*shared_);
    shared_.reset();
  }
  /// Copies the expert output of a round into the buffer.
  TensorView take(const TensorView& y) {
    TensorView here(memory_.data() + kFront, y.dtype, {y.shape[0], y.shape[1]});
    here.device = owner_.tensors.device();
    if (here.bytes() > 0) owner_.tensors.write(here, owner_.tensors.download(y));
    return here;
  }

 private:
  GpuGroup& owner_;
  std::size_t bytes_;
  ForeignMemory memory_;
  std::optional<SharedBuffer> shared_;
};

ep::CombineOptions with_weights(const ep::Dispatched& got) {
  ep::CombineOptions options;
  options.weights = *got.topk_weights;
  return options;
}

/// Dispatches and combines. The expert output is in `buffer` on the ranks that `sharing` selects
/// and in Dispatched::x on the others. The sums are compared with the reference.
void check_round(GpuGroup& owner, const EpCase& c, DataType dtype, Buffer& buffer,
                 const std::function<bool(std::int32_t)>& sharing) {
  GpuRound round(owner, c, {.dtype = dtype, .output_dtype = dtype, .place = OutputPlace::in_place});
  const ep::Dispatched got = round.dispatch(round.route());
  round.check(got);
  round.write_expert_output(got);
  TensorView y = round.y();
  if (sharing(owner.me)) {
    y = buffer.take(y);
    if (y.bytes() > 0) owner.tensors.poison(round.y());  // combine must not read the heap
  }
  round.check(owner.group.combine(y, got.handle, with_weights(got)));
}

bool all_ranks(std::int32_t) {
  return true;
}

class EpGpuSharedBuffer : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EpGpuSharedBuffer, ::testing::Values(1, 2, 5, 8));

TEST_P(EpGpuSharedBuffer, ExpertOutputOfAnyAllocatorIsFetchedFromWhereItIs) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const Kind kind : {Kind::malloc, Kind::mapped, Kind::mapped_in_two_pieces})
    run_group(small_case(GetParam()), [&](GpuGroup& group) {
      Buffer buffer(group, small_case(GetParam()), kind);
      buffer.share();
      for (const DataType dtype : {DataType::bfloat16, DataType::float16, DataType::float32})
        for (std::uint64_t seed = 1; seed < 4; ++seed)
          check_round(group, small_case(GetParam(), seed), dtype, buffer, all_ranks);
      buffer.unshare();
    });
}

TEST_P(EpGpuSharedBuffer, EachRankChoosesForItself) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_group(small_case(GetParam()), [&](GpuGroup& group) {
    const auto other = std::make_unique<Buffer>(group, small_case(GetParam()), Kind::malloc);
    if (group.me % 2 == 0) {  // numbers of shared ranges then differ between ranks
      other->share();
    } else {
      group.world.heap().share_buffer(nullptr, 0);
    }
    Buffer buffer(group, small_case(GetParam()), Kind::malloc);
    buffer.share();
    for (std::uint64_t seed = 1; seed < 4; ++seed) {
      const auto some = [&](std::int32_t rank) {
        return (rank + static_cast<std::int32_t>(seed)) % 3 != 0;
      };
      check_round(group, small_case(GetParam(), seed), DataType::bfloat16, buffer, some);
    }
    buffer.unshare();
    if (group.me % 2 == 0)
      other->unshare();
    else
      group.world.heap().unshare_buffer({});
  });
}

TEST_P(EpGpuSharedBuffer, RanksWithoutRowsOrTokens) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const Load load : {Load::none, Load::some_idle, Load::all_to_one}) {
    EpCase c = small_case(GetParam());
    c.load = load;
    run_group(c, [&](GpuGroup& group) {
      Buffer buffer(group, c, Kind::malloc);
      buffer.share();
      for (int i = 0; i < 2; ++i) check_round(group, c, DataType::bfloat16, buffer, all_ranks);
      buffer.unshare();
    });
  }
}

/// Compares with the same expert outputs in the heap, which other tests compare with the reference.
TEST_P(EpGpuSharedBuffer, ExpertMajorOutputIsFetchedLikewise) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small_case(GetParam());
  run_group(c, [&](GpuGroup& group) {
    Buffer buffer(group, c, Kind::malloc);
    buffer.share();
    EpCase few = c;  // up to three rows per token
    few.max_tokens = c.max_tokens / 3;
    GpuRound round(group, few, {.weights = false});
    const ep::ExpertMajorDispatched got =
        group.group.dispatch_expert_major(round.x(), round.route());
    const auto sums = [&](const TensorView& y) {
      const ep::Combined combined = group.group.combine(y, got.handle);
      group.group.synchronize();
      return group.tensors.download(combined.x);
    };
    const Tensor wanted = sums(got.x);
    const TensorView y = buffer.take(got.x);
    if (y.bytes() > 0) group.tensors.poison(got.x);
    const Tensor seen = sums(y);
    ASSERT_EQ(seen.bytes(), wanted.bytes());
    if (wanted.bytes() > 0)
      expect_same("sums of expert-major rows", seen.data, wanted.data, wanted.bytes(), 2);
    buffer.unshare();
  });
}

/// Each replay of a captured combine reads the current contents of the buffer, even if another
/// buffer is shared or unshared in between.
TEST_P(EpGpuSharedBuffer, ReplaysFetchTheCurrentContentsOfTheBuffer) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(GetParam());
  run_group(c, [&](GpuGroup& group) {
    CUstream_st* const stream = group.tensors.new_stream();
    Buffer buffer(group, c, Kind::malloc), other(group, c, Kind::mapped);
    barrier(group.world.team());  // allocation may wait for kernels that wait for this PE
    buffer.share();
    GpuRound round(
        group, c,
        {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens, .launch = {.stream = stream}},
         .place = OutputPlace::in_place,
         .combine_weights = false,
         .padded = true});
    const Tensor out = group.tensors.empty(DataType::bfloat16, {c.max_tokens, c.hidden});
    const ep::Routing routing = round.route();
    ep::Dispatched got;
    ep::Combined back;
    TensorView y;
    const auto write_expert_output = [&] {
      round.write_expert_output(got);
      y = buffer.take(round.y());
      group.tensors.poison(round.y());
    };
    const auto combine = [&] {
      back = group.group.combine(y, got.handle, {.out = out, .launch = {.stream = stream}});
    };
    got = round.dispatch(routing);
    write_expert_output();
    combine();
    got = {};
    const Graph graph(stream, [&] {
      got = round.dispatch(routing);
      combine();
    });
    sync(group.world.team());
    for (std::uint64_t replay = 0; replay < 6; ++replay) {
      round.change_rows(100 + replay);
      write_expert_output();
      group.tensors.poison(out);
      graph.replay();
      round.check(got);  // the received rows are intact: the expert output is in the buffer
      round.check(back);
      if (replay == 1) other.share();
      if (replay == 3) other.unshare();
      if (replay % 2 == 1)
        check_round(group, small_case(GetParam(), 10 + replay), DataType::float16, buffer,
                    all_ranks);
    }
    group.tensors.settle();
    buffer.unshare();
  });
}

TEST_P(EpGpuSharedBuffer, NumbersReuseTheEntriesOfTheTable) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(GetParam());
  run_group(c, [&](GpuGroup& group) {
    // The table has 64 entries, so entries of old numbers are reused.
    for (int i = 0; i < 70; ++i) {
      Buffer buffer(group, c, Kind::malloc);
      buffer.share();
      if (i % 10 == 0 || i > 60)
        check_round(group, small_case(GetParam(), i + 1), DataType::bfloat16, buffer, all_ranks);
      buffer.unshare();
    }
  });
}

TEST_P(EpGpuSharedBuffer, WhatIsNotSharedIsRefusedWithoutRoomForACopy) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(GetParam());
  run_group(c, [&](GpuGroup& group) {
    Buffer buffer(group, c, Kind::malloc);
    barrier(group.world.team());  // allocation may wait for kernels that wait for this PE
    GpuRound round(group, c, {.place = OutputPlace::in_place});
    const ep::Dispatched got = round.dispatch(round.route());
    round.check(got);
    round.write_expert_output(got);
    const TensorView y = buffer.take(round.y());
    const auto refused = [&] {
      if (y.bytes() > 0)
        expect_error(Code::invalid_argument, "GroupOptions.combine_staging",
                     [&] { group.group.combine(y, got.handle, with_weights(got)); });
    };
    refused();
    buffer.share();
    round.check(group.group.combine(y, got.handle, with_weights(got)));
    buffer.unshare();
    refused();
    round.check(group.group.combine(round.y(), got.handle, with_weights(got)));
  });
}

}  // namespace
}  // namespace shoal::test
