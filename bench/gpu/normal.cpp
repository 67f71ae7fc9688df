// SPDX-License-Identifier: Apache-2.0
// normal.cpp: normal mode by number of SMs and tokens: dispatch in the formats of --format, BF16
// combine, and with BF16 dispatches also combines whose rows travel in fp8 and mxfp8. Rows of "fp8"
// come quantized from the caller; those of "fp8 encoded", "mxfp8" and "nvfp4" are encoded as they
// are sent.
//
// Every dispatch sets worst_case_rows, so that no size reaches the host and a chain runs freely.
// Times per point: chains of pairs (route, dispatch, combine), the same with an event between
// operations, and chains of one operation: dispatch, dispatch with a cached handle, combine,
// unpack. Results are checked before and after with experts that apply a function of their
// own id; so is the last output of the free-running chain.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "gpu/bench.hpp"

namespace shoal::bench::gpu {

namespace {

/// A format of dispatched rows.
struct Sent {
  std::string name;
  ep::Quantize quantize;   ///< none: rows are sent as they are
  bool quantized = false;  ///< as the caller has quantized them
  double channel_bytes;
};

/// The formats of --format: rows that come quantized, and rows that are encoded.
std::vector<Sent> sent_formats(const std::vector<std::string>& names) {
  std::vector<Sent> formats;
  for (const std::string& name : names) {
    const RowFormat& format = *std::ranges::find(kFormats, name, &RowFormat::name);
    const bool fp8 = format.quantize == ep::Quantize::fp8;
    if (fp8) formats.push_back({name, ep::Quantize::none, true, format.channel_bytes});
    formats.push_back(
        {fp8 ? name + " encoded" : name, format.quantize, false, format.channel_bytes});
  }
  return formats;
}

/// Scales of one byte as the words in which they lie.
TensorView words_of(TensorView scales) {
  if (size_of(scales.dtype) != 1) return scales;
  scales.dtype = DataType::int32;
  scales.shape[1] = (scales.shape[1] + 3) / 4;
  scales.strides[0] /= 4;
  return scales;
}

struct Point {
  const Sent* format;
  std::int64_t tokens;
  std::int32_t sms;
};

class NormalBench {
 public:
  NormalBench(World& world, Peers& peers, const Options& options)
      : peers_(peers),
        options_(options),
        shape_(options.shape),
        max_tokens_(std::max(options.shape.tokens, std::ranges::max(options.tokens))),
        formats_(sent_formats(options.formats)),
        // Before the group: expert output that lies in the heap need not be staged.
        expert_output_(world.heap().allocate<std::uint16_t>(
            static_cast<std::size_t>(max_tokens_ * peers.count() * shape_.hidden))),
        group_(world.team(), normal_options(options, max_tokens_)),
        factors_(expert_factors(group_, peers.me())),
        output_(device_tensor(DataType::bfloat16, {max_tokens_, shape_.hidden})),
        unpacked_idx_(device_tensor(DataType::int64, {max_tokens_ * peers.count(), shape_.top_k})),
        unpacked_weights_(
            device_tensor(DataType::float32, {max_tokens_ * peers.count(), shape_.top_k})),
        unpacked_tokens_(device_tensor(DataType::int32, {max_tokens_ * peers.count()})),
        results_(peers, options, "normal") {
    for (std::int32_t set = 0; set < kSets; ++set)
      batches_.push_back(make_device_batch(shape_, max_tokens_, peers, set, stream_.get()));
    const std::size_t part =
        batches_[0].x.bytes();  // random expert output: one part of the heap's buffer per rank
    for (std::int32_t pe = 0; pe < peers.count(); ++pe)
      check(cudaMemcpy(reinterpret_cast<char*>(expert_output_.data()) +
                           static_cast<std::size_t>(pe) * part,
                       batches_[static_cast<std::size_t>(pe % kSets)].x.data, part,
                       cudaMemcpyDeviceToDevice),
            "filling the expert output");
    group_.warmup();
  }

  void run() {
    for (const Point& point : points()) measure(point);
    routings_.clear();
    handles_.clear();
    group_.close();
  }

