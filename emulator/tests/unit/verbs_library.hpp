// SPDX-License-Identifier: Apache-2.0
// verbs_library.hpp: the emulated libibverbs and libmlx5, loaded as clients load them.
#pragma once

#include <dlfcn.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace shoal::emulator::test {

/// The libraries next to this program, and a wire of its own.
class Library {
 public:
  static Library& get() {
    static Library library;
    return library;
  }
  template <typename Function>
  Function* verbs(Function*, const char* name, const char* version = "IBVERBS_1.1") {
    return find<Function>(verbs_, name, version);
  }
  template <typename Function>
  Function* direct(Function*, const char* name, const char* version = "MLX5_1.7") {
    return find<Function>(direct_, name, version);
  }

 private:
  Library() {
    std::string folder = "/tmp/shoal-verbs-test-XXXXXX";
    folder_ = mkdtemp(folder.data());
    setenv("SHOAL_EMULATOR_DIRECTORY", folder_.c_str(), 1);
    setenv("SHOAL_EMULATOR_MAX_QP", "24", 1);
    setenv("SHOAL_EMULATOR_MAX_CQ", "16", 1);
    setenv("SHOAL_EMULATOR_MAX_MR", "20", 1);
    setenv("SHOAL_EMULATOR_RELAXED_DELAY_US", "50000", 1);  // memory with relaxed ordering alone
    const auto lib = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() /
                     "lib" / "emulator";
    verbs_ = dlopen((lib / "libibverbs.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
    direct_ = dlopen((lib / "libmlx5.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (verbs_ == nullptr || direct_ == nullptr) throw std::runtime_error(dlerror());
  }
  ~Library() { std::filesystem::remove_all(folder_); }
  template <typename Function>
  static Function* find(void* library, const char* name, const char* version) {
    void* const found = dlvsym(library, name, version);
    if (found == nullptr) throw std::runtime_error(std::string(name) + "@" + version);
    return reinterpret_cast<Function*>(found);
  }

  std::string folder_;
  void *verbs_, *direct_;
};

#define VERBS(name, ...) Library::get().verbs(&::name, #name __VA_OPT__(, ) __VA_ARGS__)
#define DIRECT(name, ...) Library::get().direct(&::name, #name __VA_OPT__(, ) __VA_ARGS__)

}  // namespace shoal::emulator::test
