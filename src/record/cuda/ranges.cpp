// SPDX-License-Identifier: Apache-2.0
#include "record/ranges.hpp"

#include <nvtx3/nvToolsExt.h>

#include <array>

#include "record/layout.hpp"

namespace shoal::detail::record {
namespace {

/// Without a profiler, NVTX returns no domain.
struct Domain {
  nvtxDomainHandle_t handle = nvtxDomainCreateA("shoal");
  std::array<nvtxStringHandle_t, kOperations> names{};

  Domain() {
    for (std::size_t i = 0; handle != nullptr && i < kOperations; ++i)
      names[i] = nvtxDomainRegisterStringA(handle, kOperationNames[i]);
  }
  static const Domain& instance() {
    static const Domain domain;
    return domain;
  }
};

}  // namespace

bool has_profiler() noexcept {
  return Domain::instance().handle != nullptr;
}

void begin_range(std::size_t operation) noexcept {
  const Domain& domain = Domain::instance();
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  attributes.message.registered = domain.names[operation];
  nvtxDomainRangePushEx(domain.handle, &attributes);
}

void end_range() noexcept {
  nvtxDomainRangePop(Domain::instance().handle);
}

}  // namespace shoal::detail::record