 private:
  std::vector<Point> points() const {
    std::vector<Point> points;
    const auto add = [&](std::int64_t tokens, std::int32_t sms) {
      for (const Sent& format : formats_) {
        const auto same = [&](const Point& p) {
          return p.format == &format && p.tokens == tokens && p.sms == sms;
        };
        if (std::ranges::none_of(points, same)) points.push_back({&format, tokens, sms});
      }
    };
    for (const std::int32_t sms : options_.sms) add(shape_.tokens, sms);
    for (const std::int64_t tokens : options_.tokens) add(tokens, options_.main_sms);
    return points;
  }

  void measure(const Point& point) {
    prepare(point);
    check_experts("before the chains");
    time_pairs();
    check_chain_output();
    time_operations();
    check_experts("after the chains");
  }

  /// Routes and layouts of this point; bytes that this PE receives.
  void prepare(const Point& point) {
    point_ = point;
    routings_.clear();
    handles_.clear();
    double rows = 0;
    for (const DeviceBatch& batch : batches_) {
      routings_.push_back(group_.route(first_rows(batch.topk_idx, point.tokens), launch()));
      ep::DispatchOptions options = dispatch_options(batch);
      options.worst_case_rows = 0;  // exact: tells how many rows arrive
      rows += static_cast<double>(*group_.dispatch(input(batch), routings_.back(), options).rows);
      handles_.push_back(
          group_.dispatch(input(batch), routings_.back(), dispatch_options(batch)).handle);
    }
    finish();
    rows_ = rows / kSets;
  }

  ep::Launch launch() const {
    return {.stream = stream_.get(), .after = nullptr, .done = nullptr, .sms = point_.sms};
  }
  const Sent& format() const { return *point_.format; }
  /// True if results have scales.
  bool narrow() const { return format().quantized || format().quantize != ep::Quantize::none; }
  bool nvfp4() const { return format().quantize == ep::Quantize::nvfp4; }
  TensorView input(const DeviceBatch& batch) const {
    return first_rows(format().quantized ? batch.quantized : batch.x, point_.tokens);
  }
  TensorView output() const { return first_rows(output_, point_.tokens); }
  std::int64_t worst_case() const { return point_.tokens * peers_.count(); }

  ep::DispatchOptions dispatch_options(const DeviceBatch& batch) const {
    ep::DispatchOptions options;
    options.weights = first_rows(batch.weights, point_.tokens);
    if (format().quantized) options.scales = first_rows(batch.scales, point_.tokens);
    options.quantize = format().quantize;
    options.worst_case_rows = worst_case();
    options.launch = launch();
    return options;
  }

  /// Memory of the expert output: in place for bfloat16 rows; for others in memory of the heap,
  /// another part each time.
  TensorView outputs(const ep::Dispatched& received, std::int64_t i) const {
    if (!narrow()) return received.x;
    const std::int64_t rows = worst_case(), parts = max_tokens_ * peers_.count() / rows;
    std::uint16_t* const data = expert_output_.data() + i % parts * rows * shape_.hidden;
    TensorView view(data, DataType::bfloat16, {rows, shape_.hidden});
    view.device = output_.device;
    return view;
  }

  ep::Dispatched dispatch(std::int64_t i, bool transient = false) {
    const DeviceBatch& batch = batches_[at(i)];
    ep::DispatchOptions options = dispatch_options(batch);
    options.transient = transient;
    return group_.dispatch(input(batch), routings_[at(i)], options);
  }
  ep::Dispatched dispatch_cached(std::int64_t i) {
    const DeviceBatch& batch = batches_[at(i)];
    return group_.dispatch(input(batch), handles_[at(i)], dispatch_options(batch));
  }
  void combine(const ep::Dispatched& received, std::int64_t i,
               ep::Quantize quantize = ep::Quantize::none) {
    ep::CombineOptions options;
    options.quantize = quantize;
    options.out = output();
    options.launch = launch();
    group_.combine(outputs(received, i), received.handle, options);
  }
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i % kSets); }

  void route(std::int64_t i) {
    routings_[at(i)] = group_.route(first_rows(batches_[at(i)].topk_idx, point_.tokens), launch());
  }

