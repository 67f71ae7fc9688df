// SPDX-License-Identifier: Apache-2.0
// ep_bench.cpp: times dispatch and combine chained as in a model.
//
// A chain is a sequence of pairs without other synchronisation: ranks meet only inside the
// operations. Every dispatch computes its routing, as in a model. Experts do nothing during a
// chain. Before and after it, experts on the same group multiply rows by a factor of their own, and
// the result is checked.
#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "ep/host/rows/row_ops.hpp"
#include "shoal/collective.hpp"
#include "shoal/ep/group.hpp"
#include "shoal/numeric.hpp"
#include "shoal_bench.hpp"

namespace shoal::bench {

namespace {

/// Times of the two halves of a pair, summed over a chain.
struct PairTimes {
  Times dispatch, combine;
  double rows = 0;
};

struct LowLatencyMode {
  ep::Quantize quantize;
  ep::Reduction reduction;
  /// The experts write into the group's buffer; else combine copies their output there.
  bool zero_copy;
  ep::Quantize combine = ep::Quantize::none;  ///< as which the rows of the combine travel
  bool unsummed = false;                      ///< the combine returns the rows

  std::string name() const {
    const std::string name = std::string(quantize == ep::Quantize::none ? "bf16" : "fp8") +
                             (unsummed                            ? " unsummed"
                              : reduction == ep::Reduction::exact ? " exact"
                                                                  : " per rank");
    if (combine == ep::Quantize::mxfp8) return name + ", mxfp8 back";
    if (combine == ep::Quantize::fp8) return name + ", fp8 back";
    return name + (zero_copy ? "" : " staged");
  }
  double row_error() const {
    return (quantize == ep::Quantize::none ? 0 : kQuantizedRowError) +
           (combine == ep::Quantize::none ? 0 : kQuantizedRowError);
  }
};

class EpBench {
 public:
  EpBench(World& world, const Shape& shape)
      : world_(world),
        shape_(shape),
        me_(world.my_pe()),
        group_(world.team(), group_options(shape)),
        local_experts_(group_.local_experts()),
        first_expert_(group_.first_expert()[static_cast<std::size_t>(me_)]),
        batches_(make_batches(shape, shape.tokens, me_)),
        small_batches_(make_batches(shape, shape.low_latency_tokens, me_)),
        expert_output_(Tensor::empty(
            DataType::bfloat16,
            {group_.max_local_experts(), world.n_pes() * shape.low_latency_tokens, shape.hidden})),
        output_(Tensor::empty(DataType::bfloat16,
                              {std::max(shape.tokens, shape.low_latency_tokens), shape.hidden})),
        rows_(Tensor::empty(DataType::bfloat16, {std::max(shape.tokens, shape.low_latency_tokens),
                                                 shape.top_k, shape.hidden})) {
    group_.warmup();
  }

  std::vector<Measurement> run() {
    measure_normal();
    measure_expert_major();
    measure_sums_of_rows();
    measure_unpack();
    measure_expand();
    for (const ep::Quantize quantize : {ep::Quantize::none, ep::Quantize::fp8})
      for (const ep::Reduction reduction : {ep::Reduction::per_rank, ep::Reduction::exact})
        measure_low_latency({quantize, reduction, true});
    for (const ep::Quantize combine : {ep::Quantize::none, ep::Quantize::fp8, ep::Quantize::mxfp8})
      measure_low_latency({ep::Quantize::none, ep::Reduction::per_rank, false, combine});
    measure_low_latency({ep::Quantize::none, ep::Reduction::exact, true, ep::Quantize::none, true});
    return std::move(measurements_);
  }

 private:
  static ep::GroupOptions group_options(const Shape& shape) {
    ep::GroupOptions options;
    options.max_tokens = shape.tokens;
    options.hidden = shape.hidden;
    options.top_k = static_cast<std::int32_t>(shape.top_k);
    options.experts = static_cast<std::int32_t>(shape.experts);
    options.low_latency_max_tokens = shape.low_latency_tokens;
    options.preinitialize = true;
    return options;
  }

