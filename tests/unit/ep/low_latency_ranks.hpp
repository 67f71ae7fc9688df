// SPDX-License-Identifier: Apache-2.0
// low_latency_ranks.hpp: ranks with fake GPUs in low-latency mode, one after another in one thread,
// and the results that their dispatches and combines must have.
#pragma once

#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "checks/ep/encoded_rows.hpp"
#include "ep/cuda/device/faults.cuh"
#include "fake_gpu/nic_worlds.hpp"
#include "fake_gpu/requests.hpp"
#include "unit/ep/low_latency_rank.hpp"

namespace shoal::ep::cuda {

using numeric::Bf16;
using test::fake_gpu::network;
using test::fake_gpu::NicWorld;

class Ranks {
 public:
  /// `by_nic`: by rank; empty: ranks send by the network of the tests.
  explicit Ranks(const Case& c, const std::vector<NicWorld>& by_nic = {})
      : c_(c), shape_(shape_of(c)), layout_(shape_), by_nic_(!by_nic.empty()) {
    network = {};
    ranks_.reserve(static_cast<std::size_t>(c.ranks));
    limits_.multiprocessors = 2;
    limits_.most_blocks = c.blocks;
    for (std::int32_t rank = 0; rank < c.ranks; ++rank)
      ranks_.emplace_back(shape_, by_nic_ ? Array<std::byte>(by_nic[rank].memory)
                                          : Array<std::byte>(layout_.total));
    for (std::int32_t me = 0; me < c.ranks; ++me) {
      Rank& rank = ranks_[me];
      DeviceGroup& group = rank.group;
      group.layout = layout_;
      rank.remote.world.my_pe = me;
      rank.remote.world.heap = rank.block.data();
      if (by_nic_) rank.remote.world = by_nic[me].world;
      if (by_nic_) rank.remote.path = NetworkPath::nic;
      network.heaps.push_back(rank.block.data());
      for (std::int32_t other = 0; other < c.ranks; ++other) {
        group.block[other] = ranks_[other].block.data();
        if (!c.is_remote(me, other)) continue;
        rank.remote.rank[rank.remote.count] = static_cast<std::int16_t>(other);
        rank.remote.pe[rank.remote.count++] = static_cast<std::int16_t>(other);
        // Its initial contents are never sent.
        if (by_nic_)
          group.block[other] = by_nic[me].memory + rank.remote.count * layout_.total;
        else
          group.block[other] = rank.outboxes.emplace_back(layout_.total).data();
        std::memset(group.block[other], 0x11, layout_.total);
        std::memset(group.block[other], 0, layout_.control_end);
      }
      group.memory = rank.memory.data();
      group.report = rank.report.data();
      group.record = reinterpret_cast<KernelRecord*>(rank.kernel_record.data());
      group.timeout_ns = 30'000'000'000;
      group.ranks = c.ranks, group.me = me;
      set_experts(group, *shape_.partition, me, expert_words_.data());
      group.top_k = c.top_k, group.none_expert = c.none_expert;
      group.mask_failed = c.masks ? 1 : 0;
      group.finds_other_mode = rank.remote.count == 0 && !c.masks ? 1 : 0;
      std::memset(rank.block.data() + layout_.slot_weights, 0xff,
                  layout_.combine_weights - layout_.slot_weights);
      std::memset(rank.block.data() + layout_.combine_rows, 0xff,
                  layout_.total - layout_.combine_rows);
    }
  }

  /// Bytes of a rank's memory in the heap: its block and an outbox for each rank.
  static std::size_t memory_of(const Case& c) {
    return static_cast<std::size_t>(c.ranks) * detail::DeviceLayout(shape_of(c)).total;
  }

  /// Selects the kernels by which ranks send, on the network of the tests.
  void use(NetworkPath path) {
    for (Rank& rank : ranks_) rank.remote.path = path;
  }

  /// Shows a rank its group of normal mode.
  void find_other_mode(std::int32_t rank, const DeviceGroup& normal) {
    ranks_[rank].group.finds_other_mode = 1;
    ranks_[rank].memory.data()->other_mode = &normal;
  }

  /// Sets the format of the rows of later dispatches.
  void quantize(Quantize quantize) { quantize_ = quantize; }

