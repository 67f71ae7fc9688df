// SPDX-License-Identifier: Apache-2.0
// The functions mlx5dv_devx_*: memory and doorbell pages, and commands as bytes.
#include "mlx5/devx.hpp"

#include <cerrno>
#include <cstring>

namespace shoal::emulator {
namespace {

constexpr std::size_t kPageBytes = 4096, kRegisters = 0x800, kHalfRegister = 0x100,
                      kNotification = 0x20;

std::span<const std::byte> bytes_of(const void* at, std::size_t size) {
  return {static_cast<const std::byte*>(at), size};
}
std::span<std::byte> bytes_of(void* at, std::size_t size) {
  return {static_cast<std::byte*>(at), size};
}

/// Writes the status of a response; what the functions return for it.
int respond(std::span<std::byte> out, Status status) {
  if (out.size() >= 4) set(out.data(), command::kStatus, static_cast<std::uint32_t>(status));
  return status == Status::ok ? 0 : EREMOTEIO;
}

bool has_lengths(std::span<const std::byte> in, std::span<const std::byte> out) {
  return in.size() >= command::kResponseBytes && out.size() >= command::kResponseBytes;
}

Umem* register_umem(ibv_context* context, void* address, std::size_t bytes, std::uint32_t access) {
  if (bytes == 0 || (access & ~(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)) != 0)
    return fail_with(EINVAL);
  if (!is_memory(address, bytes)) return fail_with(EFAULT);
  auto umem = std::make_unique<Umem>();
  umem->context = &of(context);
  umem->memory = static_cast<std::byte*>(address);
  umem->bytes = bytes;
  DevxTables& tables = DevxTables::get();
  const std::lock_guard lock(tables.mutex);
  umem->base.umem_id = tables.next++;
  tables.umems[umem->base.umem_id] = umem.get();
  return umem.release();
}

/// A ring of any queue pair of the page: their doorbell records say which.
void watch_doorbells(Uar& uar) {
  for (const std::size_t at : {kRegisters, kRegisters + kHalfRegister})
    uar.context->runtime->watch(&uar, reinterpret_cast<std::uint64_t*>(uar.page.data() + at),
                                [&uar](Nic& nic, std::uint64_t) {
                                  for (const std::uint32_t number : uar.pairs) nic.doorbell(number);
                                });
  uar.context->runtime->watch(
      &uar, reinterpret_cast<std::uint64_t*>(uar.page.data() + kNotification),
      [](Nic& nic, std::uint64_t word) {
        const std::uint64_t request = swap_bytes(word);
        CompletionQueue* const queue =
            nic.find_completion_queue(static_cast<std::uint32_t>(request) & kPsnMask);
        if (queue != nullptr) queue->arm(static_cast<std::uint32_t>(request >> 32));
      });
}

}  // namespace

DevxTables& DevxTables::get() {
  static DevxTables* const tables = new DevxTables;  // used by exit handlers of clients
  return *tables;
}

}  // namespace shoal::emulator

using namespace shoal::emulator;

struct mlx5dv_devx_obj : DevxObject {};

