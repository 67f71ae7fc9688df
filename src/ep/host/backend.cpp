// SPDX-License-Identifier: Apache-2.0
#include "ep/host/backend.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/align.hpp"
#include "base/check.hpp"
#include "ep/group/unpack.hpp"
#include "ep/host/group/loads.hpp"
#include "ep/host/group/regions.hpp"
#include "ep/host/low_latency/low_latency.hpp"
#include "ep/host/normal/expert_output.hpp"
#include "ep/host/normal/normal.hpp"
#include "team/exchange.hpp"

namespace shoal::ep::host {
namespace {

/// Sets the rows of a result that hold no token to 0.
void clear_unused(const detail::AnyDispatched& received) {
  const TensorView& x = received.x;
  const std::int64_t used = received.handle.received_rows().value();
  const std::size_t row_bytes = static_cast<std::size_t>(x.shape[1]) * size_of(x.dtype);
  std::memset(x.as<std::byte>() + static_cast<std::size_t>(used) * row_bytes, 0,
              static_cast<std::size_t>(x.shape[0] - used) * row_bytes);
}

class Normal final : public detail::NormalMode {
 public:
  explicit Normal(HostGroup& group) : NormalMode(detail::BackendKind::host), group_(group) {}

  Routing route(const ConstTensorView& topk_idx, const RouteOptions& options) override;
  detail::AnyDispatched dispatch(const detail::DispatchCall& call) override;
  void unpack(const detail::AnyDispatched& received, const UnpackOptions& to) override;
  void expand(const ExpandOptions& options) override { host::expand(group_, options); }
  Combined combine(const ConstTensorView& y, const HandleState& handle,
                   const CombineOptions& options) override;

 private:
  ExpertOutput prepared(const ConstTensorView& y, const CombineOptions& options);

  HostGroup& group_;
};

class LowLatency final : public detail::LowLatencyMode {
 public:
  explicit LowLatency(HostGroup& group)
      : LowLatencyMode(detail::BackendKind::host), group_(group) {}

  std::shared_ptr<PendingDispatchState> dispatch(const ConstTensorView& x,
                                                 const ConstTensorView& topk_idx,
                                                 const LowLatencyDispatchOptions& options) override;
  bool ready(const PendingDispatchState& pending) override {
    return all_sent(pending.sent_at, group_.layout.slots_sent, pending.handle->epoch);
  }
  LowLatencyReceived receive(PendingDispatchState& pending) override {
    return committed(group_, [&] { return low_latency_dispatch_receive(group_, pending); });
  }
  std::shared_ptr<PendingCombineState> combine(
      const ConstTensorView& y, const ConstTensorView& topk_idx, const ConstTensorView& weights,
      const std::shared_ptr<const LowLatencyHandleState>& handle,
      const LowLatencyCombineOptions& options) override;
  bool ready(const PendingCombineState& pending) override {
    return all_sent(pending.sent_at, group_.layout.combine_ready, pending.epoch);
  }
  Tensor receive(PendingCombineState& pending) override {
    return committed(group_, [&] { return low_latency_combine_receive(group_, pending); });
  }
  TensorView next_combine_buffer() override;

  std::vector<int> masked() override { return {group_.masked.begin(), group_.masked.end()}; }
  void set_mask(std::int32_t rank, bool masked) override {
    group_.masked[rank] = masked ? 1 : 0;
    group_.out_of_reach[rank] = 0;
  }
  void clear_masks() override {
    for (std::int32_t rank = 0; rank < group_.state.shape.ranks; ++rank) set_mask(rank, false);
  }

 private:
  /// True if a receive would return or throw without waiting: all ranks have sent, has failed, or
  /// had the time to.
  bool all_sent(std::chrono::steady_clock::time_point sent_at, std::size_t signals,
                std::uint64_t epoch) const {
    if (std::chrono::steady_clock::now() > sent_at + group_.state.timeout) return true;
    for (std::int32_t rank = 0; rank < group_.state.shape.ranks; ++rank)
      if (!group_.masked[rank] && newest_signal(group_, signals, rank) < epoch &&
          !group_.state.world->health().has_failed(group_.state.team.world_pe(rank)))
        return false;
    return true;
  }

