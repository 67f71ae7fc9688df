// SPDX-License-Identifier: Apache-2.0
// library.hpp: libmlx5, loaded at run time, and its device commands. Only this folder includes its
// header.
#pragma once

#include <infiniband/mlx5dv.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mlx5/command_format.hpp"

namespace shoal::transport::verbs::devx {

// Field and function.
#define SHOAL_DEVX_FUNCTIONS(X)           \
  X(is_supported, mlx5dv_is_supported)    \
  X(open_device, mlx5dv_open_device)      \
  X(init_obj, mlx5dv_init_obj)            \
  X(alloc_uar, mlx5dv_devx_alloc_uar)     \
  X(free_uar, mlx5dv_devx_free_uar)       \
  X(umem_reg, mlx5dv_devx_umem_reg)       \
  X(umem_dereg, mlx5dv_devx_umem_dereg)   \
  X(query_eqn, mlx5dv_devx_query_eqn)     \
  X(general_cmd, mlx5dv_devx_general_cmd) \
  X(obj_create, mlx5dv_devx_obj_create)   \
  X(obj_modify, mlx5dv_devx_obj_modify)   \
  X(obj_query, mlx5dv_devx_obj_query)     \
  X(obj_destroy, mlx5dv_devx_obj_destroy)

struct Library {
  std::string file;  ///< that was loaded

// NOLINTNEXTLINE(bugprone-macro-parentheses): the name of a member
#define SHOAL_DEVX_FIELD(field, function) decltype(&::function) field = nullptr;
  SHOAL_DEVX_FUNCTIONS(SHOAL_DEVX_FIELD)
#undef SHOAL_DEVX_FIELD
  /// Shoal's emulated NIC makes progress by this call, as by ibv_poll_cq; nullptr for other NICs.
  void (*poll_emulator)(ibv_context*) = nullptr;

  /// Opens a device for device commands. Throws Error{unsupported} where it has none. The caller
  /// closes it by libibverbs.
  ibv_context* open(ibv_device* device, const std::string& name) const;
};

/// Loads `file`. For a name without a folder, the file next to `verbs_file` has priority. It stays
/// loaded until the process ends. Throws Error{unsupported}.
std::shared_ptr<const Library> load_library(const std::string& file, const std::string& verbs_file);

/// "CREATE_QP".
const char* name_of(mlx5::Command command);

/// A command and its response, in the format of the device.
class Command {
 public:
  Command(mlx5::Command opcode, std::size_t bytes,
          std::size_t response_bytes = mlx5::command::kResponseBytes);

  mlx5::Command opcode() const noexcept { return opcode_; }
  std::byte* in() noexcept { return in_.data(); }
  std::size_t in_bytes() const noexcept { return in_.size(); }
  std::byte* out() noexcept { return out_.data(); }
  const std::byte* out() const noexcept { return out_.data(); }
  std::size_t out_bytes() const noexcept { return out_.size(); }
  std::uint32_t object() const { return mlx5::get(out_.data(), mlx5::command::kObject); }
  /// Why it failed with the error number `code`:
  /// "CREATE_QP: limit exceeded (status 0x8, syndrome 0x2)", or the text of the error number.
  std::string problem(int code) const;

 private:
  mlx5::Command opcode_;
  std::vector<std::byte> in_, out_;
};

}  // namespace shoal::transport::verbs::devx
