// SPDX-License-Identifier: Apache-2.0
// shoal-bench-gpu: measures Shoal on the GPUs of this machine. PEs are threads (--pes) or, under
// shoal-run, processes.
#include "base/files.hpp"
#include "gpu/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "base/check.hpp"
#include "options.hpp"

namespace shoal::bench::gpu {

Settings gpu_settings(std::size_t heap_bytes) {
  Settings settings = Settings::from_environment();
  settings.heap = "cuda";
  settings.symmetric_size = heap_bytes;
  return settings;
}

ep::GroupOptions normal_options(const Options& options, std::int64_t max_tokens) {
  ep::GroupOptions group;
  group.max_tokens = max_tokens;
  group.hidden = options.shape.hidden;
  group.top_k = static_cast<std::int32_t>(options.shape.top_k);
  group.experts = static_cast<std::int32_t>(options.shape.experts);
  group.preinitialize = true;
  group.combine_staging = true;  // combines in a format encode rows there; others lie in the heap
  return group;
}

ep::GroupOptions low_latency_options(const Options& options, std::int64_t max_tokens) {
  ep::GroupOptions group = normal_options(options, 0);
  group.low_latency_max_tokens = max_tokens;
  return group;
}

std::size_t heap_bytes(const Options& options, const std::string& part, std::int32_t pes) {
  const std::int64_t most = std::max(options.shape.tokens, std::ranges::max(options.tokens));
  const std::size_t slack = std::size_t{1} << 30;
  const auto group = [&](const ep::GroupOptions& group_options) {
    return ep::size_hint(group_options, pes, DeviceKind::cuda).total();
  };
  if (part == "normal")
    return slack + group(normal_options(options, most)) +
           static_cast<std::size_t>(most * pes) * options.shape.row_bytes();
  if (part == "collectives") return slack + (std::size_t{512} << 20);
  if (part == "streams") return slack + (std::size_t{64} << 20) * static_cast<std::size_t>(pes + 4);
  // Between nodes, a low-latency group takes one more block for each remote rank at most.
  if (part == "low-latency")
    return slack + group(low_latency_options(options, low_latency_group_size(most))) *
                       static_cast<std::size_t>(options.nodes ? pes : 1);
  return slack + group(normal_options(options, options.shape.tokens)) +
         static_cast<std::size_t>(options.shape.tokens * pes) * options.shape.row_bytes() +
         group(low_latency_options(options, options.shape.low_latency_tokens));
}

namespace {

void run_pe(const Options& options, const std::string& part, std::shared_ptr<Bootstrap> bootstrap) {
  Peers peers(*bootstrap);
  const auto start = std::chrono::steady_clock::now();
  Settings settings = gpu_settings(heap_bytes(options, part, peers.count()));
  if (part == "nodes" && settings.node_size == 0) {
    settings.node_size = std::max(1, peers.count() / 2);
    settings.transport_between = "staged";
  }
  World world = World::open({settings, bootstrap});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  {  // The CUDA runtime calls of this thread go to the GPU that the world chose for this PE.
    const auto probe = world.heap().allocate<int>(1);
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, probe.data()), "finding this PE's GPU");
    check(cudaSetDevice(attributes.device), "choosing this PE's GPU");
  }
  if (part == "normal") run_normal(world, peers, options);
  if (part == "low-latency") run_low_latency(world, peers, options);
  if (part == "nodes") run_nodes(world, peers, options);
  if (part == "streams") run_streams(world, peers, options);
  if (part == "collectives") run_collectives(world, peers, options);
  if (part == "start") run_start(world, peers, options, seconds.count());
  world.close();
}

