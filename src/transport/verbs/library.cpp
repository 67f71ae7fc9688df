// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/library.hpp"

#include <dlfcn.h>

#include <cstring>

#include "base/check.hpp"

namespace shoal::transport::verbs {
namespace {

/// The current version of a symbol: libibverbs keeps older ones of the same name.
void* find(void* handle, const char* name) {
  void* const current = dlvsym(handle, name, "IBVERBS_1.1");
  return current != nullptr ? current : dlsym(handle, name);
}

}  // namespace

int Library::query_port(ibv_context* context, std::uint8_t port, ibv_port_attr& attributes) const {
  std::memset(&attributes, 0, sizeof attributes);
  if (verbs_context* const extended = verbs_get_ctx_op(context, query_port); extended != nullptr)
    return extended->query_port(context, port, &attributes, sizeof attributes);
  return query_port_short(context, port, reinterpret_cast<_compat_ibv_port_attr*>(&attributes));
}

std::shared_ptr<const Library> load_library(const std::string& file) {
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const reason = dlerror();
    fail(Code::unsupported, "libibverbs cannot be loaded: {}. Setting: SHOAL_VERBS_LIBRARY",
         reason != nullptr ? reason : file.c_str());
  }
  auto library = std::make_shared<Library>();
  library->file = file;
  const auto load = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(find(handle, name));
    require(function != nullptr, Code::unsupported,
            "{} is no libibverbs: it lacks {}. Setting: SHOAL_VERBS_LIBRARY", file, name);
  };
  load(library->get_device_list, "ibv_get_device_list");
  load(library->free_device_list, "ibv_free_device_list");
  load(library->get_device_name, "ibv_get_device_name");
  load(library->open_device, "ibv_open_device");
  load(library->close_device, "ibv_close_device");
  load(library->query_device, "ibv_query_device");
  load(library->query_port_short, "ibv_query_port");
  load(library->query_gid, "ibv_query_gid");
  load(library->alloc_pd, "ibv_alloc_pd");
  load(library->dealloc_pd, "ibv_dealloc_pd");
  load(library->reg_mr, "ibv_reg_mr");
  load(library->dereg_mr, "ibv_dereg_mr");
  load(library->create_cq, "ibv_create_cq");
  load(library->destroy_cq, "ibv_destroy_cq");
  load(library->create_qp, "ibv_create_qp");
  load(library->modify_qp, "ibv_modify_qp");
  load(library->query_qp, "ibv_query_qp");
  load(library->destroy_qp, "ibv_destroy_qp");
  load(library->create_ah, "ibv_create_ah");
  load(library->destroy_ah, "ibv_destroy_ah");
  load(library->get_async_event, "ibv_get_async_event");
  load(library->ack_async_event, "ibv_ack_async_event");
  load(library->wc_status_str, "ibv_wc_status_str");
  library->reg_dmabuf_mr =
      reinterpret_cast<decltype(library->reg_dmabuf_mr)>(dlsym(handle, "ibv_reg_dmabuf_mr"));
  library->query_gid_ex =
      reinterpret_cast<decltype(library->query_gid_ex)>(dlsym(handle, "_ibv_query_gid_ex"));
  library->emulated = dlsym(handle, "shoal_emulator_progresses_in_polls") != nullptr;
  return library;
}

}  // namespace shoal::transport::verbs
