// SPDX-License-Identifier: Apache-2.0
// shoal-bench: measures this build on this machine. Start it with shoal-run:
//
//   shoal-run -n 8 shoal-bench ep
#include <fmt/format.h>

#include <algorithm>

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
  std::string json_path;
  bool ep = false;
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
  for (CLI::App* const command : {ep, rma})
    command->add_option("--json", arguments.json_path, "also write the results to this file");
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  CLI::App app(
      "Measures Shoal on this machine. Run it under shoal-run: shoal-run -n 8 shoal-bench ep",
      "shoal-bench");
  shoal::bench::Arguments arguments;
  shoal::bench::declare(app, arguments);
  CLI11_PARSE(app, argc, argv);
  try {
    shoal::World world = shoal::World::open();
    if (arguments.ep)
      shoal::bench::run_ep(world, arguments.shape, arguments.json_path);
    else
      shoal::bench::run_rma(world, arguments.rma, arguments.json_path);
    world.close();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "shoal-bench: {}\n", error.what());
    return 1;
  }
}
