// SPDX-License-Identifier: Apache-2.0
// shoal-bench-mpi: dispatch and combine as a program on MPI would implement them, with the shapes,
// checks and output of shoal-bench ep.
//
// MPI_Alltoall exchanges counts, MPI_Alltoallv exchanges rows packed by destination, once per
// (token, rank). Copies and sums use Shoal's row operations, so only the transport differs, with
// the packing and unpacking that it requires. Every free choice favours MPI: normal mode sends rows
// without indices and weights; expert output in row order is sent in place; low latency uses
// per-rank sums, which send the least.
#include <fmt/format.h>
#include <mpi.h>

#include <cstring>
#include <numeric>

#include "base/check.hpp"
#include "ep/host/rows/row_ops.hpp"
#include "options.hpp"
#include "report.hpp"

namespace shoal::bench {
namespace {

using ep::host::Store;

void check_mpi(int result, const char* call) {
  require(result == MPI_SUCCESS, Code::system, "{} returned {}", call, result);
}

/// Rows between all pairs of ranks, counted in rows, in the form of MPI_Alltoallv.
struct Exchange {
  std::vector<int> send, send_first, receive, receive_first;
  int sent = 0, received = 0;

  explicit Exchange(std::vector<int> counts)
      : send(std::move(counts)),
        send_first(send.size()),
        receive(send.size()),
        receive_first(send.size()) {
    check_mpi(MPI_Alltoall(send.data(), 1, MPI_INT, receive.data(), 1, MPI_INT, MPI_COMM_WORLD),
              "MPI_Alltoall");
    std::exclusive_scan(send.begin(), send.end(), send_first.begin(), 0);
    std::exclusive_scan(receive.begin(), receive.end(), receive_first.begin(), 0);
    sent = send_first.back() + send.back();
    received = receive_first.back() + receive.back();
  }

  void forward(const void* source, void* target, MPI_Datatype row) const {
    check_mpi(MPI_Alltoallv(source, send.data(), send_first.data(), row, target, receive.data(),
                            receive_first.data(), row, MPI_COMM_WORLD),
              "MPI_Alltoallv");
  }
  void backward(const void* source, void* target, MPI_Datatype row) const {
    check_mpi(MPI_Alltoallv(source, receive.data(), receive_first.data(), row, target, send.data(),
                            send_first.data(), row, MPI_COMM_WORLD),
              "MPI_Alltoallv");
  }
};

class RowType {
 public:
  explicit RowType(std::size_t bytes) {
    MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &type_);
    MPI_Type_commit(&type_);
  }
  ~RowType() { MPI_Type_free(&type_); }
  RowType(const RowType&) = delete;
  RowType& operator=(const RowType&) = delete;
  operator MPI_Datatype() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

/// The tokens for each rank, and the position of every copy among all rows sent.
struct Plan {
  std::vector<std::vector<std::int32_t>> tokens;  ///< [ranks]
  /// [tokens]: positions of the copies, by ascending rank.
  std::vector<std::vector<std::int32_t>> position;
  std::vector<int> counts;  ///< [ranks]
};

Plan make_plan(const Batch& batch, const Shape& shape, std::int32_t ranks) {
  const ep::detail::Partition spread = shape.spread(ranks);
  Plan plan;
  plan.tokens.resize(static_cast<std::size_t>(ranks));
  plan.position.resize(static_cast<std::size_t>(batch.tokens));
  for (std::int64_t token = 0; token < batch.tokens; ++token)
    for (std::int64_t k = 0; k < shape.top_k; ++k) {
      const std::int32_t rank =
          spread.place(batch.topk_idx.as<std::int64_t>()[token * shape.top_k + k]).rank;
      auto& list = plan.tokens[static_cast<std::size_t>(rank)];
      if (list.empty() || list.back() != token) list.push_back(static_cast<std::int32_t>(token));
    }
  std::int32_t position = 0;
  for (const auto& list : plan.tokens) {
    for (const std::int32_t token : list)
      plan.position[static_cast<std::size_t>(token)].push_back(position++);
    plan.counts.push_back(static_cast<int>(list.size()));
  }
  return plan;
}

/// Sums the expert output of each token in ascending rank.
void sum_expert_output(const Plan& plan, const std::byte* expert_output, const Shape& shape,
                       Store store, std::uint16_t* output) {
  std::vector<const void*> rows;
  for (std::size_t token = 0; token < plan.position.size(); ++token) {
    rows.clear();
    for (const std::int32_t position : plan.position[token])
      rows.push_back(expert_output + static_cast<std::size_t>(position) * shape.row_bytes());
    ep::host::sum_rows(DataType::bfloat16, output + token * static_cast<std::size_t>(shape.hidden),
                       rows, nullptr, nullptr, static_cast<std::size_t>(shape.hidden), store);
  }
  ep::host::flush_streamed_rows();
}

/// A buffer that lives as long as the program, as large as the largest exchange.
Tensor buffer(std::size_t bytes) {
  Tensor tensor = Tensor::empty(DataType::uint8, {static_cast<std::int64_t>(bytes)});
  std::memset(tensor.data, 0, bytes);
  return tensor;
}

struct PairTimes {
  Times dispatch, combine, in_mpi, total;
  double rows = 0;
};

/// Adds the duration of a scope.
class Stopwatch {
 public:
  explicit Stopwatch(Times& sum) : sum_(sum), start_(now()) {}
  ~Stopwatch() { sum_ += now() - start_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  Times& sum_;
  Times start_;
};

/// Chains of pairs with their checks; the modes say what a dispatch and a combine are.
class Mode {
 public:
  virtual ~Mode() = default;