/// Runs each PE as a thread. The first failure ends all of them and is thrown.
void run_pes_as_threads(const Options& options, const std::string& part) {
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (auto& bootstrap : thread_bootstraps(options.pes, Settings::from_environment())) {
    threads.emplace_back([&, shared = std::shared_ptr<Bootstrap>(std::move(bootstrap))] {
      try {
        run_pe(options, part, shared);
      } catch (const std::exception& error) {
        const std::scoped_lock lock(mutex);
        if (!failure) failure = std::current_exception();
        shared->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

void declare(CLI::App& app, Options& options, std::string& part) {
  app.require_subcommand(1);
  const auto command = [&](const char* name, const char* description) {
    CLI::App* const sub = app.add_subcommand(name, description);
    add_shape_options(*sub, options.shape);
    sub->remove_option(sub->get_option("--tokens"));
    sub->add_option("--dropped", options.shape.dropped,
                    "operations at the start of a chain that are not timed")
        ->capture_default_str();
    sub->add_option("--pes", options.pes, "PEs, as threads; under shoal-run its -n counts")
        ->capture_default_str();
    sub->add_option("--json", options.json_path,
                    "also write the results to this file, as they come");
    sub->callback([&part, name] { part = name; });
    return sub;
  };
  const auto add_list = [&](CLI::App* sub, const char* name, auto& list, const char* description) {
    sub->add_option(name, list, description)->delimiter(',');
  };
  const auto add_main_tokens = [&](CLI::App* sub) {
    sub->add_option("--main-tokens", options.shape.tokens,
                    "tokens per PE; of normal: where SMs are swept")
        ->capture_default_str();
  };
  CLI::App* const normal = command("normal", "dispatch and combine by SMs and tokens");
  CLI::App* const low_latency =
      command("low-latency", "low-latency dispatch and combine by tokens");
  CLI::App* const nodes =
      command("nodes", "two nodes, through host memory: pairs, put and get on heaps in GPU memory");
  CLI::App* const start =
      command("start", "the first call against the steady one, and what the difference is");
  command("streams", "operations on streams: barrier, pipeline steps, puts to all, table entries");
  CLI::App* const collectives =
      command("collectives",
              "collectives on streams by size, and those of NCCL where libnccl.so.2 is found");
  for (CLI::App* const sub : {normal, low_latency})
    add_list(sub, "--tokens", options.tokens, "tokens per PE, a list such as 8,128");
  std::vector<std::string> formats;
  for (const RowFormat& format : kFormats) formats.emplace_back(format.name);
  for (CLI::App* const sub : {normal, low_latency}) {
    add_list(sub, "--format", options.formats,
             "formats of rows: bf16, fp8, mxfp8, nvfp4 (default fp8,bf16)");
    sub->get_option("--format")->check(CLI::IsMember(formats));
  }
  add_list(normal, "--sms", options.sms, "SM counts, a list such as 8,16");
  for (CLI::App* const sub : {normal, nodes, start}) add_main_tokens(sub);
  normal->add_option("--main-sms", options.main_sms, "SMs where tokens are swept")
      ->capture_default_str();
  collectives
      ->add_option("--bytes", options.bytes, "bytes of a PE's source, a list such as 1024,65536")
      ->delimiter(',')
      ->check(CLI::Range(std::size_t{16}, kMostCollectiveBytes));
  collectives->add_flag("!--no-peer", options.peer, "leave NCCL out");
  start
      ->add_option("--format", options.formats,
                   "format of the dispatched rows in both modes (default: bf16 in normal mode, fp8 "
                   "in low-latency mode)")
      ->expected(1)
      ->check(CLI::IsMember(formats));
  start->add_flag("!--no-warmup", options.warmup,
                  "groups as they are made: no call of warmup, no preinitialize");
  start->add_flag("!--no-preinitialize", options.preinitialize,
                  "make groups without preinitialize, then warm them up");
}

void prepare(Options& options, const std::string& part, const CLI::App& app) {
  const bool sweeps = part == "normal" || part == "low-latency";
  if (part == "low-latency") {
    options.shape.tokens = 1;
    if (app.get_subcommand(part)->count("--tokens") == 0)
      options.tokens = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  }
  if (!sweeps) options.tokens = {options.shape.tokens};
  // A group with preinitialize is warmed up while it is made.
  if (!options.warmup) options.preinitialize = false;
  for (const std::int64_t tokens : options.tokens)
    require(tokens >= 1, Code::invalid_argument, "--tokens contains {}; allowed: 1 or more",
            tokens);
  options.shape.validate();
}

}  // namespace
}  // namespace shoal::bench::gpu

int main(int argc, char** argv) {
  const shoal::FileSizeSignalBlocked guard;  // a file beyond `ulimit -f` is an error with a message
  namespace gpu = shoal::bench::gpu;
  CLI::App app("Measures Shoal on the GPUs of this machine", "shoal-bench-gpu");
  gpu::Options options;
  options.shape.low_latency_tokens = 128;
  std::string part;
  gpu::declare(app, options, part);
  CLI11_PARSE(app, argc, argv);
  // Before CUDA starts: kernels of PEs that share a GPU, and the proxy's copies and kernels that
  // wait for them, must not share a hardware queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  try {
    const shoal::Settings settings = shoal::Settings::from_environment();
    // Between nodes, a kernel that is loaded late stops the proxy's copies for which others wait.
    if (part == "nodes" || settings.node_size > 0) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    const bool launched = settings.n_pes > 0;
    options.nodes = settings.node_size > 0;
    gpu::prepare(options, part, app);
    if (launched)
      gpu::run_pe(options, part, shoal::make_bootstrap(settings));
    else
      gpu::run_pes_as_threads(options, part);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "shoal-bench-gpu: {}\n", error.what());
    return 1;
  }
}