  ep::detail::CombineError normal_error(bool row_per_expert) {
    const std::size_t nodes = group_.route(batches_[0].topk_idx).counts->tokens_per_node.size();
    return ep::detail::combine_error(ep::detail::normal_mode_levels(
        world_.n_pes(), static_cast<std::int64_t>(nodes), row_per_expert));
  }

  void measure_normal() {
    check_normal("before the chain");
    run_normal_chain(shape_.dropped);
    barrier(world_.team());
    const Times start = now();
    const PairTimes times = run_normal_chain(shape_.iterations);
    const Times total = now() - start;
    check_normal("after the chain");

    const auto n = static_cast<double>(shape_.iterations);
    const double bytes = times.rows / n * static_cast<double>(shape_.row_bytes());
    add("dispatch bf16", times.dispatch / n, bytes);
    add("combine bf16", times.combine / n, bytes);
    add("dispatch + combine bf16", total / n, 2 * bytes);
    const auto all_meet = [this] { barrier(world_.team()); };
    add("memcpy of the dispatch bytes",
        time_memcpy(static_cast<std::size_t>(bytes), shape_.iterations, all_meet), bytes);
  }

  PairTimes run_normal_chain(std::int64_t pairs) {
    PairTimes times;
    for (std::int64_t i = 0; i < pairs; ++i) {
      const Batch& batch = batches_[static_cast<std::size_t>(i % kBatches)];
      const Times start = now();
      const ep::Dispatched received = dispatch(batch);
      const Times middle = now();
      group_.combine(received.x, received.handle,
                     {.weights = {}, .bias = {}, .out = output_for(batch)});
      times.dispatch += middle - start;
      times.combine += now() - middle;
      times.rows += static_cast<double>(*received.rows);
    }
    return times;
  }

  ep::Dispatched dispatch(const Batch& batch) {
    ep::DispatchOptions options;
    options.weights = batch.weights;
    return group_.dispatch(batch.x, group_.route(batch.topk_idx), options);
  }

  TensorView output_for(const Batch& batch) const {
    return TensorView(output_.data, DataType::bfloat16, {batch.tokens, shape_.hidden});
  }
  TensorView rows_for(const Batch& batch) const {
    return TensorView(rows_.data, DataType::bfloat16, {batch.tokens, shape_.top_k, shape_.hidden});
  }

  void check_normal(const char* when) {
    for (const Batch& batch : batches_) {
      const ep::Dispatched received = dispatch(batch);
      for (std::int64_t row = 0; row < received.rows; ++row) {
        std::uint16_t* const x = received.x.as<std::uint16_t>() + row * shape_.hidden;
        apply_experts(x, x, received.topk_idx->as<std::int64_t>() + row * shape_.top_k,
                      received.topk_weights->as<float>() + row * shape_.top_k, first_expert_,
                      shape_);
      }
      group_.combine(received.x, received.handle,
                     {.weights = {}, .bias = {}, .out = output_for(batch)});
      check_output(batch, output_.as<std::uint16_t>(), shape_, normal_error(false), when);
    }
  }

  /// The first tokens of a batch, so few that their expert-major rows have room for every routing.
  Batch part_of(const Batch& batch) const {
    Batch part = batch;
    part.tokens = std::max<std::int64_t>(
        1, batch.tokens / std::min<std::int64_t>(shape_.top_k, group_.max_local_experts()));
    for (Tensor* const tensor : {&part.x, &part.topk_idx, &part.weights})
      tensor->shape[0] = part.tokens;
    return part;
  }