 protected:
  Mode(const Shape& shape, std::int64_t tokens, std::int32_t rank, std::int32_t ranks)
      : shape_(shape),
        rank_(rank),
        ranks_(ranks),
        row_(shape.row_bytes()),
        batches_(make_batches(shape, tokens, rank)) {}

  virtual Exchange dispatch(const Batch& batch, const Plan& plan, Times& in_mpi) = 0;
  virtual void combine(const Plan& plan, const Exchange& exchange, Times& in_mpi) = 0;
  /// Rows that the experts of this rank have got by a dispatch.
  virtual double rows_of(const Exchange& exchange) const = 0;
  /// Throws Error{mismatch} unless a pair of each batch returns the right rows.
  virtual void check(const char* when) = 0;

  /// Times of a pair of a chain, after `dropped` pairs.
  PairTimes time_chain(std::int64_t dropped, std::int64_t timed) {
    check("before the chain");
    run_chain(dropped);
    MPI_Barrier(MPI_COMM_WORLD);
    const Times start = now();
    PairTimes times = run_chain(timed);
    times.total = now() - start;
    check("after the chain");
    const auto n = static_cast<double>(timed);
    return {times.dispatch / n, times.combine / n, times.in_mpi / n, times.total / n,
            times.rows / n};
  }

  const Shape shape_;
  const std::int32_t rank_, ranks_;
  const RowType row_;
  std::vector<Batch> batches_;

 private:
  PairTimes run_chain(std::int64_t pairs) {
    PairTimes times;
    for (std::int64_t i = 0; i < pairs; ++i) {
      const Batch& batch = batches_[static_cast<std::size_t>(i % kBatches)];
      const Times start = now();
      const Plan plan = make_plan(batch, shape_, ranks_);
      const Exchange exchange = dispatch(batch, plan, times.in_mpi);
      const Times middle = now();
      combine(plan, exchange, times.in_mpi);
      times.dispatch += middle - start;
      times.combine += now() - middle;
      times.rows += rows_of(exchange);
    }
    return times;
  }
};

class NormalMode final : public Mode {
 public:
  NormalMode(const Shape& shape, std::int32_t rank, std::int32_t ranks)
      : Mode(shape, shape.tokens, rank, ranks),
        sent_(buffer(capacity())),
        received_(buffer(capacity())),
        output_(buffer(static_cast<std::size_t>(shape.tokens) * shape.row_bytes())) {}

  void measure(std::vector<Measurement>& measurements) {
    const PairTimes times = time_chain(shape_.dropped, shape_.iterations);
    const double bytes = times.rows * static_cast<double>(shape_.row_bytes());
    measurements.push_back({"dispatch bf16", times.dispatch, bytes});
    measurements.push_back({"combine bf16", times.combine, bytes});
    measurements.push_back({"dispatch + combine bf16", times.total, 2 * bytes});
    measurements.push_back({"  of which in MPI calls", times.in_mpi, 0});
    const auto all_meet = [] { MPI_Barrier(MPI_COMM_WORLD); };
    measurements.push_back(
        {"memcpy of the dispatch bytes",
         time_memcpy(static_cast<std::size_t>(bytes), shape_.iterations, all_meet), bytes});
  }

