// SPDX-License-Identifier: Apache-2.0
// internode_ranks.hpp: ranks on several nodes, each a thread with a fake GPU, and the results that
// their dispatches and combines must have.
#pragma once

#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checks/ep/encoded_rows.hpp"
#include "ep/cuda/device/faults.cuh"
#include "ep/cuda/group/kernel_counts.hpp"
#include "ep/cuda/normal/internode/kernels.cuh"
#include "ep/plan/cursor.hpp"
#include "ep/plan/routing.hpp"
#include "fake_gpu/array.hpp"
#include "fake_gpu/network.hpp"
#include "fake_gpu/nic_worlds.hpp"
#include "unit/ep/expert_shapes.hpp"

namespace shoal::ep::cuda {

using numeric::Bf16;
using test::fake_gpu::Array;
using test::fake_gpu::Network;
using test::fake_gpu::NicWorld;

struct Case {
  std::int32_t nodes = 2, size = 2, local_experts = 3, top_k = 4;
  std::int64_t hidden = 72;
  std::int32_t max_tokens = 13;
  std::size_t chunk = 700;  ///< bytes
  std::uint32_t depth = 2;
  std::int32_t blocks = 3, warps = 2;
  bool weighted = true, biased = false;
  std::int32_t scales = 0, alignment = 0;  ///< of expert-major blocks; 0: rank-major
  bool summed = false;  ///< expert output with a row for each top-k slot, outside the heap
  bool empty = false;   ///< rank 1 has no tokens, and no token goes to the last rank
  std::uint32_t seed = 1;
  Quantize quantize = Quantize::none;  ///< of the combines
  /// [ranks + 1]: GroupOptions::first_expert. Where it is empty, each rank has local_experts.
  std::vector<std::int32_t> first_expert = {};

  std::int32_t experts() const {
    return first_expert.empty() ? local_experts * ranks() : first_expert.back();
  }
  std::int32_t ranks() const { return nodes * size; }
  std::string describe() const {
    return std::to_string(nodes) + " x " + std::to_string(size) + ", alignment " +
           std::to_string(alignment) + ", scales " + std::to_string(scales) +
           (weighted ? ", weights" : "") + (biased ? ", biases" : "");
  }
};

struct Rank {
  Array<std::byte> block;
  Array<GroupMemory> memory{1};
  Array<FaultReport> report{1};
  Array<std::byte> record;
  Array<RailState> rails;
  Array<std::uint32_t> tiles{1};
  std::shared_ptr<const detail::RoutingState> routing;
  // Arrays of RoutingArrays, HandleArrays, NodeRouting and RailHandle.
  Array<std::int32_t> copies, rank_counts, expert_counts, expert_row_indices;
  Array<std::uint64_t> handle_epoch{1};
  Array<std::int32_t> first_row, received, handle_counts, expert_ends, source_ends, expert_rows,
      expert_first_row;
  Array<std::int32_t> node_copies, node_counts, node_tokens, rail_counts, rail_rows;
  Array<std::int64_t> topk_idx;
  Array<std::uint16_t> x, bias, out;
  Array<std::uint32_t> scales;
  Array<float> weights, out_weights;
  // Case::summed
  Array<std::uint16_t> y;
  Array<std::int32_t> topk_rows;
  Array<float> y_weights;
};

class Ranks {
 public:
  /// `by_nic`: by rank; empty: ranks send by the network of the tests.
  explicit Ranks(const Case& c, std::vector<NicWorld> by_nic = {})
      : c_(c),
        by_nic_(std::move(by_nic)),
        shape_(shape_of(c)),
        by_node_(test::node_shape(shape_)),
        expert_words_(expert_table_words(*shape_.partition)),
        layout_(shape_),
        rail_(shape_, layout_.notice_bytes, layout_.total, c.chunk, c.depth),
        record_(static_cast<std::uint32_t>(c.scales) * 4,
                static_cast<std::uint32_t>(c.alignment > 0 ? 1 : c.top_k)),
        random_(c.seed),
        ranks_(static_cast<std::size_t>(c.ranks())),
        timeouts_(ranks_.size(), std::chrono::seconds(30)) {
    for (std::int32_t me = 0; me < c.ranks(); ++me) draw(me);
    for (Rank& rank : ranks_) {
      rank.block =
          by_nic_.empty()
              ? Array<std::byte>(rail_.end)
              : Array<std::byte>(by_nic_[static_cast<std::size_t>(&rank - ranks_.data())].memory);
      std::memset(rank.block.data(), 0x5a, rail_.end);
      std::memset(rank.block.data(), 0, layout_.control_end);
      std::memset(rank.block.data() + rail_.start, 0, rail_.control_end - rail_.start);
      rank.rails = Array<RailState>(static_cast<std::size_t>(c.nodes));
      rank.record = Array<std::byte>(kernel_record_bytes(shape_.local_experts));
    }
  }