  void set_timeout(std::chrono::nanoseconds timeout) {
    for (Rank& rank : ranks_)
      rank.group.timeout_ns = rank.remote.world.timeout_ns =
          static_cast<std::uint64_t>(timeout.count());
  }
  // Parts of a dispatch and of a deferred combine, which may fail.
  void draw() {
    for (Rank& rank : ranks_) draw_tokens(rank);
  }
  void send(std::int32_t rank) { send_dispatch(ranks_[rank], false); }
  void receive(std::int32_t rank) { launch_receive(ranks_[rank], false); }
  void draw_outputs() {
    for (Rank& rank : ranks_) draw_outputs(rank, Values::plain);
  }
  void send_combine(std::int32_t rank) { send_combine(ranks_[rank], {.deferred = true}, false); }
  void receive_combine(std::int32_t rank) {
    receive_combine(ranks_[rank], {.deferred = true}, false);
  }
  std::byte* block(std::int32_t rank) { return ranks_[rank].block.data(); }
  const FaultReport& report(std::int32_t rank) { return *ranks_[rank].report.data(); }

  void stop_counting() {
    for (Rank& rank : ranks_) rank.group.record = nullptr;
  }
  const std::vector<std::int64_t>& topk(std::int32_t rank) const { return ranks_[rank].topk_idx; }
  /// Counters of the kernels of a rank, and the same as statistics of its group. `ended`
  /// false: as if no operation had ended.
  shoal::detail::record::KernelCounts counts(std::int32_t me, Statistics& statistics,
                                             bool ended = true) {
    Array<std::byte> copy(kernel_record_bytes(shape_.local_experts));
    std::memcpy(copy.data(), ranks_[me].kernel_record.data(),
                kernel_record_bytes(shape_.local_experts));
    auto& record = *reinterpret_cast<KernelRecord*>(copy.data());
    Epochs done{};
    if (ended) std::memcpy(&done, ranks_[me].memory.data(), sizeof done);
    NodeBorders borders;
    for (std::int32_t other = 0; other < c_.ranks; ++other)
      if (c_.is_remote(me, other)) borders.remote_ranks.push_back(other);
    add_last_launches(record, done, borders);
    add_counts(record, statistics);
    return counts_of(record, done, shape_, borders, me, 0);
  }

  void dispatch(bool travelled = false) {
    draw();
    for (Rank& rank : ranks_) send_dispatch(rank, travelled);
    deliver();
    for (Rank& rank : ranks_) receive_dispatch(rank, travelled);
    deliver();
    for (Rank& rank : ranks_) check_received(rank, travelled);
  }

  /// A dispatch and a combine, in which rank r combines as combines[r] says.
  void round(const std::vector<Combine>& combines, Values values, bool travelled = false) {
    dispatch(travelled);
    combine(combines, values, travelled);
  }
  void round(const Combine& combine, Values values, bool travelled = false) {
    round(std::vector<Combine>(ranks_.size(), combine), values, travelled);
  }
  void combine(const Combine& combine_as, Values values, bool travelled = false) {
    combine(std::vector<Combine>(ranks_.size(), combine_as), values, travelled);
  }
  void combine(const std::vector<Combine>& combines, Values values, bool travelled) {
    for (Rank& rank : ranks_) draw_outputs(rank, values);
    for (Rank& rank : ranks_)
      if (sums_internode(rank, combines[me(rank)], travelled))
        launch_low_latency_forward_weights(
            {rank.group, sizes(), rank.remote, rank.handle(), rank.weights.data(), tokens(rank)},
            limits_, nullptr);
    deliver();
    for (Rank& rank : ranks_) {
      send_combine(rank, combines[me(rank)], travelled);
      ASSERT_EQ(rank.report.data()->fault, 0u);
      deliver();
    }
    for (Rank& rank : ranks_) {
      receive_combine(rank, combines[me(rank)], travelled);
      ASSERT_EQ(rank.report.data()->fault, 0u);
      check(rank, combines, travelled);
    }
    deliver();
    for (Rank& rank : ranks_) check_cleared(rank);
  }

