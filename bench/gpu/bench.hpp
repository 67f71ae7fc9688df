// SPDX-License-Identifier: Apache-2.0
// bench.hpp: the parts of shoal-bench-gpu: options, what each PE holds, timing of chains, results.
//
// PEs are threads of one process, or processes under shoal-run, assigned to the GPUs in turn. A
// chain is a sequence of operations that are enqueued without waiting on the host. Times are GPU
// times, between events of the stream.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "gpu/kernels.hpp"
#include "gpu/links.hpp"
#include "shoal/bootstrap.hpp"
#include "shoal/ep/group.hpp"
#include "shoal/world.hpp"
#include "workload.hpp"

namespace shoal::bench::gpu {

inline constexpr std::size_t kMostCollectiveBytes = std::size_t{256} << 20;

/// A format of low-latency rows that the benchmark's experts read.
struct RowFormat {
  const char* name;
  ep::Quantize quantize;
  double channel_bytes;  ///< that travel for a channel, its share of the scales included
};
inline constexpr RowFormat kFormats[] = {{"bf16", ep::Quantize::none, 2},
                                         {"fp8", ep::Quantize::fp8, 1 + 4.0 / 128},
                                         {"mxfp8", ep::Quantize::mxfp8, 1 + 1.0 / 32},
                                         {"nvfp4", ep::Quantize::nvfp4, 0.5 + 1.0 / 16}};

struct Options {
  Shape shape{
      .tokens = 4096, .iterations = 128, .dropped = 16};  ///< `tokens` when SM counts are swept
  std::int32_t pes = 1;                                   ///< threads; ignored under shoal-run
  std::vector<std::int64_t> tokens{8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  std::vector<std::string> formats{"fp8", "bf16"};  ///< names of kFormats
  std::vector<std::int32_t> sms{4, 8, 12, 16, 24, 32, 48, 64};
  std::int32_t main_sms = 16;  ///< SMs when token counts are swept
  bool warmup = true;          ///< start: the group is warmed up by a call or by preinitialize
  bool preinitialize = true;   ///< start: GroupOptions.preinitialize
  /// collectives: bytes of a PE's source; empty: powers of 4 up to the most
  std::vector<std::size_t> bytes;
  bool peer = true;  ///< collectives: also those of NCCL
  std::string json_path;
  bool nodes = false;  ///< SHOAL_NODE_SIZE is set
};

/// The control plane of the benchmark: the bootstrap, which works with every kind of heap.
class Peers {
 public:
  explicit Peers(Bootstrap& bootstrap) : bootstrap_(bootstrap) {}
  std::int32_t me() const { return bootstrap_.pe(); }
  std::int32_t count() const { return bootstrap_.n_pes(); }
  void barrier() { bootstrap_.barrier("benchmark"); }
  /// [PE][value]
  std::vector<std::vector<double>> gather(const std::vector<double>& mine);

 private:
  Bootstrap& bootstrap_;
};

/// Device memory that is not symmetric.
Tensor device_tensor(DataType dtype, std::initializer_list<std::int64_t> shape);
Tensor upload(const TensorView& host);
/// The first `tokens` rows of a tensor.
TensorView first_rows(const TensorView& tensor, std::int64_t rows);

/// The inputs of one operation in device memory, and its expected output.
struct DeviceBatch {
  Tensor x, quantized, scales, topk_idx, weights;
  Tensor factor, size;  ///< float32 [tokens]: the output is x * factor, the sum of terms of `size`
  Tensor ranks;         ///< float32 [tokens]: number of ranks of the token's experts
  /// int64 [1], of check_output: made here because cudaFree waits for all kernels of a GPU, also
  /// for those of another PE that wait for this one.
  Tensor first_bad;
};
/// One set of inputs of this PE, in bfloat16 and in FP8.
DeviceBatch make_device_batch(const Shape& shape, std::int64_t tokens, const Peers& peers,
                              std::int32_t set, cudaStream_t stream);
inline constexpr std::int32_t kSets = 4;

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// An event per mark, in the order of the stream.
class Marks {
 public:
  ~Marks();
  void reserve(std::size_t count);
  void mark(cudaStream_t stream);
  double seconds(std::size_t from, std::size_t to) const;  ///< after the stream is idle
  std::size_t count() const { return used_; }
  void clear() { used_ = 0; }

