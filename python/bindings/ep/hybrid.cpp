// SPDX-License-Identifier: Apache-2.0
#include "hybrid.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "../docs.hpp"

namespace shoal::python {
namespace {

constexpr const char* kTokens = "max_num_of_tokens_per_rank";
constexpr std::int64_t kMostTopK = 32;

nb::handle none() {
  return Py_None;
}
nb::handle truth(bool value) {
  return value ? Py_True : Py_False;
}
Events no_events() {
  return {none(), none(), truth(false), truth(false)};
}

std::int64_t dimensions(nb::handle tensor) {
  return static_cast<std::int64_t>(nb::len(attribute(tensor, "shape")));
}
std::int64_t extent(nb::handle tensor, int axis) {
  return nb::cast<std::int64_t>(nb::object(attribute(tensor, "shape")[axis]));
}

/// Raises AssertionError for bytes without scales, before any other rank is asked.
void check_scales(const char* call, nb::handle hidden, nb::handle scales) {
  if (scales.is_none() && value_of(hidden.attr("element_size")()) == 1)
    expect(false,
           fmt::format("{}: hidden has one byte per channel, which needs scaling_factor", call));
}

HybridCalls::Routing routing_from(const nb::tuple& all) {
  return {all[0], all[1], all[2], all[3], all[4]};
}

}  // namespace

HybridCalls::HybridCalls(std::int64_t ranks, std::int64_t rank, std::int32_t dispatch_sms,
                         std::int32_t combine_sms, const nb::dict& given)
    : tensors_(given),
      ranks_(ranks),
      rank_(rank),
      dispatch_sms_(dispatch_sms),
      combine_sms_(combine_sms),
      elastic_(given["elastic"]),
      sizes_(given["sizes"]),
      exchange_(given["exchange"]),
      most_(given["most"]),
      probs_of_(given["probs_of"]),
      slots_of_map_(given["slots_of_map"]),
      most_of_map_(given["most_of_map"]),
      by_slot_(given["by_slot"]),
      padded_(given["padded"]) {}

std::int64_t HybridCalls::max_tokens() const {
  return std::max<std::int64_t>(1, value_of(attribute(sizes_, kTokens)));
}

HybridCalls::Chosen HybridCalls::chosen(const char* call, nb::handle hidden,
                                        const Routing& routing) const {
  Chosen made{!routing.map.is_none(), {}, {}, 0, 0};
  if (made.is_map) {
    if (!attribute(routing.map, "dtype").is(tensors_.bool_dtype()) || dimensions(routing.map) != 2)
      expect(false, fmt::format("{}: routing_map is {}; allowed: bool [T, E]", call,
                                tensors_.describe(routing.map)));
    made.routing = nb::borrow(routing.map);
    made.experts = extent(routing.map, 1);
  } else {
    expect(!routing.topk_idx.is_none(),
           fmt::format("{}: routing_map, topk_idx or handle is needed", call));
    expect(!routing.experts.is_none(), fmt::format("{}: topk_idx needs num_of_experts", call));
    made.routing = routing.topk_idx.attr("to")(tensors_.index_dtype()).attr("contiguous")();
    made.experts = value_of(routing.experts);
  }
  made.tokens = extent(made.routing, 0);
  if (dimensions(hidden) != 2 || made.tokens != extent(hidden, 0))
    native_assert(false, "{}: hidden is {}, the routing has {} tokens", call,
                  tensors_.describe(hidden), made.tokens);
  experts_of(call, "number of experts", nb::int_(made.experts));
  made.probs = probs_of_(hidden, routing.probs, routing.topk_weights, routing.map, routing.topk_idx,
                         made.experts);
  return made;
}

void HybridCalls::agree_on_sizes(const char* call, std::int64_t tokens, std::int64_t most,
                                 std::int64_t experts) {
  using Record = std::array<std::int64_t, 3>;
  const Record mine{tokens, most, experts};
  const nb::object blocks = exchange_(nb::bytes(mine.data(), sizeof mine));
  nb::list of_ranks;
  bool same = true;
  for (const nb::handle block : blocks) {
    Record record;
    std::memcpy(record.data(), nb::cast<nb::bytes>(block).data(), sizeof record);
    tokens = std::max(tokens, record[0]);
    most = std::max(most, record[1]);
    same = same && record[2] == experts;
    of_ranks.append(record[2]);
  }
  if (!same)
    native_assert(false, "{}: ranks differ in the number of experts: {}", call,
                  text_of_object(of_ranks));
  if (most > kMostTopK && !most_.is_none()) most_.attr("zero_")();  // later calls may have fewer
  native_assert(most <= kMostTopK, "{}: a token has {} experts; at most {} are allowed", call, most,
                kMostTopK);
  if (tokens > value_of(attribute(sizes_, kTokens))) nb::setattr(sizes_, kTokens, nb::int_(tokens));
  top_k_ = std::max(top_k_, most);
}

HybridCalls::Slots HybridCalls::agree(const char* call, const Chosen& chosen, bool asks) {
  const auto slots_of_map = [&](std::int64_t top_k, const nb::object& most) {
    const nb::object slots = slots_of_map_(chosen.routing, chosen.probs, top_k, most);
    return Slots{slots[0], slots[1]};
  };
  const auto slots_of_indices = [&](nb::object indices) {
    nb::object weights = nb::none();
    if (!chosen.probs.is_none()) weights = by_slot_(chosen.probs, indices);
    return Slots{std::move(indices), std::move(weights)};
  };
  if (!asks) {
    native_assert(chosen.tokens <= max_tokens(), "{}: {} tokens; at most {} with non_blocking",
                  call, chosen.tokens, max_tokens());
    if (chosen.is_map) return slots_of_map(std::min(chosen.experts, kMostTopK), nb::none());
    return slots_of_indices(chosen.routing.attr("clone")());  // the handle keeps it
  }
  // Calls with more experts may have raised top_k_ beyond those of this call.
  const auto top_k = [&] { return std::min(top_k_, chosen.experts); };
  if (!chosen.is_map) {
    agree_on_sizes(call, chosen.tokens, extent(chosen.routing, 1), chosen.experts);
    return slots_of_indices(padded_(chosen.routing, top_k()));
  }
  if (most_.is_none()) {
    const std::int64_t most = value_of(most_of_map_(chosen.routing));
    agree_on_sizes(call, chosen.tokens, most, chosen.experts);
    return slots_of_map(top_k(), nb::none());
  }
  // The kernel counts, so the routing is made with the largest top-k of earlier calls.
  const std::int64_t before = top_k();
  Slots slots = slots_of_map(before, most_);
  agree_on_sizes(call, chosen.tokens, value_of(most_.attr("item")()), chosen.experts);
  return top_k() == before ? slots : slots_of_map(top_k(), nb::none());
}

nb::object HybridCalls::send(nb::handle hidden, nb::handle scales,
                             ElasticCalls::Dispatch call) const {
  nb::object rows = hidden.attr("detach")().attr("contiguous")();
  if (!scales.is_none())
    rows = nb::make_tuple(rows.attr("view")(tensors_.dtype(DataType::float8_e4m3)), scales);
  call.x = rows;
  call.sms = dispatch_sms_;
  const nb::object sent = nb::inst_ptr<ElasticCalls>(elastic_)->dispatch(call, no_events());
  nb::object x = sent[0], received_scales = nb::none();
  if (!scales.is_none()) {
    received_scales = x[1];
    x = nb::object(x[0]);
  }
  return nb::make_tuple(x.attr("view")(attribute(hidden, "dtype")), received_scales, sent[2],
                        sent[3]);
}

nb::object HybridCalls::dispatch(const char* call, nb::handle hidden, nb::handle scales,
                                 const Routing& routing, const Permuted* permuted) {
  check_scales(call, hidden, scales);
  const Chosen chosen = this->chosen(call, hidden, routing);
  const bool limited = permuted != nullptr && !permuted->limit.is_none();
  const bool asks = !limited || most_.is_none();
  std::int64_t multiple = 1;
  if (permuted != nullptr) {
    multiple = value_of(permuted->multiple);
    const nb::handle per_rank = permuted->experts_per_rank;
    // Where the ranks do not divide the experts, callers pass their own share or the largest one.
    const std::int64_t here = local_experts(chosen.experts, ranks_, rank_),
                       most = most_local_experts(chosen.experts, ranks_);
    if (is_true(per_rank) && value_of(per_rank) != here && value_of(per_rank) != most)
      native_assert(false,
                    "{}: num_of_experts_per_rank is {}; allowed: {}{}, because {} ranks share the "
                    "{} experts of the routing",
                    call, text_of_object(per_rank), here,
                    here == most ? "" : fmt::format(" or {}", most), ranks_, chosen.experts);
  }
  const Slots slots = agree(call, chosen, asks);
  const nb::int_ experts(chosen.experts), tokens(max_tokens()), alignment(multiple);
  ElasticCalls::Dispatch form{};
  form.topk_idx = slots.topk_idx;
  form.weights = slots.weights;
  form.stats = form.handle = none();
  form.experts = experts;
  form.max_tokens = tokens;
  form.alignment = alignment;
  // The handle must not keep indices that may be the caller's.
  form.copy_topk_idx = permuted == nullptr && !chosen.is_map;
  form.cpu_sync = truth(asks);
  form.expand = truth(permuted != nullptr);
  form.zero_padding = permuted != nullptr;
  form.limit = limited ? permuted->limit : none();
  return send(hidden, scales, form) + nb::make_tuple(experts);
}

nb::object HybridCalls::repeat(nb::handle hidden, nb::handle scales, const Routing& routing,
                               nb::handle known) const {
  check_scales("dispatch", hidden, scales);
  const ElasticLayout& layout = *nb::inst_ptr<ElasticLayout>(attribute(known, "shoal"));
  const nb::object& topk_idx = layout.sent_topk_idx;
  nb::object weights =
      probs_of_(hidden, routing.probs, routing.topk_weights, routing.map, topk_idx, layout.experts);
  if (!weights.is_none()) weights = by_slot_(weights, topk_idx);
  ElasticCalls::Dispatch form{};
  form.topk_idx = form.stats = form.experts = form.max_tokens = form.alignment = none();
  form.cpu_sync = form.limit = none();
  form.weights = weights;
  form.handle = known;
  form.expand = truth(layout.expanded);
  form.zero_padding = layout.expanded;
  return send(hidden, scales, form);
}

nb::object HybridCalls::combine(nb::handle hidden, nb::handle weights, nb::handle known) const {
  const nb::object rows = hidden.attr("detach")().attr("contiguous")();
  return nb::inst_ptr<ElasticCalls>(elastic_)->combine(rows, known, weights, none(), combine_sms_,
                                                       no_events());
}

void bind_hybrid(nb::module_& module) {
  nb::class_<HybridCalls>(module, "HybridCalls",
                          "dispatch and combine of deep_ep.HybridEPBuffer."_doc)
      .def(
          "__init__",
          [](HybridCalls* self, std::int64_t ranks, std::int64_t rank, std::int32_t dispatch_sms,
             std::int32_t combine_sms, const nb::kwargs& setup) {
            new (self) HybridCalls(ranks, rank, dispatch_sms, combine_sms, setup);
          },
          nb::arg("ranks"), nb::arg("rank"), nb::arg("dispatch_sms"), nb::arg("combine_sms"),
          nb::arg("setup"), "setup: see HybridCalls in ep/hybrid.hpp."_doc)
      .def(
          "dispatch",
          [](HybridCalls& self, nb::handle hidden, nb::handle scales, const nb::tuple& routing) {
            return self.dispatch("dispatch", hidden, scales, routing_from(routing), nullptr);
          },
          nb::arg("hidden"), nb::arg("scales").none(), nb::arg("routing"),
          "routing: map, probs, topk_idx, topk_weights, number of experts. (rows, scales, weights "
          "by top-k slot, EPHandle, number of experts)"_doc)
      .def(
          "dispatch_with_permute",
          [](HybridCalls& self, nb::handle hidden, nb::handle scales, const nb::tuple& routing,
             nb::handle multiple, nb::handle limit, nb::handle experts_per_rank) {
            const HybridCalls::Permuted permuted{multiple, limit, experts_per_rank};
            return self.dispatch("dispatch_with_permute", hidden, scales, routing_from(routing),
                                 &permuted);
          },
          nb::arg("hidden"), nb::arg("scales").none(), nb::arg("routing"), nb::arg("multiple"),
          nb::arg("limit").none(), nb::arg("experts_per_rank").none(),
          "limit: the rows of a result whose size does not reach the host."_doc)
      .def(
          "repeat",
          [](const HybridCalls& self, nb::handle hidden, nb::handle scales,
             const nb::tuple& routing, nb::handle known) {
            return self.repeat(hidden, scales, routing_from(routing), known);
          },
          nb::arg("hidden"), nb::arg("scales").none(), nb::arg("routing"), nb::arg("known"),
          "A dispatch along the layout of an EPHandle."_doc)
      .def("combine", &HybridCalls::combine, nb::arg("hidden"), nb::arg("weights").none(),
           nb::arg("known"), "(sums, weights by top-k slot or None, event)"_doc);
}

}  // namespace shoal::python