  /// Lets all puts in flight arrive. A NIC delivers by itself.
  void deliver() {
    ++serial_;
    if (!by_nic_) network.deliver(static_cast<std::uint32_t>(serial_));
  }
  const LaunchRecord& launch(std::int32_t rank, KernelKind kind, std::uint64_t epoch) {
    return reinterpret_cast<const KernelRecord*>(ranks_[rank].kernel_record.data())
        ->launches[static_cast<std::uint32_t>(kind)][epoch % kLaunches];
  }

 private:
  static std::size_t me(const Rank& rank) { return static_cast<std::size_t>(rank.group.me); }
  std::int32_t tokens(const Rank& rank) const { return c_.tokens[me(rank)]; }
  std::int64_t slots() const { return shape_.low_latency_rows(); }
  LowLatencySizes sizes() const {
    return {static_cast<std::int32_t>(shape_.hidden),
            static_cast<std::int32_t>(shape_.low_latency_max_tokens)};
  }
  float uniform() { return std::uniform_real_distribution<float>(-1, 1)(random_); }
  void draw_tokens(Rank& rank) {
    const auto n = static_cast<std::size_t>(tokens(rank));
    rank.x.resize(n * shape_.hidden + 1);
    for (std::uint16_t& value : rank.x) value = numeric::to_bf16(uniform()).bits;
    if (quantize_ >= Quantize::mxfp8)
      draw_extremes(std::span(rank.x).first(n * shape_.hidden), random_);
    rank.topk_idx.assign(n * c_.top_k + 1, c_.none_expert);
    rank.weights.resize(n * c_.top_k + 1);
    for (float& weight : rank.weights) weight = uniform();
    std::vector<std::int64_t> experts(c_.experts);
    for (std::size_t token = 0; token < n; ++token) {
      std::iota(experts.begin(), experts.end(), 0);
      std::ranges::shuffle(experts, random_);
      for (std::int32_t k = 0; k < c_.top_k; ++k)
        if (random_() % 8 != 0) rank.topk_idx[token * c_.top_k + k] = experts[k];
    }
  }

  void send_dispatch(Rank& rank, bool travelled) {
    LowLatencyDispatchSend call{};
    call.group = rank.group;
    call.sizes = sizes();
    call.x = rank.x.data();
    call.topk_idx = rank.topk_idx.data();
    call.topk_is_64 = 1;
    call.weights = travelled ? rank.weights.data() : nullptr;
    call.tokens = tokens(rank);
    call.quantize = static_cast<std::uint32_t>(quantize_);
    call.row = row();
    call.global_scale = &kGlobalScale;
    call.flags = 1;
    call.handle = rank.handle();
    call.serial = ++serial_;
    launch_low_latency_dispatch_send(call, limits_, nullptr);
    if (rank.remote.count > 0)
      launch_low_latency_forward_dispatch(
          {rank.group, sizes(), rank.remote, call.tokens, row(), travelled ? 1U : 0U, call.flags},
          limits_, nullptr);
  }

  void receive_dispatch(Rank& rank, bool travelled) {
    launch_receive(rank, travelled);
    ASSERT_EQ(rank.report.data()->fault, 0u);
  }
  void launch_receive(Rank& rank, bool travelled) {
    LowLatencyDispatchReceive call{};
    call.group = rank.group;
    call.sizes = sizes();
    call.has_weights = travelled ? 1 : 0;
    call.x = reinterpret_cast<std::byte*>(rank.received.data());
    call.counts = rank.counts.data();
    call.source_token = rank.source_token.data();
    call.layout = rank.layout.data();
    call.longest_wait = rank.waits.data();
    call.handle = rank.handle();
    call.quantize = static_cast<std::uint32_t>(quantize_);
    call.row = row();
    call.scales = rank.scales.data();
    call.global_scale = &kGlobalScale;
    call.scale_words = {quantize_, ScaleLayout::columns, shape_.hidden, slots()};
    call.grants = 1;
    wait_arrival(rank, Arrival::dispatch);
    launch_low_latency_dispatch_receive(call, limits_, nullptr);
    forward_signals(rank);
  }

