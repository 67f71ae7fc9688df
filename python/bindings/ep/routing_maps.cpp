// SPDX-License-Identifier: Apache-2.0
// ep/routing_maps.cpp: forms of a routing that deep_ep computes on a GPU. Arguments named after
// arrays are their addresses.
#include "../check.hpp"
#include "../docs.hpp"
#include "group.hpp"

#ifdef SHOAL_WITH_CUDA
#include "ep/cuda/normal/routing_maps.hpp"
#endif

namespace shoal::python {
namespace {

using Address = std::uintptr_t;

#ifdef SHOAL_WITH_CUDA

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

void check_launch(cudaError_t status, const char* what) {
  require(status == cudaSuccess, Code::system, "{}: {}", what, cudaGetErrorString(status));
}

void count_tokens(Address topk_idx, bool is_int64, std::int32_t tokens, std::int32_t top_k,
                  std::int32_t experts, std::int32_t ranks, Address per_rank, Address per_expert,
                  Address in_rank, Address stream) {
  check_launch(ep::cuda::launch_count_tokens({at<const void>(topk_idx),
                                              is_int64,
                                              tokens,
                                              top_k,
                                              experts,
                                              ranks,
                                              at<std::int32_t>(per_rank),
                                              at<std::int32_t>(per_expert),
                                              at<std::uint8_t>(in_rank),
                                              {}},
                                             at<CUstream_st>(stream)),
               "count_tokens");
}

void topk_of_map(Address map, Address probs, std::int32_t tokens, std::int32_t experts,
                 std::int32_t top_k, Address topk_idx, Address weights, Address most,
                 Address stream) {
  check_launch(ep::cuda::launch_topk_of_map(
                   {at<const std::uint8_t>(map), at<const float>(probs), at<std::int64_t>(topk_idx),
                    at<float>(weights), at<std::int32_t>(most), tokens, experts, top_k},
                   at<CUstream_st>(stream)),
               "topk_of_map");
}

void map_of_topk(Address topk_idx, Address values, std::int32_t tokens, std::int32_t top_k,
                 std::int32_t columns, std::int32_t first, Address map, Address stream) {
  check_launch(
      ep::cuda::launch_map_of_topk({at<const std::int64_t>(topk_idx), at<const float>(values),
                                    at<float>(map), tokens, top_k, columns, first},
                                   at<CUstream_st>(stream)),
      "map_of_topk");
}

void block_rows(Address expert_ends, std::int32_t experts, std::int64_t room, Address rows,
                Address overflow, Address stream) {
  check_launch(
      ep::cuda::launch_fitting_rows({at<const std::int32_t>(expert_ends), at<std::int64_t>(rows),
                                     at<std::uint8_t>(overflow), experts, room},
                                    at<CUstream_st>(stream)),
      "block_rows");
}

#else

template <typename... Arguments>
void without_cuda(Arguments...) {
  fail(Code::unsupported, "count_tokens, topk_of_map, map_of_topk: this build has no CUDA");
}

constexpr auto* count_tokens =
    &without_cuda<Address, bool, std::int32_t, std::int32_t, std::int32_t, std::int32_t, Address,
                  Address, Address, Address>;
constexpr auto* topk_of_map = &without_cuda<Address, Address, std::int32_t, std::int32_t,
                                            std::int32_t, Address, Address, Address, Address>;
constexpr auto* map_of_topk = &without_cuda<Address, Address, std::int32_t, std::int32_t,
                                            std::int32_t, std::int32_t, Address, Address>;
constexpr auto* block_rows =
    &without_cuda<Address, std::int32_t, std::int64_t, Address, Address, Address>;

#endif

}  // namespace

void bind_routing_maps(nb::module_& module) {
  module.def("count_tokens", count_tokens, nb::arg("topk_idx"), nb::arg("is_int64"),
             nb::arg("tokens"), nb::arg("top_k"), nb::arg("experts"), nb::arg("ranks"),
             nb::arg("per_rank"), nb::arg("per_expert"), nb::arg("in_rank"), nb::arg("stream"),
             "Counts the tokens of top-k indices on a GPU: int32 [ranks] and [experts], bytes "
             "[tokens, ranks]. At most 128 ranks and 8192 experts."_doc);
  module.def("topk_of_map", topk_of_map, nb::arg("map"), nb::arg("probs"), nb::arg("tokens"),
             nb::arg("experts"), nb::arg("top_k"), nb::arg("topk_idx"), nb::arg("weights"),
             nb::arg("most"), nb::arg("stream"),
             "Writes the experts of a routing map [tokens, experts] on a GPU, ascending, then -1, "
             "as int64 [tokens, top_k], and with probs their float32 values. most: int32, raised "
             "to the most experts of a token; 0: none."_doc);
  module.def("map_of_topk", map_of_topk, nb::arg("topk_idx"), nb::arg("values"), nb::arg("tokens"),
             nb::arg("top_k"), nb::arg("columns"), nb::arg("first"), nb::arg("map"),
             nb::arg("stream"),
             "Writes float32 values [tokens, top_k] on a GPU to column first + e of [tokens, "
             "columns] for expert e, zeros elsewhere."_doc);
  module.def("block_rows", block_rows, nb::arg("expert_ends"), nb::arg("experts"), nb::arg("room"),
             nb::arg("rows"), nb::arg("overflow"), nb::arg("stream"),
             "Writes the rows of each expert, int64 [experts], that the first `room` rows hold, "
             "and whether there are more; on a GPU."_doc);
}

}  // namespace shoal::python