 private:
  std::vector<cudaEvent_t> events_;
  std::size_t used_ = 0;
};

/// Seconds per operation on this PE. `samples`: single operations, where they were timed one by
/// one.
struct Timing {
  double mean = 0;
  std::vector<double> samples;
  std::optional<LinkBytes> links;  ///< of a chain, per operation
};

/// Enqueues the operations of a chain: `operation(i)` for i = 0, 1, ...; the first `dropped` are
/// not timed.
using Operation = std::function<void(std::int64_t)>;
/// Waits for the GPU and throws its errors.
using Finish = std::function<void()>;
Timing time_chain(Peers& peers, cudaStream_t stream, const Shape& shape, const Operation& operation,
                  const Finish& finish);
/// The same operations captured once, kSets of them, and replayed.
Timing time_graph(Peers& peers, cudaStream_t stream, const Shape& shape, const Operation& operation,
                  const Finish& finish);

/// The marks of a round in time_steps: `marks` of them; step i begins at mark i * `distance` and
/// ends at the next one.
struct Steps {
  std::size_t count, marks, distance;
};
/// Rounds whose steps are timed one by one: round(i, marks) marks their begins and ends.
std::vector<Timing> time_steps(Peers& peers, const Shape& shape, const Steps& steps,
                               const std::function<void(std::int64_t, Marks&)>& round,
                               const Finish& finish);

/// Labels of a measurement, as name and value pairs of the JSON: {"operation", "dispatch"}, {"sms",
/// 16}.
using Labels = nlohmann::ordered_json;

/// Collects results over the PEs; PE 0 prints each and rewrites the JSON file, so that an
/// interrupted run leaves what it has.
class Results {
 public:
  Results(Peers& peers, const Options& options, const std::string& part);
  /// Collective. `bytes`: logical bytes of this PE and operation; 0: none.
  void add(const Labels& labels, const Timing& timing, double bytes);
  /// Collective: seconds of one step, such as creating a group.
  void add_step(const std::string& name, double seconds);
  /// A message of PE 0.
  void note(const std::string& name, const nlohmann::ordered_json& value);

 private:
  void save() const;

  Peers& peers_;
  const std::string path_;
  nlohmann::ordered_json json_;
};

/// Throws Error{mismatch} naming token and channel when an output is wrong. `block`: see compare.
void check_output(const DeviceBatch& batch, const TensorView& out, const TensorView& factor,
                  const TensorView& size, const ep::detail::CombineError& error,
                  cudaStream_t stream, const std::string& what, std::int64_t block = 1);

/// float32 [group.max_local_experts()]: the factors (workload.hpp) of the experts of rank `me`,
/// then zeros.
Tensor expert_factors(const ep::Group& group, Pe me);

/// The settings of a world whose heap lies on the GPU and holds groups of these sizes.
Settings gpu_settings(std::size_t heap_bytes);
ep::GroupOptions normal_options(const Options& options, std::int64_t max_tokens);
ep::GroupOptions low_latency_options(const Options& options, std::int64_t max_tokens);
/// The size of the low-latency group for so many tokens: the smallest of a few sizes that fits,
/// because the distance between slots depends on it.
std::int64_t low_latency_group_size(std::int64_t tokens);
/// Bytes of the symmetric heap that a part needs.
std::size_t heap_bytes(const Options& options, const std::string& part, std::int32_t pes);

void run_normal(World& world, Peers& peers, const Options& options);
void run_low_latency(World& world, Peers& peers, const Options& options);
/// PEs on two nodes, emulated where SHOAL_NODE_SIZE does not say otherwise.
void run_nodes(World& world, Peers& peers, const Options& options);
/// Operations on streams.
void run_streams(World& world, Peers& peers, const Options& options);
/// Measures collectives on streams, and NCCL's for comparison.
void run_collectives(World& world, Peers& peers, const Options& options);
/// `world_seconds`: how long World::open took.
void run_start(World& world, Peers& peers, const Options& options, double world_seconds);

}  // namespace shoal::bench::gpu