  WireRow row() const { return {quantize_, shape_.hidden, layout_.slot_bytes}; }
  bool sums_internode(const Rank& rank, const Combine& combine, bool travelled) const {
    return rank.remote.count > 0 && is_sums(combine.form) && !combine.deferred && !travelled &&
           !c_.masks;
  }
  /// True if the rank sends expert outputs in place of sums.
  bool sends_unsummed(const Rank& rank, const Combine& combine, bool travelled) const {
    return is_sums(combine.form) &&
           detail::sends_unsummed(travelled, combine.deferred, rank.remote.count > 0 && c_.masks);
  }
  void wait_arrival(Rank& rank, Arrival what) {
    if (rank.remote.count == 0) return;
    launch_low_latency_wait_arrival({rank.group, rank.remote, what, rank.waits.data()}, limits_,
                                    nullptr);
  }
  void forward_signals(Rank& rank) {
    if (rank.remote.count > 0)
      launch_low_latency_forward_signals({rank.group, rank.remote}, limits_, nullptr);
  }

  /// Every row has the bytes of its token, and its weights.
  void check_received(Rank& rank, bool travelled) {
    const std::size_t bytes = detail::RowFormat(quantize_).row_bytes(shape_.hidden);
    const detail::ScaleWords words(quantize_, ScaleLayout::columns, shape_.hidden, slots());
    for (Rank& source : ranks_)
      for (std::int32_t token = 0; token < tokens(source); ++token)
        for (std::int32_t k = 0; k < c_.top_k; ++k) {
          const std::size_t at = static_cast<std::size_t>(token) * c_.top_k + k;
          if (rank_of(source, at) != rank.group.me) continue;
          const std::size_t slot =
              (source.group.me * shape_.low_latency_max_tokens + token) * c_.top_k + k;
          const std::int64_t row = rank.rows.data()[slot];
          ASSERT_EQ(rank.source_token.data()[row], token);
          if (travelled) ASSERT_EQ(rank.kept.data()[slot], source.weights[at]);
          const auto* const got = reinterpret_cast<const std::byte*>(rank.received.data()) +
                                  static_cast<std::size_t>(row) * bytes;
          const EncodedRow wanted(quantize_, {&source.x[token * shape_.hidden],
                                              static_cast<std::size_t>(shape_.hidden)});
          ASSERT_EQ(std::memcmp(got, wanted.codes.data(), bytes), 0)
              << "rank " << me(rank) << ", row " << row;
          for (std::uint32_t word = 0; word < words.words; ++word)
            ASSERT_EQ(rank.scales.data()[words.index(row / slots(), row % slots(), word)],
                      wanted.scales[word])
                << "rank " << me(rank) << ", row " << row << ", word " << word;
        }
  }

  /// NaNs in rows that no token has.
  void draw_outputs(Rank& rank, Values values) {
    rank.y.assign(static_cast<std::size_t>(shape_.local_experts * slots() * shape_.hidden), 0x7fff);
    for (std::int32_t expert = 0; expert < shape_.local_experts; ++expert)
      for (std::int32_t row = 0; row < rank.counts.data()[expert]; ++row)
        for (std::int64_t channel = 0; channel < shape_.hidden; ++channel)
          rank.y[(expert * slots() + row) * shape_.hidden + channel] =
              values == Values::mixed
                  ? mixed(channel, channel / 128 * 7 + row * 3 + expert)
                  : numeric::to_bf16((values == Values::small ? 0.1F : 0.99F) * uniform()).bits;
  }
  std::uint16_t mixed(std::int64_t channel, std::int64_t kind) {
    const float value = 0.99F * uniform();
    switch (kind % 11) {
      case 1:
        return 0;
      case 2:
        return channel % 128 == 5 ? 0x3f80 : numeric::to_bf16(value).bits;
      case 3:
        return channel % 5 == 0 ? 0x8000 : numeric::to_bf16(value).bits;
      case 4:
        return numeric::to_bf16(value * 1e-37F).bits;
      case 5:
        return channel % 128 == 9 ? 0xffff : numeric::to_bf16(value).bits;
      case 6:
        return numeric::to_bf16(value * 1e-30F).bits;
      case 7:
        return channel % 3 == 0 ? 3 : numeric::to_bf16(value).bits;
      case 8:
        return 0xffff;
      case 9:
        return channel % 128 == 70 ? 0xff80 : numeric::to_bf16(value).bits;
      default:
        return numeric::to_bf16(value).bits;
    }
  }

