// SPDX-License-Identifier: Apache-2.0
// shoal-moe: a DeepSeek-V3-like mixture-of-experts layer over Shoal, checked against a float64
// reference.
//
//   shoal-run -n 8 shoal-moe --mode low-latency --dtype fp8 --skew 1
//   shoal-moe --pes 8 --backend cuda
//
// Exit status: 0 if the check passes or is left out, 1 if it fails, 2 for any other error.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <cstring>
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
#include "moe/npy.hpp"
#include "moe/options.hpp"
#include "moe/reference.hpp"
#include "moe/report.hpp"
#include "shoal/collective.hpp"

namespace shoal::moe {

namespace {

constexpr int kCheckFailed = 1;
constexpr int kError = 2;

void declare_inputs(CLI::App& app, Options& options) {
  const std::string inputs = "Inputs (.npy; generated from the seed by default)";
  app.add_option("--tokens", options.tokens_file, "Activations, float [tokens, hidden]")
      ->group(inputs);
  app.add_option("--router", options.router_file, "Router logits, float [tokens, experts]")
      ->group(inputs);
  app.add_option("--bias", options.bias_file, "Bias of the expert choice, float [experts]")
      ->group(inputs);
  app.add_option("--weights", options.weights_file,
                 "Experts, float [experts, 3, hidden, ffn]: gate, up, down")
      ->group(inputs);
  app.add_option("--seed", options.seed, "Seed of the generated inputs")
      ->capture_default_str()
      ->group(inputs);
  app.add_option("--skew", options.skew, "Unbalanced load: 0 none, 1 Zipf")
      ->check(tools::between(0.0, 10.0))
      ->capture_default_str()
      ->group(inputs);
}

void declare_shape(CLI::App& app, Options& options) {
  const std::string shape = "Shape";
  app.add_option("--tokens-per-pe", options.tokens_per_pe, "Tokens of each PE")
      ->check(CLI::Range(0, 1 << 20))
      ->excludes("--tokens")
      ->excludes("--router")
      ->capture_default_str()
      ->group(shape);
  app.add_option("--hidden", options.hidden,
                 fmt::format("Channels of a token [{}]", kDefaultHidden))
      ->group(shape);
  app.add_option("--ffn", options.ffn, fmt::format("Inner width of an expert [{}]", kDefaultFfn))
      ->group(shape);
  app.add_option("--experts", options.experts,
                 fmt::format("Experts of all PEs [{}]", kDefaultExperts))
      ->group(shape);
  app.add_option("--groups", options.groups, "Groups of experts")
      ->capture_default_str()
      ->group(shape);
  app.add_option("--groups-kept", options.groups_kept, "Groups that a token may choose from")
      ->capture_default_str()
      ->group(shape);
  app.add_option("--top-k", options.top_k, "Experts of a token")
      ->capture_default_str()
      ->group(shape);
  app.add_option("--routed-scaling", options.routed_scaling, "Sum of a token's weights")
      ->check(tools::between(-1e6, 1e6))
      ->capture_default_str()
      ->group(shape);
}

void declare_run(CLI::App& app, Options& options) {
  const std::string run = "Run";
  app.add_option_function<std::string>(
         "--mode",
         [&](const std::string& name) {
           options.mode = name == "normal" ? Mode::normal : Mode::low_latency;
         },
         "normal or low-latency")
      ->check(CLI::IsMember({"normal", "low-latency"}))
      ->default_str("normal")
      ->group(run);
  app.add_option_function<std::string>(
         "--dtype",
         [&](const std::string& name) {
           options.row_format = name == "fp8" ? RowFormat::fp8 : RowFormat::bf16;
         },
         "Dispatched rows: bf16 or fp8")
      ->check(CLI::IsMember({"bf16", "fp8"}))
      ->default_str("bf16")
      ->group(run);
  app.add_option_function<std::string>(
         "--backend",
         [&](const std::string& name) {
           options.backend = name == "cuda" ? Backend::cuda : Backend::host;
         },
         "host or cuda: experts on GPUs, in bfloat16 through cuBLASLt [as SHOAL_HEAP]")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->group(run);
  app.add_option(
         "--cublaslt", options.cublaslt,
         "The cuBLASLt library or its folder [libcublasLt.so.13 or .12 in the library search path]")
      ->group(run);
  app.add_option("--pes", options.pes, "PEs as threads of this process, without shoal-run")
      ->check(CLI::Range(1, 1024))
      ->group(run);
  app.add_option("--iterations", options.iterations, "Timed runs; the table shows medians")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->group(run);
  app.add_flag("!--no-check", options.check, "Skip the comparison with the reference")->group(run);
  app.add_flag("--inject-error", options.inject_error,
               "Change one value of the result, so that the check fails")
      ->group(run);
  app.add_option("--output", options.output_file,
                 "Write the result, float32 [tokens, hidden], to this .npy file")
      ->group(run);
  app.add_option("--json", options.json_file,
                 "Write all figures to this file; without a file, print them instead of the table")
      ->expected(0, 1)
      ->default_str("-")
      ->type_name("[FILE]")
      ->group(run);
  app.add_flag("--ascii", options.ascii, "Draw with ASCII characters only")->group(run);
}

void declare(CLI::App& app, Options& options) {
  app.description(
      "A mixture-of-experts layer over Shoal: route, dispatch, experts, combine, check. Start it with shoal-run, or "
      "with --pes.");
  declare_inputs(app, options);
  declare_shape(app, options);
  declare_run(app, options);
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
  const auto row = static_cast<std::size_t>(shape.hidden);
  auto staged =
      world.heap().allocate<ep::numeric::Bf16>(static_cast<std::size_t>(shape.max_tokens()) * row);
  const auto mine = staged.on(world.my_pe()).subspan(0, static_cast<std::size_t>(output.size()));
  world.put(mine, std::span<const ep::numeric::Bf16>(output.as<ep::numeric::Bf16>(), mine.count));
  barrier(world.team());
  peers.agree([&] {
    if (world.my_pe() != 0) return;
    const std::int64_t extents[] = {shape.tokens, shape.hidden};
    tools::NpyWriter writer(path, DataType::float32, extents);
    std::vector<ep::numeric::Bf16> rows;
    std::vector<float> values;
    for (Pe pe = 0; pe < shape.pes; ++pe) {
      rows.resize(static_cast<std::size_t>(shape.tokens_of(pe)) * row);
      world.get(std::span(rows), staged.on(pe).subspan(0, rows.size()));
      values.resize(rows.size());
      std::ranges::transform(rows, values.begin(),
                             [](ep::numeric::Bf16 value) { return ep::numeric::to_float(value); });
      writer.append(std::span<const float>(values));
    }
    writer.close();
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

  Progress progress(world.my_pe() == 0);
  layer->warmup();
  std::vector<PhaseTimes> times(static_cast<std::size_t>(options.iterations));
  Tensor output;
  for (std::size_t i = 0; i < times.size(); ++i) {
    progress.show("iteration", static_cast<std::int64_t>(i), options.iterations);
    output = layer->run(times[i]);
  }
  shape.nodes = layer->nodes();
  if (options.inject_error) inject_error(world, shape, output);
  std::optional<Check> check;
  if (options.check) {
    check = check_output(options, shape, inputs, layer->gated(), output,
                         [&](std::int64_t done, std::int64_t experts) {
                           progress.show("reference, expert", done, experts);
                         });
    check->differing = count_misrouted(peers, shape, *layer) + layer->differing_values();
  }
  const Report report = gather_report(peers, options, shape, *layer, times, check);
  progress.clear();
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
  if (!options.backend) options.backend = settings.heap_on_gpu() ? Backend::cuda : Backend::host;
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