  /// Pairs with a row for each (token, expert), whose experts write into the rows.
  void measure_expert_major() {
    std::vector<Batch> parts;
    for (const Batch& batch : batches_) parts.push_back(part_of(batch));
    const auto dispatch = [&](const Batch& part) {
      ep::ExpertMajorOptions options;
      options.weights = part.weights;
      return group_.dispatch_expert_major(part.x, group_.route(part.topk_idx), options);
    };
    const auto combine = [&](const Batch& part, const ep::ExpertMajorDispatched& received) {
      group_.combine(received.x, received.handle,
                     {.weights = {}, .bias = {}, .out = output_for(part)});
    };
    const auto give_rows = [&](const Batch& part, const ep::ExpertMajorDispatched& received) {
      group_.combine(received.x, received.handle, {.unsummed = true, .out = rows_for(part)});
    };
    const auto check = [&](const char* when) {
      std::vector<std::int64_t> one(static_cast<std::size_t>(shape_.top_k), -1);
      for (const Batch& part : parts) {
        const ep::ExpertMajorDispatched received = dispatch(part);
        for (std::int64_t row = 0; row < *received.rows; ++row) {
          one[0] = received.topk_idx->as<std::int64_t>()[row];
          std::uint16_t* const x = received.x.as<std::uint16_t>() + row * shape_.hidden;
          apply_experts(x, x, one.data(), received.topk_weights->as<float>() + row, first_expert_,
                        shape_);
        }
        combine(part, received);
        check_output(part, output_.as<std::uint16_t>(), shape_, normal_error(true), when);
      }
    };
    check("before the expert-major chain");
    PairTimes times;
    Times rows;
    for (std::int64_t i = -shape_.dropped; i < shape_.iterations; ++i) {
      const Batch& part = parts[static_cast<std::size_t>((i + shape_.dropped) % kBatches)];
      const Times start = now();
      const ep::ExpertMajorDispatched received = dispatch(part);
      const Times middle = now();
      combine(part, received);
      const Times end = now();
      give_rows(part, received);
      if (i < 0) continue;
      times.dispatch += middle - start;
      times.combine += end - middle;
      rows += now() - end;
      times.rows += static_cast<double>(*received.rows);
    }
    check("after the expert-major chain");
    const auto n = static_cast<double>(shape_.iterations);
    const double bytes = times.rows / n * static_cast<double>(shape_.row_bytes());
    add("expert-major dispatch bf16", times.dispatch / n, bytes);
    add("expert-major combine bf16", times.combine / n, bytes);
    add("expert-major combine bf16 unsummed", rows / n, bytes);
  }

  /// Rows of the top-k slots of a batch: for each slot with an expert here, its row in expert
  /// output of one row per slot (CombineOptions::topk_rows).
  struct SlotRows {
    Tensor topk_rows;
    std::int64_t count = 0;
  };
  SlotRows slot_rows(const ep::Dispatched& received) const {
    SlotRows result{Tensor::empty(DataType::int32, {*received.rows, shape_.top_k})};
    for (std::int64_t i = 0; i < *received.rows * shape_.top_k; ++i)
      result.topk_rows.as<std::int32_t>()[i] = received.topk_idx->as<std::int64_t>()[i] < 0
                                                   ? -1
                                                   : static_cast<std::int32_t>(result.count++);
    return result;
  }

  /// Pairs whose experts return one row per (token, expert); combine adds those of a received row.
  void measure_sums_of_rows() {
    std::vector<SlotRows> layouts;
    std::int64_t most = 0;
    for (const Batch& batch : batches_) {
      layouts.push_back(slot_rows(dispatch(batch)));
      most = std::max(most, layouts.back().count);
    }
    const Tensor memory =
        Tensor::empty(DataType::bfloat16, {std::max<std::int64_t>(most, 1), shape_.hidden});
    const auto combine = [&](const Batch& batch, const ep::Dispatched& received,
                             const SlotRows& layout) {
      TensorView y = memory;
      y.shape[0] = layout.count;
      ep::CombineOptions options;
      options.topk_rows = layout.topk_rows;
      options.out = output_for(batch);
      group_.combine(y, received.handle, options);
    };
    const auto check = [&](const char* when) {
      for (std::size_t set = 0; set < kBatches; ++set) {
        const ep::Dispatched received = dispatch(batches_[set]);
        write_slot_output(received, layouts[set], memory);
        combine(batches_[set], received, layouts[set]);
        check_output(batches_[set], output_.as<std::uint16_t>(), shape_, normal_error(true), when);
      }
    };
    check("before the chain of sums of rows");
    barrier(world_.team());
    Times combines;
    double bytes = 0;
    for (std::int64_t i = -shape_.dropped; i < shape_.iterations; ++i) {
      const auto set = static_cast<std::size_t>((i + shape_.dropped) % kBatches);
      const ep::Dispatched received = dispatch(batches_[set]);
      const Times start = now();
      combine(batches_[set], received, layouts[set]);
      if (i < 0) continue;
      combines += now() - start;
      bytes += static_cast<double>(layouts[set].count) * static_cast<double>(shape_.row_bytes());
    }
    check("after the chain of sums of rows");
    const auto n = static_cast<double>(shape_.iterations);
    add("combine bf16, one row per (token, expert)", combines / n, bytes / n);
  }

