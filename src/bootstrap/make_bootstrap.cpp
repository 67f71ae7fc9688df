// SPDX-License-Identifier: Apache-2.0
// make_bootstrap.cpp: creates the bootstrap that the settings choose.

#include <atomic>

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

std::unique_ptr<Bootstrap> make(const std::string& name, const bootstrap::Choice& choice,
                                const Settings& settings) {
  const auto pe = static_cast<std::int32_t>(choice.pe),
             n_pes = static_cast<std::int32_t>(choice.n_pes);
  if (name == "single") return single_bootstrap();
  if (name == "uid")
    return connect_unique_id(UniqueId::parse(settings.unique_id), pe, n_pes, settings);
  if (name == "session") return connect_session(pe, n_pes, settings);
  if (name == "torch") return connect_torch(pe, n_pes, settings);
  auto made = bootstrap::connect_plugin(name, settings);
  if (made->n_pes() > 1) return made;
  // With a library that does not belong to the launcher, every process is a job of its own, and
  // each PE would silently get a world of one PE.
  const bootstrap::Launcher launcher = bootstrap::detect_launcher(settings.launcher);
  require(launcher.n_pes <= 1, Code::mismatch,
          "bootstrap {} knows of one PE only, but {} has started {} ({}): it belongs to another "
          "launcher. Setting: SHOAL_BOOTSTRAP",
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
       "no bootstrap for PEs started by {}{}. Settings: SHOAL_BOOTSTRAP, SHOAL_UNIQUE_ID",
       choice.why, tried);
}

}  // namespace shoal
