// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/devx/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <type_traits>
#include <utility>

#include "base/check.hpp"
#include "base/system_error.hpp"

namespace shoal::transport::verbs::devx {
namespace {

constexpr const char* kRemedy = "Settings: SHOAL_VERBS_INTERFACE, SHOAL_VERBS_MLX5_LIBRARY";

/// The libmlx5 of an installation lies next to its libibverbs.
std::string find_file(const std::string& file, const std::string& verbs_file) {
  const std::filesystem::path folder = std::filesystem::path(verbs_file).parent_path();
  if (folder.empty() || file.find('/') != std::string::npos) return file;
  const std::filesystem::path neighbour = folder / file;
  std::error_code ignored;
  return std::filesystem::exists(neighbour, ignored) ? neighbour.string() : file;
}

/// Text for the status byte of a response.
const char* status_text(std::uint32_t status) {
  static constexpr std::pair<std::uint32_t, const char*> kTexts[] = {
      {0x00, "success"},
      {0x01, "internal error"},
      {0x02, "operation not supported"},
      {0x03, "bad parameter"},
      {0x04, "bad system state"},
      {0x05, "bad resource"},
      {0x06, "resource busy"},
      {0x08, "limit exceeded"},
      {0x09, "bad state of a resource"},
      {0x0a, "bad index"},
      {0x0f, "no resources"},
      {0x10, "bad state of the queue pair"},
      {0x50, "bad length of the command"},
      {0x51, "bad length of the response"}};
  for (const auto& [value, text] : kTexts)
    if (value == status) return text;
  return "unknown status";
}

}  // namespace

ibv_context* Library::open(ibv_device* device, const std::string& name) const {
  require(is_supported(device), Code::unsupported,
          "SHOAL-N380: {} is no mlx5 device for {}, so it has no device commands. {}", name, file,
          kRemedy);
  mlx5dv_context_attr attributes{};
  attributes.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
  ibv_context* const context = open_device(device, &attributes);
  require(
      context != nullptr, Code::unsupported,
      "SHOAL-N380: {} cannot be opened for device commands (DEVX): {}. The kernel needs mlx5_ib of "
      "Linux 4.19 or newer, the device firmware with DEVX. {}",
      name, errno_text(errno), kRemedy);
  return context;
}

std::shared_ptr<const Library> load_library(const std::string& file,
                                            const std::string& verbs_file) {
  auto library = std::make_shared<Library>();
  library->file = find_file(file, verbs_file);
  void* const handle = dlopen(library->file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const reason = dlerror();
    fail(Code::unsupported, "SHOAL-N380: libmlx5 cannot be loaded: {}. {}",
         reason != nullptr ? reason : library->file.c_str(), kRemedy);
  }
  const auto load = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    require(
        function != nullptr, Code::unsupported,
        "SHOAL-N380: {} is no libmlx5 with device commands (rdma-core 24 or newer): it lacks {}. "
        "{}",
        library->file, name, kRemedy);
  };
#define SHOAL_DEVX_LOAD(field, function) load(library->field, #function);
  SHOAL_DEVX_FUNCTIONS(SHOAL_DEVX_LOAD)
#undef SHOAL_DEVX_LOAD
  library->poll_emulator = reinterpret_cast<decltype(library->poll_emulator)>(
      dlsym(handle, "shoal_emulator_poll"));  // of the libibverbs that it uses
  return library;
}

const char* name_of(mlx5::Command command) {
  static constexpr std::pair<mlx5::Command, const char*> kNames[] = {
      {mlx5::Command::query_hca_cap, "QUERY_HCA_CAP"},
      {mlx5::Command::create_cq, "CREATE_CQ"},
      {mlx5::Command::create_qp, "CREATE_QP"},
      {mlx5::Command::reset_to_init, "RST2INIT_QP"},
      {mlx5::Command::init_to_rtr, "INIT2RTR_QP"},
      {mlx5::Command::rtr_to_rts, "RTR2RTS_QP"},
      {mlx5::Command::query_qp, "QUERY_QP"},
      {mlx5::Command::to_error, "2ERR_QP"}};
  for (const auto& [value, name] : kNames)
    if (value == command) return name;
  return "command";
}

Command::Command(mlx5::Command opcode, std::size_t bytes, std::size_t response_bytes)
    : opcode_(opcode), in_(bytes), out_(response_bytes) {
  mlx5::set(in(), mlx5::command::kOpcode, static_cast<std::uint32_t>(opcode));
}

std::string Command::problem(int code) const {
  const std::uint32_t status = mlx5::get(out(), mlx5::command::kStatus);
  if (status == 0) return fmt::format("{}: {}", name_of(opcode_), errno_text(code));
  return fmt::format("{}: {} (status {:#x}, syndrome {:#x})", name_of(opcode_), status_text(status),
                     status, mlx5::get(out(), mlx5::command::kSyndrome));
}

}  // namespace shoal::transport::verbs::devx
