// SPDX-License-Identifier: Apache-2.0
// shoal-moe: a DeepSeek-V3-like mixture-of-experts layer over Shoal, checked against a float64
// reference.
//
//   shoal-run -n 8 shoal-moe --mode low-latency --dtype fp8 --skew 1
//   shoal-moe --pes 8 --backend cuda
//
// Exit status: 0 if the check passes or is skipped, 1 if it fails, 2 for any other error.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "base/files.hpp"
#include "command_line/command_line.hpp"
#include "moe/exchange.hpp"
#include "moe/layer.hpp"
#include "moe/reference.hpp"
#include "moe/report.hpp"
#include "shoal/collective.hpp"

namespace shoal::moe {

namespace {

constexpr int kCheckFailed = 1;
constexpr int kError = 2;
constexpr std::chrono::seconds kProgressInterval{5};  // of long runs, on standard error

/// An option whose words name the values of the enumeration `target` in order.
template <typename Enumeration>
CLI::Option* add_choice(CLI::App& app, const std::string& name, Enumeration& target,
                        const std::vector<std::string>& words, const std::string& description) {
  const auto assign = [&target, words](const std::string& word) {
    target = Enumeration{static_cast<int>(std::ranges::find(words, word) - words.begin())};
  };
  return app.add_option_function<std::string>(name, assign, description)
      ->check(CLI::IsMember(words))
      ->default_str(words.front());
}

void declare_inputs(CLI::App& app, Options& options) {
  app.option_defaults()->group(
      "Inputs (files of float32 values; generated from the seed by default)");
  app.add_option("--tokens", options.tokens_file, "Activations [tokens, hidden]");
  app.add_option("--router", options.router_file, "Router logits [tokens, experts]");
  app.add_option("--bias", options.bias_file, "Bias of the expert choice [experts]");
  app.add_option("--weights", options.weights_file,
                 "For each expert: gate and up [hidden, ffn], down [ffn, hidden]");
  app.add_option("--seed", options.seed, "Seed of the generated inputs");
  app.add_option("--skew", options.skew, "Unbalanced load: 0 none, 1 Zipf")
      ->check(tools::between(0.0, 10.0));
}

void declare_shape(CLI::App& app, Options& options) {
  app.option_defaults()->group("Shape");
  app.add_option("--tokens-per-pe", options.tokens_per_pe, "Tokens of each PE")
      ->check(CLI::Range(0, 1 << 20))
      ->excludes("--tokens")
      ->excludes("--router");
  app.add_option("--hidden", options.hidden, "Channels of a token");
  app.add_option("--ffn", options.ffn, "Inner width of an expert");
  app.add_option("--experts", options.experts, "Experts of all PEs");
  app.add_option("--groups", options.groups, "Groups of experts");
  app.add_option("--groups-kept", options.groups_kept, "Groups that a token may choose from");
  app.add_option("--top-k", options.top_k, "Experts of a token");
  app.add_option("--routed-scaling", options.routed_scaling, "Sum of a token's weights")
      ->check(tools::between(-1e6, 1e6));
}

void declare_run(CLI::App& app, Options& options) {
  app.option_defaults()->group("Run");
  add_choice(app, "--mode", options.mode, {"normal", "low-latency"}, "normal or low-latency");
  add_choice(app, "--dtype", options.row_format, {"bf16", "fp8"}, "Dispatched rows: bf16 or fp8");
  add_choice(app, "--backend", options.backend, {"host", "cuda"},
             "host or cuda: heap, rows and experts on GPUs")
      ->default_str("as SHOAL_HEAP");
  app.add_option("--pes", options.pes, "PEs as threads of this process, without shoal-run")
      ->check(CLI::Range(1, 1024))
      ->default_str("");
  app.add_option("--iterations", options.iterations, "Timed runs; the table shows medians")
      ->check(CLI::Range(1, 1'000'000));
  app.add_flag("!--no-check", options.check, "Skip the comparison with the reference");
  app.add_flag("--inject-error", options.inject_error,
               "Change one value of the result, so that the check fails");
  app.add_option("--output", options.output_file,
                 "Write the result to this file: float32 values [tokens, hidden]");
  app.add_option("--json", options.json_file,
                 "Write all figures to this file; without a file, print them instead of the table")
      ->expected(0, 1)
      ->default_str("-")
      ->type_name("[FILE]");
  app.add_flag("--ascii", options.ascii, "Draw with ASCII characters only");
}

void declare(CLI::App& app, Options& options) {
  app.description(
      "A mixture-of-experts layer over Shoal: route, dispatch, experts, combine, check. Start it with shoal-run, or "
      "with --pes.");
  app.option_defaults()->always_capture_default();
  declare_inputs(app, options);
  declare_shape(app, options);
  declare_run(app, options);
  app.option_defaults()->group("Options");
}

/// Changes the largest value of the first token of the last PE that has tokens.
void inject_error(const World& world, const Shape& shape, const Tensor& output) {
  if (world.my_pe() != std::min<std::int64_t>(shape.pes, shape.tokens) - 1) return;
  const std::span row(output.as<ep::numeric::Bf16>(), static_cast<std::size_t>(shape.hidden));
  auto magnitude = [](ep::numeric::Bf16 value) { return value.bits & 0x7fff; };
  std::ranges::max_element(row, {}, magnitude)->bits ^= 0x40;  // the highest bit of the mantissa
}

/// Writes the rows of all PEs to one file: PE 0 fetches them. Collective.
void write_output(const World& world, const Peers& peers, const Shape& shape, const Tensor& output,
                  const std::string& path) {
  using ep::numeric::Bf16;
  const auto row = static_cast<std::size_t>(shape.hidden);
  auto staged = world.heap().allocate<Bf16>(static_cast<std::size_t>(shape.max_tokens()) * row);
  const auto mine = staged.on(world.my_pe()).subspan(0, static_cast<std::size_t>(output.size()));
  world.put(mine, std::span<const Bf16>(output.as<Bf16>(), mine.count));
  barrier(world.team());
  peers.agree([&] {
    if (world.my_pe() != 0) return;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    for (Pe pe = 0; pe < shape.pes; ++pe) {
      std::vector<Bf16> rows(static_cast<std::size_t>(shape.tokens_of(pe)) * row);
      world.get(std::span(rows), staged.on(pe).subspan(0, rows.size()));
      std::vector<float> values(rows.size());
      std::ranges::transform(rows, values.begin(),
                             [](Bf16 value) { return ep::numeric::to_float(value); });
      file.write(reinterpret_cast<const char*>(values.data()),
                 static_cast<std::streamsize>(values.size() * sizeof(float)));
    }
    file.close();
    if (!file) fail_errno("{}: cannot be written", path);
  });
}

/// Runs the program on an open world. Collective.
int run(const World& world, const Peers& peers, const Options& options) {
  Shape shape;
  Inputs inputs;
  std::unique_ptr<Layer> layer;
  peers.agree([&] { shape = resolve_shape(options, world.n_pes()); });
  peers.agree([&] { inputs = load_inputs(options, shape, world.my_pe()); });
  peers.agree([&] { layer = make_layer(world, options, shape, inputs); });

  layer->warmup();
  std::vector<PhaseTimes> times(static_cast<std::size_t>(options.iterations));
  Tensor output;
  auto next = std::chrono::steady_clock::now() + kProgressInterval;
  for (std::size_t i = 0; i < times.size(); ++i) {
    output = layer->run(times[i]);
    if (world.my_pe() != 0 || std::chrono::steady_clock::now() < next) continue;
    fmt::print(stderr, "iteration: {} of {}\n", i + 1, options.iterations);
    next += kProgressInterval;
  }
  shape.nodes = layer->nodes();
  if (options.inject_error) inject_error(world, shape, output);
  std::optional<Check> check;
  if (options.check) {
    check = check_output(options, shape, inputs, layer->gated(), output);
    check->misrouted = count_misrouted(peers, shape, *layer);
  }
  const Report report = gather_report(peers, options, shape, *layer, times, check);
  if (world.my_pe() == 0 && options.json_file != "-") fmt::print("{}", format_table(report));
  if (!options.output_file.empty()) write_output(world, peers, shape, output, options.output_file);
  peers.agree([&] {
    if (world.my_pe() == 0 && !options.json_file.empty()) write_json(report, options.json_file);
  });
  output = Tensor();
  layer->close();
  return report.passed() ? 0 : kCheckFailed;
}

/// Runs one PE: opens the world and runs the layer. One PE reports a failure, in one line.
int run_pe(const Options& options, const std::string& usage_error, const Settings& settings,
           const std::shared_ptr<Bootstrap>& bootstrap) {
  const Peers peers(*bootstrap);
  World world;
  try {
    peers.agree([&] {
      require(usage_error.empty(), Code::invalid_argument, "{}", usage_error);
      check_backend(options);
    });
    world = World::open({settings, bootstrap});
    const int status = run(world, peers, options);
    world.close();
    return status;
  } catch (const AgreedFailure& error) {
    if (peers.me() == 0) fmt::print(stderr, "{}\n", error.what());
    if (world.is_open())
      world.close();
    else
      bootstrap->close();
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    const bool elsewhere = known != nullptr && known->code() == Code::peer_failed;
    if (!elsewhere || peers.me() == 0) fmt::print(stderr, "PE {}: {}\n", peers.me(), error.what());
    bootstrap->abort(error.what());
  }
  return kError;
}

/// The exit status of all PEs: the worst.
int run_threads(const Options& options, const Settings& settings) {
  std::vector<int> statuses(static_cast<std::size_t>(options.pes), kError);
  std::vector<std::thread> threads;
  auto bootstraps = thread_bootstraps(options.pes, settings);
  for (std::size_t pe = 0; pe < statuses.size(); ++pe)
    threads.emplace_back(
        [&, pe, bootstrap = std::shared_ptr<Bootstrap>(std::move(bootstraps[pe]))] {
          try {
            statuses[pe] = run_pe(options, "", settings, bootstrap);
          } catch (const std::exception& error) {
            fmt::print(stderr, "PE {}: {}\n", pe, error.what());
            bootstrap->abort(error.what());
          }
        });
  for (std::thread& thread : threads) thread.join();
  return std::ranges::max(statuses);
}

int run_program(Options options, std::string usage_error) {
  Settings settings = Settings::from_environment();
  if (options.backend == Backend::as_heap)
    options.backend = settings.heap_on_gpu() ? Backend::cuda : Backend::host;
  settings.heap = options.on_gpu() ? "cuda" : "host";
  if (options.pes > 0 && settings.n_pes >= 0 && usage_error.empty())
    usage_error =
        "--pes starts PEs as threads, but shoal-run (SHOAL_N_PES) has started this one; choose one of them";
  if (!usage_error.empty() && settings.n_pes < 0) throw Error(Code::invalid_argument, usage_error);
  if (options.on_gpu()) {
    // Must be set before the driver starts: PEs that share a GPU need a hardware queue for each of
    // their streams (shoal/cuda.hpp).
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  }
  if (options.pes > 0 && usage_error.empty()) return run_threads(options, settings);
  return run_pe(options, usage_error, settings, make_bootstrap(settings));
}

int main(int argc, char** argv) {
  Options options;
  std::string usage_error;
  CLI::App app("", "shoal-moe");
  declare(app, options);
  tools::finish(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    usage_error = fmt::format("{} (--help lists the options)", tools::describe(app, error));
  }
  try {
    return run_program(options, usage_error);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return kError;
  }
}

}  // namespace

}  // namespace shoal::moe

int main(int argc, char** argv) {
  const shoal::FileSizeSignalBlocked guard;  // a file beyond `ulimit -f` is an error with a message
  return shoal::moe::main(argc, argv);
}