  /// Each expert of a received row writes its weighted output to the row of its slot.
  void write_slot_output(const ep::Dispatched& received, const SlotRows& layout,
                         const TensorView& y) const {
    std::vector<std::int64_t> one(static_cast<std::size_t>(shape_.top_k), -1);
    for (std::int64_t row = 0; row < received.rows; ++row)
      for (std::int64_t k = 0; k < shape_.top_k; ++k) {
        const std::int64_t i = row * shape_.top_k + k;
        const std::int32_t at = layout.topk_rows.as<std::int32_t>()[i];
        if (at < 0) continue;
        one[static_cast<std::size_t>(k)] = received.topk_idx->as<std::int64_t>()[i];
        apply_experts(y.as<std::uint16_t>() + at * shape_.hidden,
                      received.x.as<std::uint16_t>() + row * shape_.hidden, one.data(),
                      received.topk_weights->as<float>() + row * shape_.top_k, first_expert_,
                      shape_);
        one[static_cast<std::size_t>(k)] = -1;
      }
  }

  /// Measures the copy of rank-major rows to their experts, with scales of one byte for 32 channels
  /// each in tiles.
  void measure_expand() {
    constexpr std::int64_t kTile = 128;
    const ep::Dispatched received = dispatch(batches_[0]);
    const std::int64_t rows = *received.rows, experts = group_.local_experts();
    const std::int64_t words = (shape_.hidden + kTile - 1) / kTile;
    const Tensor counts = Tensor::empty(DataType::int32, {experts}),
                 ends = Tensor::empty(DataType::int32, {experts}),
                 topk_rows = Tensor::empty(DataType::int32, {rows, shape_.top_k}),
                 scales = Tensor::empty(DataType::int32, {rows, words});
    std::fill_n(counts.as<std::int32_t>(), experts, 0);
    std::fill_n(scales.as<std::int32_t>(), scales.size(), 0);
    for (std::int64_t i = 0; i < rows * shape_.top_k; ++i)
      if (const std::int64_t e = received.topk_idx->as<std::int64_t>()[i]; e >= 0)
        ++counts.as<std::int32_t>()[e];
    std::int64_t copies = 0, read = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      read += counts.as<std::int32_t>()[e];
      copies += (counts.as<std::int32_t>()[e] + kTile - 1) / kTile * kTile;
      ends.as<std::int32_t>()[e] = static_cast<std::int32_t>(copies);
    }
    const Tensor out = Tensor::empty(DataType::bfloat16, {copies, shape_.hidden}),
                 tiles = Tensor::empty(DataType::uint8, {copies / kTile, words, 4 * kTile});
    ep::ExpandOptions options;
    options.x = received.x;
    options.topk_idx = *received.topk_idx;
    options.tokens_per_expert = counts;
    options.expert_ends = ends;
    options.scales = scales;
    options.topk_rows = topk_rows;
    options.out = out;
    options.out_scales = tiles;
    for (std::int64_t i = 0; i < shape_.dropped; ++i) group_.expand(options);
    barrier(world_.team());
    const Times start = now();
    for (std::int64_t i = 0; i < shape_.iterations; ++i) group_.expand(options);
    add("expand with tiles of scales", (now() - start) / static_cast<double>(shape_.iterations),
        static_cast<double>(read) * static_cast<double>(shape_.row_bytes() + 4 * words));
  }

