// SPDX-License-Identifier: Apache-2.0
// low_latency.cpp: low-latency mode by number of tokens: dispatch in the formats of --format,
// combine in BF16.
//
// Times per point: free-running chains of pairs, with combine rows in bfloat16 and in each
// encoding, and of dispatches alone, plain and as replayed graphs; pairs with an event after each
// operation; pairs with separate phases (the receive hook) and a pause between them in which the
// rows arrive, so that the receive phase is timed without waiting, in every encoding. Experts write
// to next_combine_buffer, so nothing is staged; weights come with the combine. With SHOAL_NODE_SIZE
// the PEs are on emulated nodes; SHOAL_EP_BETWEEN_NODES=staged sends through host memory, where
// graphs and phases do not exist.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "gpu/bench.hpp"

namespace shoal::bench::gpu {

namespace {

/// Longer than any exchange at these sizes, so that all rows have arrived when the receive phase
/// starts.
constexpr std::int64_t kGapNanoseconds = 300'000;

/// The encoding of combine rows.
struct CombineFormat {
  const char* name = "";
  bool log_fmt = false;
  ep::Quantize quantize = ep::Quantize::none;

  bool quantized() const { return quantize != ep::Quantize::none; }
  bool encodes() const { return log_fmt || quantized(); }
};
constexpr CombineFormat kCombineFormats[] = {{"log_fmt", true},
                                             {"fp8 combine", false, ep::Quantize::fp8},
                                             {"mxfp8 combine", false, ep::Quantize::mxfp8}};

class LowLatencyBench {
 public:
  LowLatencyBench(World& world, Peers& peers, const Options& options, Results& results,
                  std::int64_t max_tokens)
      : peers_(peers),
        shape_(options.shape),
        between_nodes_(world.pes_per_node() < world.n_pes() ? world.settings().ep_between_nodes
                                                            : std::string()),
        results_(results),
        group_(world.team(), low_latency_options(options, max_tokens)),
        factors_(expert_factors(group_, peers.me())),
        output_(device_tensor(DataType::bfloat16, {max_tokens * shape_.top_k, shape_.hidden})),
        nowhere_(device_tensor(DataType::int64, {max_tokens, shape_.top_k})) {
    check(cudaMemset(nowhere_.data, 0xff, nowhere_.bytes()), "filling top-k indices with -1");
    for (std::int32_t set = 0; set < kSets; ++set)
      batches_.push_back(make_device_batch(shape_, max_tokens, peers, set, stream_.get()));
    group_.warmup();
  }

  void measure(std::int64_t tokens, const RowFormat& format) {
    tokens_ = sent_ = tokens;
    format_ = &format;
    count_rows();
    check_experts("before the chains");
    time_chains();
    time_marked_pairs();
    if (staged()) return;
    deferred_ = true;  // only a deferred receive has a phase of its own
    time_phases("hook");
    for (const CombineFormat& combine : kCombineFormats) {
      combine_ = combine;
      deferred_ = true;
      time_phases(fmt::format("hook, {}", combine.name).c_str());
      deferred_ = false;
      check_experts(fmt::format("with {}", combine.name).c_str());
      time_chain_of(
          fmt::format("{} pair", combine.name).c_str(), [this](std::int64_t i) { pair(i); }, 0);
      time_exact(fmt::format("{} exact pair", combine.name).c_str());
    }
    combine_ = {};
    time_exact("exact pair");
    unsummed_ = true;
    time_chain_of("unsummed pair", [this](std::int64_t i) { pair(i); }, 0);
    unsummed_ = false;
    time_one_busy_pe();
    check_experts("after the chains");
  }

  void close() { group_.close(); }

 private:
  bool quantized() const { return format_->quantize != ep::Quantize::none; }
  const char* format() const { return format_->name; }
  bool staged() const { return between_nodes_ == "staged"; }
  const DeviceBatch& batch(std::int64_t i) const {
    return batches_[static_cast<std::size_t>(i % kSets)];
  }
  TensorView output() const {
    if (!unsummed_) return first_rows(output_, sent_);
    TensorView rows(output_.data, DataType::bfloat16, {sent_, shape_.top_k, shape_.hidden});
    rows.device = output_.device;
    return rows;
  }
  TensorView topk_idx(std::int64_t i) const {
    return first_rows(without_experts_ ? nowhere_ : batch(i).topk_idx, sent_);
  }
  ep::Launch launch() const {
    return {.stream = stream_.get(), .after = nullptr, .done = nullptr, .sms = 0};
  }

