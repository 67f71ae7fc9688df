// SPDX-License-Identifier: Apache-2.0
#include "normal_calls.hpp"

#include <algorithm>
#include <utility>

#include "../arrays/arrays.hpp"
#include "../check.hpp"
#include "shoal/world.hpp"

namespace shoal::python {
namespace {

/// Keeps a tensor in the group's memory. Once it is released, in any thread, later calls may write
/// there. They are ordered after the stream of the dispatch, and after the stream that is current
/// for the library when the tensor is released, on which it may have been read.
struct HeldResult {  // destroyed in reverse order: the memory before the heap
  std::shared_ptr<Results> results;
  Stream stream;
  bool captured;
  std::shared_ptr<void> memory;

  HeldResult(std::shared_ptr<Results> of, Stream on, bool in_graph, std::shared_ptr<void> owned)
      : results(std::move(of)), stream(on), captured(in_graph), memory(std::move(owned)) {
    ++results->held;
  }
  HeldResult(const HeldResult&) = delete;
  HeldResult& operator=(const HeldResult&) = delete;
  ~HeldResult() {
    if (stream != nullptr) {
      results->group->order_after(stream);
      if (CUstream_st* const current = current_stream(); current != stream) {
        results->group->order_after(current);
        // Within a capture no order is added to the graph, so that its next dispatch could write
        // while this stream reads.
        if (captured && ep::detail::captures(*results->group, current)) {
          const std::lock_guard lock(results->mutex);
          results->read_by_graphs.push_back(std::move(memory));
          return;  // still held
        }
      }
    }
    memory.reset();
    --results->held;
  }