  void send_combine(Rank& rank, const Combine& combine, bool travelled) {
    LowLatencyCombineSend call{};
    call.group = rank.group;
    call.sizes = sizes();
    call.y = rank.y.data();
    call.expert_stride = slots() * shape_.hidden;
    call.row_stride = shape_.hidden;
    call.weights = rank.weights.data();
    call.tokens = tokens(rank);
    call.form = combine.form;
    call.exact = combine.exact() ? 1 : 0;
    call.weights_travelled = travelled ? 1 : 0;
    call.unsummed = sends_unsummed(rank, combine, travelled) ? 1 : 0;
    call.keeps_weights = combine.unsummed ? 0 : 1;
    call.flags = combine.deferred || c_.masks ? 1 : 0;
    call.handle = rank.handle();
    call.pending = rank.pending();
    call.serial = ++serial_;
    if (sums_internode(rank, combine, travelled)) wait_arrival(rank, Arrival::combine_weights);
    launch_low_latency_combine_send(call, limits_, nullptr);
    if (rank.remote.count > 0)
      launch_low_latency_forward_combine(
          {rank.group, sizes(), rank.remote, rank.handle(), sent_form(call), call.flags,
           call.unsummed != 0 ? call.tokens : 0},
          limits_, nullptr);
  }

  void receive_combine(Rank& rank, const Combine& combine, bool travelled) {
    const std::int32_t rows = tokens(rank) * (combine.unsummed ? c_.top_k : 1);
    rank.out.assign(static_cast<std::size_t>(rows) * shape_.hidden + 1, 0xabcd);
    LowLatencyCombineReceive call{};
    call.group = rank.group;
    call.sizes = sizes();
    call.out = rank.out.data();
    call.tokens = tokens(rank);
    call.form = combine.form;
    call.exact = combine.exact() ? 1 : 0;
    call.weights_travelled = travelled ? 1 : 0;
    call.unsummed = combine.unsummed ? 1 : 0;
    call.weights = combine.unsummed ? nullptr : rank.pending().weights;
    call.longest_wait = rank.waits.data();
    call.handle = rank.handle();
    call.pending = rank.pending();
    call.grants = 1;
    wait_arrival(rank, Arrival::combine);
    launch_low_latency_combine_receive(call, limits_, nullptr);
    forward_signals(rank);
  }

  /// The rank of the expert in a top-k slot; -1: none.
  std::int64_t rank_of(const Rank& rank, std::size_t at) const {
    const std::int64_t expert = rank.topk_idx[at];
    return expert == c_.none_expert ? -1 : shape_.rank_of(expert);
  }

  /// Adds the output for a top-k slot, as it arrives, to `sums`.
  void add(Rank& rank, CombineRowForm sent, std::int32_t token, std::size_t at,
           std::vector<float>& sums) {
    add(rank, sent, token, at, sums, rank.weights[at]);
  }
  void add(Rank& rank, CombineRowForm sent, std::int32_t token, std::size_t at,
           std::vector<float>& sums, float weight) {
    Rank& other = ranks_[rank_of(rank, at)];
    const std::size_t k = at - static_cast<std::size_t>(token) * c_.top_k;
    const std::int64_t slot = rank.group.me * shape_.low_latency_max_tokens + token,
                       row = other.rows.data()[slot * c_.top_k + k];
    ASSERT_EQ(row / slots(), shape_.local_of(rank.topk_idx[at]));
    const auto decoded =
        after_combine(is_sums(sent) ? CombineEncoding::bfloat16 : encoding_of(sent),
                      {&other.y[row * shape_.hidden], static_cast<std::size_t>(shape_.hidden)});
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[i] = numeric::accumulate(sums[i], weight, decoded[i]);
  }

  void expect_row(const Rank& rank, std::int64_t row, const std::vector<float>& values) const {
    for (std::int64_t i = 0; i < shape_.hidden; ++i) {
      const std::uint16_t got = rank.out[row * shape_.hidden + i],
                          wanted = numeric::to_bf16(values[i]).bits;
      const bool both_nan = (got & 0x7fff) > 0x7f80 && (wanted & 0x7fff) > 0x7f80;
      ASSERT_TRUE(got == wanted || both_nan)
          << "rank " << me(rank) << ", row " << row << ", channel " << i << ": " << got
          << " instead of " << wanted;
    }
  }

