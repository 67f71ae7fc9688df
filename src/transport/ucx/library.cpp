// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/library.hpp"

#include <dlfcn.h>
#include <signal.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "base/check.hpp"
#include "base/classic_locale.hpp"
#include "base/log.hpp"
#include "base/service_thread.hpp"

namespace shoal::transport::ucx {
namespace {

thread_local int fatal_errors_thrown = 0;  ///< instances of FatalErrorsThrown

constexpr const char* kWithoutSharedMemory = "^sm";  ///< shared memory is transport shm's task

/// True if both addresses belong to the same library.
bool same_library(const void* address, const void* other) {
  Dl_info one{}, two{};
  return dladdr(address, &one) != 0 && dladdr(other, &two) != 0 && one.dli_fbase == two.dli_fbase;
}

/// When it is loaded, UCX installs handlers for faults (they print backtraces) and for a signal
/// that stops the process. Restores the previous handlers, unless the program has set its own.
void give_back_signals() noexcept {
  const auto give_back = [](int number) {
    struct sigaction now{};
    if (number <= 0 || sigaction(number, nullptr, &now) != 0) return;
    const void* const handler = (now.sa_flags & SA_SIGINFO) != 0
                                    ? reinterpret_cast<const void*>(now.sa_sigaction)
                                    : reinterpret_cast<const void*>(now.sa_handler);
    if (same_library(handler, reinterpret_cast<const void*>(&ucs_debug_disable_signal)))
      ucs_debug_disable_signal(number);
  };
  for (unsigned i = 0; i < ucs_global_opts.error_signals.count; ++i)
    give_back(ucs_global_opts.error_signals.signals[i]);
  give_back(static_cast<int>(ucs_global_opts.debug_signo));
}

/// Runs while the module is being loaded, right after UCX itself.
[[maybe_unused]] const bool signals_given_back = (give_back_signals(), true);

/// UCX prints to standard output what Shoal reports as errors.
void silence_log() {
  static std::once_flag once;
  std::call_once(once, [] {
    char level[32] = {};
    const bool untouched =
        ucs_global_opts_get_value("LOG_LEVEL", level, sizeof level) == UCS_OK &&
        std::string_view(level) == "WARN";  // its default; other values are the user's choice
    if (untouched && !log::enabled(log::Level::debug))
      ucs_global_opts_set_value("LOG_LEVEL", "FATAL");
  });
}

/// Serializes startup in a process whose PEs are threads.
std::mutex& starting() {
  static std::mutex mutex;
  return mutex;
}

/// The value of UCX's NET_DEVICES; empty: any device.
std::string devices_for(const Context& context) {
  if (context.loopback_reaches_wanted()) return "lo";
  return fmt::format("{}", fmt::join(context.nics, ","));
}

class Config {
 public:
  Config() {
    const ucs_status_t status = ucp_config_read(nullptr, nullptr, &config_);
    require(status == UCS_OK, Code::unsupported,
            "SHOAL-N370: UCX cannot read its configuration: {}", text_of(status));
  }
  ~Config() { ucp_config_release(config_); }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;

  void set(const char* name, const std::string& value, const char* setting) {
    const ucs_status_t status = ucp_config_modify(config_, name, value.c_str());
    require(status == UCS_OK, Code::invalid_argument,
            "SHOAL-N370: UCX does not take \"{}\" for {}: {}. Setting: {}", value, name,
            text_of(status), setting);
  }
  const ucp_config_t* get() const { return config_; }

