// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "ep/cuda/normal/device/kernels.cuh"
#include "ep/cuda/normal/normal.hpp"

namespace shoal::ep::cuda {

void launch_unpack(const detail::AnyDispatched& received,
                   const std::vector<detail::ArrayCopy>& copies, bool clear_unused,
                   bool overlap_launches, cudaStream_t stream) {
  NormalUnpack params{};
  if (clear_unused && received.x.size() > 0) {
    const TensorView& x = received.x;
    const auto per_row = static_cast<std::int64_t>(size_of(x.dtype)) * x.shape[1] /
                         static_cast<std::int64_t>(sizeof(uint4));
    params.cleared = x.as<uint4>();
    params.row_vectors = per_row;
    params.vectors = x.shape[0] * per_row;
    params.row_count = received.row_count.as<std::int32_t>();
  }
  static_assert(NormalUnpack::kMaxArrays >= 7);
  for (const auto& [from, to] : copies) {
    const auto words = static_cast<std::int64_t>(size_of(from.dtype) / 4);
    const std::int64_t columns = from.rank == 1 ? 1 : from.shape[1];
    detail::RowPlaces places(to);
    places.row_stride *= words;
    places.step *= words;
    require(from.size() * words < std::int64_t{1} << 31, Code::unsupported,
            "SHOAL-N555: unpack: {} has 2^31 words or more",
            [&view = from] { return view.describe(); });
    params.arrays[params.count++] = {.from = from.as<std::uint32_t>(),
                                     .to = to.as<std::uint32_t>(),
                                     .from_stride = from.strides[0] * words,
                                     .places = places,
                                     .words = from.size() * words,
                                     .by_row = Divisor(static_cast<std::uint32_t>(columns * words)),
                                     .wide = words == 2 ? 1U : 0U};
  }
  launch_unpack(params, overlap_launches, stream);
}

}  // namespace shoal::ep::cuda