  void check_unsummed(Rank& rank, CombineRowForm form) {
    for (std::int32_t i = 0; i < tokens(rank) * c_.top_k; ++i) {
      const bool exists = rank_of(rank, static_cast<std::size_t>(i)) >= 0;
      std::vector<float> values(shape_.hidden, exists ? -0.0F : 0.0F);
      if (exists) add(rank, form, i / c_.top_k, static_cast<std::size_t>(i), values, 1);
      expect_row(rank, i, values);
    }
  }

  void check(Rank& rank, const std::vector<Combine>& combines, bool travelled) {
    const bool exact = combines[me(rank)].exact();
    if (combines[me(rank)].unsummed) return check_unsummed(rank, combines[me(rank)].form);
    for (std::int32_t token = 0; token < tokens(rank); ++token) {
      const std::size_t first = static_cast<std::size_t>(token) * c_.top_k, end = first + c_.top_k;
      std::vector<float> total(shape_.hidden), level(shape_.hidden);
      for (std::size_t last = first; last < end; ++last) {
        const std::int64_t of = rank_of(rank, last);
        if (exact && of >= 0) add(rank, combines[me(rank)].form, token, last, total);
        bool is_last = of >= 0 && !exact;
        for (std::size_t at = last + 1; at < end; ++at)
          is_last = is_last && rank_of(rank, at) != of;
        if (!is_last) continue;
        const Combine& sender = combines[of];
        const CombineRowForm sent = sends_unsummed(ranks_[of], sender, travelled)
                                        ? detail::unsummed_form(sender.form)
                                        : sender.form;
        std::ranges::fill(level, 0.0F);
        for (std::size_t at = first; at <= last; ++at)
          if (rank_of(rank, at) == of) add(rank, sent, token, at, level);
        std::vector<std::uint16_t> rounded(level.size());
        const auto round = [](float v) { return numeric::to_bf16(v).bits; };
        std::ranges::transform(level, rounded.begin(), round);
        if (is_sums(sent)) {
          level = after_combine(encoding_of(sent), rounded);
          std::ranges::transform(level, rounded.begin(), round);
        }
        for (std::size_t i = 0; i < total.size(); ++i)
          total[i] += numeric::to_float(Bf16{rounded[i]});
      }
      expect_row(rank, token, total);
    }
  }

  /// No word is left that a later use of the half would take for one of its own.
  void check_cleared(Rank& rank) {
    if (c_.masks) return;
    const auto expect_clear = [&](std::size_t place, std::size_t places) {
      const auto* const words = reinterpret_cast<const std::uint32_t*>(
          rank.block.data() + layout_.combine_rows + place * layout_.combine_row_bytes);
      const std::size_t count = places * layout_.combine_row_bytes / sizeof(std::uint32_t);
      EXPECT_EQ(std::count(words, words + count, kSentinel), count)
          << "rank " << me(rank) << ", place " << place;
    };
    expect_clear(0, layout_.own_combine_rows);
    // Rows of other nodes are complete when they are read, in places of their rank.
    for (std::int32_t half = 0; half < 2; ++half)
      for (std::int32_t other = 0; other < c_.ranks; ++other) {
        const std::size_t places = shape_.low_latency_max_tokens * layout_.rank_combine_rows;
        if (!c_.is_remote(rank.group.me, other))
          expect_clear(layout_.own_combine_rows + (half * c_.ranks + other) * places, places);
      }
  }

  const Case c_;
  const detail::Shape shape_;
  const detail::DeviceLayout layout_;
  const std::vector<std::int32_t> expert_words_ = expert_table_words(*shape_.partition);
  const bool by_nic_;
  LowLatencyLimits limits_{};
  std::vector<Rank> ranks_;
  std::mt19937 random_{5};
  std::uint64_t serial_ = 0;
  Quantize quantize_ = Quantize::none;
};

}  // namespace shoal::ep::cuda
