// SPDX-License-Identifier: Apache-2.0
// options.hpp: the options of shoal-moe, and the shape of a run that follows from them and the
// sizes of the input files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "shoal/ep/gate.hpp"

namespace shoal::moe {

enum class Mode { normal, low_latency };
enum class RowFormat { bf16, fp8 };          ///< of dispatched rows; combined rows are bfloat16
enum class Backend { host, cuda, as_heap };  ///< where heap, rows and experts are

struct Options {
  std::string tokens_file, router_file, bias_file, weights_file, output_file, json_file;
  std::int64_t tokens_per_pe = 128, hidden = 1024, ffn = 64;
  std::int32_t experts = 256, groups = 8, groups_kept = 4, top_k = 8;
  float routed_scaling = 1.0f;
  double skew = 0.5;
  std::uint64_t seed = 1;
  int iterations = 3;
  Mode mode = Mode::normal;
  RowFormat row_format = RowFormat::bf16;
  Backend backend = Backend::as_heap;
  std::int32_t pes = 0;  ///< threads of this process; 0: this process is one PE
  bool check = true;
  bool inject_error = false;
  bool ascii = false;

  bool on_gpu() const { return backend == Backend::cuda; }
};

/// Sizes of a run. Tokens are spread over the PEs in order; the first PEs take one more if the
/// numbers do not divide.
struct Shape {
  std::int64_t tokens = 0;  ///< of all PEs
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;  ///< inner width of an expert
  std::int32_t pes = 1;
  std::int64_t nodes = 1;  ///< of the group; known after the first run of the layer
  ep::GateOptions gate;

  std::int32_t local_experts() const { return gate.experts / pes; }
  std::int64_t first_token(std::int32_t pe) const {
    return tokens / pes * pe + std::min<std::int64_t>(pe, tokens % pes);
  }
  std::int64_t tokens_of(std::int32_t pe) const { return first_token(pe + 1) - first_token(pe); }
  std::int64_t max_tokens() const { return std::max<std::int64_t>(1, tokens_of(0)); }
};

}  // namespace shoal::moe
