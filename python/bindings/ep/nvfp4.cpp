// SPDX-License-Identifier: Apache-2.0
// ep/nvfp4.cpp: the quantization of deep_ep's low_latency_dispatch with use_nvfp4.
#include "ep/numeric/nvfp4.hpp"

#include <algorithm>

#include "../check.hpp"
#include "../docs.hpp"
#include "group.hpp"

#ifdef SHOAL_WITH_CUDA
#include "ep/cuda/low_latency/formats/quantize_nvfp4.hpp"
#endif

namespace shoal::python {
namespace {

namespace numeric = ep::numeric;

constexpr std::int64_t kGroup = numeric::kNvfp4Group;
constexpr std::int64_t kTileRows = 128, kTileGroups = 4, kTileLanes = 32;

/// The arrays of quantize_nvfp4.hpp.
struct Nvfp4Arrays {
  const std::uint16_t* x;
  const std::int32_t* counts;
  const float* global_scale;
  std::uint8_t *values, *scales;
  std::int32_t experts, rows, hidden;
};

/// 16 channels. Returns the code of their scale.
std::uint8_t quantize_group(const std::uint16_t* from, float global, std::uint8_t* to) {
  constexpr std::uint16_t kMagnitude = 0x7fff;
  std::uint16_t most = 0;
  for (std::int64_t i = 0; i < kGroup; ++i)
    most = std::max<std::uint16_t>(most, from[i] & kMagnitude);
  const numeric::Nvfp4Scale scale = numeric::nvfp4_scale(float_from_bfloat16(most), global);
  const auto code = [&](std::uint16_t value) {
    const float magnitude = float_from_bfloat16(value & kMagnitude);
    return numeric::encode_e2m1(numeric::mul(magnitude, scale.factor)) | (value >> 12 & 0x8U);
  };
  for (std::int64_t i = 0; i < kGroup; i += 2)
    to[i / 2] = static_cast<std::uint8_t>(code(from[i]) | code(from[i + 1]) << 4);
  return scale.code;
}

void quantize_on_host(const Nvfp4Arrays& all) {
  const float global = all.global_scale == nullptr ? 1.0F : *all.global_scale;
  const std::int64_t groups = all.hidden / kGroup,
                     row_tiles = (all.rows + kTileRows - 1) / kTileRows;
  const std::int64_t group_tiles = (groups + kTileGroups - 1) / kTileGroups;
  for (std::int64_t expert = 0; expert < all.experts; ++expert)
    for (std::int64_t row = 0; row < all.counts[expert]; ++row)
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t at = (expert * all.rows + row) * groups + group;
        const std::int64_t tile =
            (expert * row_tiles + row / kTileRows) * group_tiles + group / kTileGroups;
        const std::int64_t in_tile =
            row % kTileRows % kTileLanes * (kTileRows / kTileLanes) + row % kTileRows / kTileLanes;
        all.scales[(tile * kTileRows + in_tile) * kTileGroups + group % kTileGroups] =
            quantize_group(all.x + at * kGroup, global, all.values + at * kGroup / 2);
      }
}

void quantize_on_gpu([[maybe_unused]] const Nvfp4Arrays& all,
                     [[maybe_unused]] std::uintptr_t stream) {
#ifdef SHOAL_WITH_CUDA
  const cudaError_t status = ep::cuda::launch_quantize_nvfp4(
      {reinterpret_cast<const std::byte*>(all.x), all.counts, all.global_scale,
       reinterpret_cast<std::byte*>(all.values), all.scales, all.experts, all.rows, all.hidden},
      reinterpret_cast<cudaStream_t>(stream));
  require(status == cudaSuccess, Code::system, "quantize_nvfp4: {}", cudaGetErrorString(status));
#endif
}

void quantize_nvfp4(std::uintptr_t x, std::uintptr_t counts, std::uintptr_t global_scale,
                    std::uintptr_t values, std::uintptr_t scales, std::int32_t experts,
                    std::int32_t rows, std::int32_t hidden, std::uintptr_t stream) {
  const Nvfp4Arrays all{reinterpret_cast<const std::uint16_t*>(x),
                        reinterpret_cast<const std::int32_t*>(counts),
                        reinterpret_cast<const float*>(global_scale),
                        reinterpret_cast<std::uint8_t*>(values),
                        reinterpret_cast<std::uint8_t*>(scales),
                        experts,
                        rows,
                        hidden};
  if (stream == 0)
    quantize_on_host(all);
  else
    quantize_on_gpu(all, stream);
}

}  // namespace

void bind_nvfp4(nb::module_& module) {
  module.def("quantize_nvfp4", &quantize_nvfp4, nb::arg("x"), nb::arg("counts"),
             nb::arg("global_scale"), nb::arg("values"), nb::arg("scales"), nb::arg("experts"),
             nb::arg("rows"), nb::arg("hidden"), nb::arg("stream"),
             nb::call_guard<nb::gil_scoped_release>(),
             "Quantizes received bfloat16 rows [experts, rows, hidden]; for deep_ep. counts: int32 "
             "[experts], the rows of each expert; the others stay as they are. Arguments are "
             "addresses; global_scale of 0: none. stream: 0 on the host."_doc);
}

}  // namespace shoal::python