 private:
  std::size_t capacity() const {
    return static_cast<std::size_t>(ranks_ * shape_.tokens) * shape_.row_bytes();
  }

  double rows_of(const Exchange& exchange) const override { return exchange.received; }

  Exchange dispatch(const Batch& batch, const Plan& plan, Times& in_mpi) override {
    auto* target = sent_.as<std::byte>();
    for (const auto& tokens : plan.tokens)
      for (const std::int32_t token : tokens) {
        ep::host::copy_row(target, batch.row(token), shape_.row_bytes(), Store::streamed);
        target += shape_.row_bytes();
      }
    ep::host::flush_streamed_rows();
    const Stopwatch stopwatch(in_mpi);
    Exchange exchange(plan.counts);
    exchange.forward(sent_.data, received_.data, row_);
    return exchange;
  }

  /// The expert output overwrites the received rows.
  void combine(const Plan& plan, const Exchange& exchange, Times& in_mpi) override {
    {
      const Stopwatch stopwatch(in_mpi);
      exchange.backward(received_.data, sent_.data, row_);
    }
    sum_expert_output(plan, sent_.as<std::byte>(), shape_, Store::streamed,
                      output_.as<std::uint16_t>());
  }

  void check(const char* when) override {
    Times ignored;
    for (const Batch& batch : batches_) {
      const Plan plan = make_plan(batch, shape_, ranks_);
      const Exchange exchange = dispatch(batch, plan, ignored);
      apply_experts(batch, plan, exchange);
      combine(plan, exchange, ignored);
      check_output(batch, output_.as<std::uint16_t>(), shape_,
                   ep::detail::combine_error(ep::detail::normal_mode_levels(ranks_, 1)), when);
    }
  }

  /// Sends indices and weights after the rows, outside the timed part, and applies the experts.
  void apply_experts(const Batch& batch, const Plan& plan, const Exchange& exchange) {
    const auto k = static_cast<std::size_t>(shape_.top_k);
    std::vector<std::int64_t> experts,
        received_experts(static_cast<std::size_t>(exchange.received) * k);
    std::vector<float> weights, received_weights(received_experts.size());
    for (const auto& tokens : plan.tokens)
      for (const std::int32_t token : tokens) {
        const std::size_t first = static_cast<std::size_t>(token) * k;
        experts.insert(experts.end(), batch.topk_idx.as<std::int64_t>() + first,
                       batch.topk_idx.as<std::int64_t>() + first + k);
        weights.insert(weights.end(), batch.weights.as<float>() + first,
                       batch.weights.as<float>() + first + k);
      }
    exchange.forward(experts.data(), received_experts.data(), RowType(k * sizeof(std::int64_t)));
    exchange.forward(weights.data(), received_weights.data(), RowType(k * sizeof(float)));
    const ep::detail::Partition spread = shape_.spread(ranks_);
    const std::int64_t first_expert = spread.first(rank_);
    for (std::int64_t& expert : received_experts)
      expert = spread.place(expert).rank == rank_ ? expert - first_expert : -1;
    for (std::size_t row = 0; row < static_cast<std::size_t>(exchange.received); ++row) {
      auto* const x = received_.as<std::uint16_t>() + row * static_cast<std::size_t>(shape_.hidden);
      bench::apply_experts(x, x, received_experts.data() + row * k,
                           received_weights.data() + row * k, first_expert, shape_);
    }
  }

  Tensor sent_, received_, output_;
};

/// Sends rows once per (token, rank), with their experts and weights. The receiver lays them out by
/// expert, [experts, ranks * tokens, hidden], as expert kernels of fixed shape require.
class LowLatencyMode final : public Mode {
 public:
  LowLatencyMode(const Shape& shape, std::int32_t rank, std::int32_t ranks, bool quantize)
      : Mode(shape, shape.low_latency_tokens, rank, ranks),
        spread_(shape.spread(ranks)),
        local_experts_(spread_.count(rank)),
        rows_per_expert_(ranks * shape.low_latency_tokens),
        quantize_(quantize),
        groups_(static_cast<std::size_t>((shape.hidden + 127) / 128)),
        payload_(static_cast<std::size_t>(shape.hidden) * (quantize ? 1 : 2)),
        scales_at_((static_cast<std::size_t>(shape.top_k) * 8 + 63) / 64 * 64 + payload_),
        record_bytes_((scales_at_ + (quantize ? groups_ * sizeof(float) : 0) + 63) / 64 * 64),
        record_(record_bytes_),
        sent_(buffer(slots() * record_bytes_)),
        received_(buffer(slots() * record_bytes_)),
        x_(buffer(expert_slots() * payload_)),
        scales_(buffer(expert_slots() * groups_ * sizeof(float))),
        y_(buffer(expert_slots() * shape.row_bytes())),
        sums_(buffer(slots() * shape.row_bytes())),
        expert_output_(buffer(slots() * shape.row_bytes())),
        output_(buffer(static_cast<std::size_t>(shape.low_latency_tokens) * shape.row_bytes())) {}

