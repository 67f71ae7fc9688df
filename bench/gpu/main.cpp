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
  group.combine_staging = false;  // expert outputs are in the heap
  return group;
}

ep::GroupOptions low_latency_options(const Options& options, std::int64_t max_tokens) {
  ep::GroupOptions group = normal_options(options, 0);
  group.low_latency_max_tokens = max_tokens;
  group.mask_failed = options.masks;
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
  if (part == "movement")
    return slack +
           static_cast<std::size_t>(options.shape.tokens * (pes + 1)) * options.shape.row_bytes();
  if (part == "collectives") return slack + (std::size_t{512} << 20);
  if (part == "streams") return slack + (std::size_t{64} << 20) * static_cast<std::size_t>(pes + 4);
  if (part == "device") return slack;
  if (part == "reduced") {
    ep::GroupOptions options_with_room = normal_options(options, options.shape.tokens);
    options_with_room.combine_staging = true;
    return slack + group(options_with_room);
  }
  if (part == "low-latency") {
    const std::size_t block = group(low_latency_options(options, low_latency_group_size(most)));
    // Between nodes, one more for each remote rank at most.
    return slack + block * (options.between_nodes.empty() ? 1 : static_cast<std::size_t>(pes));
  }
  return slack + group(normal_options(options, options.shape.tokens)) +
         group(low_latency_options(options, options.shape.low_latency_tokens));
}

