// SPDX-License-Identifier: Apache-2.0
#include "elastic.hpp"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "../docs.hpp"

namespace shoal::python {
namespace {

constexpr const char* kDispatch = "dispatch";
constexpr const char* kCombine = "combine";
constexpr std::int64_t kMostTopK = 32, kMostAlignment = 1 << 16;
constexpr std::int64_t kRoutingRowBytes = 16;  ///< the least that a dispatch sends

std::int64_t rounded_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

std::int64_t value_or(nb::handle number, std::int64_t otherwise) {
  return number.is_none() ? otherwise : value_of(number);
}

}  // namespace

ElasticCalls::ElasticCalls(std::int64_t ranks, std::int64_t rank, std::int64_t max_tokens,
                           bool multiple_reduction, const nb::dict& given)
    : tensors_(given),
      ranks_(ranks),
      rank_(rank),
      max_tokens_(max_tokens),
      multiple_reduction_(multiple_reduction),
      pool_(given["groups"]),
      make_handle_(given["make_handle"]),
      handle_type_(given["handle_type"]),
      column_major_(given["column_major"]),
      empty_column_major_(given["empty_column_major"]),
      zeros_(given["zeros"]) {}

ElasticLayout* ElasticCalls::layout_of(const char* call, nb::handle handle) const {
  nb::object layout = nb::none();
  if (nb::isinstance(handle, handle_type_)) layout = attribute(handle, "shoal");
  if (!nb::isinstance<ElasticLayout>(layout))
    native_assert(false, "{}: handle is a {}; allowed: the handle that dispatch returned", call,
                  text_of_object(attribute(handle.type(), "__name__")));
  return nb::inst_ptr<ElasticLayout>(layout);  // which the handle keeps
}

void ElasticCalls::check_cached(const Dispatch& call, const ElasticLayout& layout,
                                nb::handle handle, std::int64_t tokens) const {
  expect(call.topk_idx.is_none() || call.topk_idx.is(attribute(handle, "topk_idx")),
         "dispatch: a cached dispatch takes no topk_idx");
  for (const auto& [name, given, known] :
       {std::tuple{"num_experts", call.experts, layout.experts},
        std::tuple{"num_max_tokens_per_rank", call.max_tokens, layout.max_tokens},
        std::tuple{"expert_alignment", call.alignment, layout.alignment},
        std::tuple{"do_expand", call.expand, std::int64_t{layout.expanded}}})
    if (!given.is_none() && value_of(given) != known)
      expect(false, fmt::format("dispatch: {} is {}, that of the handle {}", name,
                                text_of_object(given), known));
  const std::int64_t sent = layout.layout.handle.tokens();
  native_assert(tokens == sent, "dispatch: {} tokens; the dispatch of the handle had {}", tokens,
                sent);
  expect(call.stats.is_none(), "dispatch: a cached dispatch takes no statistics");
}

ElasticLayout ElasticCalls::new_layout(const Dispatch& call, const Rows& rows, bool captured,
                                       ep::detail::AnyDispatchOptions& options,
                                       ep::Routing& routing, Argument& weights) {
  expect(!call.topk_idx.is_none() && !call.experts.is_none(),
         "dispatch: topk_idx and num_experts are needed");
  const Argument indices = tensors_.take(kDispatch, "topk_idx", call.topk_idx,
                                         tensors_.index_type(), {rows.tokens(), CallTensors::kAny});
  const std::int64_t top_k = indices.view.shape[1];
  native_assert(top_k >= 1 && top_k <= kMostTopK, "dispatch: top-k is {}; allowed: 1 to {}", top_k,
                kMostTopK);
  ElasticLayout made;
  made.experts = experts_of(kDispatch, "num_experts", call.experts);
  made.max_tokens = value_or(call.max_tokens, max_tokens_);
  native_assert(rows.tokens() <= made.max_tokens,
                "dispatch: {} tokens; at most num_max_tokens_per_rank = {}", rows.tokens(),
                made.max_tokens);
  made.alignment = value_or(call.alignment, 1);
  if (made.alignment < 1 || made.alignment > kMostAlignment)
    native_assert(false, "dispatch: expert_alignment is {}; allowed: 1 to {}",
                  text_of_object(call.alignment), kMostAlignment);
  made.expanded = is_true(call.expand);
  made.sms = call.sms;
  if (!call.cpu_sync.is_none() && !is_true(call.cpu_sync))
    options.worst_case_rows = std::max<std::int64_t>(1, ranks_ * made.max_tokens);
  const std::int64_t local = local_experts(made.experts, ranks_, rank_);
  weights = tensors_.take_optional(kDispatch, "topk_weights", call.weights, DataType::float32,
                                   {rows.tokens(), top_k});
  tensors_.take_optional(kDispatch, "cumulative_local_expert_recv_stats", call.stats,
                         DataType::int32, {local});
  const std::int64_t scales = rows.scaled() ? options.scales.shape[1] : 0;
  made.calls = group_for({rows.hidden(), top_k, made.experts}, made, scales, captured);
  ep::Launch launch;
  launch.stream = options.launch.stream;
  routing = made.get()->route(indices.view, launch);
  made.sent_topk_idx =
      call.copy_topk_idx ? nb::object(call.topk_idx.attr("clone")()) : nb::borrow(call.topk_idx);
  return made;
}

nb::object ElasticCalls::group_for(const Shape& shape, const ElasticLayout& terms,
                                   std::int64_t scales, bool captured) {
  std::int64_t tokens = terms.max_tokens;
  const std::int64_t local = most_local_experts(shape.experts, ranks_);
  if (sends_every_slot(terms))  // combine stages one row per top-k slot
    tokens =
        tokens * std::min(shape.top_k, local) + (local * terms.alignment + ranks_ - 1) / ranks_;
  scales = std::max(scales, (shape.hidden + 127) / 128);
  const auto known = std::ranges::find(groups_, shape, &Known::shape);
  if (known != groups_.end()) {
    const NormalCalls& calls = *nb::inst_ptr<NormalCalls>(known->calls);
    if (calls.max_tokens() >= tokens && calls.max_scales() >= scales) return known->calls;
  }
  native_assert(!captured,
                "dispatch: a CUDA graph cannot capture the first call of GroupShape(hidden={}, "
                "top_k={}, experts={}) with {} tokens; run one before",
                shape.hidden, shape.top_k, shape.experts, tokens);
  const nb::object calls =
      pool_.attr("get")(nb::make_tuple(shape.hidden, shape.top_k, shape.experts), tokens, scales)
          .attr("calls");
  std::erase_if(groups_, [&](const Known& one) { return one.shape == shape; });
  groups_.push_back({shape, calls});
  return calls;
}

std::int64_t ElasticCalls::expanded_rows(const Dispatch& call, const ElasticLayout& layout) const {
  if (!call.limit.is_none()) return value_of(call.limit);
  const std::int64_t local = most_local_experts(layout.experts, ranks_);
  if (layout.layout.worst_case_rows > 0)
    return rounded_up(ranks_ * layout.max_tokens * std::min(layout.get()->top_k(), local) +
                          (layout.alignment - 1) * local,
                      layout.alignment);
  std::int64_t rows = 0;
  for (const std::int64_t tokens : layout.tokens_per_expert) rows += tokens;
  return rows;
}

nb::tuple ElasticCalls::expand(const Dispatch& call, const Rows& rows, const CallReceived& sent,
                               ElasticLayout& layout, bool cached, Stream stream) const {
  NormalCalls& calls = *layout.get();
  const std::int64_t count = layout.rows(), local = calls.local_experts();
  const std::int64_t result = layout.expanded_rows, top_k = calls.top_k();
  const auto hidden = calls.hidden();
  // Rows of float8 are copied as bytes.
  const DataType element = rows.scaled() ? DataType::uint8 : DataType::bfloat16;
  ep::ExpandOptions options = calls.expansion(sent, layout.layout, layout.topk_idx, element);
  const nb::object out = calls.empty(result, hidden, tensors_.dtype(rows.rows.view.dtype));
  options.out = calls.view_of_new(out, element, result, hidden);
  nb::object out_weights = nb::none(), out_scales = nb::none();
  if (options.weights.defined()) {
    out_weights = calls.empty(result, -1, tensors_.dtype(DataType::float32));
    options.out_weights = calls.view_of_new(out_weights, DataType::float32, result, -1);
  }
  Input written;
  if (rows.scaled()) {
    const TensorView& scales = rows.scale_values.view;
    const std::int64_t columns = scales.shape[1];
    options.scales = calls.view_of_new(sent.scales, scales.dtype, count, columns);
    if (call.column_major) {
      out_scales = empty_column_major_(result, sent.scales);
      written = input(out_scales, "scales");
      options.out_scales = written.view;
    } else {
      out_scales = calls.empty(result, columns, tensors_.dtype(scales.dtype));
      options.out_scales = calls.view_of_new(out_scales, scales.dtype, result, columns);
    }
  }
  options.numbered = cached;
  if (!cached) {
    layout.topk_rows = calls.empty(count, top_k, tensors_.dtype(DataType::int32));
    layout.block_ends = calls.empty(local, -1, tensors_.dtype(DataType::int32));
    options.block_ends = calls.view_of_new(layout.block_ends, DataType::int32, local, -1);
  }
  options.topk_rows = calls.view_of_new(layout.topk_rows, DataType::int32, count, top_k);
  options.zero_padding = call.zero_padding;
  options.launch.stream = stream;
  calls.expand(options);
  return nb::make_tuple(rows.scaled() ? nb::object(nb::make_tuple(out, out_scales)) : out,
                        nb::none(), out_weights);
}

nb::object ElasticCalls::dispatch(const Dispatch& call, const Events& events) {
  if (!tensors_.is_plain(events))
    return tensors_.run(
        kDispatch, events, [&] { return dispatch(call, {}); },
        nb::make_tuple(call.x, call.topk_idx, call.weights));
  const Rows rows = tensors_.take_rows(kDispatch, call.x);
  expect(!call.zero_padding || is_true(call.expand), "dispatch: do_zero_padding needs do_expand");
  const bool captured = tensors_.captured(), cached = !call.handle.is_none();
  ep::detail::AnyDispatchOptions options;
  options.scales = rows.scale_values.view;
  options.launch.sms = call.sms;
  tensors_.follow(options.launch);
  ep::Routing routing;
  ElasticLayout made;
  Argument weights;
  ElasticLayout* layout = &made;
  if (cached) {
    layout = layout_of(kDispatch, call.handle);
    check_cached(call, *layout, call.handle, rows.tokens());
    options.worst_case_rows = layout->layout.worst_case_rows;
    weights = tensors_.take_optional(kDispatch, "topk_weights", call.weights, DataType::float32,
                                     {rows.tokens(), layout->get()->top_k()});
  } else {
    made = new_layout(call, rows, captured, options, routing, weights);
  }
  options.expert_alignment = static_cast<std::int32_t>(layout->alignment);
  NormalCalls& calls = *layout->get();
  options.weights = weights.view;
  options.all_weights = !call.weights.is_none();
  CallReceived sent = calls.send(
      rows.rows.view, cached ? nullptr : &routing, cached ? &layout->layout.handle : nullptr,
      options, rows.scales, layout->expanded ? NormalCalls::Place::passing : calls.place(captured));
  if (!cached) {
    made.layout = sent.layout;
    made.topk_idx = sent.topk_idx;
    made.topk_rows = made.block_ends = nb::none();
    made.tokens_per_expert = std::move(sent.tokens_per_expert);
    made.expanded_rows = expanded_rows(call, made);
  }
  nb::tuple results;
  if (layout->expanded) {
    results = expand(call, rows, sent, *layout, cached, options.launch.stream);
  } else {
    const nb::object scales =
        rows.scaled() && call.column_major ? nb::object(column_major_(sent.scales)) : sent.scales;
    results = nb::make_tuple(rows.scaled() ? nb::object(nb::make_tuple(sent.x, scales)) : sent.x,
                             tensors_.as_index(layout->topk_idx), sent.topk_weights);
  }
  if (!call.stats.is_none()) call.stats.attr("add_")(made.layout.expert_counts());
  const nb::object handle =
      cached ? nb::borrow(call.handle) : nb::object(make_handle_(nb::cast(std::move(made))));
  return results + nb::make_tuple(handle, tensors_.no_event());
}

const ep::Handle& ElasticCalls::expert_major_handle(ElasticLayout& layout, Stream stream,
                                                    std::optional<ep::Handle>& captured_one) const {
  if (layout.expert_major) return *layout.expert_major;
  const std::int64_t tokens = layout.layout.handle.tokens();
  const nb::object zeros = zeros_(tokens, kRoutingRowBytes);  // int8
  const Argument indices = tensors_.take(kCombine, "topk_idx", layout.sent_topk_idx,
                                         tensors_.index_type(), {tokens, CallTensors::kAny});
  ep::detail::AnyDispatchOptions options;
  options.expert_alignment = static_cast<std::int32_t>(layout.alignment);
  options.expert_major = true;
  options.worst_case_rows = layout.layout.worst_case_rows > 0 ? layout.expanded_rows : 0;
  options.transient = true;
  options.launch.stream = stream;
  ep::Launch launch;
  launch.stream = stream;
  NormalCalls& calls = *layout.get();
  const ep::Routing routing = calls.route(indices.view, launch);
  const TensorView rows = calls.view_of_new(zeros, DataType::int8, tokens, kRoutingRowBytes);
  std::optional<ep::Handle>& made = tensors_.captured() ? captured_one : layout.expert_major;
  made = calls.dispatch_rows(rows, routing, options);
  return *made;  // in a capture not kept: only replays of the graph fill it
}

nb::object ElasticCalls::combine(nb::handle x, nb::handle handle, nb::handle topk_weights,
                                 nb::handle bias, std::int32_t sms, const Events& events) {
  if (!tensors_.is_plain(events))
    return tensors_.run(
        kCombine, events, [&] { return combine(x, handle, topk_weights, bias, sms, {}); },
        nb::make_tuple(x, topk_weights, bias));
  ElasticLayout& layout = *layout_of(kCombine, handle);
  NormalCalls& calls = *layout.get();
  const std::int64_t tokens = layout.layout.handle.tokens();
  const std::int64_t rows = layout.expanded ? layout.expanded_rows : layout.rows();
  const Argument output =
      tensors_.take(kCombine, "x", x, DataType::bfloat16, {rows, calls.hidden()});
  ep::CombineOptions options;
  const std::vector<Argument> biases =
      tensors_.take_biases(kCombine, bias, {tokens, calls.hidden()}, options.bias);
  Argument weights;
  if (!topk_weights.is_none()) {
    native_assert(!sends_every_slot(layout),
                  "combine: topk_weights with do_expand need allow_multiple_reduction{}", "");
    weights = layout.expanded
                  ? tensors_.take(kCombine, "topk_weights", topk_weights, DataType::float32, {rows})
                  : tensors_.take(kCombine, "topk_weights", topk_weights, DataType::float32,
                                  {rows, calls.top_k()});
  }
  options.weights = weights.view;
  options.launch.sms = sms != 0 ? sms : static_cast<std::int32_t>(layout.sms);
  tensors_.follow(options.launch);
  std::optional<ep::Handle> captured_one;
  if (sends_every_slot(layout))
    return calls.sum(output.view, x,
                     expert_major_handle(layout, options.launch.stream, captured_one), options) +
           nb::make_tuple(tensors_.no_event());
  const std::int64_t received = layout.rows();
  if (layout.expanded)
    options.topk_rows =
        calls.view_of_new(layout.topk_rows, DataType::int32, received, calls.top_k());
  else if (options.weights.defined())  // those of top-k slots with experts elsewhere came too
    options.topk_idx = calls.view_of_new(layout.topk_idx, DataType::int64, received, calls.top_k());
  return calls.sum(output.view, x, layout.layout.handle, options) +
         nb::make_tuple(tensors_.no_event());
}

namespace {

void bind_layout(nb::module_& module) {
  const auto any = [](const char* signature) { return nb::for_getter(nb::sig(signature)); };
  nb::class_<ElasticLayout>(module, "ElasticLayout",
                            "The layout of a dispatch of ElasticCalls, for its EPHandle."_doc)
      .def_ro("sent_topk_idx", &ElasticLayout::sent_topk_idx,
              any("def sent_topk_idx(self) -> typing.Any"), "The sent indices, or a copy."_doc)
      .def_ro("topk_idx", &ElasticLayout::topk_idx, any("def topk_idx(self) -> typing.Any"),
              "int64 [rows, top_k]: local experts, -1 elsewhere."_doc)
      .def_ro("topk_rows", &ElasticLayout::topk_rows, any("def topk_rows(self) -> typing.Any"),
              "int32 [rows, top_k]: expert-major rows, or -1; None in rank-major form."_doc)
      .def_ro("block_ends", &ElasticLayout::block_ends, any("def block_ends(self) -> typing.Any"),
              "int32 [local experts]: where the expert-major rows of each end, without padding; "
              "None in rank-major form."_doc)
      .def_prop_ro(
          "side", [](const ElasticLayout& self) { return self.layout.all(); },
          nb::sig("def side(self) -> typing.Any"), "The tensor of the next four."_doc)
      .def_prop_ro(
          "source_ends", [](const ElasticLayout& self) { return self.layout.source_ends(); },
          nb::sig("def source_ends(self) -> typing.Any"), "[ranks]: rows from ranks 0 to i."_doc)
      .def_prop_ro(
          "expert_counts", [](const ElasticLayout& self) { return self.layout.expert_counts(); },
          nb::sig("def expert_counts(self) -> typing.Any"), "[local experts]: tokens of each."_doc)
      .def_prop_ro(
          "expert_ends", [](const ElasticLayout& self) { return self.layout.expert_ends(); },
          nb::sig("def expert_ends(self) -> typing.Any"),
          "[local experts]: sums of the aligned counts."_doc)
      .def_prop_ro(
          "source_token", [](const ElasticLayout& self) { return self.layout.source_token(); },
          nb::sig("def source_token(self) -> typing.Any"),
          "[rows]: index of the token at its source."_doc)
      .def_ro("do_expand", &ElasticLayout::expanded, "True if rows are expert-major."_doc)
      .def_ro("num_experts", &ElasticLayout::experts, "Number of experts of all ranks."_doc)
      .def_ro("expert_alignment", &ElasticLayout::alignment, "The passed value."_doc)
      .def_ro("max_tokens", &ElasticLayout::max_tokens, "Per rank."_doc)
      .def_ro("num_sms", &ElasticLayout::sms, "The passed value."_doc)
      .def_ro("expanded_rows", &ElasticLayout::expanded_rows, "Expert-major rows."_doc)
      .def_prop_ro("rows", &ElasticLayout::rows, "Rank-major rows."_doc)
      .def_ro("tokens_per_expert", &ElasticLayout::tokens_per_expert,
              "Aligned; empty without CPU sync."_doc);
}

}  // namespace

void bind_elastic(nb::module_& module) {
  bind_layout(module);
  nb::class_<ElasticCalls>(
      module, "ElasticCalls",
      "dispatch and combine of deep_ep.ElasticBuffer, on the current stream."_doc)
      .def(
          "__init__",
          [](ElasticCalls* self, std::int64_t ranks, std::int64_t rank, std::int64_t max_tokens,
             bool multiple_reduction, const nb::kwargs& setup) {
            new (self) ElasticCalls(ranks, rank, max_tokens, multiple_reduction, setup);
          },
          nb::arg("ranks"), nb::arg("rank"), nb::arg("max_tokens"), nb::arg("multiple_reduction"),
          nb::arg("setup"), "setup: see ElasticCalls in ep/elastic.hpp."_doc)
      .def(
          "dispatch",
          [](ElasticCalls& self, nb::handle x, nb::handle topk_idx, nb::handle topk_weights,
             nb::handle stats, nb::handle experts, nb::handle max_tokens, nb::handle alignment,
             std::int32_t sms, nb::handle previous, nb::handle before_epilogue,
             nb::handle async_finish, nb::handle handle, bool copy_topk_idx, nb::handle cpu_sync,
             nb::handle expand, bool zero_padding, bool column_major, nb::handle limit) {
            return self.dispatch(
                {x, topk_idx, topk_weights, stats, experts, max_tokens, alignment, sms, handle,
                 copy_topk_idx, cpu_sync, expand, zero_padding, column_major, limit},
                {previous, before_epilogue, async_finish, nb::handle(Py_False)});
          },
          nb::arg("x").none(), nb::arg("topk_idx").none(), nb::arg("topk_weights").none(),
          nb::arg("stats").none(), nb::arg("num_experts").none(), nb::arg("max_tokens").none(),
          nb::arg("alignment").none(), nb::arg("sms"), nb::arg("previous_event").none(),
          nb::arg("before_epilogue").none(), nb::arg("async_finish").none(),
          nb::arg("handle").none(), nb::arg("copy_topk_idx"), nb::arg("cpu_sync").none(),
          nb::arg("expand").none(), nb::arg("zero_padding"), nb::arg("column_major"),
          nb::arg("limit").none() = nb::none(),
          "(rows in the form of x, indices, weights, handle, event). limit: expert-major rows to "
          "return; others are dropped."_doc)
      .def(
          "combine",
          [](ElasticCalls& self, nb::handle x, nb::handle handle, nb::handle topk_weights,
             nb::handle bias, std::int32_t sms, nb::handle previous, nb::handle before_epilogue,
             nb::handle async_finish) {
            return self.combine(x, handle, topk_weights, bias, sms,
                                {previous, before_epilogue, async_finish, nb::handle(Py_False)});
          },
          nb::arg("x").none(), nb::arg("handle").none(), nb::arg("topk_weights").none(),
          nb::arg("bias").none(), nb::arg("sms"), nb::arg("previous_event").none(),
          nb::arg("before_epilogue").none(), nb::arg("async_finish").none(),
          "(sums, sums of weights or None, event)"_doc)
      .def("forget_groups", &ElasticCalls::forget_groups,
           "Looks groups up again, after the pool has dropped some."_doc);
}

}  // namespace shoal::python