  void measure(std::vector<Measurement>& measurements) {
    const PairTimes times = time_chain(8 * shape_.dropped, shape_.low_latency_iterations());
    const std::string kind = quantize_ ? "fp8 per rank" : "bf16 per rank";
    const double row = static_cast<double>(payload_ + (quantize_ ? groups_ * sizeof(float) : 0)),
                 back = static_cast<double>(shape_.row_bytes());
    measurements.push_back({"low-latency dispatch " + kind, times.dispatch, times.rows * row});
    measurements.push_back({"low-latency combine " + kind, times.combine, times.rows * back});
    measurements.push_back({"low-latency pair " + kind, times.total, times.rows * (row + back)});
    measurements.push_back({"  of which in MPI calls", times.in_mpi, 0});
  }

 private:
  std::size_t slots() const { return static_cast<std::size_t>(rows_per_expert_); }
  std::size_t expert_slots() const {
    return static_cast<std::size_t>(local_experts_ * rows_per_expert_);
  }
  std::size_t payload_at() const { return scales_at_ - payload_; }

  double rows_of(const Exchange&) const override {
    return std::accumulate(counts_.begin(), counts_.end(), 0);
  }

  Exchange dispatch(const Batch& batch, const Plan& plan, Times& in_mpi) override {
    std::byte* record = sent_.as<std::byte>();
    for (std::size_t rank = 0; rank < plan.tokens.size(); ++rank)
      for (const std::int32_t token : plan.tokens[rank]) {
        pack(record, batch, token, static_cast<std::int32_t>(rank));
        record += record_bytes_;
      }
    Exchange exchange = [&] {
      const Stopwatch stopwatch(in_mpi);
      Exchange result(plan.counts);
      result.forward(sent_.data, received_.data, record_);
      return result;
    }();
    expand(exchange.received);
    return exchange;
  }

  /// Layout of a record: experts of `rank`, numbered from 0 there, or -1; weights; row; scales.
  void pack(std::byte* record, const Batch& batch, std::int64_t token, std::int32_t rank) const {
    auto* const experts = reinterpret_cast<std::int32_t*>(record);
    auto* const weights = reinterpret_cast<float*>(record) + shape_.top_k;
    for (std::int64_t k = 0; k < shape_.top_k; ++k) {
      const ep::detail::ExpertPlace place =
          spread_.place(batch.topk_idx.as<std::int64_t>()[token * shape_.top_k + k]);
      experts[k] = place.rank == rank ? place.local : -1;
      weights[k] = batch.weights.as<float>()[token * shape_.top_k + k];
    }
    if (quantize_)
      ep::host::quantize_row(reinterpret_cast<std::uint8_t*>(record + payload_at()),
                             reinterpret_cast<float*>(record + scales_at_), batch.row(token),
                             static_cast<std::size_t>(shape_.hidden), ep::host::ScaleForm::plain);
    else
      ep::host::copy_row(record + payload_at(), batch.row(token), payload_, Store::cached);
  }

  void expand(int received) {
    counts_.assign(static_cast<std::size_t>(local_experts_), 0);
    places_.clear();
    for (int r = 0; r < received; ++r) {
      const std::byte* const record =
          received_.as<std::byte>() + static_cast<std::size_t>(r) * record_bytes_;
      const auto* const experts = reinterpret_cast<const std::int32_t*>(record);
      for (std::int64_t k = 0; k < shape_.top_k; ++k) {
        if (experts[k] < 0) continue;
        const std::size_t place = static_cast<std::size_t>(
            experts[k] * rows_per_expert_ + counts_[static_cast<std::size_t>(experts[k])]++);
        ep::host::copy_row(x_.as<std::byte>() + place * payload_, record + payload_at(), payload_,
                           Store::cached);
        if (quantize_)
          ep::host::copy_row(scales_.as<float>() + place * groups_, record + scales_at_,
                             groups_ * sizeof(float), Store::cached);
        places_.push_back({r, place, reinterpret_cast<const float*>(record)[shape_.top_k + k]});
      }
    }
  }