namespace {

/// `more`: of other worlds of the same PEs, for the part that needs them.
void run_pe(const Options& options, const std::string& part, std::shared_ptr<Bootstrap> bootstrap,
            std::span<const std::shared_ptr<Bootstrap>> more = {}) {
  Peers peers(*bootstrap);
  const auto start = std::chrono::steady_clock::now();
  Settings settings = gpu_settings(heap_bytes(options, part, peers.count()));
  if (part == "nodes" && settings.node_size == 0) {
    settings.node_size = std::max(1, peers.count() / 2);
    settings.transport_between = "staged";
  }
  if (!options.between_nodes.empty()) settings.ep_between_nodes = options.between_nodes;
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
  if (part == "movement") run_movement(world, peers, options);
  if (part == "streams") run_streams(world, peers, options);
  if (part == "collectives") run_collectives(world, peers, options);
  if (part == "device") run_device(world, peers, options);
  if (part == "reduced") run_reduced(world, peers, options);
  if (part == "records") {
    require(!more.empty(), Code::invalid_argument, "records: PEs are threads (--pes)");
    run_records(settings, more, peers, options);
  }
  if (part == "start") run_start(world, peers, options, seconds.count());
  world.close();
}

/// Runs each PE as a thread. The first failure ends all of them and is thrown.
void run_pes_as_threads(const Options& options, const std::string& part) {
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  std::vector<std::vector<std::shared_ptr<Bootstrap>>> more(static_cast<std::size_t>(options.pes));
  for (std::size_t i = 0; i < kRecordsWorlds; ++i) {
    auto bootstraps = thread_bootstraps(options.pes, Settings::from_environment());
    for (std::size_t pe = 0; pe < more.size(); ++pe) more[pe].push_back(std::move(bootstraps[pe]));
  }
  for (auto& bootstrap : thread_bootstraps(options.pes, Settings::from_environment())) {
    threads.emplace_back([&, &others = more[threads.size()],
                          shared = std::shared_ptr<Bootstrap>(std::move(bootstrap))] {
      try {
        run_pe(options, part, shared, others);
      } catch (const std::exception& error) {
        const std::scoped_lock lock(mutex);
        if (!failure) failure = std::current_exception();
        shared->abort(error.what());
        for (const auto& other : others) other->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

/// The same with each way to send between nodes; the results of the second one go to a file of
/// their own.
void run_each_way(Options options, const std::string& part) {
  const std::string path = options.json_path;
  for (const std::string way : {"kernels", "staged"}) {
    options.between_nodes = way;
    if (!path.empty() && way == "staged") options.json_path = path + ".staged.json";
    fmt::print("between nodes: {}\n", way);
    run_pes_as_threads(options, part);
  }
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
  const auto add_tokens = [&](CLI::App* sub) {
    sub->add_option("--tokens", options.tokens, "tokens per PE, a list such as 8,128")
        ->delimiter(',');
  };
  CLI::App* const normal = command("normal", "dispatch and combine by SMs and tokens");
  add_tokens(normal);
  normal->add_option("--sms", options.sms, "SM counts, a list such as 8,16")->delimiter(',');
  normal->add_option("--main-tokens", options.shape.tokens, "tokens where SMs are swept")
      ->capture_default_str();
  normal->add_option("--main-sms", options.main_sms, "SMs where tokens are swept")
      ->capture_default_str();
  normal->add_flag("--cross", options.cross, "every SM count with every token count");
  CLI::App* const low_latency =
      command("low-latency", "low-latency dispatch and combine by tokens");
  add_tokens(low_latency);
  low_latency->add_option(
      "--load-of", options.shape.load_of,
      "ranks of a larger group whose load the PEs carry, for its experts and tokens");
  low_latency->add_flag("--masks", options.masks, "groups that mask ranks (mask_failed)");
  CLI::App* const nodes =
      command("nodes", "two nodes, through host memory: pairs, put and get on heaps in GPU memory");
  nodes->add_option("--main-tokens", options.shape.tokens, "tokens per PE")->capture_default_str();
  CLI::App* const movement =
      command("movement", "the rows of a dispatch alone, pushed by their sources and pulled");
  movement->add_option("--main-tokens", options.shape.tokens, "tokens per PE")
      ->capture_default_str();
  movement->add_option("--sms", options.sms, "SM counts, a list such as 8,16")->delimiter(',');
  command("streams", "operations on streams: barrier, pipeline steps, puts to all, table entries");
  CLI::App* const collectives = command(
      "collectives", "collectives on streams by size, beside NCCL where libnccl.so.2 is found");
  collectives
      ->add_option("--bytes", options.bytes, "bytes of a PE's source, a list such as 1024,65536")
      ->delimiter(',')
      ->check(CLI::Range(std::size_t{16}, kMostCollectiveBytes));
  collectives->add_flag("!--no-peer", options.peer, "leave NCCL out");
  command("device", "operations inside kernels: put, put_signal, atomic, signal and wait, barrier");
  CLI::App* const reduced =
      command("reduced", "combines of expert output in place, staged, and expert-major");
  reduced->add_option("--main-tokens", options.shape.tokens, "tokens per PE")
      ->capture_default_str();
  reduced->add_option("--sms", options.sms, "SM counts, a list such as 8,16")->delimiter(',');
  CLI::App* const records =
      command("records", "pairs of groups whose kernels count themselves, and of others, in turn");
  add_tokens(records);
  records->add_option("--main-tokens", options.shape.tokens, "tokens per PE in normal mode")
      ->capture_default_str();
  records->add_option("--main-sms", options.main_sms, "SMs in normal mode")->capture_default_str();
  CLI::App* const start =
      command("start", "the first call against the steady one, and what the difference is");
  start->add_option("--main-tokens", options.shape.tokens, "tokens per PE in normal mode")
      ->capture_default_str();
  start->add_flag("!--no-warmup", options.warmup,
                  "groups as they are made: no call of warmup, no preinitialize");
  start->add_flag("!--no-preinitialize", options.preinitialize,
                  "make groups without preinitialize, then warm them up");
}

void prepare(Options& options, const std::string& part, const CLI::App& app, std::int32_t pes) {
  const bool sweeps = part == "normal" || part == "low-latency";
  const bool own_tokens = sweeps && app.get_subcommand(part)->count("--tokens") > 0;
  if (part == "low-latency") {
    options.shape.tokens = 1;
    if (!own_tokens) options.tokens = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  }
  if (part == "records" && app.get_subcommand(part)->count("--tokens") == 0)
    options.tokens = {8, 64, 128};
  else if (!sweeps && part != "records")
    options.tokens = {options.shape.tokens};
  if (!options.warmup)
    options.preinitialize = false;  // preinitialize is a warm-up while the group is made
  for (const std::int64_t tokens : options.tokens)
    require(tokens >= 1, Code::invalid_argument, "--tokens contains {}; allowed: 1 or more",
            tokens);
  if (options.shape.load_of > 0) {
    const Shape large = options.shape;
    options.shape = folded_shape(large, pes);
    for (std::int64_t& tokens : options.tokens) tokens = folded_tokens(large, tokens);
  }
  options.shape.validate(pes);
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
  // Before CUDA starts: kernels of PEs that share a GPU, and the proxy's copies beside kernels that
  // wait for them, must not share a hardware queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  try {
    const shoal::Settings settings = shoal::Settings::from_environment();
    // Between nodes, a kernel that is loaded late stops the proxy's copies for which others wait.
    if (part == "nodes" || settings.node_size > 0) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    const bool launched = settings.n_pes > 0;
    gpu::prepare(options, part, app,
                 launched ? static_cast<std::int32_t>(settings.n_pes) : options.pes);
    if (launched)
      gpu::run_pe(options, part, shoal::make_bootstrap(settings));
    else if (part == "low-latency" && settings.node_size > 0)
      gpu::run_each_way(options, part);
    else
      gpu::run_pes_as_threads(options, part);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "shoal-bench-gpu: {}\n", error.what());
    return 1;
  }
}
