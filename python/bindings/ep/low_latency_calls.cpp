// SPDX-License-Identifier: Apache-2.0
#include "low_latency_calls.hpp"

#include <algorithm>
#include <utility>

#include "../docs.hpp"

namespace shoal::python {
namespace {

constexpr const char* kDispatch = "low_latency_dispatch";
constexpr const char* kCombine = "low_latency_combine";
constexpr std::int64_t kAny = CallTensors::kAny;

ep::Quantize quantize_of(const LowLatencyCalls::Dispatch& call) {
  if (is_true(call.use_nvfp4)) return ep::Quantize::nvfp4;
  if (!is_true(call.use_fp8)) return ep::Quantize::none;
  if (is_true(call.use_ue8m0)) return ep::Quantize::fp8_ue8m0;
  return is_true(call.round_scale) ? ep::Quantize::fp8_power_of_two : ep::Quantize::fp8;
}

void refuse_both(const char* call, bool event, bool hook) {
  native_assert(!event || !hook, "{}: async_finish and return_recv_hook exclude each other", call);
}

/// DeepEP's tuple for a dispatch.
nb::object handle_of(const nb::object& type, const LowLatencyGroup::Arrays& arrays,
                     const nb::object& sent) {
  static PyObject* const kSent = PyUnicode_InternFromString("sent");
  nb::object handle = nb::steal(PyObject_Call(type.ptr(), arrays.entries.ptr(), nullptr));
  if (!handle.is_valid() || PyObject_SetAttr(handle.ptr(), kSent, sent.ptr()) != 0)
    nb::raise_python_error();
  return handle;
}

}  // namespace

LowLatencyCalls::LowLatencyCalls(std::int64_t ranks, double timeout, const nb::dict& given)
    : tensors_(given),
      ranks_(ranks),
      timeout_(timeout),
      group_(given["group"]),
      check_sizes_(given["check_sizes"]),
      handle_type_(given["handle_type"]),
      nvfp4_scale_(given["nvfp4_scale"]),
      pack_weights_(given["pack_weights"]),
      unpack_weights_(given["unpack_weights"]),
      in_turn_(given["in_turn"]),
      traced_(given["traced"]),
      used_here_(given["used_here"]),
      maker_(nb::object(given["empty"])) {}

template <typename Work>
nb::object LowLatencyCalls::run(const char* kernel, nb::handle is_hooked, nb::handle async_finish,
                                Work&& work, const nb::tuple& inputs) const {
  nb::object hook = nb::none();
  const auto here = [&] { return std::forward<Work>(work)(hook); };
  const Events events{nb::handle(Py_None), nb::handle(Py_None), async_finish, nb::handle(Py_False)};
  if (tensors_.is_plain(events)) {
    const nb::object results = here();  // sets the hook
    return results + nb::make_tuple(hook);
  }
  const bool hooked = is_true(is_hooked);
  const std::string range = fmt::format("{}{}", kernel, hooked ? "_send_kernel" : "");
  const nb::object results = tensors_.run(range.c_str(), events, here, inputs);
  if (hooked) hook = traced_(fmt::format("{}_receive_kernel", kernel).c_str(), hook);
  return results + nb::make_tuple(hook);
}

nb::object LowLatencyCalls::group_for(const Shape& shape) const {
  const auto known = std::ranges::find(groups_, shape, &Known::shape);
  if (known != groups_.end()) return known->group;
  nb::object group = group_(shape.hidden, shape.top_k, shape.experts, shape.max_tokens);
  groups_.push_back({shape, group});
  return group;
}

LowLatencyCalls::Sent LowLatencyCalls::send_rows(const nb::object& group, const TensorView& rows,
                                                 const TensorView& indices,
                                                 const ep::LowLatencyDispatchOptions& options,
                                                 KeptTensors kept) const {
  LowLatencyGroup& of = *nb::inst_ptr<LowLatencyGroup>(group);
  SentDispatch sent{group, std::move(kept), nullptr};
  {
    const nb::gil_scoped_release released;
    sent.pending = of.group().low_latency_dispatch(rows, indices, options);
  }
  LowLatencyGroup::Arrays arrays = of.arrays_of(sent.pending, options.quantize);
  sent.x = arrays.x;
  return {nb::cast(std::move(sent)), std::move(arrays)};
}

nb::object LowLatencyCalls::send(const Dispatch& call, nb::object& hook) const {
  const bool weighted = !call.weights.is_none(), nvfp4 = is_true(call.use_nvfp4);
  KeptTensors kept;
  const TensorView rows =
      kept.take(tensors_, kDispatch, "x", call.x, DataType::bfloat16, {kAny, kAny});
  const std::int64_t tokens = rows.shape[0];
  Shape shape{rows.shape[1], 0, value_of(call.experts), value_of(call.max_tokens)};
  if (std::ranges::none_of(groups_, [&](const Known& one) {
        return Shape{shape.hidden, one.shape.top_k, shape.experts, shape.max_tokens} == one.shape;
      }))
    check_sizes_(kDispatch, call.max_tokens, shape.hidden, call.experts);
  const TensorView indices = kept.take(tensors_, kDispatch, "topk_idx", call.topk_idx,
                                       tensors_.index_type(), {tokens, kAny});
  shape.top_k = indices.shape[1];
  native_assert(tokens <= shape.max_tokens,
                "{}: {} tokens; at most num_max_dispatch_tokens_per_rank = {}", kDispatch, tokens,
                shape.max_tokens);
  native_assert(!is_true(call.use_ue8m0) || is_true(call.round_scale),
                "{}: use_ue8m0=True needs round_scale=True", kDispatch);
  ep::LowLatencyDispatchOptions options;
  options.quantize = quantize_of(call);
  options.defer_receive = is_true(call.hook);
  options.tokens_per_expert =
      kept.take_optional(tensors_, kDispatch, "cumulative_local_expert_recv_stats", call.stats,
                         DataType::int32, {most_local_experts(shape.experts, ranks_)});
  options.wait_ns = kept.take_optional(tensors_, kDispatch, "wait_recv_cost_stats", call.waits,
                                       DataType::int64, {ranks_});
  if (weighted)
    tensors_.take(kDispatch, "topk_weights", call.weights, DataType::float32,
                  {tokens, shape.top_k});
  if (nvfp4) {
    native_assert(!is_true(call.use_fp8), "{}: use_nvfp4=True needs use_fp8=False", kDispatch);
    options.global_scale =
        kept.take_optional(tensors_, kDispatch, "x_global_scale",
                           nvfp4_scale_(kDispatch, call.global_scale), DataType::float32, {1});
  }
  tensors_.follow(options.launch);
  const nb::object group = group_for(shape);
  const Sent sent = send_rows(group, rows, indices, options, std::move(kept));
  nb::list steps;  // of the receive
  steps.append(sent.call);
  const nb::object handle = handle_of(handle_type_, sent.arrays, sent.call);
  nb::object results = nb::make_tuple(sent.arrays.rows, sent.arrays.counts);
  if (weighted) {
    // A second dispatch with the same routing, whose rows therefore have the same places.
    const nb::object words = pack_weights_(call.topk_idx, call.weights);
    KeptTensors kept_words;
    const TensorView more = kept_words.take(tensors_, kDispatch, "topk_weights", words,
                                            DataType::bfloat16, {tokens, kAny});
    kept_words.take(tensors_, kDispatch, "topk_idx", call.topk_idx, tensors_.index_type(),
                    {tokens, kAny});
    ep::LowLatencyDispatchOptions plain;
    plain.quantize = ep::Quantize::none;
    plain.defer_receive = options.defer_receive;
    plain.launch = options.launch;
    const Sent second =
        send_rows(group_for({more.shape[1], shape.top_k, shape.experts, shape.max_tokens}), more,
                  indices, plain, std::move(kept_words));
    const nb::object made = unpack_weights_(second.arrays.rows, shape.top_k);
    results = results + nb::make_tuple(made[0], made[1]);
    steps.append(second.call);
    steps.append(made[2]);
  }
  if (options.defer_receive) {
    hook = steps.size() == 1 ? sent.call : nb::object(in_turn_(steps));
  } else {
    for (const nb::handle step : steps) step();
  }
  return results + nb::make_tuple(handle, tensors_.no_event());
}

nb::object LowLatencyCalls::dispatch(const Dispatch& call, nb::handle async_finish) const {
  refuse_both(kDispatch, is_true(async_finish), is_true(call.hook));
  return run(
      "dispatch", call.hook, async_finish, [&](nb::object& hook) { return send(call, hook); },
      nb::make_tuple(call.x, call.topk_idx, call.weights, call.global_scale, call.stats,
                     call.waits));
}

SentDispatch& LowLatencyCalls::sent_of(const char* call, nb::handle handle) const {
  nb::object sent = nb::none();
  if (nb::isinstance(handle, handle_type_)) sent = attribute(handle, "sent");
  if (!nb::isinstance<SentDispatch>(sent))
    native_assert(false,
                  "{}: handle is a {}; allowed: the handle that low_latency_dispatch returned, "
                  "unchanged",
                  call, text_of_object(attribute(handle.type(), "__name__")));
  return *nb::inst_ptr<SentDispatch>(sent);  // which the handle keeps
}

nb::object LowLatencyCalls::next_combine_buffer(nb::handle handle) const {
  return sent_of("get_next_low_latency_combine_buffer", handle).of().next_combine_buffer();
}

nb::object LowLatencyCalls::collect(const Combine& call, nb::object& hook) const {
  const SentDispatch& sent = sent_of(kCombine, call.handle);
  LowLatencyGroup& group = sent.of();
  const ep::GroupOptions& known = group.options();
  native_assert(sent.handle.valid(), "{}: the hook of this handle's dispatch has not been called",
                kCombine);
  KeptTensors kept;
  const TensorView indices = kept.take(tensors_, kCombine, "topk_idx", call.topk_idx,
                                       tensors_.index_type(), {kAny, known.top_k});
  const std::int64_t tokens = indices.shape[0];
  const TensorView weights = kept.take(tensors_, kCombine, "topk_weights", call.weights,
                                       DataType::float32, {tokens, known.top_k});
  ep::LowLatencyCombineOptions options;
  options.log_fmt = is_true(call.use_logfmt);
  options.zero_copy = is_true(call.zero_copy);
  options.defer_receive = is_true(call.hook);
  options.launch.sms = std::max(call.num_sms, 0);
  native_assert(!options.zero_copy || !options.log_fmt,
                "{}: zero_copy and use_logfmt exclude each other", kCombine);
  options.wait_ns = kept.take_optional(tensors_, kCombine, "wait_recv_cost_stats", call.waits,
                                       DataType::int64, {ranks_});
  TensorView rows = group.combine_buffer();
  if (options.zero_copy) {
    native_assert(rows.defined(),
                  "{}: zero_copy=True without a get_next_low_latency_combine_buffer before it",
                  kCombine);
    const nb::tuple extents = nb::make_tuple(group.local_experts(), group.rows(), known.hidden);
    if (!extents.equal(attribute(call.x, "shape")))
      native_assert(false, "{}: x is {}; allowed: {}", kCombine, tensors_.describe(call.x),
                    text_of_object(nb::list(extents)));
  } else {
    rows = kept.take(tensors_, kCombine, "x", call.x, DataType::bfloat16,
                     {group.local_experts(), group.rows(), known.hidden});
  }
  const nb::object out = call.out.is_none()
                             ? maker_.make(tokens, known.hidden, tensors_.dtype(DataType::bfloat16))
                             : nb::borrow(call.out);
  options.out =
      kept.take(tensors_, kCombine, "out", out, DataType::bfloat16, {tokens, known.hidden});
  tensors_.follow(options.launch);
  if (is_true(call.overlaps))
    call.overlap.wait(tensors_, group.local_experts(), group.rows(), options.launch.stream,
                      used_here_, timeout_);
  SentCombine pending{sent.group, std::move(kept)};
  {
    const nb::gil_scoped_release released;
    pending.pending =
        group.group().low_latency_combine(rows, indices, weights, sent.handle, options);
  }
  group.use_combine_buffer();
  if (options.defer_receive)
    hook = nb::cast(std::move(pending));
  else
    pending.receive();
  return nb::make_tuple(out, tensors_.no_event());
}

nb::object LowLatencyCalls::combine(const Combine& call, nb::handle async_finish) const {
  refuse_both(kCombine, is_true(async_finish), is_true(call.hook));
  return run(
      "combine", call.hook, async_finish, [&](nb::object& hook) { return collect(call, hook); },
      nb::make_tuple(call.x, call.topk_idx, call.weights, call.out, call.waits));
}

void bind_low_latency_calls(nb::module_& module) {
  bind_low_latency_group(module);
  nb::class_<LowLatencyCalls>(module, "LowLatencyCalls",
                              "The low-latency calls of deep_ep.Buffer, on the current stream."_doc)
      .def(
          "__init__",
          [](LowLatencyCalls* self, std::int64_t ranks, double timeout, const nb::kwargs& setup) {
            new (self) LowLatencyCalls(ranks, timeout, setup);
          },
          nb::arg("ranks"), nb::arg("timeout"), nb::arg("setup"),
          "setup: see LowLatencyCalls in ep/low_latency_calls.hpp."_doc)
      .def(
          "dispatch",
          [](const LowLatencyCalls& self, nb::handle x, nb::handle topk_idx, nb::handle max_tokens,
             nb::handle experts, nb::handle stats, nb::handle waits, nb::handle use_fp8,
             nb::handle round_scale, nb::handle use_ue8m0, nb::handle async_finish, nb::handle hook,
             nb::handle use_nvfp4, nb::handle global_scale, nb::handle weights) {
            return self.dispatch({x, topk_idx, max_tokens, experts, stats, waits, use_fp8,
                                  round_scale, use_ue8m0, hook, use_nvfp4, global_scale, weights},
                                 async_finish);
          },
          nb::arg("x").none(), nb::arg("topk_idx").none(), nb::arg("max_tokens"),
          nb::arg("experts"), nb::arg("stats").none(), nb::arg("waits").none(),
          nb::arg("use_fp8").none(), nb::arg("round_scale").none(), nb::arg("use_ue8m0").none(),
          nb::arg("async_finish").none(), nb::arg("hook").none(), nb::arg("use_nvfp4").none(),
          nb::arg("global_scale").none(), nb::arg("weights").none(),
          "(rows, counts, [weights, source ranks,] handle, event, hook or None)"_doc)
      .def(
          "combine",
          [](const LowLatencyCalls& self, nb::handle x, nb::handle topk_idx, nb::handle weights,
             nb::handle handle, nb::handle use_logfmt, nb::handle zero_copy,
             nb::handle async_finish, nb::handle hook, nb::handle out, nb::handle waits,
             nb::handle overlap, nb::handle packed_recv_count, nb::handle comp_signal,
             nb::handle block_m, nb::handle threshold, std::int32_t num_sms, nb::handle src_signals,
             nb::handle src_value) {
            const Overlap signals{packed_recv_count, comp_signal, block_m,
                                  threshold,         src_signals, src_value};
            return self.combine({x, topk_idx, weights, handle, use_logfmt, zero_copy, hook, out,
                                 waits, overlap, signals, num_sms},
                                async_finish);
          },
          nb::arg("x").none(), nb::arg("topk_idx").none(), nb::arg("weights").none(),
          nb::arg("handle").none(), nb::arg("use_logfmt").none(), nb::arg("zero_copy").none(),
          nb::arg("async_finish").none(), nb::arg("hook").none(), nb::arg("out").none(),
          nb::arg("waits").none(), nb::arg("overlap").none(), nb::arg("packed_recv_count").none(),
          nb::arg("comp_signal").none(), nb::arg("block_m").none(), nb::arg("threshold").none(),
          nb::arg("num_sms"), nb::arg("src_signals").none(), nb::arg("src_value").none(),
          "(sums, event, hook or None)"_doc)
      .def("next_combine_buffer", &LowLatencyCalls::next_combine_buffer, nb::arg("handle").none(),
           "The memory for the x of the next combine with zero_copy."_doc);
}

}  // namespace shoal::python