  ep::PendingDispatch send_dispatch(std::int64_t i) {
    ep::LowLatencyDispatchOptions options;
    options.quantize = format_->quantize;
    if (quantized()) options.scale_layout = scale_layout_;
    options.defer_receive = deferred_;
    options.launch = launch();
    return group_.low_latency_dispatch(first_rows(batch(i).x, sent_), topk_idx(i), options);
  }
  ep::PendingCombine send_combine(std::int64_t i, const ep::LowLatencyReceived& received,
                                  const TensorView& outputs) {
    ep::LowLatencyCombineOptions options;
    options.zero_copy = !combine_.encodes();
    options.log_fmt = combine_.log_fmt;
    options.quantize = combine_.quantize;
    options.unsummed = unsummed_;
    options.reduction = reduction_;
    options.out = output();
    options.defer_receive = deferred_;
    options.launch = launch();
    return group_.low_latency_combine(outputs, topk_idx(i), first_rows(batch(i).weights, sent_),
                                      received.handle, options);
  }
  void pair(std::int64_t i) {
    const ep::LowLatencyReceived received = send_dispatch(i).receive();
    send_combine(i, received, group_.next_combine_buffer()).receive();
  }

  void finish() {
    group_.synchronize();
    check(cudaStreamSynchronize(stream_.get()), "waiting for a chain");
  }

  /// Rows that this PE's experts get, mean of the sets.
  void count_rows() {
    rows_ = 0;
    std::vector<std::int32_t> counts(static_cast<std::size_t>(group_.max_local_experts()));
    for (std::int32_t set = 0; set < kSets; ++set) {
      const ep::LowLatencyReceived received = send_dispatch(set).receive();
      finish();
      check(cudaMemcpy(counts.data(), received.counts.data, received.counts.bytes(),
                       cudaMemcpyDeviceToHost),
            "reading counts");
      for (const std::int32_t count : counts) rows_ += static_cast<double>(count) / kSets;
    }
  }

  double dispatch_bytes() const {
    return rows_ * static_cast<double>(shape_.hidden) * format_->channel_bytes;
  }
  double combine_bytes() const { return rows_ * static_cast<double>(shape_.row_bytes()); }

  void add(const char* operation, const char* how, const Timing& timing, double bytes) {
    Labels labels{
        {"operation", operation}, {"format", format()}, {"launch", how}, {"tokens", tokens_}};
    if (!between_nodes_.empty()) labels["between_nodes"] = between_nodes_;
    results_.add(labels, timing, bytes);
  }

  void time_chain_of(const char* name, const Operation& operation, double bytes) {
    const auto done = [this] { finish(); };
    add(name, "plain", time_chain(peers_, stream_.get(), shape_, operation, done), bytes);
    if (staged()) return;
    add(name, "graph", time_graph(peers_, stream_.get(), shape_, operation, done), bytes);
  }
  void time_chains() {
    time_chain_of("pair", [this](std::int64_t i) { pair(i); }, dispatch_bytes() + combine_bytes());
    time_chain_of(
        "dispatch", [this](std::int64_t i) { (void)send_dispatch(i).receive(); }, dispatch_bytes());
  }

  /// With a combine whose rows travel to the sources of tokens before they are summed.
  void time_exact(const char* name) {
    reduction_ = ep::Reduction::exact;
    time_chain_of(name, [this](std::int64_t i) { pair(i); }, 0);
    reduction_ = ep::Reduction::automatic;
  }

  /// PE 0 has the tokens, as where attention runs on one PE of several; the others have one, or as
  /// many, padded, without an expert.
  void time_one_busy_pe() {
    const bool busy = peers_.me() == 0;
    const auto operation = [this](std::int64_t i) { pair(i); };
    if (!busy) sent_ = 1;
    time_chain_of("pair, other PEs with 1 token", operation, 0);
    sent_ = tokens_;
    without_experts_ = !busy;
    time_chain_of("pair, other PEs with padding", operation, 0);
    without_experts_ = false;
  }

  void time_marked_pairs() {
    time_each("in pair", {{"dispatch", dispatch_bytes()}, {"combine", combine_bytes()}},
              [this](std::int64_t i, Marks& marks) {
                marks.mark(stream_.get());
                const ep::LowLatencyReceived received = send_dispatch(i).receive();
                marks.mark(stream_.get());
                marks.mark(stream_.get());
                send_combine(i, received, group_.next_combine_buffer()).receive();
                marks.mark(stream_.get());
              });
  }