  void finish() {
    group_.synchronize();
    check(cudaStreamSynchronize(stream_.get()), "waiting for a chain");
  }

  double dispatch_bytes() const {
    return rows_ * static_cast<double>(shape_.hidden) * format().channel_bytes;
  }
  double combine_row() const { return static_cast<double>(shape_.row_bytes()); }

  void add(const char* operation, const char* how, const Timing& timing, double bytes) {
    results_.add({{"operation", operation},
                  {"format", format().name},
                  {"launch", how},
                  {"tokens", point_.tokens},
                  {"sms", point_.sms}},
                 timing, bytes);
  }

  void time_pairs() {
    const auto pair = [this](std::int64_t i) {
      route(i);
      combine(dispatch(i), i);
    };
    const double bytes = dispatch_bytes() + rows_ * combine_row();
    const auto done = [this] { finish(); };
    add("pair", "plain", time_chain(peers_, stream_.get(), shape_, pair, done), bytes);
    add("pair", "graph", time_graph(peers_, stream_.get(), shape_, pair, done), bytes);
    time_marked_pairs();
  }

  /// Pairs with an event between the operations.
  void time_marked_pairs() {
    const char* const names[] = {"route", "dispatch", "combine"};
    const double bytes[] = {0, dispatch_bytes(), rows_ * combine_row()};
    const std::vector<Timing> timings = time_steps(
        peers_, shape_, {.count = 3, .marks = 4, .distance = 1},
        [this](std::int64_t i, Marks& marks) {
          marks.mark(stream_.get());
          route(i);
          marks.mark(stream_.get());
          const ep::Dispatched received = dispatch(i);
          marks.mark(stream_.get());
          combine(received, i);
          marks.mark(stream_.get());
        },
        [this] { finish(); });
    for (std::size_t step = 0; step < timings.size(); ++step)
      add(names[step], "in pair", timings[step], bytes[step]);
  }

  /// Each kind of operation alone, again and again.
  void time_operations() {
    const auto alone = [this](const char* name, const Operation& operation, double bytes) {
      add(name, "alone", time_chain(peers_, stream_.get(), shape_, operation, [this] { finish(); }),
          bytes);
    };
    alone("dispatch", [this](std::int64_t i) { dispatch(i); }, dispatch_bytes());
    alone("dispatch transient", [this](std::int64_t i) { dispatch(i, true); }, dispatch_bytes());
    alone("dispatch cached", [this](std::int64_t i) { dispatch_cached(i); }, dispatch_bytes());
    const ep::Dispatched received = dispatch(0);
    alone("combine", [&](std::int64_t i) { combine(received, i); }, rows_ * combine_row());
    for (const RowFormat& back : kFormats) {
      const ep::Quantize quantize = back.quantize;
      if (quantize != ep::Quantize::fp8 && quantize != ep::Quantize::mxfp8) continue;
      if (narrow()) break;  // the combine does not depend on the format of the dispatch
      const std::string name = fmt::format("combine {}", back.name);
      alone(
          name.c_str(), [&](std::int64_t i) { combine(received, i, quantize); },
          rows_ * static_cast<double>(shape_.hidden) * back.channel_bytes);
      check_experts(name, quantize);
    }
    time_unpack(received, alone);
    time_expert_major(alone);
  }

  /// Combines of expert-major rows, their sums and the rows themselves, of so many tokens that
  /// there are about as many rows as in the other operations.
  template <class Alone>
  void time_expert_major(const Alone& alone) {
    const std::int64_t tokens = point_.tokens / shape_.top_k;
    const bool one_node = routings_[0].device_counts->tokens_per_node.shape[0] == 1;
    if (narrow() || tokens == 0 || !one_node) return;
    const ep::Routing routing = group_.route(first_rows(batches_[0].topk_idx, tokens), launch());
    const ep::ExpertMajorDispatched received =
        group_.dispatch_expert_major(first_rows(batches_[0].x, tokens), routing);
    for (const bool unsummed : {false, true}) {
      ep::CombineOptions options;
      options.unsummed = unsummed;
      options.out = first_rows(output_, tokens);
      if (unsummed)
        options.out =
            TensorView(output_.data, DataType::bfloat16, {tokens, shape_.top_k, shape_.hidden});
      options.out.device = output_.device;
      options.launch = launch();
      alone(
          unsummed ? "combine unsummed" : "combine expert-major",
          [&](std::int64_t) { group_.combine(received.x, received.handle, options); },
          static_cast<double>(*received.rows) * combine_row());
    }
  }

