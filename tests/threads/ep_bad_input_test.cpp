// Every call of ep::Group with bad arguments: a clear Error, nothing changed, the group goes on working.
#include <gtest/gtest.h>

#include <cstring>

#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/ep_checks.hpp"

namespace shoal::test {
namespace {

EpCase small(std::int32_t ranks) {
  EpCase c;
  c.ranks = ranks;
  c.experts = 2 * ranks;
  c.top_k = 2;
  c.hidden = 64;
  c.max_tokens = 8;
  return c;
}

Settings small_heap() {
  Settings settings;
  settings.symmetric_size = std::size_t{64} << 20;
  settings.timeout = std::chrono::seconds(10);
  return settings;
}

/// The message of the Error with this code that `call` throws.
template <typename Call>
std::string message_of(Code code, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(name_of(error.code()), name_of(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

#define EXPECT_ERROR(code, text, call)                                                                        \
  do {                                                                                                        \
    const std::string message_seen = message_of(code, [&] { call; });                                         \
    EXPECT_NE(message_seen.find(text), std::string::npos) << "\"" << (text) << "\" not in: " << message_seen; \
  } while (false)

TEST(EpBadInput, EveryCallSaysWhatIsWrongAndTheGroupGoesOn) {
  const EpCase c = small(2);
  run_threads(2, small_heap(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const std::int64_t tokens = c.tokens(world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    constexpr Code bad = Code::invalid_argument;

    TensorView x = in.x;
    x.dtype = DataType::int8;
    EXPECT_ERROR(bad, "x is int8", group.dispatch(x, routing));
    EXPECT_ERROR(bad, "it must be",
                 group.dispatch(TensorView(in.x.data, DataType::bfloat16, {tokens + 1, c.hidden}), routing));
    EXPECT_ERROR(bad, "it must be",
                 group.dispatch(TensorView(in.x.data, DataType::bfloat16, {tokens, c.hidden - 8}), routing));
    EXPECT_ERROR(bad, "GroupOptions.dtype",
                 group.dispatch(TensorView(in.x.data, DataType::float32, {tokens, c.hidden}), routing));
    x = in.x;
    x.strides[0] *= 2;
    EXPECT_ERROR(bad, "not contiguous", group.dispatch(x, routing));
    x = in.x;
    x.device.kind = DeviceKind::cuda;
    EXPECT_ERROR(bad, "on a GPU", group.dispatch(x, routing));
    x = in.x;
    x.data = static_cast<std::byte*>(in.x.data) + 2;
    EXPECT_ERROR(bad, "multiple of 16 bytes", group.dispatch(x, routing));
    EXPECT_ERROR(bad, "not made by route()", group.dispatch(in.x, ep::Routing{}));
    EXPECT_ERROR(bad, "handle is not of a dispatch of this group", group.dispatch(in.x, ep::Handle{}));
    EXPECT_ERROR(bad, "expert_alignment is 0", group.dispatch(in.x, routing, {.expert_alignment = 0}));
    EXPECT_ERROR(bad, "worst_case_rows is 17", group.dispatch(in.x, routing, {.worst_case_rows = 17}));
    EXPECT_ERROR(bad, "weights is bfloat16", group.dispatch(in.x, routing, {.weights = in.x}));
    EXPECT_ERROR(bad, "max_scales",
                 group.dispatch(in.x, routing, {.scales = TensorView(in.x.data, DataType::float32, {tokens, 99})}));
    EXPECT_ERROR(bad, "topk_idx is", group.route(in.x));

    const ep::Dispatched got = group.dispatch(in.x, routing, {.weights = in.weights});
    const Tensor y = answers_to(c, world.my_pe(), got);
    EXPECT_ERROR(bad, "handle is not of a dispatch", group.combine(y, ep::Handle{}));
    EXPECT_ERROR(bad, "y is",
                 group.combine(TensorView(y.data, DataType::bfloat16, {got.rows + 1, c.hidden}), got.handle));
    EXPECT_ERROR(bad, "y is float8",
                 group.combine(TensorView(y.data, DataType::float8_e4m3, {got.rows, c.hidden}), got.handle));
    EXPECT_ERROR(bad, "at most 2", group.combine(y, got.handle, {.bias = {in.x, in.x, in.x}}));
    EXPECT_ERROR(bad, "CombineOptions.bias", group.combine(y, got.handle, {.bias = {in.weights}}));
    EXPECT_ERROR(bad, "CombineOptions.out", group.combine(y, got.handle, {.out = in.weights}));
    EXPECT_ERROR(bad, "CombineOptions.weights",
                 group.combine(y, got.handle, {.weights = in.weights.shape[0] == got.rows ? in.x : in.weights}));

    EXPECT_ERROR(bad, "x is", group.low_latency_dispatch(in.weights, in.topk_idx));
    EXPECT_ERROR(bad, "expert_counts", group.low_latency_dispatch(in.x, in.topk_idx, {.expert_counts = in.x}));
    EXPECT_ERROR(bad, "wait_ns", group.low_latency_dispatch(in.x, in.topk_idx, {.wait_ns = in.x}));
    EXPECT_ERROR(bad, "unknown value",
                 group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = static_cast<ep::Quantize>(9)}));
    EXPECT_ERROR(bad, "handle is not of",
                 group.low_latency_combine(y, in.topk_idx, in.weights, ep::LowLatencyHandle{}));
    const ep::LowLatencyReceived ll =
        group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none}).receive();
    EXPECT_ERROR(bad, "y is", group.low_latency_combine(y, in.topk_idx, in.weights, ll.handle));
    EXPECT_ERROR(
        bad, "choose one",
        group.low_latency_combine(ll.x, in.topk_idx, in.weights, ll.handle, {.log_fmt = true, .zero_copy = true}));
    EXPECT_ERROR(bad, "next_combine_buffer",
                 group.low_latency_combine(ll.x, in.topk_idx, in.weights, ll.handle, {.zero_copy = true}));
    EXPECT_ERROR(bad, "weights is", group.low_latency_combine(ll.x, in.topk_idx, in.x, ll.handle));
    if (tokens > 0) {
      Tensor other = Tensor::empty(DataType::int64, {tokens, c.top_k});
      std::memset(other.data, 0xff, other.bytes());
      EXPECT_ERROR(bad, "differs from that of the dispatch",
                   group.low_latency_combine(ll.x, other, in.weights, ll.handle));
    }
    EXPECT_ERROR(bad, "mask_failed", group.set_mask(0, true));
    EXPECT_ERROR(bad, "has been received", ep::PendingDispatch{}.receive());
    EXPECT_ERROR(bad, "has been received", ep::PendingCombine{}.receive());
    group.low_latency_combine(ll.x, in.topk_idx, in.weights, ll.handle).receive();

    check_normal(group, c);
    check_low_latency(group, c, ep::Reduction::exact, true);
  });
}

TEST(EpBadInput, ModesThatWereNotAskedFor) {
  const EpCase c = small(1);
  run_threads(1, small_heap(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.low_latency_max_tokens = 0;
    ep::Group normal(world.team(), options);
    const Inputs in(c, 0);
    EXPECT_ERROR(Code::invalid_argument, "low_latency_max_tokens", normal.low_latency_dispatch(in.x, in.topk_idx));
    EXPECT_ERROR(Code::invalid_argument, "low_latency_max_tokens", normal.next_combine_buffer());
    normal.close();
    options = options_for(c);
    options.max_tokens = 0;
    ep::Group low_latency(world.team(), options);
    const Tensor none = Tensor::empty(DataType::bfloat16, {0, c.hidden}),
                 no_topk = Tensor::empty(DataType::int64, {0, c.top_k});
    EXPECT_ERROR(Code::invalid_argument, "max_tokens is 0", low_latency.dispatch(none, low_latency.route(no_topk)));
  });
}

TEST(EpBadInput, ClosedWorldAndGroup) {
  const EpCase c = small(1);
  Settings settings = small_heap();
  World world = World::open({settings, single_bootstrap()});
  ep::Group group(world.team(), options_for(c));
  const Inputs in(c, 0);
  const ep::Routing routing = group.route(in.topk_idx);
  const Team team = world.team();
  world.close();
  EXPECT_ERROR(Code::closed, "closed", group.dispatch(in.x, routing));
  EXPECT_ERROR(Code::closed, "closed", group.low_latency_dispatch(in.x, in.topk_idx));
  EXPECT_ERROR(Code::closed, "closed", ep::Group(team, options_for(c)));
  ep::Group empty;
  EXPECT_ERROR(Code::closed, "closed", empty.dispatch(in.x, routing));
  EXPECT_ERROR(Code::closed, "closed", empty.warmup());
}

TEST(EpBadInput, MembersThatDisagreeAllGetTheSameError) {
  const EpCase c = small(3);
  run_threads(3, small_heap(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    if (world.my_pe() == 1) options.hidden = 128;
    EXPECT_ERROR(Code::mismatch, "hidden differs between members: 64 on PE 0, 128 on PE 1",
                 ep::Group(world.team(), options));
    options = options_for(c);
    if (world.my_pe() == 2) options.top_k = 99;
    EXPECT_ERROR(Code::invalid_argument, "top_k is 99", ep::Group(world.team(), options));
    options = options_for(c);
    options.max_tokens = 1 << 20;
    EXPECT_ERROR(Code::exhausted, "SHOAL_SYMMETRIC_SIZE", ep::Group(world.team(), options));

    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    const ep::Dispatched got = group.dispatch(in.x, routing);
    if (world.my_pe() == 0) {
      EXPECT_ERROR(Code::mismatch, "different operations", group.dispatch(in.x, routing));
    } else {
      EXPECT_ERROR(Code::mismatch, "different operations", group.combine(got.x, got.handle));
    }
    EXPECT_ERROR(
        Code::mismatch, "weights",
        group.dispatch(in.x, routing, {.weights = world.my_pe() == 1 ? TensorView(in.weights) : TensorView()}));
    check_normal(group, c);  // still in step
  });
}

TEST(EpBadInput, WorstCaseRowsThatDoNotSufficeFailOnAllMembers) {
  EpCase c = small(2);
  c.load = Load::all_to_one;
  c.seed = 3;
  ASSERT_GT(c.tokens(0) + c.tokens(1), 1);
  run_threads(2, small_heap(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    EXPECT_ERROR(Code::exhausted, "worst_case_rows",
                 group.dispatch(in.x, group.route(in.topk_idx), {.worst_case_rows = 1}));
    check_normal(group, c);
  });
}

TEST(EpBadInput, MembersOnDifferentNodesAreNamed) {
  const EpCase c = small(4);
  Settings settings = small_heap();
  settings.node_size = 2;
  run_threads(4, settings, [&](World& world) {
    EXPECT_ERROR(Code::unsupported, "does not reach PE", ep::Group(world.team(), options_for(c)));
    EpCase half = small(2);
    ep::Group group(world.node_team(), options_for(half));  // one group a node, of the same size
    check_normal(group, half);
  });
}

}  // namespace
}  // namespace shoal::test
