// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "../check.hpp"
#include "group.hpp"

namespace shoal::python {
namespace {

std::chrono::milliseconds milliseconds_from(double seconds) {
  require(seconds >= 0 && seconds <= 1e6, Code::invalid_argument,
          "timeout is {} s; allowed: 0 to 1,000,000", seconds);
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(1000 * seconds)));
}

using Setter = std::function<void(ep::GroupOptions&, nb::handle)>;

template <typename T>
Setter setter(T ep::GroupOptions::* member) {
  return [member](ep::GroupOptions& options, nb::handle value) {
    options.*member = nb::cast<T>(value);
  };
}

const std::map<std::string, Setter>& setters() {
  using Options = ep::GroupOptions;
  static const auto& table = *new std::map<std::string, Setter>{
      {"hidden", setter(&Options::hidden)},
      {"top_k", setter(&Options::top_k)},
      {"experts", setter(&Options::experts)},
      {"max_tokens", setter(&Options::max_tokens)},
      {"dtype", [](Options& options,
                   nb::handle value) { options.dtype = dtype_from(nb::cast<std::string>(value)); }},
      {"max_scales", setter(&Options::max_scales)},
      {"live_results", setter(&Options::live_results)},
      {"low_latency_max_tokens", setter(&Options::low_latency_max_tokens)},
      {"preinitialize", setter(&Options::preinitialize)},
      {"mask_failed", setter(&Options::mask_failed)},
      {"timeout",
       [](Options& options, nb::handle value) {
         options.timeout = milliseconds_from(nb::cast<double>(value));
       }},
      {"threads", setter(&Options::threads)},
      {"combine_staging", setter(&Options::combine_staging)},
  };
  return table;
}

/// The value of an int, or of the attribute of one of torch's objects.
std::uintptr_t number_of(nb::handle value, const char* attribute) {
  // hasattr on an int costs more than the check.
  if (PyLong_Check(value.ptr()) != 0) return nb::cast<std::uintptr_t>(value);
  return nb::cast<std::uintptr_t>(nb::hasattr(value, attribute) ? nb::object(value.attr(attribute))
                                                                : nb::borrow(value));
}

void* stream_from(nb::handle value) {
  if (value.is_none()) return nullptr;
  // CUDA and torch write the default stream as 0; in C++ nullptr is the group's own stream.
  return reinterpret_cast<void*>(std::max<std::uintptr_t>(number_of(value, "cuda_stream"), 1));
}

void* event_from(nb::handle value, const std::string& name) {
  if (value.is_none()) return nullptr;
  const std::uintptr_t number = number_of(value, "cuda_event");
  require(number != 0, Code::invalid_argument,
          "{}: the event has no cudaEvent_t yet; torch creates it at the first record()", name);
  return reinterpret_cast<void*>(number);
}

}  // namespace

ep::GroupOptions group_options_from(const nb::kwargs& given) {
  ep::GroupOptions options;
  for (const auto& [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    const auto found = setters().find(name);
    if (found == setters().end())
      throw nb::type_error(
          fmt::format(
              "ep.Group has no option \"{}\"; there are hidden, top_k, experts, max_tokens, "
              "dtype, max_scales, live_results, low_latency_max_tokens, preinitialize, "
              "mask_failed, timeout, threads and combine_staging",
              name)
              .c_str());
    try {
      found->second(options, value);
    } catch (const nb::cast_error&) {
      fail(Code::invalid_argument, "ep.Group: {}={} has the wrong type", name,
           nb::cast<std::string>(nb::repr(value)));
    }
  }
  return options;
}

nb::dict to_dict(const ep::GroupOptions& options) {
  nb::dict all;
  all["hidden"] = options.hidden;
  all["top_k"] = options.top_k;
  all["experts"] = options.experts;
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
  return all;
}

DeviceKind heap_from(const std::string& name) {
  require(name == "host" || name == "cuda", Code::invalid_argument,
          "heap \"{}\"; allowed: \"host\", \"cuda\"", name);
  return name == "host" ? DeviceKind::host : DeviceKind::cuda;
}

ep::Quantize quantize_from(const std::string& name) {
  if (name == "fp8") return ep::Quantize::fp8;
  if (name == "none") return ep::Quantize::none;
  if (name == "fp8_power_of_two") return ep::Quantize::fp8_power_of_two;
  require(name == "fp8_ue8m0", Code::invalid_argument,
          "quantize \"{}\"; allowed: \"none\", \"fp8\", \"fp8_power_of_two\", \"fp8_ue8m0\"", name);
  return ep::Quantize::fp8_ue8m0;
}

ep::Launch launch_from(const nb::kwargs& given) {
  ep::Launch launch;
  for (const auto& [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "stream")
      launch.stream = stream_from(value);
    else if (name == "after")
      launch.after = event_from(value, name);
    else if (name == "done")
      launch.done = event_from(value, name);
    else if (name == "sms")
      launch.sms = nb::cast<std::int32_t>(value);
    else
      throw nb::type_error(fmt::format("unexpected argument \"{}\"", name).c_str());
  }
  return launch;
}

void follow(ep::Launch& launch, const Group& group, const Input& main) {
  if (launch.stream != nullptr || !group.on_gpu || main.stream == kReady) return;
  launch.stream = reinterpret_cast<void*>(main.stream);
}

}  // namespace shoal::python