  /// Measures the copy of the fields that travelled with the rows to contiguous arrays.
  template <class Alone>
  void time_unpack(const ep::Dispatched& received, const Alone& alone) {
    const std::int64_t rows = worst_case();
    const auto part = [](const Tensor& memory, std::initializer_list<std::int64_t> extents) {
      TensorView view(memory.data, memory.dtype, extents);
      view.device = memory.device;
      return view;
    };
    ep::UnpackOptions to;
    to.topk_idx = part(unpacked_idx_, {rows, shape_.top_k});
    to.topk_weights = part(unpacked_weights_, {rows, shape_.top_k});
    to.source_token = part(unpacked_tokens_, {rows});
    to.launch = launch();
    alone(
        "unpack", [&](std::int64_t) { group_.unpack(received, to); },
        static_cast<double>(to.topk_idx.bytes() + to.topk_weights.bytes() +
                            to.source_token.bytes()));
  }

  ep::detail::CombineError error(double row_error) const {
    return ep::detail::combine_error(
        ep::detail::normal_mode_levels(peers_.count(),
                                       routings_[0].device_counts->tokens_per_node.shape[0]),
        row_error);
  }

  void check_experts(const std::string& when, ep::Quantize quantize = ep::Quantize::none) {
    for (std::size_t set = 0; set < batches_.size(); ++set) {
      const DeviceBatch& batch = batches_[set];
      const ep::Dispatched received = dispatch(static_cast<std::int64_t>(set));
      NormalExperts experts;
      experts.x = received.x;
      if (received.scales) experts.scales = words_of(*received.scales);
      experts.topk_idx = received.topk_idx.value_or(Tensor());
      experts.weights = received.topk_weights.value_or(Tensor());
      experts.row_count = received.device_counts->rows;
      experts.factors = factors_;
      experts.outputs = outputs(received, static_cast<std::int64_t>(set));
      run_experts(stream_.get(), experts);
      combine(received, static_cast<std::int64_t>(set), quantize);
      finish();
      const double back = quantize == ep::Quantize::none ? 0 : kQuantizedRowError;
      check_output(batch, output(), batch.factor, batch.size, error(row_error() + back),
                   stream_.get(),
                   fmt::format("{} {} tokens, {} SMs, set {}, {}", format().name, point_.tokens,
                               point_.sms, set, when),
                   nvfp4() ? 16 : 1);
    }
  }

  double row_error() const {
    if (nvfp4()) return kNvfp4RowError;
    return narrow() ? kQuantizedRowError : 0;
  }

  /// During a chain of bfloat16 the experts return the rows that they received, so the last output
  /// is x times the number of ranks that received the token.
  void check_chain_output() {
    if (narrow()) return;
    const std::int64_t last = shape_.dropped + shape_.iterations - 1;
    const DeviceBatch& batch = batches_[at(last)];
    check_output(batch, output(), batch.ranks, batch.ranks, error(0), stream_.get(),
                 fmt::format("{} tokens, {} SMs, the last pair of the free-running chain",
                             point_.tokens, point_.sms));
  }

  Peers& peers_;
  const Options& options_;
  const Shape shape_;
  const std::int64_t max_tokens_;
  const std::vector<Sent> formats_;
  const Stream stream_;
  SymmetricArray<std::uint16_t> expert_output_;
  ep::Group group_;
  const Tensor factors_, output_;
  const Tensor unpacked_idx_, unpacked_weights_, unpacked_tokens_;
  std::vector<DeviceBatch> batches_;
  Results results_;

  Point point_{};
  std::vector<ep::Routing> routings_;
  std::vector<ep::Handle> handles_;
  double rows_ = 0;  ///< received by this PE, mean of the sets
};

}  // namespace

void run_normal(World& world, Peers& peers, const Options& options) {
  NormalBench(world, peers, options).run();
}

}  // namespace shoal::bench::gpu