  /// Bytes of a rank's memory in the heap.
  static std::size_t memory_of(const Case& c) {
    const detail::Shape shape = shape_of(c);
    const detail::DeviceLayout layout(shape);
    return detail::RailLayout(shape, layout.notice_bytes, layout.total, c.chunk, c.depth).end;
  }

  /// Two dispatches, the second one with the layout of the first, and a combine after each.
  void run() {
    start_network();
    for (const bool cached : {false, true, false}) {
      each([&](std::int32_t me) { dispatch(me, cached); });
      if (::testing::Test::HasFatalFailure()) break;
      for (std::int32_t me = 0; me < c_.ranks(); ++me) check_rows(me, cached);
      for (std::int32_t me = 0; me < c_.ranks(); ++me) write_expert_output(me);
      each([&](std::int32_t me) { combine(me); });
      for (std::int32_t me = 0; me < c_.ranks(); ++me) check_sums(me);
      if (::testing::Test::HasFatalFailure()) break;
    }
    stop_network();
  }

  void start_network() {
    std::vector<std::byte*> heaps;
    for (Rank& rank : ranks_) heaps.push_back(rank.block.data());
    network_ = std::make_unique<Network>(heaps, c_.seed);
  }
  void stop_network() { network_.reset(); }
  Network& network() { return *network_; }

  void first_dispatch() {
    start_network();
    each([&](std::int32_t me) { dispatch(me, false); });
  }
  /// A dispatch, and one with its layout in which `pe` receives nothing.
  void lose(std::int32_t pe) {
    first_dispatch();
    set_timeout(std::chrono::milliseconds(200));
    network().lost_pe = pe;
    each([&](std::int32_t me) { dispatch_only(me, true); });
    stop_network();
  }

  /// Runs `body` on all ranks at the same time.
  template <typename Body>
  void each(Body&& body) {
    std::vector<std::thread> threads;
    for (std::int32_t me = 0; me < c_.ranks(); ++me)
      threads.emplace_back([&, me] {
        test::fake_gpu::run_concurrently();
        body(me);
      });
    for (std::thread& thread : threads) thread.join();
  }

  void dispatch(std::int32_t me, bool cached) {
    dispatch_only(me, cached);
    Rank& r = ranks_[static_cast<std::size_t>(me)];
    ASSERT_EQ(r.memory[0].aborted, 0U) << "fault " << r.report[0].fault << ", rank " << me;
  }
  void dispatch_only(std::int32_t me, bool cached) {
    Rank& r = ranks_[static_cast<std::size_t>(me)];
    launch_list_node_tokens({node_routing(r), tokens(me)}, nullptr);
    InternodeDispatch params{};
    NormalDispatch& normal = params.normal;
    normal.group = group_of(me);
    normal.x = reinterpret_cast<const std::byte*>(r.x.data());
    normal.row_bytes = row_bytes();
    normal.tokens = tokens(me);
    normal.copies_per_token = std::min(c_.top_k, c_.ranks());
    normal.copies = r.copies.data();
    normal.write_indices = cached ? 0 : 1;
    normal.weights = c_.weighted ? r.weights.data() : nullptr;
    normal.scales = c_.scales > 0 ? r.scales.data() : nullptr;
    normal.scale_stride = 1;  // columns
    normal.scale_step = c_.max_tokens;
    normal.scale_count = static_cast<std::uint32_t>(c_.scales);
    normal.routing = {r.topk_idx.data(),           r.copies.data(),
                      r.rank_counts.data(),        r.expert_counts.data(),
                      r.expert_row_indices.data(), nullptr};
    normal.handle = handle_of(r);
    normal.cached = cached ? 1 : 0;
    normal.region = layout_.arena;
    normal.region_rows = region_rows();
    normal.expert_alignment = static_cast<std::uint32_t>(c_.alignment);
    normal.count_alignment = static_cast<std::uint32_t>(std::max(1, c_.alignment));
    normal.dtype = static_cast<std::uint32_t>(DataType::bfloat16);
    normal.fill = 1;
    params.grid = grid_of(me);
    params.routing = node_routing(r);
    params.rail = rail_handle(r);
    launch_internode_dispatch(params, plan(), nullptr);
  }

