// SPDX-License-Identifier: Apache-2.0
#include "record/files.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/check.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/service_thread.hpp"
#include "memory/host/segment.hpp"
#include "record/process_record.hpp"
#include "record/reader.hpp"
#include "record/refresh.hpp"
#include "shoal/observe.hpp"

namespace shoal::detail::record {
namespace {

using observe::PeRecord;

/// Replaces an older file in one step.
std::string write(const PeRecord& pe, const std::string& directory) {
  const std::string name = fmt::format("{}/shoal_flight_{}.json", directory, pe.pe);
  const std::string unfinished = fmt::format("{}.{}", name, pe.pid);
  const std::string text = observe::to_json(pe) + "\n";
  const FileSizeSignalBlocked guard;
  const memory::FileDescriptor fd(create_file(unfinished.c_str()));
  bool written = static_cast<bool>(fd);
  for (std::size_t at = 0; written && at < text.size();) {
    const ssize_t part = ::write(fd.get(), text.data() + at, text.size() - at);
    if (part < 0 && errno == EINTR) continue;
    written = part > 0;
    if (written) at += static_cast<std::size_t>(part);
  }
  if (!written || rename(unfinished.c_str(), name.c_str()) != 0) {
    const int error = errno;
    unlink(unfinished.c_str());
    errno = error;
    fail_errno(
        "SHOAL-N180: cannot write the flight record {}: SHOAL_FLIGHT_DIR must be a folder that "
        "exists",
        name);
  }
  return name;
}

/// True if this is the first failure of the PE. State of the process, as records are.
bool note_written(std::uint64_t world, Pe me) {
  static std::mutex mutex;
  static std::set<std::pair<std::uint64_t, Pe>> written;
  const std::lock_guard lock(mutex);
  return written.emplace(world, me).second;
}

// State of the process: a signal belongs to none of its worlds.
int signal_event = -1;
std::string* signal_directory = nullptr;

void on_signal(int) {
  const int error = errno;
  const std::uint64_t one = 1;
  (void)!::write(signal_event, &one, sizeof one);
  errno = error;
}

void write_on_signals() {
  for (;;) {
    std::uint64_t signals = 0;
    if (::read(signal_event, &signals, sizeof signals) < 0 && errno != EINTR) return;
    for (const PeRecord& pe : observe::read_process()) {
      try {
        write(pe, *signal_directory);
      } catch (const std::exception& error) {
        log::warn("{}", error.what());
      }
    }
  }
}

}  // namespace

std::string write_one(std::uint64_t world, Pe me, const std::string& directory) {
  refresh_all();
  if (const ProcessBlock* const own = own_record())
    for (const PeRecord& pe : read(*own, kRecordBytes, std::pair(world, me)))
      return write(pe, directory);
  fail(Code::unsupported, "SHOAL-N181: PE {} has no record: SHOAL_LOG=info says why", me);
}

void write_after_failure(std::uint64_t world, Pe me, const std::string& directory,
                         FailureOf of) noexcept {
  if (directory.empty()) return;
  try {
    if (!note_written(world, me) && of == FailureOf::team) return;
    const std::string name = write_one(world, me, directory);
    log::warn(
        "SHOAL-N182: the flight record of PE {} is in {}; shoal-info --flight {} compares those of "
        "all PEs",
        me, name, directory);
  } catch (const std::exception& error) {
    log::warn("{}", error.what());
  }
}

void watch_signal(const Settings& settings) {
  if (settings.flight_signal == "none" || settings.flight_dir.empty()) return;
  static std::once_flag once;
  std::call_once(once, [&] {
    signal_event = eventfd(0, EFD_CLOEXEC);
    if (signal_event < 0) fail_errno("SHOAL-N181: eventfd for SHOAL_FLIGHT_SIGNAL");
    signal_directory = new std::string(settings.flight_dir);  // outlives static objects
    {
      const SignalsBlocked blocked;
      std::thread(write_on_signals).detach();
    }
    struct sigaction action{};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(settings.flight_signal == "USR1" ? SIGUSR1 : SIGUSR2, &action, nullptr);
  });
}

}  // namespace shoal::detail::record