  void combine(const Plan& plan, const Exchange& exchange, Times& in_mpi) override {
    std::vector<const std::uint16_t*> rows;
    std::vector<float> weights;
    const auto hidden = static_cast<std::size_t>(shape_.hidden);
    for (std::size_t first = 0, end = 0; first < places_.size(); first = end) {
      rows.clear();
      weights.clear();
      for (end = first; end < places_.size() && places_[end].record == places_[first].record;
           ++end) {
        rows.push_back(y_.as<std::uint16_t>() + places_[end].place * hidden);
        weights.push_back(places_[end].weight);
      }
      ep::host::weighted_sum_rows(
          sums_.as<std::uint16_t>() + static_cast<std::size_t>(places_[first].record) * hidden,
          rows, weights, {}, hidden, Store::cached);
    }
    {
      const Stopwatch stopwatch(in_mpi);
      exchange.backward(sums_.data, expert_output_.data, row_);
    }
    sum_expert_output(plan, expert_output_.as<std::byte>(), shape_, Store::cached,
                      output_.as<std::uint16_t>());
  }

  void check(const char* when) override {
    Times ignored;
    const auto hidden = static_cast<std::size_t>(shape_.hidden);
    std::vector<std::uint16_t> x(hidden);
    for (const Batch& batch : batches_) {
      const Plan plan = make_plan(batch, shape_, ranks_);
      const Exchange exchange = dispatch(batch, plan, ignored);
      for (const Place& place : places_) {
        const std::int64_t expert =
            spread_.first(rank_) + static_cast<std::int64_t>(place.place) / rows_per_expert_;
        if (quantize_)
          ep::host::dequantize_row(x.data(), x_.as<std::uint8_t>() + place.place * hidden,
                                   scales_.as<float>() + place.place * groups_, hidden);
        else
          std::memcpy(x.data(), x_.as<std::uint16_t>() + place.place * hidden, hidden * 2);
        apply_expert(y_.as<std::uint16_t>() + place.place * hidden, x.data(), expert, shape_);
      }
      combine(plan, exchange, ignored);
      check_output(batch, output_.as<std::uint16_t>(), shape_,
                   ep::detail::combine_error(ep::detail::low_latency_levels(),
                                             quantize_ ? kQuantizedRowError : 0),
                   when);
    }
  }

  /// One received row at one of its experts.
  struct Place {
    int record;
    std::size_t place;
    float weight;
  };

  const ep::detail::Partition spread_;
  const std::int64_t local_experts_, rows_per_expert_;
  const bool quantize_;
  const std::size_t groups_, payload_, scales_at_, record_bytes_;
  const RowType record_;
  Tensor sent_, received_, x_, scales_, y_, sums_, expert_output_, output_;
  std::vector<int> counts_;
  std::vector<Place> places_;
};

Gather gather_through_mpi(int ranks) {
  return [ranks](const std::vector<double>& mine) {
    std::vector<double> all(mine.size() * static_cast<std::size_t>(ranks));
    const int count = static_cast<int>(mine.size());
    check_mpi(MPI_Allgather(mine.data(), count, MPI_DOUBLE, all.data(), count, MPI_DOUBLE,
                            MPI_COMM_WORLD),
              "MPI_Allgather");
    return all;
  };
}

void run(const Shape& shape, const std::string& json_path) {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  shape.validate();
  Report report{.program = "shoal-bench-mpi", .basis = kRowsReceived, .pe = rank, .pes = ranks};
  describe(report, shape);
  std::vector<Measurement> measurements;
  NormalMode(shape, rank, ranks).measure(measurements);
  for (const bool quantize : {false, true})
    LowLatencyMode(shape, rank, ranks, quantize).measure(measurements);
  publish(report, measurements, gather_through_mpi(ranks), json_path);
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  shoal::bench::Shape shape;
  std::string json_path;
  CLI::App app("The MPI baseline of shoal-bench ep: mpirun -n 8 shoal-bench-mpi",
               "shoal-bench-mpi");
  shoal::bench::add_shape_options(app, shape);
  app.add_option("--json", json_path, "also write the results to this file");
  CLI11_PARSE(app, argc, argv);
  MPI_Init(&argc, &argv);
  try {
    shoal::bench::run(shape, json_path);
  } catch (const std::exception& error) {
    fmt::print(stderr, "shoal-bench-mpi: {}\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