  /// Measures the copy of the fields that travelled with the rows to contiguous arrays.
  void measure_unpack() {
    const ep::Dispatched received = dispatch(batches_[0]);
    const Tensor idx = Tensor::empty(DataType::int64, {*received.rows, shape_.top_k}),
                 weights = Tensor::empty(DataType::float32, {*received.rows, shape_.top_k}),
                 tokens = Tensor::empty(DataType::int32, {*received.rows});
    ep::UnpackOptions to;
    to.topk_idx = idx;
    to.topk_weights = weights;
    to.source_token = tokens;
    for (std::int64_t i = 0; i < shape_.dropped; ++i) group_.unpack(received, to);
    barrier(world_.team());
    const Times start = now();
    for (std::int64_t i = 0; i < shape_.iterations; ++i) group_.unpack(received, to);
    add("unpack", (now() - start) / static_cast<double>(shape_.iterations),
        static_cast<double>(idx.bytes() + weights.bytes() + tokens.bytes()));
    require(received.rows == 0 ||
                std::memcmp(weights.data, received.topk_weights->data, weights.bytes()) == 0,
            Code::mismatch, "unpacked weights differ from those of the dispatch");
  }

  void measure_low_latency(const LowLatencyMode& mode) {
    check_low_latency(mode, "before the low-latency chain");
    run_low_latency_chain(mode, 8 * shape_.dropped);
    barrier(world_.team());
    const Times start = now();
    const PairTimes times = run_low_latency_chain(mode, shape_.low_latency_iterations());
    const Times total = now() - start;
    check_low_latency(mode, "after the low-latency chain");

    const auto n = static_cast<double>(shape_.low_latency_iterations());
    const double row = row_bytes(mode.quantize), combined = row_bytes(mode.combine);
    add("low-latency dispatch " + mode.name(), times.dispatch / n, times.rows / n * row);
    add("low-latency combine " + mode.name(), times.combine / n, times.rows / n * combined);
    add("low-latency pair " + mode.name(), total / n, times.rows / n * (row + combined));
  }

  /// Bytes of a row as it travels; in fp8 and mxfp8 four bytes of scales for 128 channels.
  double row_bytes(ep::Quantize quantize) const {
    return static_cast<double>(quantize == ep::Quantize::none
                                   ? static_cast<std::int64_t>(shape_.row_bytes())
                                   : shape_.hidden + (shape_.hidden + 127) / 128 * 4);
  }

  PairTimes run_low_latency_chain(const LowLatencyMode& mode, std::int64_t pairs) {
    PairTimes times;
    for (std::int64_t i = 0; i < pairs; ++i) {
      const Batch& batch = small_batches_[static_cast<std::size_t>(i % kBatches)];
      const Times start = now();
      const ep::LowLatencyReceived received = dispatch_low_latency(batch, mode.quantize);
      const Times middle = now();
      combine_low_latency(batch, received, mode,
                          mode.zero_copy ? group_.next_combine_buffer() : expert_output_);
      times.dispatch += middle - start;
      times.combine += now() - middle;
      for (std::int64_t e = 0; e < local_experts_; ++e)
        times.rows += received.counts.as<std::int32_t>()[e];
    }
    return times;
  }

  ep::LowLatencyReceived dispatch_low_latency(const Batch& batch, ep::Quantize quantize) {
    return group_
        .low_latency_dispatch(batch.x, batch.topk_idx,
                              {.quantize = quantize,
                               .tokens_per_expert = {},
                               .wait_ns = {},
                               .weights = batch.weights})
        .receive();
  }

  void combine_low_latency(const Batch& batch, const ep::LowLatencyReceived& received,
                           const LowLatencyMode& mode, const TensorView& expert_output) {
    ep::LowLatencyCombineOptions options;
    options.zero_copy = mode.zero_copy;
    options.quantize = mode.combine;
    options.reduction = mode.reduction;
    options.unsummed = mode.unsummed;
    options.out = mode.unsummed ? rows_for(batch) : output_for(batch);
    group_
        .low_latency_combine(expert_output, batch.topk_idx, batch.weights, received.handle, options)
        .receive();
  }