extern "C" {

mlx5dv_devx_umem* mlx5dv_devx_umem_reg(ibv_context* context, void* address, std::size_t bytes,
                                       std::uint32_t access) {
  Umem* const umem = register_umem(context, address, bytes, access);
  return umem == nullptr ? nullptr : &umem->base;
}

mlx5dv_devx_umem* mlx5dv_devx_umem_reg_ex(ibv_context* context, mlx5dv_devx_umem_in* in) {
  if (in->comp_mask != 0) return fail_with(EOPNOTSUPP);  // dma-buf
  if ((in->pgsz_bitmap & ~std::uint64_t{kPageBytes - 1}) == 0) return fail_with(EINVAL);
  return mlx5dv_devx_umem_reg(context, in->addr, in->size, in->access);
}

int mlx5dv_devx_umem_dereg(mlx5dv_devx_umem* handle) {
  DevxTables& tables = DevxTables::get();
  const std::lock_guard lock(tables.mutex);
  tables.umems.erase(handle->umem_id);
  delete reinterpret_cast<Umem*>(handle);
  return 0;
}

mlx5dv_devx_uar* mlx5dv_devx_alloc_uar(ibv_context* context, std::uint32_t) {
  auto uar = std::make_unique<Uar>();
  uar->context = &of(context);
  uar->page = Pages(kPageBytes);
  uar->base.base_addr = uar->page.data();
  uar->base.reg_addr = uar->page.data() + kRegisters;
  DevxTables& tables = DevxTables::get();
  {
    const std::lock_guard lock(tables.mutex);
    uar->base.page_id = tables.next++;
    tables.uars[uar->base.page_id] = uar.get();
  }
  watch_doorbells(*uar);
  return &uar.release()->base;
}

void mlx5dv_devx_free_uar(mlx5dv_devx_uar* handle) {
  auto* const uar = reinterpret_cast<Uar*>(handle);
  uar->context->runtime->unwatch(uar);
  DevxTables& tables = DevxTables::get();
  const std::lock_guard lock(tables.mutex);
  tables.uars.erase(handle->page_id);
  delete uar;
}

int mlx5dv_devx_query_eqn(ibv_context* context, std::uint32_t vector, std::uint32_t* number) {
  if (vector >= static_cast<std::uint32_t>(context->num_comp_vectors)) return EINVAL;
  *number = vector;
  return 0;
}

int mlx5dv_devx_general_cmd(ibv_context* context, const void* in, std::size_t in_bytes, void* out,
                            std::size_t out_bytes) {
  const auto command = bytes_of(in, in_bytes);
  const auto to = bytes_of(out, out_bytes);
  if (!has_lengths(command, to)) return EINVAL;
  std::memset(out, 0, out_bytes);
  return respond(to, execute(of(context), command, to));
}

mlx5dv_devx_obj* mlx5dv_devx_obj_create(ibv_context* context, const void* in, std::size_t in_bytes,
                                        void* out, std::size_t out_bytes) {
  const auto command = bytes_of(in, in_bytes);
  const auto to = bytes_of(out, out_bytes);
  if (!has_lengths(command, to)) return fail_with(EINVAL);
  std::memset(out, 0, out_bytes);
  std::unique_ptr<DevxObject> object;
  const int error = respond(to, create_object(of(context), command, to, object));
  if (error != 0) return fail_with(error);
  return static_cast<mlx5dv_devx_obj*>(object.release());
}

int mlx5dv_devx_obj_query(mlx5dv_devx_obj* object, const void* in, std::size_t in_bytes, void* out,
                          std::size_t out_bytes) {
  const auto command = bytes_of(in, in_bytes);
  const auto to = bytes_of(out, out_bytes);
  if (!has_lengths(command, to)) return EINVAL;
  std::memset(out, 0, out_bytes);
  return respond(to, query_object(*object, command, to));
}

int mlx5dv_devx_obj_modify(mlx5dv_devx_obj* object, const void* in, std::size_t in_bytes, void* out,
                           std::size_t out_bytes) {
  const auto command = bytes_of(in, in_bytes);
  const auto to = bytes_of(out, out_bytes);
  if (!has_lengths(command, to)) return EINVAL;
  std::memset(out, 0, out_bytes);
  return respond(to, modify_object(*object, command));
}

int mlx5dv_devx_obj_destroy(mlx5dv_devx_obj* object) {
  const Status status = destroy_object(*object);
  if (status != Status::ok) return EREMOTEIO;
  delete static_cast<DevxObject*>(object);
  return 0;
}

int mlx5dv_devx_qp_query(ibv_qp*, const void*, std::size_t, void*, std::size_t) {
  return EOPNOTSUPP;
}
int mlx5dv_devx_qp_modify(ibv_qp*, const void*, std::size_t, void*, std::size_t) {
  return EOPNOTSUPP;
}

// Events of commands' objects.
mlx5dv_devx_event_channel* mlx5dv_devx_create_event_channel(
    ibv_context*, mlx5dv_devx_create_event_channel_flags) {
  return fail_with(EOPNOTSUPP);
}
void mlx5dv_devx_destroy_event_channel(mlx5dv_devx_event_channel*) {}
int mlx5dv_devx_subscribe_devx_event(mlx5dv_devx_event_channel*, mlx5dv_devx_obj*, std::uint16_t,
                                     std::uint16_t*, std::uint64_t) {
  return EOPNOTSUPP;
}
ssize_t mlx5dv_devx_get_event(mlx5dv_devx_event_channel*, mlx5dv_devx_async_event_hdr*,
                              std::size_t) {
  errno = EOPNOTSUPP;
  return -1;
}

}  // extern "C"
