// SPDX-License-Identifier: Apache-2.0
// shoal-bench: measures this build on this machine. Start it with shoal-run:
//
//   shoal-run -n 8 shoal-bench ep
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/files.hpp"
#include "options.hpp"
#include "shoal/collective.hpp"
#include "shoal_bench.hpp"

namespace shoal::bench {

Gather gather_through(World& world) {
  return [&world](const std::vector<double>& mine) {
    const auto source = world.heap().allocate<double>(mine.size());
    const auto target =
        world.heap().allocate<double>(mine.size() * static_cast<std::size_t>(world.n_pes()));
    world.put(source.on(world.my_pe()),
              std::span<const double>(mine));  // the heap may lie on a GPU
    all_gather(world.team(), target.data(), source.data(), mine.size() * sizeof(double));
    std::vector<double> all(target.size());
    world.get(std::span(all), target.on(world.my_pe()));
    return all;
  };
}

namespace {

struct Arguments {
  Shape shape;
  RmaOptions rma;
  Shape waits_shape{.tokens = 16, .hidden = 256, .top_k = 8, .experts = 192, .iterations = 32};
  Shape start_shape{.tokens = 128, .hidden = 7168, .top_k = 8, .experts = 64};
  std::int64_t threads = 0;
  std::string json_path;
  bool ep = false, waits = false, start = false, preinitialize = false;
};

void declare(CLI::App& app, Arguments& arguments) {
  app.require_subcommand(1);
  CLI::App* const ep =
      app.add_subcommand("ep", "dispatch and combine of both modes, and memcpy of the same bytes");
  add_shape_options(*ep, arguments.shape);
  ep->callback([&arguments] { arguments.ep = true; });
  CLI::App* const rma =
      app.add_subcommand("rma", "put, get, atomics, signals, barrier and all-to-all");
  rma->add_option("--iterations", arguments.rma.iterations, "repetitions of each small operation")
      ->capture_default_str();
  rma->add_option("--sizes", arguments.rma.sizes, "sizes of puts and gets, in bytes; default: all");
  rma->add_flag("--heap", arguments.rma.heap, "local memory lies in the symmetric heap");
  CLI::App* const waits = app.add_subcommand(
      "waits", "operations with little work, for any number of PEs per core; see --threads");
  add_shape_options(*waits, arguments.waits_shape);
  waits
      ->add_option("--threads", arguments.threads,
                   "PEs are this many threads of this process, without shoal-run")
      ->check(CLI::Range(1, 1024));
  waits->callback([&arguments] { arguments.waits = true; });
  CLI::App* const start = app.add_subcommand(
      "start", "the first pair of the process by cause, and its ratio to a steady pair");
  add_shape_options(*start, arguments.start_shape);
  start->add_flag("--preinitialize", arguments.preinitialize,
                  "create the groups with GroupOptions::preinitialize");
  start->callback([&arguments] { arguments.start = true; });
  for (CLI::App* const command : {ep, rma, waits, start})
    command->add_option("--json", arguments.json_path, "also write the results to this file");
}

void run(const Arguments& arguments, std::shared_ptr<Bootstrap> bootstrap) {
  const Times start = now();
  World world = World::open({.settings = Settings::from_environment(), .bootstrap = bootstrap});
  const Times open = now() - start;
  if (arguments.waits)
    run_waits(world, arguments.waits_shape, arguments.threads, open, arguments.json_path);
  else if (arguments.start)
    run_start(world, arguments.start_shape, arguments.preinitialize, open, arguments.json_path);
  else if (arguments.ep)
    run_ep(world, arguments.shape, arguments.json_path);
  else
    run_rma(world, arguments.rma, arguments.json_path);
  world.close();
}

/// run() on threads of this process.
void run_as_threads(const Arguments& arguments) {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr failure;
  for (auto& bootstrap : thread_bootstraps(static_cast<Pe>(arguments.threads)))
    threads.emplace_back([&, shared = std::shared_ptr<Bootstrap>(std::move(bootstrap))] {
      try {
        run(arguments, shared);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  const shoal::FileSizeSignalBlocked guard;  // a file beyond `ulimit -f` is an error with a message
  CLI::App app(
      "Measures Shoal on this machine. Run it under shoal-run: shoal-run -n 8 shoal-bench ep",
      "shoal-bench");
  shoal::bench::Arguments arguments;
  shoal::bench::declare(app, arguments);
  CLI11_PARSE(app, argc, argv);
  try {
    if (arguments.threads > 0)
      shoal::bench::run_as_threads(arguments);
    else
      shoal::bench::run(arguments, nullptr);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "shoal-bench: {}\n", error.what());
    return 1;
  }
}