  /// Fills the rows that a combine of `me` sends.
  void write_expert_output(std::int32_t me) {
    for (std::int64_t i = 0; i < region_rows() * c_.hidden; ++i) row_at(me, 0)[i] = value();
    auto* const weights = reinterpret_cast<float*>(rank(me).block.data() + layout_.staging_weights);
    for (std::int64_t i = 0; i < shape_.max_received() * c_.top_k; ++i) weights[i] = weight();
    if (c_.summed) write_slot_output(me);
  }
  void combine(std::int32_t me) {
    combine_only(me);
    Rank& r = ranks_[static_cast<std::size_t>(me)];
    ASSERT_EQ(r.memory[0].aborted, 0U) << "fault " << r.report[0].fault << ", rank " << me;
  }
  void combine_only(std::int32_t me) {
    Rank& r = ranks_[static_cast<std::size_t>(me)];
    InternodeCombine params{};
    NormalCombine& normal = params.normal;
    normal.group = group_of(me);
    normal.y = output();
    normal.y_weights = c_.weighted ? layout_.staging_weights : detail::kNoRoom;
    normal.weight_stride = static_cast<std::uint32_t>(c_.alignment > 0 ? 1 : c_.top_k) * 4;
    normal.y_rows = region_rows();
    normal.row_bytes = row_bytes();
    normal.tokens = tokens(me);
    normal.copies_per_token = c_.alignment > 0 ? c_.top_k : std::min(c_.top_k, c_.ranks());
    normal.copies = r.copies.data();
    normal.expert_major = c_.alignment > 0 ? 1 : 0;
    normal.topk_idx = r.topk_idx.data();
    normal.expert_row_indices = r.expert_row_indices.data();
    normal.rank_counts = r.rank_counts.data();
    normal.expert_counts = r.expert_counts.data();
    normal.handle = handle_of(r);
    if (c_.biased) normal.bias[1] = reinterpret_cast<const std::byte*>(r.bias.data());
    normal.out = reinterpret_cast<std::byte*>(r.out.data());
    normal.out_weights = c_.weighted ? r.out_weights.data() : nullptr;
    normal.dtype = static_cast<std::uint32_t>(DataType::bfloat16);
    normal.quantize = static_cast<std::uint32_t>(c_.quantize);
    if (c_.summed) {
      normal.staging.rows = reinterpret_cast<const std::byte*>(r.y.data());
      normal.staging.topk_rows = r.topk_rows.data();
      normal.staging.row_count = received(me) * c_.top_k;
      if (c_.weighted) normal.staging.weights = r.y_weights.data();
      launch_stage_output({normal, 0}, 2, nullptr);
      check_staged(me);
    }
    params.grid = grid_of(me);
    params.routing = node_routing(r);
    params.rail = rail_handle(r);
    launch_internode_combine(params, plan(), nullptr);
  }

  /// Counters of the kernels of a rank, also as statistics of its group. `ended` false: then no
  /// operation has ended.
  shoal::detail::record::KernelCounts counts(std::int32_t me, Statistics& statistics,
                                             bool ended = true) {
    Array<std::byte> copy(kernel_record_bytes(shape_.local_experts));
    std::memcpy(copy.data(), rank(me).record.data(), kernel_record_bytes(shape_.local_experts));
    auto& record = *reinterpret_cast<KernelRecord*>(copy.data());
    Epochs done{};
    if (ended) done.of_kind[0] = rank(me).memory[0].epoch;
    const NodeBorders borders{.rails = true, .remote_ranks = {}};
    add_last_launches(record, done, borders);
    add_counts(record, statistics);
    return counts_of(record, done, shape_, borders, me, 0);
  }

  const detail::DeviceLayout& layout() const { return layout_; }
  Rank& rank(std::int32_t r) { return ranks_[static_cast<std::size_t>(r)]; }
  void set_timeout(std::chrono::nanoseconds timeout) { std::ranges::fill(timeouts_, timeout); }
  void set_timeout(std::int32_t rank, std::chrono::nanoseconds timeout) {
    timeouts_[static_cast<std::size_t>(rank)] = timeout;
  }