  /// Writes the weighted sums of the rows that a combine has returned, as it would have done.
  void sum_rows(const Batch& batch) {
    const auto* const weights = batch.weights.as<float>();
    for (std::int64_t t = 0; t < batch.tokens; ++t)
      for (std::int64_t c = 0; c < shape_.hidden; ++c) {
        float sum = 0;
        for (std::int64_t k = 0; k < shape_.top_k; ++k)
          sum += weights[t * shape_.top_k + k] *
                 float_from_bfloat16(
                     rows_.as<std::uint16_t>()[(t * shape_.top_k + k) * shape_.hidden + c]);
        output_.as<std::uint16_t>()[t * shape_.hidden + c] = bfloat16_from_float(sum);
      }
  }

  void check_low_latency(const LowLatencyMode& mode, const char* when) {
    for (const Batch& batch : small_batches_) {
      const ep::LowLatencyReceived received = dispatch_low_latency(batch, mode.quantize);
      const TensorView expert_output =
          mode.zero_copy ? group_.next_combine_buffer() : expert_output_;
      const std::int64_t rows = received.x.shape[1];
      for (std::int64_t e = 0; e < local_experts_; ++e)
        for (std::int64_t row = 0; row < received.counts.as<std::int32_t>()[e]; ++row)
          apply_expert_to_row(received,
                              expert_output.as<std::uint16_t>() + e * expert_output.strides[0] +
                                  row * expert_output.strides[1],
                              e * rows + row);
      combine_low_latency(batch, received, mode, expert_output);
      if (mode.unsummed) sum_rows(batch);
      check_output(batch, output_.as<std::uint16_t>(), shape_,
                   ep::detail::combine_error(ep::detail::low_latency_levels(mode.reduction),
                                             mode.row_error()),
                   when);
    }
  }

  /// Applies the expert to received row `at` of the [experts, rows].
  void apply_expert_to_row(const ep::LowLatencyReceived& received, std::uint16_t* target,
                           std::int64_t at) {
    const std::int64_t rows = received.x.shape[1], local = at / rows, row = at % rows;
    const std::int64_t expert = first_expert_ + local;
    if (received.x.dtype == DataType::bfloat16)
      return apply_expert(target, received.x.as<std::uint16_t>() + at * shape_.hidden, expert,
                          shape_);
    const TensorView scales = received.scales.value_or(Tensor());
    std::vector<float> row_scales;
    for (std::int64_t group = 0; group < scales.shape[2]; ++group)
      row_scales.push_back(scales.as<float>()[local * scales.strides[0] + row * scales.strides[1] +
                                              group * scales.strides[2]]);
    std::vector<std::uint16_t> x(static_cast<std::size_t>(shape_.hidden));
    ep::host::dequantize_row(x.data(), received.x.as<std::uint8_t>() + at * shape_.hidden,
                             row_scales.data(), x.size());
    apply_expert(target, x.data(), expert, shape_);
  }

  void add(std::string name, Times times, double bytes) {
    measurements_.push_back({std::move(name), times, bytes});
  }

  World& world_;
  const Shape shape_;
  const std::int64_t me_;
  ep::Group group_;
  const std::int64_t local_experts_, first_expert_;
  std::vector<Batch> batches_, small_batches_;
  Tensor expert_output_, output_, rows_;
  std::vector<Measurement> measurements_;
};

}  // namespace

void run_ep(World& world, const Shape& shape, const std::string& json_path) {
  shape.validate();
  Report report = report_of(world, "shoal-bench ep");
  report.basis = kRowsReceived;
  describe(report, shape);
  const std::vector<Measurement> measurements = EpBench(world, shape).run();
  publish(report, measurements, gather_through(world), json_path);
}

}  // namespace shoal::bench
