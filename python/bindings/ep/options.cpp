// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "../arguments.hpp"
#include "../arrays/streams.hpp"
#include "../check.hpp"
#include "group.hpp"

namespace shoal::python {
namespace {

using Setter = std::function<void(std::string_view call, ep::GroupOptions&, nb::handle)>;

template <typename T>
std::pair<const std::string, Setter> setter(const char* name, T ep::GroupOptions::* member) {
  return {name, [name, member](std::string_view call, ep::GroupOptions& options, nb::handle value) {
            options.*member = argument<T>(call, name, value);
          }};
}

std::vector<std::int32_t> first_expert_from(std::string_view call, nb::handle value) {
  if (value.is_none()) return {};
  if (!nb::isinstance<nb::sequence>(value) || PyUnicode_Check(value.ptr()) != 0)
    wrong_type(call, "first_expert", value, "a sequence of int, or None");
  std::vector<std::int32_t> first;
  for (const nb::handle number : value)
    first.push_back(argument<std::int32_t>(call, "first_expert", number));
  return first;
}

const std::map<std::string, Setter>& setters() {
  using Options = ep::GroupOptions;
  static const auto& table = *new std::map<std::string, Setter>{
      setter("hidden", &Options::hidden),
      setter("top_k", &Options::top_k),
      setter("experts", &Options::experts),
      {"first_expert",
       [](std::string_view call, Options& options, nb::handle value) {
         options.first_expert = first_expert_from(call, value);
       }},
      setter("none_expert", &Options::none_expert),
      setter("max_tokens", &Options::max_tokens),
      {"dtype", [](std::string_view call, Options& options,
                   nb::handle value) { options.dtype = dtype_from(call, value); }},
      setter("max_scales", &Options::max_scales),
      setter("live_results", &Options::live_results),
      setter("low_latency_max_tokens", &Options::low_latency_max_tokens),
      setter("preinitialize", &Options::preinitialize),
      setter("mask_failed", &Options::mask_failed),
      {"timeout", [](std::string_view call, Options& options,
                     nb::handle value) { options.timeout = duration_of(call, "timeout", value); }},
      setter("threads", &Options::threads),
      setter("combine_staging", &Options::combine_staging),
      setter("chunk_bytes", &Options::chunk_bytes),
      setter("chunks_in_flight", &Options::chunks_in_flight),
  };
  return table;
}

}  // namespace

ep::GroupOptions group_options_from(std::string_view call, const nb::kwargs& given) {
  ep::GroupOptions options;
  for (const auto& [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    const auto found = setters().find(name);
    if (found == setters().end())
      throw nb::type_error(
          fmt::format(
              "{} has no option \"{}\"; there are hidden, top_k, experts, "
              "first_expert, none_expert, max_tokens, dtype, max_scales, live_results, low_latency_max_tokens, preinitialize, "
              "mask_failed, timeout, threads, combine_staging, chunk_bytes and "
              "chunks_in_flight",
              call, name)
              .c_str());
    found->second(call, options, value);
  }
  return options;
}

nb::dict to_dict(const ep::GroupOptions& options) {
  nb::dict all;
  all["hidden"] = options.hidden;
  all["top_k"] = options.top_k;
  all["experts"] = options.experts;
  all["first_expert"] = options.first_expert;
  all["none_expert"] = options.none_expert;
  all["max_tokens"] = options.max_tokens;
  all["dtype"] = std::string(name_of(options.dtype));
  all["max_scales"] = options.max_scales;
  all["live_results"] = options.live_results;
  all["low_latency_max_tokens"] = options.low_latency_max_tokens;
  all["preinitialize"] = options.preinitialize;
  all["mask_failed"] = options.mask_failed;
  all["timeout"] = std::chrono::duration<double>(options.timeout).count();
  all["threads"] = options.threads;
  all["combine_staging"] = options.combine_staging;
  all["chunk_bytes"] = options.chunk_bytes;
  all["chunks_in_flight"] = options.chunks_in_flight;
  return all;
}

DeviceKind heap_from(std::string_view call, nb::handle given) {
  const auto name = argument<std::string>(call, "heap", given);
  require(name == "host" || name == "cuda", Code::invalid_argument,
          "{}: heap \"{}\"; allowed: \"host\", \"cuda\"", call, name);
  return name == "host" ? DeviceKind::host : DeviceKind::cuda;
}

ep::Quantize quantize_from(std::string_view call, nb::handle given) {
  if (PyUnicode_Check(given.ptr()) == 0) wrong_type(call, "quantize", given, "a str");
  const std::string_view name = text_of(given);
  if (name == "fp8") return ep::Quantize::fp8;
  if (name == "none") return ep::Quantize::none;
  if (name == "fp8_power_of_two") return ep::Quantize::fp8_power_of_two;
  if (name == "fp8_ue8m0") return ep::Quantize::fp8_ue8m0;
  if (name == "mxfp8") return ep::Quantize::mxfp8;
  require(name == "nvfp4", Code::invalid_argument,
          "{}: quantize \"{}\"; allowed: \"none\", \"fp8\", \"fp8_power_of_two\", "
          "\"fp8_ue8m0\", \"mxfp8\", \"nvfp4\"",
          call, name);
  return ep::Quantize::nvfp4;
}

ep::ScaleLayout scale_layout_from(std::string_view call, nb::handle given) {
  const auto name = argument<std::string>(call, "scale_layout", given);
  if (name == "automatic") return ep::ScaleLayout::automatic;
  if (name == "rows") return ep::ScaleLayout::rows;
  if (name == "columns") return ep::ScaleLayout::columns;
  require(name == "tiles", Code::invalid_argument,
          "{}: scale_layout \"{}\"; allowed: \"automatic\", \"rows\", \"columns\", \"tiles\"", call,
          name);
  return ep::ScaleLayout::tiles;
}

void read_launch(std::string_view call, std::string_view name, nb::handle value,
                 ep::Launch& launch) {
  if (name == "stream")
    launch.stream = stream_from(call, value);
  else if (name == "after")
    launch.after = event_from(call, name, value);
  else if (name == "done")
    launch.done = event_from(call, name, value);
  else if (name == "sms")
    launch.sms = argument<std::int32_t>(call, name, value);
  else
    throw nb::type_error(fmt::format("{}: unexpected argument \"{}\"", call, name).c_str());
}

ep::Launch launch_from(std::string_view call, const nb::kwargs& given) {
  ep::Launch launch;
  for (const auto& [key, value] : given) read_launch(call, text_of(key), value, launch);
  return launch;
}

void follow(ep::Launch& launch, const Group& group, const Input& main) {
  if (launch.stream != nullptr || !group.on_gpu || main.stream == kReady) return;
  launch.stream = reinterpret_cast<Stream>(main.stream);
}

}  // namespace shoal::python
