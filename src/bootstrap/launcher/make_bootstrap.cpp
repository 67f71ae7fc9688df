// SPDX-License-Identifier: Apache-2.0
// make_bootstrap.cpp: creates the bootstrap that the settings choose.

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "base/check.hpp"
#include "base/log.hpp"
#include "bootstrap/launcher/launcher.hpp"
#include "bootstrap/plugin_bootstrap.hpp"
#include "bootstrap/round.hpp"
#include "shoal/bootstrap.hpp"

namespace shoal {
namespace {

/// All PEs open worlds in the same order, so their counters agree. Each world has its own port.
std::unique_ptr<Bootstrap> connect_torch(std::int32_t pe, std::int32_t n_pes, Settings settings) {
  static std::atomic<std::uint64_t> worlds{0};
  settings.session_id = bootstrap::torch_session(settings.launcher, worlds++);
  settings.session_root = 0;
  return connect_session(pe, n_pes, settings);
}

/// The world that PEs of a unique id or session id open after their latest one.
struct NextWorld {
  UniqueId id;          ///< on PE 0 with its root
  std::string failure;  ///< why PE 0 has no id; empty where it has one
};

/// Agrees on the next world over `latest`, so that PEs never count apart: either all know it, or
/// the job has failed.
NextWorld agree_on_next(Bootstrap& latest, bool on_this_host, Settings settings) {
  constexpr std::string_view kNoId = "no id: ";
  NextWorld next;
  std::string mine;
  if (latest.pe() == 0) {
    // shoal-run does the same for the first world.
    if (on_this_host && settings.socket_interface.empty()) settings.socket_interface = "lo";
    try {
      next.id = UniqueId::create(settings);
      mine = next.id.to_string();
    } catch (const Error& error) {
      mine = std::string(kNoId) + reason_of(error);
    }
  }
  const auto all = latest.all_gather(std::as_bytes(std::span(mine)), "the id of a next world");
  const std::string text(reinterpret_cast<const char*>(all[0].data()), all[0].size());
  if (text.starts_with(kNoId))
    next.failure = text.substr(kNoId.size());
  else if (latest.pe() != 0)
    next.id = UniqueId::parse(text);
  return next;
}

/// A unique id names one world, and the port of a session serves one at a time. Each world
/// therefore carries the id of the next one.
template <typename First>
std::unique_ptr<Bootstrap> connect_named(const std::string& first, std::int32_t pe,
                                         std::int32_t n_pes, const Settings& settings,
                                         const First& connect_first) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::int32_t>, NextWorld> next_of;  // by id and PE
  std::optional<NextWorld> next;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = next_of.find({first, pe}); found != next_of.end()) next = found->second;
  }
  require(!next || next->failure.empty(), Code::peer_failed,
          "SHOAL-N119: PE 0 could not start the bootstrap of a further world: {}",
          next ? next->failure : "");
  auto made = next ? connect_unique_id(next->id, pe, n_pes, settings) : connect_first();
  const bool on_this_host =
      first.find("127.0.0.1:") != std::string::npos || first.find("[::1]:") != std::string::npos;
  NextWorld after = agree_on_next(*made, on_this_host, settings);
  const std::lock_guard lock(mutex);
  next_of[{first, pe}] = std::move(after);
  return made;
}

std::unique_ptr<Bootstrap> make(const std::string& name, const bootstrap::Choice& choice,
                                const Settings& settings) {
  const auto pe = static_cast<std::int32_t>(choice.pe),
             n_pes = static_cast<std::int32_t>(choice.n_pes);
  if (name == "single") return single_bootstrap();
  if (name == "uid")
    return connect_named(settings.unique_id, pe, n_pes, settings, [&] {
      return connect_unique_id(UniqueId::parse(settings.unique_id), pe, n_pes, settings);
    });
  if (name == "session")
    return connect_named(settings.session_id, pe, n_pes, settings,
                         [&] { return connect_session(pe, n_pes, settings); });
  if (name == "torch") return connect_torch(pe, n_pes, settings);
  auto made = bootstrap::connect_plugin(name, settings);
  if (made->n_pes() > 1) return made;
  // With a library that does not belong to the launcher, every process is a job of its own, and
  // each PE would silently get a world of one PE.
  const bootstrap::Launcher launcher = bootstrap::detect_launcher(settings.launcher);
  require(
      launcher.n_pes <= 1, Code::mismatch,
      "SHOAL-N120: bootstrap {} knows of one PE only, but {} has started {} ({}): it belongs to "
      "another launcher. Setting: SHOAL_BOOTSTRAP",
      name, launcher.name, launcher.n_pes, launcher.why);
  return made;
}

}  // namespace

std::unique_ptr<Bootstrap> make_bootstrap(const Settings& settings) {
  const bootstrap::Choice choice = bootstrap::choose_bootstrap(settings);
  std::string tried;
  for (const std::string& name : choice.bootstraps) {
    try {
      auto made = make(name, choice, settings);
      log::debug("PE {} of {}: bootstrap {} ({})", made->pe(), made->n_pes(), name, choice.why);
      return made;
    } catch (const bootstrap::PluginAbsent& absent) {
      if (choice.bootstraps.size() == 1) throw;
      tried += fmt::format("; {}", reason_of(absent));
    }
  }
  fail(Code::unsupported,
       "SHOAL-N121: no bootstrap for PEs started by {}{}. Settings: SHOAL_BOOTSTRAP, "
       "SHOAL_UNIQUE_ID",
       choice.why, tried);
}

}  // namespace shoal