  HostGroup& group_;
};

class HostBackend final : public detail::Backend {
 public:
  HostBackend(detail::GroupState& state, std::int32_t threads) : group_(state, threads) {
    normal_ = &normal_calls_;
    low_latency_ = &low_latency_calls_;
  }

  detail::BlockPlan block_plan() const override {
    return {.bytes = group_.layout.total, .arena_bytes = group_.layout.arena_bytes};
  }
  std::vector<observe::MemoryRegion> regions() const override {
    return regions_of(group_.layout, group_.state.shape);
  }
  // Only signals and notices need a known start. Zeroing the payload would touch pages that may
  // never be used.
  void open() override {
    std::memset(group_.state.block, 0, group_.layout.control_end);
    report_shortfalls(group_);
  }
  std::optional<std::int32_t> failed_rank() const override { return host::failed_rank(group_); }
  std::int32_t cause_of(std::int32_t failed) const override {
    return host::cause_of(group_, failed);
  }
  void warmup(Group& group) override;

 private:
  HostGroup group_;
  Normal normal_calls_{group_};
  LowLatency low_latency_calls_{group_};
};

/// Writes the arrays that the caller asks for.
void copy_routing(const Routing& routing, const RouteOptions& to) {
  const auto copy = [](const std::vector<std::int32_t>& from, const TensorView& array) {
    if (array.defined()) std::copy(from.begin(), from.end(), array.as<std::int32_t>());
  };
  copy(routing.counts->tokens_per_rank, to.tokens_per_rank);
  copy(routing.counts->tokens_per_expert, to.tokens_per_expert);
  copy(routing.counts->tokens_per_node, to.tokens_per_node);
  if (!to.is_token_in_rank.defined()) return;
  auto* const in_rank = to.is_token_in_rank.as<std::uint8_t>();
  const auto ranks = static_cast<std::int64_t>(routing.counts->tokens_per_rank.size());
  std::fill_n(in_rank, routing.tokens() * ranks, std::uint8_t{0});
  for (std::int64_t token = 0; token < routing.tokens(); ++token)
    for (const detail::Copy& sent : state_of(routing)->copies_of(token))
      in_rank[token * ranks + sent.rank] = 1;
}

Routing Normal::route(const ConstTensorView& topk_idx, const RouteOptions& options) {
  const auto& shape = group_.state.shape;
  const std::int64_t most = std::max(shape.max_tokens, shape.low_latency_max_tokens);
  auto state = detail::make_routing(detail::checked_topk(topk_idx, shape, most, "route"), shape);
  const auto& nodes = group_.state.nodes;
  auto routing = shoal::detail::Access::make<Routing>(state);
  routing.topk_idx = state->topk_idx;
  routing.counts = {.tokens_per_rank = state->tokens_per_rank,
                    .tokens_per_node = detail::count_by_node(*state, nodes.node_of, nodes.count),
                    .tokens_per_expert = state->tokens_per_expert};
  copy_routing(routing, options);
  return routing;
}

void Normal::unpack(const detail::AnyDispatched& received, const UnpackOptions& to) {
  for (const auto& copy : detail::unpacked_arrays(group_.state, received, to))
    detail::copy_array(copy);
  if (to.clear_unused) clear_unused(received);
}

detail::AnyDispatched Normal::dispatch(const detail::DispatchCall& call) {
  return committed(group_, [&] {
    const DispatchPlan plan = notify(group_, call);
    dispatch_send(group_, call, plan);
    ++group_.state.statistics.dispatches;
    return dispatch_receive(group_, call, plan);
  });
}

/// Sums go to the staging area, from which peers read them, where it has the room.
ExpertOutput Normal::prepared(const ConstTensorView& y, const CombineOptions& options) {
  const GroupLayout& layout = group_.layout;
  const std::size_t bytes =
      static_cast<std::size_t>(options.topk_rows.shape[0] * y.shape[1]) * size_of(y.dtype);
  const bool fits = bytes <= layout.staging_weights - layout.staging;
  return prepare_expert_output(
      y, options, fits ? group_.state.block + layout.staging : nullptr,
      choose_store(y.bytes() + bytes, group_.state.shape.ranks, last_level_cache_bytes()),
      &group_.workers);
}

Combined Normal::combine(const ConstTensorView& y, const HandleState& handle,
                         const CombineOptions& options) {
  if (options.topk_rows.defined() || options.topk_idx.defined()) {
    const ExpertOutput output = prepared(y, options);
    CombineOptions rest = options;
    rest.weights = output.weights;
    rest.topk_rows = rest.topk_idx = {};
    return combine(output.y, handle, rest);
  }
  check_staging(group_, y, options);
  return committed(group_, [&] {
    const NoticeBoard board = combine_send(group_, y, handle, options);
    ++group_.state.statistics.combines;
    return combine_receive(group_, y, handle, options, board);
  });
}

std::shared_ptr<PendingDispatchState> LowLatency::dispatch(
    const ConstTensorView& x, const ConstTensorView& topk_idx,
    const LowLatencyDispatchOptions& options) {
  auto pending = std::make_shared<PendingDispatchState>();
  pending->group = group_.state.shared_from_this();
  pending->options = options;
  auto routing = detail::make_routing(
      detail::checked_topk(topk_idx, group_.state.shape, group_.state.shape.low_latency_max_tokens,
                           "low_latency_dispatch"),
      group_.state.shape);
  pending->handle = committed(
      group_, [&] { return low_latency_dispatch_send(group_, x, std::move(routing), options); });
  ++group_.state.statistics.low_latency_dispatches;
  return pending;
}

std::shared_ptr<PendingCombineState> LowLatency::combine(
    const ConstTensorView& y, const ConstTensorView&, const ConstTensorView& weights,
    const std::shared_ptr<const LowLatencyHandleState>& handle,
    const LowLatencyCombineOptions& options) {
  auto pending = std::make_shared<PendingCombineState>();
  pending->group = group_.state.shared_from_this();
  pending->handle = handle;
  pending->options = options;
  if (weights.defined())
    pending->weights.assign(weights.as<float>(), weights.as<float>() + weights.size());
  require(
      !handle->has_weights || pending->weights.empty() ||
          std::memcmp(pending->weights.data(), handle->weights.data(), weights.bytes()) == 0,
      Code::invalid_argument,
      "SHOAL-N586: low_latency_combine: weights differ from those that were given to the dispatch");
  pending->epoch =
      committed(group_, [&] { return low_latency_combine_send(group_, y, *handle, options); });
  ++group_.state.statistics.low_latency_combines;
  return pending;
}

TensorView LowLatency::next_combine_buffer() {
  const auto& shape = group_.state.shape;
  const GroupLayout& layout = group_.layout;
  const std::uint64_t epoch = group_.state.low_latency_combine_epoch + 1;
  wait_for_combine_buffer(group_, epoch);
  TensorView view(group_.state.block + layout.combine_row(epoch, 0, 0, shape), DataType::bfloat16,
                  {shape.local_experts, shape.low_latency_rows(), shape.hidden});
  const auto stride = static_cast<std::int64_t>(layout.combine_row_stride / 2);
  view.strides = {shape.low_latency_rows() * stride, stride, 1};
  return view;
}

// Warm-up: gives memory its pages, then makes real operations of the largest size on made-up
// tokens, so that code, pages and peers are those that later calls use.

/// Allocates the pages of a range and maps them in this process; their contents stay. Has no effect
/// before Linux 5.14, where the first operation touches what it uses.
void populate(std::byte* first, std::size_t bytes) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE; glibc before 2.35 lacks the name
  if (bytes == 0) return;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t before = reinterpret_cast<std::uintptr_t>(first) % page;
  (void)madvise(first - before, align_up(before + bytes, page), kPopulateWrite);
}

/// The memory of one result of normal mode, of staging, and of low-latency mode whatever its load:
/// that of this rank, and that of the ranks here which write to it or read from it.
void populate_block(const HostGroup& group) {
  const GroupLayout& layout = group.layout;
  for (std::byte* const block : group.state.peers) {
    if (block == nullptr) continue;
    populate(block, layout.arena + layout.largest_result);
    populate(block + layout.staging, layout.total - layout.staging);
  }
}

void populate_results(HostGroup& group) {
  for (const std::uint64_t half : {0, 1}) {
    const LowLatencyResult& result = result_arrays(group, half, Quantize::none);
    for (const Tensor* array : {&result.x, &result.scales, &result.source_token})
      populate(static_cast<std::byte*>(array->data), array->bytes());
  }
}

Tensor zeros(DataType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor tensor = Tensor::empty(dtype, shape);
  if (tensor.bytes() > 0) std::memset(tensor.data, 0, tensor.bytes());
  return tensor;
}

/// Pairs of each mode. The C library gives aligned arrays new pages until its cache of the
/// remainders between them is full, which takes seven.
constexpr int kRounds = 8;

void warm_normal(Group& group, const GroupOptions& options) {
  const Routing routing =
      group.route(detail::even_topk(options.max_tokens, options.top_k, options.experts));
  const Tensor x = zeros(options.dtype, {options.max_tokens, options.hidden});
  const Tensor weights = zeros(DataType::float32, {options.max_tokens, options.top_k});
  for (int round = 0; round < kRounds; ++round) {
    const Dispatched received = group.dispatch(x, routing, {.weights = weights});
    Tensor y(received.x);
    if (options.dtype == DataType::float8_e4m3) {
      if (!options.combine_staging) return;
      y = zeros(DataType::bfloat16, {received.x.shape[0], options.hidden});
    }
    group.combine(y, received.handle, {.weights = *received.topk_weights});
  }
}

/// Each form in both halves of the buffers. The number of pairs is even, so that later ones use the
/// halves that they would use without a warm-up.
void warm_low_latency(Group& group, const GroupOptions& options) {
  const Tensor topk =
      detail::even_topk(options.low_latency_max_tokens, options.top_k, options.experts);
  const Tensor x = zeros(DataType::bfloat16, {options.low_latency_max_tokens, options.hidden});
  const Tensor weights = zeros(DataType::float32, {options.low_latency_max_tokens, options.top_k});
  for (const Quantize quantize : {Quantize::none, Quantize::fp8})
    for (int round = 0; round < kRounds / 2; ++round) {
      if (quantize == Quantize::fp8 && options.hidden % 16 != 0) continue;
      const LowLatencyReceived received =
          group.low_latency_dispatch(x, topk, {.quantize = quantize}).receive();
      const bool in_place = quantize == Quantize::fp8;
      const TensorView y = in_place ? group.next_combine_buffer() : TensorView(received.x);
      group.low_latency_combine(y, topk, weights, received.handle, {.zero_copy = in_place})
          .receive();
    }
}

void HostBackend::warmup(Group& group) {
  const GroupOptions options = group_.state.options;
  populate_block(group_);
  if (options.low_latency_max_tokens > 0) populate_results(group_);
  // A rank that is slow in the above must not be masked for it.
  if (group_.state.options.mask_failed &&
      std::ranges::count(group_.masked, 0) == group_.state.shape.ranks)
    shoal::detail::sync(state_of(group_.state.team), "ep group warm-up");
  if (options.max_tokens > 0) warm_normal(group, options);
  if (options.low_latency_max_tokens > 0) warm_low_latency(group, options);
}

}  // namespace

std::unique_ptr<detail::Backend> make_backend(detail::GroupState& state,
                                              std::int32_t default_threads) {
  std::int32_t threads = state.options.threads;
  if (threads == 0) threads = static_cast<std::int32_t>(state.world->settings().ep_threads);
  return std::make_unique<HostBackend>(state, threads > 0 ? threads : default_threads);
}

}  // namespace shoal::ep::host
