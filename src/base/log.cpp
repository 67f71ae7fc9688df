// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <set>

#include "base/check.hpp"
#include "base/files.hpp"

namespace shoal::log {
namespace {

std::atomic<int> g_level{static_cast<int>(Level::warn)};

std::shared_ptr<spdlog::logger>& logger() {
  // Never destroyed: threads of a bootstrap root may still log while the process ends.
  static auto& instance = *new std::shared_ptr<spdlog::logger>([] {
    auto made = std::make_shared<spdlog::logger>(
        "shoal", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_level(spdlog::level::trace);
    made->set_pattern("%H:%M:%S.%e shoal[%P] %l: %v");
    return made;
  }());
  return instance;
}

std::string expand(const std::string& pattern) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '%' && i + 1 < pattern.size() &&
        std::string_view("hp%").find(pattern[i + 1]) != std::string_view::npos) {
      const char kind = pattern[++i];
      if (kind == '%') out += '%';
      if (kind == 'h') out += host;
      if (kind == 'p') out += std::to_string(getpid());
    } else {
      out += pattern[i];
    }
  }
  return out;
}

}  // namespace

void configure(const Settings& settings) {
  constexpr std::string_view names[] = {"trace", "debug", "info", "warn", "error", "off"};
  for (int i = 0; i < 6; ++i)
    if (names[i] == settings.log) g_level.store(i, std::memory_order_relaxed);
  static std::once_flag once;
  if (!settings.log_file.empty())
    std::call_once(once, [&] {
      const std::string name = expand(settings.log_file);
      std::error_code exists;
      std::filesystem::create_directories(std::filesystem::path(name).parent_path(), exists);
      // Once this user owns the file, its name is safe: in folders where all may create files, only
      // an owner replaces one.
      const OwnFile file = open_own_file(name, O_WRONLY | O_APPEND);
      require(file.fd >= 0, Code::invalid_argument,
              "SHOAL_LOG_FILE is \"{}\", which cannot be opened: {}; allowed: a new file, or one "
              "of this user",
              name, file.reason);
      close(file.fd);
      logger()->sinks() = {std::make_shared<spdlog::sinks::basic_file_sink_mt>(name)};
      logger()->flush_on(spdlog::level::trace);
    });
}

bool enabled(Level level) noexcept {
  return static_cast<int>(level) >= g_level.load(std::memory_order_relaxed);
}

void write(Level level, const std::string& message) {
  constexpr spdlog::level::level_enum levels[] = {spdlog::level::trace, spdlog::level::debug,
                                                  spdlog::level::info,  spdlog::level::warn,
                                                  spdlog::level::err,   spdlog::level::off};
  const FileSizeSignalBlocked guard;
  logger()->log(levels[static_cast<int>(level)], "{}", message);
}

void warn_once(const std::vector<std::string>& warnings) {
  static std::mutex mutex;
  static auto& said = *new std::set<std::string>;
  std::lock_guard lock(mutex);
  for (const std::string& warning : warnings)
    if (said.insert(warning).second && enabled(Level::warn)) write(Level::warn, warning);
}

}  // namespace shoal::log
