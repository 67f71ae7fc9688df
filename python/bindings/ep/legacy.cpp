// SPDX-License-Identifier: Apache-2.0
#include "legacy.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "../docs.hpp"

namespace shoal::python {
namespace {

constexpr std::int64_t kAny = CallTensors::kAny;
constexpr std::int64_t kMostAlignment = 1 << 16;

nb::object weak(nb::handle object) {
  nb::object reference = nb::steal(PyWeakref_NewRef(object.ptr(), nullptr));
  if (!reference.is_valid()) nb::raise_python_error();
  return reference;
}

bool refers_to(const nb::object& reference, nb::handle object) {
  return reference.is_valid() && nb::steal(PyObject_CallNoArgs(reference.ptr())).is(object);
}

/// The values of an int32 tensor on the host.
std::vector<std::int64_t> values_of(const TensorView& view) {
  const auto* const first = view.as<std::int32_t>();
  return {first, first + view.size()};
}

/// True if all indices are experts or -1. On a GPU a look would stall the stream.
bool experts_in_range(const TensorView& topk_idx, std::int64_t experts) {
  const auto all = [&]<typename Index>(Index) {
    const auto* const first = topk_idx.as<Index>();
    return std::all_of(first, first + topk_idx.size(),
                       [&](Index expert) { return expert >= -1 && expert < experts; });
  };
  if (topk_idx.device.kind != DeviceKind::host) return true;
  return topk_idx.dtype == DataType::int64 ? all(std::int64_t{}) : all(std::int32_t{});
}

nb::list list_of(const std::vector<std::int64_t>& values) {
  nb::list list;
  for (const std::int64_t value : values) list.append(value);
  return list;
}

}  // namespace

LegacyCalls::LegacyCalls(std::int64_t ranks, std::int64_t nodes, const nb::dict& given)
    : tensors_(given),
      ranks_(ranks),
      nodes_(nodes),
      pool_(given["groups"]),
      count_layout_(given["count_layout"]),
      count_nodes_(given["count_nodes"]),
      ranks_as_experts_(given["ranks_as_experts"]),
      expert_totals_(given["expert_totals"]),
      handle_type_(given["handle_type"]),
      make_handle_(given["make_handle"]) {}

nb::object LegacyCalls::layout(nb::handle topk_idx, nb::handle experts, const Events& events) {
  if (!tensors_.is_plain(events))
    return tensors_.run(
        "get_dispatch_layout", events, [&] { return layout(topk_idx, experts, {}); },
        nb::make_tuple(topk_idx));
  const std::int64_t count = value_of(experts);
  TensorView indices;
  const auto found = std::find_if(groups_.rbegin(), groups_.rend(), [&](const Known& one) {
    return one.shape.experts == count &&
           tensors_.try_take(indices, topk_idx, tensors_.index_type(), {kAny, one.shape.top_k});
  });
  if (found == groups_.rend() || indices.shape[0] > found->get()->max_tokens() ||
      !experts_in_range(indices, count)) {
    const nb::object counted = count_layout_(topk_idx, experts);
    return counted + nb::make_tuple(tensors_.no_event());
  }
  ep::Launch launch;
  tensors_.follow(launch);
  NormalCalls& calls = *found->get();
  NormalCalls::Layout made = calls.layout(indices, launch);
  remembered_[next_++ % kRemembered] = {&calls,
                                        weak(topk_idx),
                                        weak(made.in_rank),
                                        weak(made.per_rank),
                                        weak(made.per_expert),
                                        version_of(topk_idx),
                                        version_of(made.in_rank),
                                        std::move(made.routing)};
  const nb::object per_node = nodes_ > 1 ? count_nodes_(made.in_rank) : nb::none();
  return nb::make_tuple(made.per_rank, per_node, made.per_expert, made.in_rank,
                        tensors_.no_event());
}

const LegacyCalls::Remembered* LegacyCalls::remembered(nb::handle topk_idx,
                                                       const Layout& given) const {
  for (const Remembered& one : remembered_)
    if (refers_to(one.in_rank, given.in_rank) && refers_to(one.topk_idx, topk_idx) &&
        refers_to(one.per_rank, given.per_rank) && refers_to(one.per_expert, given.per_expert) &&
        one.topk_idx_version == version_of(topk_idx) &&
        one.in_rank_version == version_of(given.in_rank))
      return &one;
  return nullptr;
}

ep::Routing LegacyCalls::routing_of(const Remembered* known, const NormalCalls& calls,
                                    const TensorView& indices, const Layout& given,
                                    Stream stream) const {
  ep::Launch launch;
  launch.stream = stream;
  const bool usable = known != nullptr && known->calls == &calls;
  const ep::Routing routing = usable ? known->routing : calls.route(indices, launch);
  if (!routing.counts) return routing;  // on a GPU a look would stall the stream
  const auto& by_topk = routing.counts->tokens_per_rank;
  const Argument per_rank =
      tensors_.take("dispatch", "num_tokens_per_rank", given.per_rank, DataType::int32, {ranks_});
  const std::vector<std::int64_t> counts = values_of(per_rank.view);
  if (!std::equal(counts.begin(), counts.end(), by_topk.begin(), by_topk.end()))
    native_assert(false, "dispatch: num_tokens_per_rank is {}, by topk_idx {}",
                  text_of_object(list_of(counts)),
                  text_of_object(list_of({by_topk.begin(), by_topk.end()})));
  return routing;
}

nb::object LegacyCalls::group_for(const Shape& shape, std::int64_t tokens, std::int64_t scales,
                                  std::int64_t worst_rows, bool captured) {
  const std::int64_t share = (worst_rows + ranks_ - 1) / ranks_, room = std::max(tokens, share);
  const auto current = std::ranges::find(groups_, shape, &Known::shape);
  const auto has_room = [&](std::int64_t for_tokens, std::int64_t for_scales) {
    return current != groups_.end() && current->get()->max_tokens() >= for_tokens &&
           current->get()->max_scales() >= for_scales;
  };
  if ((worst_rows > 0 || captured) && has_room(share, scales)) {
    native_assert(tokens <= current->get()->max_tokens(),
                  "dispatch: {} tokens; with num_worst_tokens {} at most {} per rank", tokens,
                  worst_rows, current->get()->max_tokens());
    return current->calls;
  }
  native_assert(!captured,
                "dispatch: a CUDA graph cannot capture the first call of GroupShape(hidden={}, "
                "top_k={}, experts={}) with {} tokens; run it once before",
                shape.hidden, shape.top_k, shape.experts, room);
  const nb::tuple names = nb::make_tuple(shape.hidden, shape.top_k, shape.experts);
  const nb::object agreed = pool_.attr("agree")(names, room, scales);
  const auto most_tokens = nb::cast<std::int64_t>(agreed[0]);
  const auto most_scales = nb::cast<std::int64_t>(agreed[1]);
  if (has_room(most_tokens, most_scales)) return current->calls;
  const nb::object calls = pool_.attr("get")(names, most_tokens, most_scales).attr("calls");
  std::erase_if(groups_, [&](const Known& one) { return one.shape == shape; });
  groups_.push_back({shape, calls});
  return calls;
}

LegacyCalls::Target LegacyCalls::target_of(const char* call, nb::handle handle) const {
  if (!nb::isinstance(handle, handle_type_))
    native_assert(false,
                  "{}: handle is a {}; allowed: the handle that dispatch returned, unchanged", call,
                  text_of_object(attribute(handle.type(), "__name__")));
  Target target;
  target.calls = attribute(handle, "calls");
  target.layout = nb::inst_ptr<CallLayout>(attribute(handle, "layout"));  // which the handle keeps
  return target;
}

LegacyCalls::Target LegacyCalls::new_target(const Rows& rows, const Layout& given,
                                            nb::handle topk_idx, nb::handle topk_weights,
                                            const ep::detail::AnyDispatchOptions& options,
                                            bool captured) {
  constexpr const char* kCall = "dispatch";
  expect(!given.per_rank.is_none() && !given.in_rank.is_none() && !given.per_expert.is_none(),
         "dispatch: without handle num_tokens_per_rank, is_token_in_rank, "
         "num_tokens_per_expert are needed");
  const bool by_rank = topk_idx.is_none();
  const std::int64_t tokens = rows.tokens();
  expect(by_rank == topk_weights.is_none(), "dispatch: topk_idx and topk_weights come together");
  expect(options.worst_case_rows == 0 || !by_rank, "dispatch: num_worst_tokens needs topk_idx");
  const Remembered* const known = remembered(topk_idx, given);
  if (known == nullptr) {
    tensors_.take(kCall, "num_tokens_per_rank", given.per_rank, DataType::int32, {ranks_});
    tensors_.check(kCall, "is_token_in_rank", given.in_rank, tensors_.bool_dtype(),
                   {tokens, ranks_});
  }
  const Argument per_expert =
      tensors_.take(kCall, "num_tokens_per_expert", given.per_expert, DataType::int32, {kAny});
  native_assert(options.worst_case_rows >= 0,
                "dispatch: num_worst_tokens is {}; at least 0 is allowed", options.worst_case_rows);
  const nb::object chosen = by_rank ? ranks_as_experts_(given.in_rank) : nb::borrow(topk_idx);
  const Argument indices = tensors_.take(
      kCall, "topk_idx", chosen, by_rank ? DataType::int64 : tensors_.index_type(), {tokens, kAny});
  const std::int64_t top_k = indices.view.shape[1];
  Target target;
  if (!by_rank)
    target.weights =
        tensors_.take(kCall, "topk_weights", topk_weights, DataType::float32, {tokens, top_k});
  const Shape shape{rows.hidden(), top_k, by_rank ? ranks_ : per_expert.view.shape[0]};
  const std::int64_t scales = rows.scaled() ? options.scales.shape[1] : 0;
  target.calls = group_for(shape, tokens, scales, options.worst_case_rows, captured);
  target.routing = routing_of(known, *target.get(), indices.view, given, options.launch.stream);
  return target;
}

nb::object LegacyCalls::dispatch(nb::handle x, nb::handle handle, nb::handle per_rank,
                                 nb::handle in_rank, nb::handle per_expert, nb::handle topk_idx,
                                 nb::handle topk_weights, std::int64_t alignment,
                                 std::int64_t worst_rows, std::int32_t sms, const Events& events) {
  if (!tensors_.is_plain(events))
    return tensors_.run(
        "dispatch", events,
        [&] {
          return dispatch(x, handle, per_rank, in_rank, per_expert, topk_idx, topk_weights,
                          alignment, worst_rows, sms, {});
        },
        nb::make_tuple(x, topk_idx, topk_weights, in_rank));
  const Rows rows = tensors_.take_rows("dispatch", x);
  const bool is_captured = tensors_.captured(), cached = !handle.is_none();
  ep::detail::AnyDispatchOptions options;
  options.scales = rows.scale_values.view;
  options.launch.sms = sms;
  tensors_.follow(options.launch);
  Target target;
  if (cached) {
    expect(topk_idx.is_none() && topk_weights.is_none(),
           "dispatch: a cached dispatch takes no topk_idx");
    target = target_of("dispatch", handle);
    options.worst_case_rows = target.layout->worst_case_rows;
  } else {
    native_assert(alignment >= 1 && alignment <= kMostAlignment,
                  "dispatch: expert_alignment is {}; allowed: 1 to {}", alignment, kMostAlignment);
    options.expert_alignment = static_cast<std::int32_t>(alignment);
    options.worst_case_rows = worst_rows;
    target = new_target(rows, {per_rank, in_rank, per_expert}, topk_idx, topk_weights, options,
                        is_captured);
    options.weights = target.weights.view;
  }
  NormalCalls& calls = *target.get();
  CallReceived sent = calls.send(rows.rows.view, cached ? nullptr : &target.routing,
                                 cached ? &target.layout->handle : nullptr, options, rows.scales,
                                 calls.place(is_captured));
  const nb::object none = nb::none();
  const nb::object got = rows.scaled() ? nb::object(nb::make_tuple(sent.x, sent.scales)) : sent.x;
  if (cached) return nb::make_tuple(got, none, none, none, none, tensors_.no_event());
  nb::object counts = list_of(sent.tokens_per_expert);
  if (topk_idx.is_none()) {
    sent.topk_idx = sent.topk_weights = none;
    counts = expert_totals_(per_expert, options.expert_alignment);
  } else {
    sent.topk_idx = tensors_.as_index(sent.topk_idx);
  }
  const nb::object made = make_handle_(target.calls, nb::cast(std::move(sent.layout)), in_rank);
  return nb::make_tuple(got, sent.topk_idx, sent.topk_weights, counts, made, tensors_.no_event());
}

nb::object LegacyCalls::combine(nb::handle x, nb::handle handle, nb::handle topk_weights,
                                nb::handle bias, std::int32_t sms, const Events& events) {
  constexpr const char* kCall = "combine";
  if (!tensors_.is_plain(events))
    return tensors_.run(
        kCall, events, [&] { return combine(x, handle, topk_weights, bias, sms, {}); },
        nb::make_tuple(x, topk_weights, bias));
  const Target target = target_of(kCall, handle);
  NormalCalls& calls = *target.get();
  const ep::Handle& layout = target.layout->handle;
  const std::int64_t rows = layout.result_rows();
  const Argument output = tensors_.take(kCall, "x", x, DataType::bfloat16, {rows, calls.hidden()});
  ep::CombineOptions options;
  options.launch.sms = sms;
  Argument weights;
  if (!topk_weights.is_none())
    weights = tensors_.take(kCall, "topk_weights", topk_weights, DataType::float32,
                            {rows, calls.top_k()});
  options.weights = weights.view;
  const std::vector<Argument> biases =
      tensors_.take_biases(kCall, bias, {layout.tokens(), calls.hidden()}, options.bias);
  tensors_.follow(options.launch);
  return calls.sum(output.view, x, layout, options) + nb::make_tuple(tensors_.no_event());
}

void bind_legacy(nb::module_& module) {
  nb::class_<LegacyCalls>(module, "LegacyCalls",
                          "The normal-mode calls of deep_ep.Buffer, on the current stream."_doc)
      .def(
          "__init__",
          [](LegacyCalls* self, std::int64_t ranks, std::int64_t nodes, const nb::kwargs& setup) {
            new (self) LegacyCalls(ranks, nodes, setup);
          },
          nb::arg("ranks"), nb::arg("nodes"), nb::arg("setup"),
          "setup: see LegacyCalls in ep/legacy.hpp."_doc)
      .def(
          "get_dispatch_layout",
          [](LegacyCalls& self, nb::handle topk_idx, nb::handle experts, nb::handle previous,
             nb::handle async_finish, nb::handle on_comm_stream) {
            return self.layout(topk_idx, experts,
                               {previous, nb::handle(Py_None), async_finish, on_comm_stream});
          },
          nb::arg("topk_idx").none(), nb::arg("experts"), nb::arg("previous_event").none(),
          nb::arg("async_finish").none(), nb::arg("allocate_on_comm_stream").none(),
          "(tokens per rank, per node or None, per expert, is_token_in_rank, event)"_doc)
      .def(
          "dispatch",
          [](LegacyCalls& self, nb::handle x, nb::handle handle, nb::handle per_rank,
             nb::handle in_rank, nb::handle per_expert, nb::handle topk_idx,
             nb::handle topk_weights, std::int64_t alignment, std::int64_t worst_rows,
             std::int32_t sms, nb::handle previous, nb::handle async_finish,
             nb::handle on_comm_stream) {
            return self.dispatch(x, handle, per_rank, in_rank, per_expert, topk_idx, topk_weights,
                                 alignment, worst_rows, sms,
                                 {previous, nb::handle(Py_None), async_finish, on_comm_stream});
          },
          nb::arg("x").none(), nb::arg("handle").none(), nb::arg("per_rank").none(),
          nb::arg("in_rank").none(), nb::arg("per_expert").none(), nb::arg("topk_idx").none(),
          nb::arg("topk_weights").none(), nb::arg("alignment"), nb::arg("worst_rows"),
          nb::arg("sms"), nb::arg("previous_event").none(), nb::arg("async_finish").none(),
          nb::arg("allocate_on_comm_stream").none(),
          "(rows in the form of x, indices, weights, tokens per expert, handle, event)"_doc)
      .def(
          "combine",
          [](LegacyCalls& self, nb::handle x, nb::handle handle, nb::handle topk_weights,
             nb::handle bias, std::int32_t sms, nb::handle previous, nb::handle async_finish,
             nb::handle on_comm_stream) {
            return self.combine(x, handle, topk_weights, bias, sms,
                                {previous, nb::handle(Py_None), async_finish, on_comm_stream});
          },
          nb::arg("x").none(), nb::arg("handle").none(), nb::arg("topk_weights").none(),
          nb::arg("bias").none(), nb::arg("sms"), nb::arg("previous_event").none(),
          nb::arg("async_finish").none(), nb::arg("allocate_on_comm_stream").none(),
          "(sums, sums of weights or None, event)"_doc)
      .def("forget_groups", &LegacyCalls::forget_groups,
           "Looks groups up again, after the pool has dropped some."_doc);
}

}  // namespace shoal::python
