// SPDX-License-Identifier: Apache-2.0
// ep/call_tensors.hpp: the arguments of one call of deep_ep, parsed once, and its errors.
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../arrays/arrays.hpp"
#include "shoal/ep/group.hpp"
#include "tensors.hpp"

namespace shoal::python {

/// DeepEP's error of its native part.
template <typename... Args>
void native_assert(bool condition, fmt::format_string<const Args&...> format, const Args&... args) {
  if (!condition) [[unlikely]]
    throw std::runtime_error("Assertion exception (deep_ep): " + fmt::format(format, args...));
}

/// AssertionError, the error of DeepEP's Python part.
void expect(bool condition, std::string_view message);

nb::object attribute(nb::handle object, const char* name);
std::string text_of_object(nb::handle value);
/// 0 for an int of more than 64 bits, which no limit allows.
std::int64_t value_of(nb::handle number);
/// The number of experts. Raises RuntimeError unless a group can have so many.
std::int64_t experts_of(const char* call, const char* name, nb::handle number);
/// The most experts of a rank, of `experts` that `ranks` ranks hold.
inline std::int64_t most_local_experts(std::int64_t experts, std::int64_t ranks) {
  return (experts + ranks - 1) / ranks;
}
/// The experts of `rank`: the first ranks hold one more where `ranks` does not divide `experts`.
inline std::int64_t local_experts(std::int64_t experts, std::int64_t ranks, std::int64_t rank) {
  return experts / ranks + (rank < experts % ranks ? 1 : 0);
}
inline bool is_true(nb::handle value) {
  return PyObject_IsTrue(value.ptr()) == 1;
}

/// A tensor argument: its view, and the exported object where torch has no exchange table.
struct Argument {
  TensorView view;
  Input kept;
};

/// The x of a dispatch: rows, and scales or None.
struct Rows {
  nb::handle x, scales;
  Argument rows, scale_values;
  bool scaled() const { return !scales.is_none(); }
  std::int64_t tokens() const { return rows.view.shape[0]; }
  std::int64_t hidden() const { return rows.view.shape[1]; }
};

/// The events of a call, as its caller passed them; null handles inside of CallTensors::run.
struct Events {
  nb::handle previous, before_epilogue, async_finish, on_comm_stream;
};

/// Reads the tensors of calls and finds their stream. The functions of torch and of deep_ep that it
/// gets from Python are called for errors, events, and what only some programs pass.
class CallTensors {
 public:
  static constexpr std::int64_t kAny = PlainTensors::kAny;

  /// given: see deep_ep.buffers.calls.
  explicit CallTensors(const nb::dict& given);

  /// A contiguous tensor of this dtype and shape. Raises the error of
  /// deep_ep.buffers.checks.require_tensor for anything else.
  Argument take(const char* call, const char* name, nb::handle tensor, DataType dtype,
                std::initializer_list<std::int64_t> shape) const;
  /// Does what take does, and accepts None.
  Argument take_optional(const char* call, const char* name, nb::handle tensor, DataType dtype,
                         std::initializer_list<std::int64_t> shape) const {
    return tensor.is_none() ? Argument{} : take(call, name, tensor, dtype, shape);
  }
  /// None, a bias of a combine, or a tuple of up to two, each bfloat16 of this shape. The result
  /// keeps what `views` gets.
  std::vector<Argument> take_biases(const char* call, nb::handle bias,
                                    std::initializer_list<std::int64_t> shape,
                                    std::vector<ConstTensorView>& views) const;
  /// Checks only; dtype: torch's.
  void check(const char* call, const char* name, nb::handle tensor, nb::handle dtype,
             std::initializer_list<std::int64_t> shape) const;
  /// True if a tensor can be read as it is; sets `view` then.
  bool try_take(TensorView& view, nb::handle tensor, DataType dtype,
                std::initializer_list<std::int64_t> shape) const {
    return plain_.take(view, tensor, dtype, shape);
  }
  /// bfloat16, or a tuple of float8 and scales of four bytes.
  Rows take_rows(const char* call, nb::handle x) const;

  nb::handle dtype(DataType of) const;
  nb::handle bool_dtype() const { return bool_; }
  DataType index_type() const { return index_.is(int64_) ? DataType::int64 : DataType::int32; }
  nb::handle index_dtype() const { return index_; }
  /// int64 indices as topk_idx_t.
  nb::object as_index(const nb::object& indices) const {
    return index_type() == DataType::int64 ? indices : nb::object(indices.attr("to")(index_));
  }
  /// Selects the current stream.
  void follow(ep::Launch& launch) const;
  bool captured() const;

  /// True if a call runs as it is, without the stream of its events and without a profiler.
  bool is_plain(const Events& events) const;
  /// The results of `work`, as a call with these events.
  template <typename Work>
  nb::object run(const char* call, const Events& events, Work&& work,
                 const nb::tuple& inputs) const {
    const nb::object begun = begin_(call, events.previous, events.before_epilogue,
                                    events.async_finish, events.on_comm_stream);
    nb::object results = nb::none();
    try {
      results = std::forward<Work>(work)();
    } catch (...) {
      end_(call, begun, nb::none(), inputs);
      throw;
    }
    return end_(call, begun, results, inputs);
  }
  nb::object no_event() const { return no_event_(); }
  /// The dtype, shape and device of a tensor, for messages; type and value of anything else.
  std::string describe(nb::handle value) const { return text_of_object(describe_(value)); }

 private:
  nb::object device_, bool_, int32_, int64_, float32_, bfloat16_, float8_, index_;
  nb::object current_stream_, capturing_, require_tensor_, describe_, as_rows_, no_event_, begin_,
      end_, profiler_;
  PlainTensors plain_;
};

}  // namespace shoal::python