 private:
  static detail::Shape shape_of(const Case& c) {
    detail::Shape shape;
    shape.nodes = c.nodes;
    shape.ranks = c.ranks();
    test::spread_experts(shape, c.experts(), c.first_expert);
    shape.top_k = c.top_k;
    shape.hidden = c.hidden;
    shape.max_tokens = c.max_tokens;
    shape.max_scales = c.scales;
    shape.live_results = c.alignment > 0 ? 2 + c.top_k / 8 : 2;  // room for a row of each slot
    shape.max_row_bytes = shape.max_combine_row_bytes = static_cast<std::size_t>(c.hidden) * 2;
    return shape;
  }
  std::uint32_t row_bytes() const { return static_cast<std::uint32_t>(c_.hidden) * 2; }
  std::int64_t region_rows() const {
    const std::size_t room = c_.alignment > 0 ? layout_.arena_bytes : layout_.largest_result;
    return detail::rows_that_fit(1 << 20, room, [&](std::int64_t rows) {
      return detail::RegionLayout(static_cast<std::uint64_t>(rows), row_bytes(), record_.bytes)
          .total;
    });
  }
  std::int32_t tokens(std::int32_t me) {
    return static_cast<std::int32_t>(rank(me).routing->tokens);
  }
  NormalPlan plan() const {
    NormalPlan plan;
    plan.blocks = c_.blocks;
    plan.warps = c_.warps;
    return plan;
  }
  NodeRouting node_routing(Rank& r) const {
    return {r.node_copies.data(), r.node_counts.data(), r.node_tokens.data(), c_.max_tokens,
            std::min(c_.top_k, c_.nodes)};
  }
  RailHandle rail_handle(Rank& r) const {
    return {r.rail_counts.data(), r.rail_rows.data(), c_.max_tokens};
  }
  HandleArrays handle_of(Rank& r) const {
    return {r.handle_epoch.data(),  r.first_row.data(),       r.received.data(),
            r.handle_counts.data(), r.expert_ends.data(),     r.source_ends.data(),
            r.expert_rows.data(),   r.expert_first_row.data()};
  }
  DeviceGroup group_of(std::int32_t me) {
    DeviceGroup group{};
    group.layout = layout_;
    for (std::int32_t other = 0; other < c_.ranks(); ++other)
      if (other / c_.size == me / c_.size) group.block[other] = rank(other).block.data();
    group.memory = rank(me).memory.data();
    group.report = rank(me).report.data();
    group.record = reinterpret_cast<KernelRecord*>(rank(me).record.data());
    group.timeout_ns = static_cast<std::uint64_t>(timeouts_[static_cast<std::size_t>(me)].count());
    group.ranks = c_.ranks();
    group.me = me;
    set_experts(group, *shape_.partition, me, expert_words_.data());
    group.top_k = c_.top_k;
    return group;
  }
  NodeGrid grid_of(std::int32_t me) {
    NodeGrid grid{};
    grid.world.heap = rank(me).block.data();
    if (!by_nic_.empty()) {
      grid.world = by_nic_[static_cast<std::size_t>(me)].world;
      grid.path = NetworkPath::nic;
    }
    grid.layout = rail_;
    grid.rails = rank(me).rails.data();
    grid.tiles = rank(me).tiles.data();
    grid.nodes = c_.nodes;
    grid.size = c_.size;
    grid.mine = me / c_.size;
    grid.rail = me % c_.size;
    grid.first_expert = by_node_.first_expert(grid.mine);
    grid.experts = by_node_.experts_of(grid.mine);
    for (std::int32_t other = 0; other < c_.ranks(); ++other) grid.pes[other] = other;
    return grid;
  }

  std::uint16_t value() {
    const float magnitude = std::uniform_real_distribution<float>(-2, 2)(random_);
    return numeric::to_bf16(random_() % 8 == 0 ? magnitude * 4096 : magnitude).bits;
  }

  float weight() { return static_cast<float>(random_() % 1024) / 1024; }  // sums are exact

