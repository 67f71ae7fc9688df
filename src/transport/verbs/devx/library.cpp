// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/devx/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <type_traits>

#include "base/check.hpp"
#include "base/system_error.hpp"

namespace shoal::transport::verbs::devx {
namespace {

constexpr const char* kRemedy = "Settings: SHOAL_VERBS_INTERFACE, SHOAL_VERBS_MLX5_LIBRARY";

/// The libmlx5 of an installation lies beside its libibverbs.
std::string find_file(const std::string& file, const std::string& verbs_file) {
  const std::filesystem::path folder = std::filesystem::path(verbs_file).parent_path();
  if (folder.empty() || file.find('/') != std::string::npos) return file;
  const std::filesystem::path beside = folder / file;
  std::error_code ignored;
  return std::filesystem::exists(beside, ignored) ? beside.string() : file;
}

/// Of the status byte of a response.
const char* status_text(std::uint32_t status) {
  switch (status) {
    case 0x00:
      return "success";
    case 0x01:
      return "internal error";
    case 0x02:
      return "operation not supported";
    case 0x03:
      return "bad parameter";
    case 0x04:
      return "bad system state";
    case 0x05:
      return "bad resource";
    case 0x06:
      return "resource busy";
    case 0x08:
      return "limit exceeded";
    case 0x09:
      return "bad state of a resource";
    case 0x0a:
      return "bad index";
    case 0x0f:
      return "no resources";
    case 0x10:
      return "bad state of the queue pair";
    case 0x50:
      return "bad length of the command";
    case 0x51:
      return "bad length of the response";
    default:
      return "unknown status";
  }
}

}  // namespace

ibv_context* Library::open(ibv_device* device, const std::string& name) const {
  require(is_supported(device), Code::unsupported,
          "{} is no mlx5 device for {}, so it has no device commands. {}", name, file, kRemedy);
  mlx5dv_context_attr attributes{};
  attributes.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
  ibv_context* const context = open_device(device, &attributes);
  require(context != nullptr, Code::unsupported,
          "{} cannot be opened for device commands (DEVX): {}. The kernel needs mlx5_ib of Linux "
          "4.19 or newer, the device firmware with DEVX. {}",
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
    fail(Code::unsupported, "libmlx5 cannot be loaded: {}. {}",
         reason != nullptr ? reason : library->file.c_str(), kRemedy);
  }
  const auto load = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    require(function != nullptr, Code::unsupported,
            "{} is no libmlx5 with device commands (rdma-core 24 or newer): it lacks {}. {}",
            library->file, name, kRemedy);
  };
  load(library->is_supported, "mlx5dv_is_supported");
  load(library->open_device, "mlx5dv_open_device");
  load(library->init_obj, "mlx5dv_init_obj");
  load(library->alloc_uar, "mlx5dv_devx_alloc_uar");
  load(library->free_uar, "mlx5dv_devx_free_uar");
  load(library->umem_reg, "mlx5dv_devx_umem_reg");
  load(library->umem_dereg, "mlx5dv_devx_umem_dereg");
  load(library->query_eqn, "mlx5dv_devx_query_eqn");
  load(library->general_cmd, "mlx5dv_devx_general_cmd");
  load(library->obj_create, "mlx5dv_devx_obj_create");
  load(library->obj_modify, "mlx5dv_devx_obj_modify");
  load(library->obj_query, "mlx5dv_devx_obj_query");
  load(library->obj_destroy, "mlx5dv_devx_obj_destroy");
  library->poll_emulator = reinterpret_cast<decltype(library->poll_emulator)>(
      dlsym(handle, "shoal_emulator_poll"));  // of the libibverbs that it uses
  return library;
}

const char* name_of(mlx5::Command command) {
  switch (command) {
    case mlx5::Command::query_hca_cap:
      return "QUERY_HCA_CAP";
    case mlx5::Command::create_cq:
      return "CREATE_CQ";
    case mlx5::Command::create_qp:
      return "CREATE_QP";
    case mlx5::Command::reset_to_init:
      return "RST2INIT_QP";
    case mlx5::Command::init_to_rtr:
      return "INIT2RTR_QP";
    case mlx5::Command::rtr_to_rts:
      return "RTR2RTS_QP";
    case mlx5::Command::query_qp:
      return "QUERY_QP";
    case mlx5::Command::to_error:
      return "2ERR_QP";
    default:
      return "command";
  }
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