  void time_phases(const char* how) {
    time_each(how,
              {{"dispatch send", 0},
               {"dispatch receive", 0},
               {"combine send", 0},
               {"combine receive", 0}},
              [this](std::int64_t i, Marks& marks) {
                const auto timed = [&](const auto& phase) {
                  marks.mark(stream_.get());
                  auto result = phase();
                  marks.mark(stream_.get());
                  return result;
                };
                auto dispatched = timed([&] { return send_dispatch(i); });
                pause(stream_.get(), kGapNanoseconds);
                const ep::LowLatencyReceived received = timed([&] { return dispatched.receive(); });
                const TensorView outputs = group_.next_combine_buffer();
                auto combined = timed([&] { return send_combine(i, received, outputs); });
                pause(stream_.get(), kGapNanoseconds);
                timed([&] { return combined.receive(); });
              });
  }

  struct Step {
    const char* name;
    double bytes;
  };
  /// `round` marks the begin and the end of each step, in order.
  void time_each(const char* how, const std::vector<Step>& steps,
                 const std::function<void(std::int64_t, Marks&)>& round) {
    const std::vector<Timing> timings = time_steps(
        peers_, shape_, {.count = steps.size(), .marks = 2 * steps.size(), .distance = 2}, round,
        [this] { finish(); });
    for (std::size_t step = 0; step < steps.size(); ++step)
      add(steps[step].name, how, timings[step], steps[step].bytes);
  }

  void check_experts(const char* when) {
    scale_layout_ = ep::ScaleLayout::columns;  // which the experts read
    for (std::int32_t set = 0; set < kSets; ++set) {
      const ep::LowLatencyReceived received = send_dispatch(set).receive();
      const TensorView outputs = group_.next_combine_buffer();
      LowLatencyExperts experts;
      experts.x = received.x;
      if (received.scales) experts.scales = *received.scales;
      experts.counts = received.counts;
      experts.factors = factors_;
      experts.outputs = outputs;
      run_experts(stream_.get(), experts);
      send_combine(set, received, outputs).receive();
      finish();
      check_output(
          batch(set), output(), batch(set).factor, batch(set).size,
          ep::detail::combine_error(ep::detail::low_latency_levels(), row_error()), stream_.get(),
          fmt::format("low latency {} {} tokens, set {}, {}", format(), tokens_, set, when),
          nvfp4() ? 16 : 1);
    }
    scale_layout_ = ep::ScaleLayout::automatic;
  }

  bool nvfp4() const { return format_->quantize == ep::Quantize::nvfp4; }
  double row_error() const {
    const double back = combine_.quantized() ? kQuantizedRowError : 0;
    if (nvfp4()) return kNvfp4RowError + back;
    return (quantized() || combine_.log_fmt ? kQuantizedRowError : 0) + back;
  }

  Peers& peers_;
  const Shape shape_;
  const std::string between_nodes_;
  Results& results_;
  const Stream stream_;
  ep::Group group_;
  const Tensor factors_, output_, nowhere_;
  std::vector<DeviceBatch> batches_;
  bool deferred_ = false, unsummed_ = false, without_experts_ = false;
  CombineFormat combine_;
  ep::Reduction reduction_ = ep::Reduction::automatic;
  std::int64_t tokens_ = 0, sent_ = 0;  ///< of the point; of this PE's calls
  const RowFormat* format_ = kFormats;
  ep::ScaleLayout scale_layout_ = ep::ScaleLayout::automatic;
  double rows_ = 0;
};

}  // namespace

std::int64_t low_latency_group_size(std::int64_t tokens) {
  for (const std::int64_t size : {128, 512})
    if (tokens <= size) return size;
  return tokens;
}

void run_low_latency(World& world, Peers& peers, const Options& options) {
  Results results(peers, options, "low-latency");
  std::vector<std::int64_t> left = options.tokens;
  std::ranges::sort(left);
  while (!left.empty()) {
    const std::int64_t size = low_latency_group_size(left.front());
    LowLatencyBench bench(world, peers, options, results, size);
    for (; !left.empty() && left.front() <= size; left.erase(left.begin()))
      for (const std::string& name : options.formats)
        bench.measure(left.front(), *std::ranges::find(kFormats, name, &RowFormat::name));
    bench.close();
  }
}

}  // namespace shoal::bench::gpu
