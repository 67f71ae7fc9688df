// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/plugin_bootstrap.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "base/check.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "base/plugin.hpp"
#include "bootstrap/wire.hpp"

namespace shoal::bootstrap {
namespace {

constexpr std::string_view kOwnFile = "plugin:";
/// Extra time for a plug-in that reports a timeout by itself.
constexpr std::chrono::milliseconds kMargin{1'000};
/// Between two questions whether the wait was interrupted.
constexpr std::chrono::milliseconds kLook{20};

const char* variable_of(const shoal_bootstrap_context* context, const char* name) {
  const auto& variables =
      *static_cast<const std::map<std::string, std::string>*>(context->variables);
  const auto found = variables.find(name);
  return found == variables.end() ? nullptr : found->second.c_str();
}

/// The data of a call. A call that is abandoned shares it with the thread that still runs it.
struct Job {
  LoadedPlugin plugin;
  std::map<std::string, std::string> variables;
  shoal_bootstrap_context context{};
  void* handle = nullptr;
  std::int32_t pe = -1, n_pes = -1;
  std::array<char, SHOAL_BOOTSTRAP_TEXT_SIZE> text{};
  bool given_up = false;  ///< a call has not returned and still uses this object
};

using Step = std::function<int(Job&)>;

/// Plug-ins with an abandoned call. The call may still run, and a plug-in's calls must not overlap.
class GivenUp {
 public:
  static void add(const shoal_bootstrap_plugin* table) {
    const std::lock_guard lock(mutex());
    tables().insert(table);
  }
  static bool contains(const shoal_bootstrap_plugin* table) {
    const std::lock_guard lock(mutex());
    return tables().contains(table);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex the;
    return the;
  }
  static std::set<const shoal_bootstrap_plugin*>& tables() {
    static std::set<const shoal_bootstrap_plugin*> the;
    return the;
  }
};

/// Runs `step` on a new thread and abandons it at the deadline.
int run_with_deadline(const std::shared_ptr<Job>& job, const char* call, const Step& step,
                      std::chrono::milliseconds limit) {
  std::packaged_task<int()> task([job, step] { return step(*job); });
  std::future<int> result = task.get_future();
  std::thread thread(std::move(task));
  const auto deadline = std::chrono::steady_clock::now() + limit + kMargin;
  bool stopped = false;
  while (result.wait_for(kLook) != std::future_status::ready &&
         std::chrono::steady_clock::now() < deadline && !stopped)
    stopped = interrupted();
  if (result.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    thread.detach();
    job->given_up = true;
    GivenUp::add(job->plugin.table);
    require(
        !stopped, Code::system,
        "SHOAL-N122: bootstrap plug-in {}: {} was interrupted, and a thread is left behind in it",
        job->plugin.file, call);
    fail(Code::timeout,
         "SHOAL-N122: bootstrap plug-in {}: {} has not returned within {} ms, and a thread is left "
         "behind in it. Setting: SHOAL_BOOTSTRAP_TIMEOUT_MS",
         job->plugin.file, call, limit.count());
  }
  thread.join();
  return result.get();
}

/// Runs `step` on this thread, which cannot be abandoned. If it is late, a second thread logs a
/// warning.
int run_and_watch(const std::shared_ptr<Job>& job, const char* call, const Step& step,
                  std::chrono::milliseconds limit) {
  std::promise<void> done;
  std::thread watch([&job, call, limit, over = done.get_future()] {
    if (over.wait_for(limit + kMargin) == std::future_status::ready) return;
    log::warn(
        "SHOAL-N122: bootstrap plug-in {}: {} has not returned within {} ms and cannot be "
        "interrupted; most likely some PE has not called it",
        job->plugin.file, call, limit.count());
  });
  const int status = step(*job);
  done.set_value();
  watch.join();
  return status;
}

void call(const std::shared_ptr<Job>& job, const char* name, const Step& step,
          std::chrono::milliseconds limit) {
  const bool same_thread = (job->plugin.table->flags & SHOAL_BOOTSTRAP_SAME_THREAD) != 0;
  const int status = same_thread ? run_and_watch(job, name, step, limit)
                                 : run_with_deadline(job, name, step, limit);
  if (status == SHOAL_BOOTSTRAP_OK) return;
  job->context.reason[sizeof job->context.reason - 1] = '\0';
  const std::string_view reason = job->context.reason[0] != '\0'
                                      ? job->context.reason
                                      : "it gives no reason, which is a fault of the plug-in";
  const std::string message = fmt::format("bootstrap plug-in {} ({}): {} failed: {}",
                                          job->plugin.table->name, job->plugin.file, name, reason);
  if (status == SHOAL_BOOTSTRAP_ABSENT) throw PluginAbsent(message);
  throw Error(status == SHOAL_BOOTSTRAP_TIMEOUT ? Code::timeout : Code::system, message);
}

std::string broadcast(const std::shared_ptr<Job>& job, const std::string& mine,
                      std::chrono::milliseconds limit) {
  std::ranges::copy(mine, job->text.begin());
  call(
      job, "broadcast",
      [](Job& j) { return j.plugin.table->broadcast(&j.context, j.handle, j.text.data()); }, limit);
  job->text.back() = '\0';
  return job->text.data();
}

}  // namespace

LoadedPlugin load_bootstrap_plugin(std::string_view name, const Settings& settings) {
  const bool own = name.starts_with(kOwnFile);
  const Plugin plugin =
      own ? load_plugin_file(std::string(name.substr(kOwnFile.size())),
                             SHOAL_BOOTSTRAP_PLUGIN_SYMBOL)
          : load_plugin(settings, fmt::format("bootstrap_{}", name), SHOAL_BOOTSTRAP_PLUGIN_SYMBOL);
  if (plugin.symbol == nullptr && !own)
    throw PluginAbsent(fmt::format("bootstrap {}: {}", name, plugin.reason));
  require(plugin.symbol != nullptr, Code::unsupported,
          "SHOAL-N123: bootstrap {}: {}. Setting: SHOAL_BOOTSTRAP", name, plugin.reason);
  const auto& table = *static_cast<const shoal_bootstrap_plugin*>(plugin.symbol);
  require(
      table.version == SHOAL_BOOTSTRAP_PLUGIN_VERSION, Code::unsupported,
      "SHOAL-N124: bootstrap plug-in {} has version {} of the table; this Shoal takes version {}: "
      "build it with this Shoal's shoal/bootstrap_plugin.h",
      plugin.file, table.version, SHOAL_BOOTSTRAP_PLUGIN_VERSION);
  require(
      table.size >= sizeof table && table.name != nullptr && table.open != nullptr &&
          table.broadcast != nullptr && table.close != nullptr,
      Code::unsupported,
      "SHOAL-N124: bootstrap plug-in {} has an incomplete table: {} bytes of {}, or a null member",
      plugin.file, table.size, sizeof table);
  return {&table, plugin.file};
}

std::unique_ptr<Bootstrap> connect_plugin(std::string_view name, const Settings& settings) {
  const auto limit = settings.bootstrap_timeout;
  const auto job = std::make_shared<Job>();
  job->plugin = load_bootstrap_plugin(name, settings);
  require(!GivenUp::contains(job->plugin.table), Code::timeout,
          "SHOAL-N125: bootstrap plug-in {}: a call for an earlier world has not returned, so that "
          "this process cannot open another one by it",
          job->plugin.file);
  job->variables = settings.launcher.empty() ? Settings::launcher_environment() : settings.launcher;
  job->context.size = sizeof job->context;
  job->context.timeout_ms = limit.count();
  job->context.variable = variable_of;
  job->context.variables = &job->variables;
  call(
      job, "open",
      [](Job& j) { return j.plugin.table->open(&j.context, &j.handle, &j.pe, &j.n_pes); }, limit);
  const std::shared_ptr<Job> closer(job.get(), [job](Job* opened) {
    if (!opened->given_up) opened->plugin.table->close(opened->handle);
  });
  require(
      job->n_pes >= 1 && job->n_pes <= kMaxPes && job->pe >= 0 && job->pe < job->n_pes,
      Code::mismatch,
      "SHOAL-N126: bootstrap plug-in {} says that this is PE {} of {}; allowed: 0 to n - 1 of n "
      "from 1 to {}",
      job->plugin.file, job->pe, job->n_pes, kMaxPes);
  if (job->n_pes == 1) return single_bootstrap();
  return connect_by_broadcast(
      job->pe, job->n_pes, [&](const std::string& mine) { return broadcast(job, mine, limit); },
      settings);
}

}  // namespace shoal::bootstrap
