// SPDX-License-Identifier: Apache-2.0
#include "checks/ep/expert_major_cases.hpp"

namespace shoal::test {

std::vector<ExpertMajorCase> exact_size_cases(std::int32_t ranks) {
  std::vector<ExpertMajorCase> cases;
  for (const std::int32_t alignment : {1, 16, 128, 224, 256})
    cases.push_back({small_case(ranks), {.alignment = alignment}});
  return cases;
}

std::vector<ExpertMajorCase> worst_case_and_copy_out_cases(std::int32_t ranks) {
  const EpCase c = small_case(ranks, 5);
  std::vector<ExpertMajorCase> cases;
  for (const std::int32_t alignment : {1, 16, 128, 224, 256}) {
    cases.push_back({c, {.alignment = alignment, .worst_case = true, .cached = 2}});
    cases.push_back({c, {.alignment = alignment, .copy_out = true, .cached = 1}});
  }
  cases.push_back({c, {.weights = false, .alignment = 16, .cached = 2}});
  return cases;
}

std::vector<ExpertMajorCase> bias_and_output_cases(std::int32_t ranks) {
  const EpCase c = small_case(ranks, 7);
  const DataType half = DataType::float16, single = DataType::float32;
  const EpCase wide = wide_case(ranks, 8);
  return {{wide, {.alignment = 8, .biases = 1, .combine_quantize = ep::Quantize::fp8, .cached = 1}},
          {wide,
           {.alignment = 4,
            .worst_case = true,
            .in_place = true,
            .combine_quantize = ep::Quantize::mxfp8}},
          {c, {.alignment = 8, .biases = 1, .in_place = true}},
          {c, {.alignment = 8, .biases = 2, .in_place = true}},
          {c, {.dtype = half, .output_dtype = half, .biases = 2}},
          {c, {.dtype = single, .output_dtype = single, .alignment = 3, .biases = 1}}};
}

std::vector<ExpertMajorCase> unsummed_cases(std::int32_t ranks) {
  const EpCase c = small_case(ranks, 8);
  std::vector<ExpertMajorCase> cases{
      {c, {.alignment = 8, .unsummed = true, .in_place = true, .cached = 1}}};
  for (const DataType dtype : {DataType::bfloat16, DataType::float16, DataType::float32}) {
    cases.push_back({c, {.dtype = dtype, .output_dtype = dtype, .unsummed = true}});
    cases.push_back({c,
                     {.dtype = dtype,
                      .output_dtype = dtype,
                      .weights = false,
                      .alignment = 16,
                      .worst_case = true,
                      .unsummed = true}});
  }
  return cases;
}

std::vector<ExpertMajorCase> scale_cases(std::int32_t ranks) {
  EpCase c = small_case(ranks, 9);
  c.hidden = 256;
  const DataType float8 = DataType::float8_e4m3;
  const EpCase three = small_case(ranks, 10);
  return {{c, {.dtype = float8, .scales = 2, .scale_columns = true, .alignment = 128}},
          {c, {.dtype = float8, .scales = 3, .tiles = true, .alignment = 128, .cached = 1}},
          {three, {.scales = 1, .tiles = true, .alignment = 256, .worst_case = true}},
          {c, {.dtype = float8, .scales = 5, .alignment = 16, .worst_case = true, .cached = 1}}};
}

std::vector<ExpertMajorCase> uneven_cases(std::int32_t ranks) {
  std::vector<ExpertMajorCase> cases;
  for (const Load load : {Load::none, Load::some_idle, Load::all_to_one}) {
    EpCase c = small_case(ranks);
    c.load = load;
    cases.push_back({c, {.alignment = 16}});
    cases.push_back({c, {.alignment = 16, .worst_case = true}});
    cases.push_back({c, {.alignment = 224}});
  }
  return cases;
}

}  // namespace shoal::test
