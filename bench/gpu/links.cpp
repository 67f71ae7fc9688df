// SPDX-License-Identifier: Apache-2.0
// Toolkits come without NVML. It is loaded at run time, and the part of its binary interface in use
// is declared here.
#include "gpu/links.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "gpu/kernels.hpp"

namespace shoal::bench::gpu {
namespace {

using Device = void*;

/// nvmlFieldValue_t
struct FieldValue {
  unsigned field = 0, scope = 0;
  long long timestamp = 0, latency = 0;
  int type = 0, status = 0;
  unsigned long long value = 0;
};
static_assert(sizeof(FieldValue) == 40);

// NVML_FI_DEV_NVLINK_THROUGHPUT_*, in KiB, and the scope that stands for all links.
constexpr unsigned kDataSent = 138, kDataReceived = 139, kRawSent = 140, kRawReceived = 141,
                   kAllLinks = ~0U;

class Nvml {
 public:
  Nvml() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);  // stays open
    if (library == nullptr) return;
    int (*start)() = nullptr;
    if (find(library, "nvmlInit_v2", start) &&
        find(library, "nvmlDeviceGetHandleByPciBusId_v2", device_by_bus_) &&
        find(library, "nvmlDeviceGetFieldValues", values_))
      usable_ = start() == 0;
  }

  std::optional<LinkBytes> links_of(const char* bus) const {
    Device device = nullptr;
    if (!usable_ || device_by_bus_(bus, &device) != 0) return std::nullopt;
    std::array<FieldValue, 4> fields{};
    for (std::size_t i = 0;
         const unsigned field : {kDataSent, kDataReceived, kRawSent, kRawReceived})
      fields[i++] = {.field = field, .scope = kAllLinks};
    if (values_(device, static_cast<int>(fields.size()), fields.data()) != 0) return std::nullopt;
    LinkBytes bytes{};
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].status != 0) return std::nullopt;
      bytes[i] = static_cast<double>(fields[i].value) * 1024;
    }
    return bytes;
  }

 private:
  template <typename Function>
  static bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }

  int (*device_by_bus_)(const char*, Device*) = nullptr;
  int (*values_)(Device, int, FieldValue*) = nullptr;
  bool usable_ = false;
};

}  // namespace

std::optional<LinkBytes> read_links() {
  static const Nvml nvml;
  int device = 0;
  std::array<char, 32> bus{};
  check(cudaGetDevice(&device), "finding this PE's GPU");
  check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device),
        "asking for the GPU's bus address");
  return nvml.links_of(bus.data());
}

}  // namespace shoal::bench::gpu