 private:
  /// `stream` where the library does not report one. Needs no GIL: the table is C.
  Stream current_stream() const noexcept {
    void* current = nullptr;
    if (results->find_stream == nullptr ||
        results->find_stream(nb::device::cuda::value, results->device, &current) != 0)
      return stream;
    return current == nullptr ? reinterpret_cast<Stream>(kLegacyStream)
                              : static_cast<Stream>(current);
  }
};

Device device_of(nb::handle group) {
  return nb::cast<Group&>(group).group.team().world().heap().device();
}
decltype(Exchange::current_stream) stream_function(nb::handle tensor_type) {
  return exchange_of(reinterpret_cast<PyTypeObject*>(tensor_type.ptr())).current_stream;
}

TensorView view_of(nb::handle array, const char* what) {
  return array.is_none() ? TensorView{} : input(array, what).view;
}

ep::Launch launch_on(std::uintptr_t stream) {
  ep::Launch launch;
  launch.stream = reinterpret_cast<Stream>(stream);
  return launch;
}

PyObject* interned(const char* name) {
  return PyUnicode_InternFromString(name);
}

nb::object dtype_of(nb::handle tensor) {
  static PyObject* const kName = interned("dtype");
  const nb::object dtype = nb::steal(PyObject_GetAttr(tensor.ptr(), kName));
  if (!dtype.is_valid()) nb::raise_python_error();
  return dtype;
}

/// Computes on the host, from received indices, the counts that the GPU computes in a dispatch.
void count_on_host(const ep::detail::AnyDispatched& received, const ep::UnpackOptions& to,
                   std::int64_t rows, std::int64_t top_k, std::int32_t alignment) {
  std::int32_t ends = 0;
  for (std::size_t rank = 0; rank < received.rows_per_source.size(); ++rank)
    to.source_ends.as<std::int32_t>()[rank] = ends +=
        static_cast<std::int32_t>(received.rows_per_source[rank]);
  auto* const counts = to.tokens_per_expert.as<std::int32_t>();
  const std::int64_t experts = to.tokens_per_expert.shape[0];
  std::fill_n(counts, experts, 0);
  const auto* const indices = to.topk_idx.as<std::int64_t>();
  for (std::int64_t i = 0; i < rows * top_k; ++i)
    if (indices[i] >= 0) ++counts[indices[i]];
  ends = 0;
  for (std::int64_t e = 0; e < experts; ++e)
    to.expert_ends.as<std::int32_t>()[e] = ends +=
        (counts[e] + alignment - 1) / alignment * alignment;
}

}  // namespace

std::int64_t version_of(nb::handle tensor) {
  static PyObject* const kInference = interned("is_inference");
  static PyObject* const kVersion = interned("_version");
  const nb::object inference = nb::steal(PyObject_CallMethodNoArgs(tensor.ptr(), kInference));
  if (!inference.is_valid()) nb::raise_python_error();
  if (inference.is(Py_True)) return 0;
  const nb::object version = nb::steal(PyObject_GetAttr(tensor.ptr(), kVersion));
  if (!version.is_valid()) nb::raise_python_error();
  return nb::cast<std::int64_t>(version);
}

nb::object CallLayout::part(std::int64_t first, std::int64_t end) const {
  if (!side.is_valid()) return nb::none();
  const nb::object from = nb::int_(first), to = end < 0 ? nb::none() : nb::object(nb::int_(end));
  const nb::object range = nb::steal(PySlice_New(from.ptr(), to.ptr(), nullptr));
  return nb::object(side[range]);
}

/// The new tensors of a dispatch, and the options that fill them.
struct NormalCalls::SideTensors {
  nb::object scales = nb::none(), topk_idx = nb::none(), topk_weights = nb::none(), layout;
  ep::UnpackOptions to;
  bool any() const {
    return to.scales.defined() || to.topk_idx.defined() || to.topk_weights.defined();
  }
};

NormalCalls::NormalCalls(nb::handle_t<Group> group, nb::handle tensor_type, nb::object empty,
                         const nb::tuple& dtypes, nb::object capturing)
    : group_(nb::cast<Group&>(group).group),
      tensors_(device_of(group), tensor_type),
      maker_(std::move(empty)),
      bool_(dtypes[0]),
      int32_(dtypes[1]),
      int64_(dtypes[2]),
      float32_(dtypes[3]),
      capturing_(std::move(capturing)),
      hidden_(group_.options().hidden),
      top_k_(group_.options().top_k),
      experts_(group_.options().experts),
      local_experts_(group_.local_experts()),
      ranks_(group_.team().size()),
      max_tokens_(group_.options().max_tokens),
      max_scales_(group_.options().max_scales),
      device_(device_of(group)),
      results_(std::make_shared<Results>(nb::cast<Group&>(group).owner(),
                                         nb::cast<Group&>(group).keeper,
                                         reinterpret_cast<PyTypeObject*>(tensor_type.ptr()),
                                         device_.index, stream_function(tensor_type))) {}

bool NormalCalls::captured() const {
  if (capturing_.is_none()) return false;
  const nb::object found = nb::steal(PyObject_CallNoArgs(capturing_.ptr()));
  if (!found.is_valid()) nb::raise_python_error();
  return found.is(Py_True);
}

TensorView NormalCalls::view_of_new(nb::handle tensor, DataType dtype, std::int64_t rows,
                                    std::int64_t columns) const {
  TensorView view;
  if (tensors_.usable()) {
    const auto from = exchange_view(tensor);
    view.data = static_cast<std::byte*>(from->data) + from->byte_offset;
  } else {
    view.data = input(tensor, "result").view.data;
  }
  view.dtype = dtype;
  view.rank = columns < 0 ? 1 : 2;
  view.shape = {rows, std::max<std::int64_t>(columns, 0)};
  view.strides = {columns < 0 ? 1 : columns, columns < 0 ? 0 : 1};
  view.device = device_;
  return view;
}

CallRouting NormalCalls::route(nb::handle topk_idx, std::uintptr_t stream) const {
  const TensorView indices = view_of(topk_idx, "topk_idx");
  const nb::gil_scoped_release released;
  return {group_.route(indices, {.launch = launch_on(stream)})};
}

ep::Routing NormalCalls::route(const TensorView& indices, const ep::Launch& launch) const {
  const nb::gil_scoped_release released;
  return group_.route(indices, launch);
}

ep::Handle NormalCalls::dispatch_rows(const TensorView& rows, const ep::Routing& routing,
                                      const ep::detail::AnyDispatchOptions& options) {
  const nb::gil_scoped_release released;
  return ep::detail::dispatch(group_, rows, routing, options).handle;
}

void NormalCalls::expand(const ep::ExpandOptions& options) {
  const nb::gil_scoped_release released;
  group_.expand(options);
}

ep::ExpandOptions NormalCalls::expansion(const CallReceived& sent, const CallLayout& layout,
                                         nb::handle topk_idx, DataType element) const {
  const std::int64_t count = layout.handle.result_rows();
  const auto counts = [&](std::int64_t first, std::int64_t extent) {
    TensorView part =
        view_of_new(layout.side, DataType::int32, ranks_ + 2 * local_experts_ + count, -1);
    part.data = part.as<std::int32_t>() + first;
    part.shape[0] = extent;
    return part;
  };
  ep::ExpandOptions options;
  options.x = view_of_new(sent.x, element, count, hidden_);
  options.topk_idx = view_of_new(topk_idx, DataType::int64, count, top_k_);
  options.rows = counts(ranks_ - 1, 1);
  options.tokens_per_expert = counts(ranks_, local_experts_);
  options.expert_ends = counts(ranks_ + local_experts_, local_experts_);
  if (!sent.topk_weights.is_none())
    options.weights = view_of_new(sent.topk_weights, DataType::float32, count, top_k_);
  return options;
}

NormalCalls::Layout NormalCalls::layout(const TensorView& indices, const ep::Launch& launch) {
  const std::int64_t tokens = indices.shape[0];
  Layout made{{},
              maker_.make(ranks_, -1, int32_),
              maker_.make(experts_, -1, int32_),
              maker_.make(tokens, ranks_, bool_)};
  const ep::RouteOptions options{
      .is_token_in_rank = view_of_new(made.in_rank, DataType::uint8, tokens, ranks_),
      .tokens_per_rank = view_of_new(made.per_rank, DataType::int32, ranks_, -1),
      .tokens_per_expert = view_of_new(made.per_expert, DataType::int32, experts_, -1),
      .launch = launch};
  {
    const nb::gil_scoped_release released;
    made.routing = group_.route(indices, options);
  }
  return made;
}

NormalCalls::SideTensors NormalCalls::allocate_side(std::int64_t rows,
                                                    const ep::detail::AnyDispatchOptions& options,
                                                    nb::handle scales, bool is_new,
                                                    Counts with_counts) {
  SideTensors made;
  made.to.launch.stream = options.launch.stream;
  if (options.scales.defined()) {
    const std::int64_t columns = options.scales.shape[1];
    made.scales = maker_.make(rows, columns, dtype_of(scales));
    made.to.scales = view_of_new(made.scales, options.scales.dtype, rows, columns);
  }
  if (options.weights.defined()) {
    made.topk_weights = maker_.make(rows, top_k_, float32_);
    made.to.topk_weights = view_of_new(made.topk_weights, DataType::float32, rows, top_k_);
  }
  if (!is_new) return made;
  made.topk_idx = maker_.make(rows, top_k_, int64_);
  made.to.topk_idx = view_of_new(made.topk_idx, DataType::int64, rows, top_k_);
  if (with_counts == Counts::no) {
    made.layout = maker_.make(rows, -1, int32_);
    made.to.source_token = view_of_new(made.layout, DataType::int32, rows, -1);
    return made;
  }
  const std::int64_t counts = ranks_ + 2 * local_experts_;
  made.layout = maker_.make(counts + rows, -1, int32_);
  const TensorView all = view_of_new(made.layout, DataType::int32, counts + rows, -1);
  std::int64_t next = 0;
  for (const auto& [part, extent] :
       {std::pair{&made.to.source_ends, ranks_},
        std::pair{&made.to.tokens_per_expert, local_experts_},
        std::pair{&made.to.expert_ends, local_experts_}, std::pair{&made.to.source_token, rows}}) {
    *part = all;
    part->data = all.as<std::int32_t>() + next;
    part->shape[0] = extent;
    next += extent;
  }
  return made;
}

NormalCalls::Place NormalCalls::place(bool captured) const {
  if (held() >= most_held_) return Place::copied;
  if (captured) return Place::apart;
  return ep::detail::has_room_beside_graphs(group_) ? Place::held : Place::copied;
}

nb::object NormalCalls::take_x(ep::detail::AnyDispatched& received, Stream stream,
                               Place place) const {
  Tensor x = std::exchange(received.x, {});
  const bool apart = place == Place::apart;
  if (apart && received.transient) place = Place::copied;
  x.owner = std::make_shared<HeldResult>(results_, stream, apart, std::move(x.owner));
  nb::object tensor = exchange_object(results_->type, x);
  if (!tensor.is_valid())
    tensor = nb::module_::import_("torch").attr("from_dlpack")(output(std::move(x), kReady));
  return place == Place::copied ? nb::object(tensor.attr("clone")()) : tensor;
}

CallReceived NormalCalls::send(const TensorView& rows, const ep::Routing* routing,
                               const ep::Handle* handle, ep::detail::AnyDispatchOptions options,
                               nb::handle scales, Place place, bool clear_unused, Counts counts) {
  const bool is_new = handle == nullptr;
  options.apart = place == Place::apart;
  options.transient = place == Place::copied || place == Place::passing;
  // Known sizes: the arrays come first, and one stretch without the GIL does the rest.
  std::int64_t count = options.worst_case_rows;
  if (count == 0 && !is_new) count = handle->result_rows();
  const bool known = count > 0 && count <= ranks_ * max_tokens_;
  SideTensors side;
  if (known) side = allocate_side(count, options, scales, is_new, counts);
  side.to.launch.stream = options.launch.stream;
  const auto fill = [&](const ep::detail::AnyDispatched& received) {
    if (!side.any() && !clear_unused) return;
    ep::UnpackOptions to = side.to;
    to.clear_unused = clear_unused;
    const bool on_host = device_.kind == DeviceKind::host;
    if (on_host) to.source_ends = to.tokens_per_expert = to.expert_ends = {};
    ep::detail::unpack(group_, received, to);
    if (on_host && is_new && counts == Counts::yes)
      count_on_host(received, side.to, count, top_k_, options.expert_alignment);
  };
  ep::detail::AnyDispatched received;
  {
    const nb::gil_scoped_release released;
    received = is_new ? ep::detail::dispatch(group_, rows, *routing, options)
                      : ep::detail::dispatch(group_, rows, *handle, options);
    if (known) fill(received);
  }
  if (!known) {
    count = received.handle.result_rows();
    side = allocate_side(count, options, scales, is_new, counts);
    const nb::gil_scoped_release released;
    fill(received);
  }
  CallReceived result;
  result.x = take_x(received, options.launch.stream, place);
  result.scales = std::move(side.scales);
  result.topk_idx = std::move(side.topk_idx);
  result.topk_weights = std::move(side.topk_weights);
  const bool counted = counts == Counts::yes;
  result.layout = {std::move(received.handle), std::move(side.layout), counted ? ranks_ : 0,
                   counted ? local_experts_ : 0, options.worst_case_rows};
  if (options.worst_case_rows == 0)
    result.tokens_per_expert = std::move(received.tokens_per_expert);
  return result;
}

CallReceived NormalCalls::dispatch(nb::handle x, nb::handle layout, nb::handle weights,
                                   std::int64_t worst_case_rows, bool stays, bool clear_unused,
                                   std::uintptr_t stream) {
  const TensorView rows = view_of(x, "x");
  ep::detail::AnyDispatchOptions options;
  options.weights = view_of(weights, "weights");
  options.worst_case_rows = worst_case_rows;
  options.launch = launch_on(stream);
  const bool is_new = nb::isinstance<CallRouting>(layout);
  return send(rows, is_new ? &nb::cast<const CallRouting&>(layout).routing : nullptr,
              is_new ? nullptr : &nb::cast<const ep::Handle&>(layout), options, nb::none(),
              stays ? Place::held : Place::copied, clear_unused);
}

nb::tuple NormalCalls::dispatch_expert_major(nb::handle x, nb::handle layout, nb::handle weights,
                                             std::uintptr_t stream) {
  const TensorView rows = view_of(x, "x");
  ep::detail::AnyDispatchOptions options;
  options.weights = view_of(weights, "weights");
  options.launch = launch_on(stream);
  const bool is_new = nb::isinstance<CallRouting>(layout);
  ExpertMajorLayout made;
  ExpertMajorLayout& of = is_new ? made : nb::cast<ExpertMajorLayout&>(layout);
  nb::object by_expert, their_weights = nb::none();
  if (send_by_expert(rows, is_new ? layout : nb::none(), of, options, by_expert, their_weights))
    return nb::make_tuple(by_expert, their_weights,
                          is_new ? nb::cast(std::move(made)) : nb::borrow(layout));
  const CallReceived sent =
      send(rows, is_new ? &nb::cast<const CallRouting&>(layout).routing : nullptr,
           is_new ? nullptr : &of.layout.handle, options, nb::none(), Place::passing);
  if (is_new) {
    made.layout = sent.layout;
    made.topk_idx = sent.topk_idx;
    made.topk_rows = maker_.make(made.layout.handle.result_rows(), top_k_, int32_);
    made.tokens_per_expert = sent.tokens_per_expert;
    for (const std::int64_t tokens : made.tokens_per_expert) made.rows += tokens;
  }
  ep::ExpandOptions copies = expansion(sent, of.layout, of.topk_idx, rows.dtype);
  const nb::object out = maker_.make(of.rows, hidden_, dtype_of(x));
  copies.out = view_of_new(out, rows.dtype, of.rows, hidden_);
  nb::object out_weights = nb::none();
  if (copies.weights.defined()) {
    out_weights = maker_.make(of.rows, -1, float32_);
    copies.out_weights = view_of_new(out_weights, DataType::float32, of.rows, -1);
  }
  copies.topk_rows =
      view_of_new(of.topk_rows, DataType::int32, of.layout.handle.result_rows(), top_k_);
  copies.numbered = !is_new;
  copies.launch.stream = options.launch.stream;
  expand(copies);
  return nb::make_tuple(out, out_weights, is_new ? nb::cast(std::move(made)) : nb::borrow(layout));
}

bool NormalCalls::send_by_expert(const TensorView& rows, nb::handle routing,
                                 ExpertMajorLayout& layout,
                                 const ep::detail::AnyDispatchOptions& given, nb::object& x,
                                 nb::object& weights) {
  const bool is_new = !routing.is_none();
  if (is_new ? !ep::detail::can_be_also_rank_major(group_) : !layout.by_expert.valid())
    return false;
  ep::detail::AnyDispatchOptions options = given;
  options.expert_major = options.also_rank_major = true;
  ep::detail::AnyDispatched received;
  try {
    const nb::gil_scoped_release released;
    received = is_new ? ep::detail::dispatch(group_, rows,
                                             nb::cast<const CallRouting&>(routing).routing, options)
                      : ep::detail::dispatch(group_, rows, layout.by_expert, options);
  } catch (const Error& error) {
    if (!is_new || error.code() != Code::exhausted) throw;
    return false;
  }
  const auto copy = [this](const Tensor& from, std::int64_t columns, nb::handle dtype) {
    nb::object to = maker_.make(from.shape[0], columns, dtype);
    if (from.bytes() > 0)
      std::memcpy(view_of_new(to, from.dtype, from.shape[0], columns).data, from.data,
                  from.bytes());
    return to;
  };
  if (is_new) {
    layout.by_expert = received.handle;
    layout.layout.handle = received.rank_major;
    layout.topk_rows = copy(received.topk_rows, top_k_, int32_);
    layout.tokens_per_expert = received.tokens_per_expert;
    layout.rows = received.handle.result_rows();
  }
  if (options.weights.defined()) weights = copy(received.topk_weights, -1, float32_);
  const bool stays = ep::detail::has_room_for_another(group_);
  x = take_x(received, options.launch.stream, stays ? Place::held : Place::copied);
  return true;
}

nb::tuple NormalCalls::combine_expert_major(nb::handle y, const ExpertMajorLayout& layout,
                                            nb::handle weights, std::uintptr_t stream) {
  const TensorView rows = view_of(y, "y");
  if (rows.rank != 2 || rows.shape[0] != layout.rows)
    fail(Code::invalid_argument, "combine: y is {}; it must have the {} rows of its dispatch",
         rows.describe(), layout.rows);
  ep::CombineOptions options;
  options.weights = view_of(weights, "weights");
  options.topk_rows =
      view_of_new(layout.topk_rows, DataType::int32, layout.layout.handle.result_rows(), top_k_);
  options.launch = launch_on(stream);
  return sum(rows, y, layout.layout.handle, options);
}

nb::tuple NormalCalls::combine(nb::handle y, const ep::Handle& handle, nb::handle weights,
                               nb::handle topk_idx, std::uintptr_t stream) {
  ep::CombineOptions options;
  options.weights = view_of(weights, "weights");
  options.topk_idx = view_of(topk_idx, "topk_idx");
  options.launch = launch_on(stream);
  return sum(view_of(y, "y"), y, handle, options);
}

nb::tuple NormalCalls::sum(const TensorView& rows, nb::handle y, const ep::Handle& handle,
                           ep::CombineOptions& options) {
  const std::int64_t tokens = handle.tokens();
  const nb::object out = maker_.make(tokens, hidden_, dtype_of(y));
  options.out = view_of_new(out, rows.dtype, tokens, hidden_);
  nb::object out_weights = nb::none();
  if (options.weights.defined()) {
    out_weights = maker_.make(tokens, top_k_, float32_);
    options.out_weights = view_of_new(out_weights, DataType::float32, tokens, top_k_);
  }
  {
    const nb::gil_scoped_release released;
    (void)group_.combine(rows, handle, options);
  }
  return nb::make_tuple(out, out_weights);
}

bool NormalCalls::take_any_rows(TensorView& rows, nb::handle x, std::int64_t count) const {
  for (const DataType dtype : {DataType::bfloat16, DataType::float32, DataType::float16})
    if (tensors_.take(rows, x, dtype, {count, hidden_})) return true;
  return false;
}

std::optional<CallReceived> NormalCalls::try_exchange(nb::handle x, nb::handle topk_idx,
                                                      nb::handle topk_weights,
                                                      std::int64_t worst_case_rows, bool copy_out) {
  TensorView rows, indices, weights;
  ep::detail::AnyDispatchOptions options;
  options.worst_case_rows = worst_case_rows;
  if (!tensors_.usable() || worst_case_rows < 0 || worst_case_rows > ranks_ * max_tokens_ ||
      !take_any_rows(rows, x, PlainTensors::kAny))
    return {};
  const std::int64_t tokens = rows.shape[0];
  if (tokens > max_tokens_ ||
      !tensors_.take(indices, topk_idx, DataType::int64, {tokens, top_k_}) ||
      !tensors_.take(weights, topk_weights, DataType::float32, {tokens, top_k_}) ||
      !tensors_.follow(options.launch) || captured())
    return {};
  options.weights = weights;
  ep::Routing routing;
  {
    const nb::gil_scoped_release released;
    routing = group_.route(indices, options.launch);
  }
  return send(rows, &routing, nullptr, options, nb::none(), copy_out ? Place::copied : Place::held,
              worst_case_rows > 0, Counts::no);
}

nb::object NormalCalls::try_sum(nb::handle y, const ep::Handle& handle) {
  TensorView output;
  ep::CombineOptions options;
  if (!tensors_.usable() || !take_any_rows(output, y, handle.result_rows()) ||
      !tensors_.follow(options.launch))
    return {};
  return nb::object(sum(output, y, handle, options)[0]);
}

}  // namespace shoal::python