 private:
  ucp_config_t* config_ = nullptr;
};

std::vector<std::byte> bytes_of(const void* data, std::size_t size) {
  const auto* const start = static_cast<const std::byte*>(data);
  return {start, start + size};
}

}  // namespace

FatalErrorsThrown::FatalErrorsThrown() noexcept {
  ++fatal_errors_thrown;
}

FatalErrorsThrown::~FatalErrorsThrown() {
  --fatal_errors_thrown;
}

bool FatalErrorsThrown::active() noexcept {
  return fatal_errors_thrown > 0;
}

std::string text_of(ucs_status_t status) {
  return ucs_status_string(status);
}

Library::Library(const Context& context) {
  silence_log();
  const SignalsBlocked blocked;  // UCX starts a thread
  const std::lock_guard lock(starting());
  const ClassicLocale classic;
  const std::string& tls = context.settings->ucx_tls;
  const std::string devices = devices_for(context);
  selection_ =
      fmt::format("SHOAL_UCX_TLS \"{}\"{}, {}", tls, tls.empty() ? " (all but shared memory)" : "",
                  devices.empty() ? std::string("any device") : "devices " + devices);
  Config config;
  config.set("TLS", tls.empty() ? kWithoutSharedMemory : tls, "SHOAL_UCX_TLS");
  if (!devices.empty()) config.set("NET_DEVICES", devices, "SHOAL_NIC_LIST");

  ucp_params_t params{};
  params.field_mask =
      UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_AM;
  params.estimated_num_eps = static_cast<std::size_t>(context.n_pes);
  params.name = "shoal";
  const ucs_status_t started = ucp_init(&params, config.get(), &context_);
  require(started == UCS_OK, Code::unsupported,
          "SHOAL-N370: UCX finds nothing to work with: {}. Settings: {}", text_of(started),
          selection_);

  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  worker.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
  const ucs_status_t created = ucp_worker_create(context_, &worker, &worker_);
  if (created == UCS_OK) return;
  ucp_cleanup(context_);
  fail(Code::unsupported, "SHOAL-N370: UCX cannot make a worker: {}. Settings: {}",
       text_of(created), selection_);
}

Library::~Library() {
  if (abandoned_) return;
  const std::lock_guard lock(starting());
  try {
    const FatalErrorsThrown thrown;
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  } catch (const FatalError& error) {
    log::warn("SHOAL-N371: UCX failed when it was closed: {}", error.text);
  }
}

std::vector<std::byte> Library::address() const {
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  const ucs_status_t status = ucp_worker_get_address(worker_, &address, &length);
  require(status == UCS_OK, Code::unsupported, "SHOAL-N370: UCX has no address: {}. Settings: {}",
          text_of(status), selection_);
  auto bytes = bytes_of(address, length);
  ucp_worker_release_address(worker_, address);
  return bytes;
}

Memory::Memory(const Library& library, void* start, std::size_t bytes) : library_(library) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = start;
  params.length = bytes;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_t status = ucp_mem_map(library.context(), &params, &handle_);
  require(
      status == UCS_OK, Code::unsupported,
      "SHOAL-N372: UCX cannot register {} bytes: {}. Setting: SHOAL_SYMMETRIC_SIZE; limit: locked "
      "memory (ulimit -l)",
      bytes, text_of(status));
}

Memory::~Memory() {
  if (library_.abandoned()) return;
  ucp_mem_unmap(library_.context(), handle_);
}

std::vector<std::byte> Memory::packed_key() const {
  void* key = nullptr;
  std::size_t length = 0;
  const ucs_status_t status = ucp_rkey_pack(library_.context(), handle_, &key, &length);
  require(status == UCS_OK, Code::unsupported,
          "SHOAL-N370: UCX cannot describe registered memory: {}", text_of(status));
  auto bytes = bytes_of(key, length);
  ucp_rkey_buffer_release(key);
  return bytes;
}

}  // namespace shoal::transport::ucx

/// UCX's libraries call this function where an assertion fails. They are loaded as dependencies of
/// this module, so they find this definition first.
extern "C" [[noreturn]] __attribute__((visibility("default"), format(printf, 4, 5))) void
ucs_fatal_error_format(const char* file, unsigned line, const char* function, const char* format,
                       ...) {
  using namespace shoal::transport::ucx;
  std::array<char, 1024> text{};
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  if (FatalErrorsThrown::active())
    throw FatalError{fmt::format("{} ({}:{})", text.data(), file, line)};
  using Report = void (*)(const char*, unsigned, const char*, char*);
  const auto report = reinterpret_cast<Report>(dlsym(RTLD_NEXT, "ucs_fatal_error_message"));
  if (report != nullptr) report(file, line, function, text.data());
  std::abort();
}
