// SPDX-License-Identifier: Apache-2.0
// The launches of builds without CUDA. No world has a device side there, so calls throw before.
#include "collective/launch.hpp"

#ifndef SHOAL_WITH_CUDA

namespace shoal::collective::kernels {
namespace {
constexpr const char* kReason = "this build of Shoal has no GPU backend";
}

const char* load() {
  return kReason;
}
const char* broadcast(const Launch&, void*, const void*, std::size_t, Pe) {
  return kReason;
}
const char* spread(const Launch&, void*, const void*, std::size_t, bool) {
  return kReason;
}
const char* all_to_all_v(const Launch&, const device::AllToAllV&) {
  return kReason;
}
const char* reduce(const Launch&, cuda::ElementType, ReduceOp, const ReduceArguments&) {
  return kReason;
}

}  // namespace shoal::collective::kernels

#endif