  void draw(std::int32_t me) {
    Rank& r = rank(me);
    const std::size_t max_tokens = c_.max_tokens, ranks = c_.ranks(), experts = shape_.experts,
                      top_k = c_.top_k;
    const std::int32_t used = c_.empty ? shape_.first_expert(c_.ranks() - 1) : shape_.experts;
    const std::int64_t tokens =
        c_.empty && me == 1 ? 0 : c_.max_tokens - static_cast<std::int64_t>(random_() % 4);
    Tensor topk = Tensor::empty(DataType::int64, {tokens, c_.top_k});
    std::vector<std::int64_t> order(static_cast<std::size_t>(used));
    for (std::size_t e = 0; e < order.size(); ++e) order[e] = static_cast<std::int64_t>(e);
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::shuffle(order.begin(), order.end(), random_);
      for (std::size_t k = 0; k < top_k; ++k)
        topk.as<std::int64_t>()[t * c_.top_k + static_cast<std::int64_t>(k)] =
            random_() % 8 == 0 ? -1 : order[k];
    }
    r.routing = detail::make_routing(topk, shape_);
    const auto list = [](const auto& from, std::size_t count, int fill = 0) {
      Array<std::int32_t> array(count, fill);
      for (std::size_t i = 0; i < from.size(); ++i) array[i] = from[i];
      return array;
    };
    r.topk_idx = Array<std::int64_t>(max_tokens * top_k);
    std::memcpy(r.topk_idx.data(), topk.data, topk.bytes());
    r.rank_counts = list(r.routing->tokens_per_rank, ranks);
    r.expert_counts = list(r.routing->tokens_per_expert, experts);
    r.expert_row_indices = list(r.routing->expert_row_index, max_tokens * top_k);
    const std::size_t copies = std::min(top_k, ranks);
    r.copies = Array<std::int32_t>(max_tokens * copies, 0xff);
    const std::size_t node_copies = std::min<std::size_t>(top_k, c_.nodes);
    r.node_copies = Array<std::int32_t>(max_tokens * node_copies, 0xff);
    r.node_counts = Array<std::int32_t>(c_.nodes);
    r.node_tokens = Array<std::int32_t>(c_.nodes * max_tokens);
    r.rail_counts = Array<std::int32_t>(c_.nodes);
    r.rail_rows = Array<std::int32_t>(c_.nodes * max_tokens * top_k);
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::size_t i = 0;
      for (const detail::Copy& copy : r.routing->copies_of(t))
        r.copies[static_cast<std::size_t>(t) * copies + i++] = pack_copy(copy.rank, copy.row);
      std::int32_t nodes[kMaxTopK];
      const auto count = detail::ranks_by_last_topk_slot(r.routing->experts_of(t), by_node_, nodes);
      for (std::int32_t n = 0; n < count; ++n)
        r.node_copies[static_cast<std::size_t>(t) * node_copies + n] =
            pack_copy(nodes[n], r.node_counts[nodes[n]]++);
    }
    for (Array<std::int32_t>* array : {&r.first_row, &r.received, &r.source_ends})
      *array = Array<std::int32_t>(ranks);
    for (Array<std::int32_t>* array :
         {&r.handle_counts, &r.expert_ends, &r.expert_rows, &r.expert_first_row})
      *array = Array<std::int32_t>(experts + 1);
    const std::size_t elements = max_tokens * static_cast<std::size_t>(c_.hidden);
    r.x = Array<std::uint16_t>(elements);
    r.bias = Array<std::uint16_t>(elements);
    for (Array<std::uint16_t>* array : {&r.x, &r.bias})
      for (std::size_t i = 0; i < elements; ++i) (*array)[i] = value();
    r.scales = Array<std::uint32_t>(max_tokens * static_cast<std::size_t>(c_.scales));
    for (std::size_t i = 0; i < max_tokens * c_.scales; ++i)
      r.scales[i] = static_cast<std::uint32_t>(random_());
    r.weights = Array<float>(max_tokens * top_k);
    r.out_weights = Array<float>(max_tokens * top_k);
    for (std::size_t i = 0; i < max_tokens * top_k; ++i)
      r.weights[i] = std::uniform_real_distribution<float>(0, 1)(random_);
    r.out = Array<std::uint16_t>(elements);
  }

  // The reference.

  /// Calls visit(rank, row, topk_slot) for the rows of a token in the order of the routing;
  /// topk_slot is -1 if rank-major.
  template <typename Visit>
  void for_rows(std::int32_t source, std::int64_t token, Visit&& visit) {
    Rank& r = rank(source);
    if (c_.alignment == 0) {
      for (const detail::Copy& copy : r.routing->copies_of(token)) {
        std::int64_t first = 0;
        for (std::int32_t before = 0; before < source; ++before)
          first += rank(before).routing->tokens_per_rank[static_cast<std::size_t>(copy.rank)];
        visit(copy.rank, first + copy.row, -1);
      }
      return;
    }
    std::vector<const std::int32_t*> counts;
    for (Rank& other : ranks_) counts.push_back(other.routing->tokens_per_expert.data());
    const detail::ExpertRows rows = detail::make_expert_rows(shape_, counts, source, c_.alignment);
    for (std::int32_t k = 0; k < c_.top_k; ++k) {
      const std::int64_t expert = r.routing->experts_of(token)[static_cast<std::size_t>(k)];
      if (expert < 0) continue;
      visit(shape_.rank_of(expert),
            rows.first[static_cast<std::size_t>(expert)] +
                r.routing->expert_row_index[static_cast<std::size_t>(token * c_.top_k + k)],
            k);
    }
  }
  std::byte* region(std::int32_t at) { return rank(at).block.data() + layout_.arena; }
  std::uint16_t* row_at(std::int32_t at, std::int64_t row) {
    return reinterpret_cast<std::uint16_t*>(region(at) + row * row_bytes());
  }
  std::byte* record_at(std::int32_t at, std::int64_t row) {
    const detail::RegionLayout layout(static_cast<std::uint64_t>(region_rows()), row_bytes(),
                                      record_.bytes);
    return region(at) + layout.records + row * record_.bytes;
  }

  void check_rows(std::int32_t me, bool cached) {
    Rank& r = rank(me);
    for (std::int64_t t = 0; t < r.routing->tokens; ++t)
      for_rows(me, t, [&](std::int32_t at, std::int64_t row, std::int32_t slot) {
        SCOPED_TRACE("rank " + std::to_string(me) + ", token " + std::to_string(t) + " at " +
                     std::to_string(at) + ", row " + std::to_string(row) + "; " + c_.describe());
        ASSERT_EQ(std::memcmp(row_at(at, row), r.x.data() + t * c_.hidden, row_bytes()), 0);
        const std::byte* const record = record_at(at, row);
        for (std::int32_t s = 0; s < c_.scales; ++s)
          ASSERT_EQ(reinterpret_cast<const std::uint32_t*>(record)[s],
                    r.scales[static_cast<std::size_t>(s * c_.max_tokens + t)]);
        if (!cached || c_.alignment == 0)
          ASSERT_EQ(*reinterpret_cast<const std::int32_t*>(record + record_.source_token), t);
        for (std::int32_t k = 0; k < (slot < 0 ? c_.top_k : 1); ++k) {
          const std::size_t at_slot =
              static_cast<std::size_t>(t * c_.top_k + (slot < 0 ? k : slot));
          const std::int64_t expert = r.topk_idx[at_slot];
          const bool there = expert >= 0 && shape_.rank_of(expert) == at;
          ASSERT_EQ(reinterpret_cast<const std::int64_t*>(record + record_.topk_idx)[k] == -1,
                    !there);
          if (there)
            ASSERT_EQ(static_cast<std::int32_t>(
                          reinterpret_cast<const std::int64_t*>(record + record_.topk_idx)[k]),
                      shape_.local_of(expert));
          if (c_.weighted)
            ASSERT_EQ(reinterpret_cast<const float*>(record + record_.weights)[k],
                      there ? r.weights[at_slot] : 0.0F);
        }
      });
    if (c_.alignment == 0) ASSERT_EQ(r.received[static_cast<std::size_t>(me)], received(me));
  }
  std::int32_t received(std::int32_t me) {
    std::int32_t rows = 0;
    for (Rank& source : ranks_)
      rows += source.routing->tokens_per_rank[static_cast<std::size_t>(me)];
    return rows;
  }

  void write_slot_output(std::int32_t me) {
    Rank& r = rank(me);
    const auto rows = static_cast<std::size_t>(received(me) * c_.top_k);
    std::vector<std::int32_t> order(rows);
    for (std::size_t i = 0; i < rows; ++i) order[i] = static_cast<std::int32_t>(i);
    std::shuffle(order.begin(), order.end(), random_);
    r.y = Array<std::uint16_t>(rows * static_cast<std::size_t>(c_.hidden));
    r.topk_rows = Array<std::int32_t>(rows);
    r.y_weights = Array<float>(rows);
    for (std::size_t i = 0; i < rows * static_cast<std::size_t>(c_.hidden); ++i) r.y[i] = value();
    for (std::size_t i = 0; i < rows; ++i) {
      r.topk_rows[i] = random_() % 3 == 0 ? -1 : order[i];
      r.y_weights[i] = weight();
    }
  }
  /// Offset of the rows that the ranks of a node fetch.
  std::size_t output() const { return c_.summed ? layout_.staging : layout_.arena; }
  const std::uint16_t* output_at(std::int32_t at, std::int64_t row) {
    return reinterpret_cast<const std::uint16_t*>(rank(at).block.data() + output() +
                                                  row * row_bytes());
  }
  void check_staged(std::int32_t me) {
    Rank& r = rank(me);
    const auto* const weights =
        reinterpret_cast<const float*>(r.block.data() + layout_.staging_weights);
    for (std::int64_t row = 0; row < received(me); ++row)
      for (std::int64_t h = 0; h < c_.hidden; ++h) {
        float sum = 0;
        for (std::int32_t k = 0; k < c_.top_k; ++k) {
          const auto slot = static_cast<std::size_t>(row * c_.top_k + k);
          const std::int32_t from = r.topk_rows[slot];
          if (from >= 0)
            sum += numeric::to_float(Bf16{r.y[static_cast<std::size_t>(from * c_.hidden + h)]});
          if (c_.weighted && h == 0)
            ASSERT_EQ(weights[slot], from < 0 ? 0 : r.y_weights[static_cast<std::size_t>(from)]);
        }
        ASSERT_EQ(output_at(me, row)[h], numeric::to_bf16(sum).bits) << "row " << row;
      }
  }
  void check_sums(std::int32_t me) {
    Rank& r = rank(me);
    for (std::int64_t t = 0; t < r.routing->tokens; ++t) {
      std::int32_t nodes[kMaxTopK];
      const auto count = detail::ranks_by_last_topk_slot(r.routing->experts_of(t), by_node_, nodes);
      std::vector<float> weights(static_cast<std::size_t>(c_.top_k), 0.0F);
      std::vector<std::vector<float>> levels(
          static_cast<std::size_t>(count), std::vector<float>(static_cast<std::size_t>(c_.hidden)));
      for (std::int32_t n = 0; n < count; ++n)
        for_rows(me, t, [&](std::int32_t at, std::int64_t row, std::int32_t slot) {
          if (at / c_.size != nodes[n]) return;
          for (std::int64_t h = 0; h < c_.hidden; ++h)
            levels[static_cast<std::size_t>(n)][static_cast<std::size_t>(h)] +=
                numeric::to_float(Bf16{output_at(at, row)[h]});
          const auto* const of_rank =
              reinterpret_cast<const float*>(rank(at).block.data() + layout_.staging_weights);
          for (std::int32_t k = 0; k < c_.top_k; ++k)
            if (slot < 0)
              weights[static_cast<std::size_t>(k)] += of_rank[row * c_.top_k + k];
            else if (slot == k)
              weights[static_cast<std::size_t>(k)] = of_rank[row];
        });
      for (std::vector<float>& level : levels) pass_combine(c_.quantize, level);
      for (std::int64_t h = 0; h < c_.hidden; ++h) {
        const auto i = static_cast<std::size_t>(t * c_.hidden + h);
        float sum = c_.biased ? numeric::to_float(Bf16{r.bias[i]}) : 0;
        for (const auto& level : levels) sum += level[static_cast<std::size_t>(h)];
        ASSERT_EQ(r.out[i], numeric::to_bf16(sum).bits)
            << "rank " << me << ", token " << t << ", channel " << h << "; " << c_.describe();
      }
      for (std::int32_t k = 0; c_.weighted && k < c_.top_k; ++k)
        ASSERT_EQ(r.out_weights[static_cast<std::size_t>(t * c_.top_k + k)],
                  weights[static_cast<std::size_t>(k)])
            << "rank " << me << ", token " << t << ", slot " << k << "; " << c_.describe();
    }
  }

  const Case c_;
  const std::vector<NicWorld> by_nic_;
  const detail::Shape shape_;
  const detail::Shape by_node_;  ///< the experts of each node, as if it were a rank
  const std::vector<std::int32_t> expert_words_;
  const detail::DeviceLayout layout_;
  const detail::RailLayout rail_;
  const detail::SideRecord record_;
  std::mt19937 random_;
  std::vector<Rank> ranks_;
  std::vector<std::chrono::nanoseconds> timeouts_;
  std::unique_ptr<Network> network_;
};

}  // namespace shoal::ep::cuda
