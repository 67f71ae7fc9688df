// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/driver.hpp"

#include <dlfcn.h>

#include <atomic>

#include "base/check.hpp"

namespace shoal::memory::cuda {
namespace {

struct Loaded {
  Driver table;
  std::string why;  // empty if the driver is usable
};

template <typename Function>
bool resolve(void* library, const char* name, Function& function, std::string& why) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && why.empty())
    why = fmt::format("the CUDA driver is too old: libcuda.so.1 has no {}", name);
  return function != nullptr;
}

#define SHOAL_CUDA_TEXT(name) #name
#define SHOAL_CUDA_EXPANDED_TEXT(name) SHOAL_CUDA_TEXT(name)

Loaded load() {
  Loaded loaded;
  // Never closed: contexts live as long as the process.
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    loaded.why = fmt::format("this machine has no CUDA driver ({})",
                             reason == nullptr ? "libcuda.so.1" : reason);
    return loaded;
  }
  Driver& table = loaded.table;
#define SHOAL_CUDA_RESOLVE(field, function) \
  resolve(library, SHOAL_CUDA_EXPANDED_TEXT(function), table.field, loaded.why);
  SHOAL_CUDA_DRIVER_FUNCTIONS(SHOAL_CUDA_RESOLVE)
#undef SHOAL_CUDA_RESOLVE
  if (!loaded.why.empty()) return loaded;
#define SHOAL_CUDA_FIND(field, function) \
  table.field =                          \
      reinterpret_cast<decltype(table.field)>(dlsym(library, SHOAL_CUDA_EXPANDED_TEXT(function)));
  SHOAL_CUDA_OPTIONAL_DRIVER_FUNCTIONS(SHOAL_CUDA_FIND)
#undef SHOAL_CUDA_FIND
  if (const CUresult result = table.init(0); result != CUDA_SUCCESS)
    loaded.why = fmt::format("the CUDA driver cannot be initialized: {}", describe(table, result));
  return loaded;
}

std::atomic<const Driver*> replacement{nullptr};

}  // namespace

const Driver* find_driver(std::string* why) {
  if (const Driver* const table = replacement.load()) return table;
  static const Loaded loaded = load();
  if (loaded.why.empty()) return &loaded.table;
  if (why != nullptr) *why = loaded.why;
  return nullptr;
}

const Driver& driver() {
  std::string why;
  const Driver* const found = find_driver(&why);
  require(found != nullptr, Code::unsupported,
          "SHOAL-N706: SHOAL_HEAP is cuda, but {}; allowed: host", why);
  return *found;
}

void replace_driver(const Driver* table) {
  replacement = table;
}

bool loads_lazily() {
  const Driver& table = driver();
  CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
  return table.loading_mode != nullptr && table.loading_mode(&mode) == CUDA_SUCCESS &&
         mode == CU_MODULE_LAZY_LOADING;
}

std::string describe(const Driver& driver, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.error_name(result, &name) != CUDA_SUCCESS || name == nullptr)
    return fmt::format("CUDA error {}", static_cast<int>(result));
  if (driver.error_text(result, &text) != CUDA_SUCCESS || text == nullptr) return name;
  return fmt::format("{}: {}", name, text);
}

void fail_driver(const Driver& driver, CUresult result, const std::string& what,
                 const char* setting) {
  const Code code = result == CUDA_ERROR_OUT_OF_MEMORY ? Code::exhausted : Code::system;
  fail(code, "{}: {}{}", what, describe(driver, result),
       setting == nullptr ? "" : fmt::format("; Setting: {}.", setting));
}

}  // namespace shoal::memory::cuda
