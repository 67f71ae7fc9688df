// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/port/library.hpp"

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
    fail(Code::unsupported,
         "SHOAL-N389: libibverbs cannot be loaded: {}. Setting: SHOAL_VERBS_LIBRARY",
         reason != nullptr ? reason : file.c_str());
  }
  auto library = std::make_shared<Library>();
  library->file = file;
  const auto load = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(find(handle, name));
    require(function != nullptr, Code::unsupported,
            "SHOAL-N389: {} is no libibverbs: it lacks {}. Setting: SHOAL_VERBS_LIBRARY", file,
            name);
  };
#define SHOAL_VERBS_LOAD(field, function) load(library->field, #function);
  SHOAL_VERBS_FUNCTIONS(SHOAL_VERBS_LOAD)
#undef SHOAL_VERBS_LOAD
  library->reg_dmabuf_mr =
      reinterpret_cast<decltype(library->reg_dmabuf_mr)>(dlsym(handle, "ibv_reg_dmabuf_mr"));
  library->query_gid_ex =
      reinterpret_cast<decltype(library->query_gid_ex)>(dlsym(handle, "_ibv_query_gid_ex"));
  library->emulated = dlsym(handle, "shoal_emulator_progresses_in_polls") != nullptr;
  return library;
}

}  // namespace shoal::transport::verbs
