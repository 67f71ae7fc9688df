// SPDX-License-Identifier: Apache-2.0
// options.hpp: the options for the shape, shared by shoal-bench ep and the MPI baseline.
#pragma once

#include <CLI/CLI.hpp>

#include "workload.hpp"

namespace shoal::bench {

inline void add_shape_options(CLI::App& app, Shape& shape) {
  app.add_option("--tokens", shape.tokens, "tokens per PE")->capture_default_str();
  app.add_option("--hidden", shape.hidden, "channels of a row")->capture_default_str();
  app.add_option("--top-k", shape.top_k, "experts per token")->capture_default_str();
  app.add_option("--experts", shape.experts, "experts of all PEs together")->capture_default_str();
  app.add_option("--low-latency-tokens", shape.low_latency_tokens,
                 "tokens per PE in low-latency mode")
      ->capture_default_str();
  app.add_option("--iterations", shape.iterations,
                 "timed pairs of normal mode; low latency runs eight times as many")
      ->capture_default_str();
  app.add_option("--seed", shape.seed, "seed of routing and rows")->capture_default_str();
}

}  // namespace shoal::bench
