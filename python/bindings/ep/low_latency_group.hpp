// SPDX-License-Identifier: Apache-2.0
// ep/low_latency_group.hpp: low-latency groups of deep_ep, whose results have known addresses.
//
// DeepEP returns the tensors of a low-latency dispatch with the send, and the hook fills them. On
// GPUs a pending dispatch knows its result. Elsewhere a group has two sets of receive arrays for
// each form of rows, used in turn and fixed for its life: two empty dispatches of each form give
// the addresses of all later results.
//
// A tensor takes the host microseconds to make, so there is one for each address. Rows in bfloat16
// on GPUs have a new one each time: their memory serves the next result once it is released.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <vector>

#include "call_tensors.hpp"
#include "group.hpp"

namespace shoal::python {

/// The arguments of a phase, kept until its receive is done, or queued on a GPU.
class KeptTensors {
 public:
  /// Does what CallTensors::take does.
  TensorView take(const CallTensors& tensors, const char* call, const char* name, nb::handle tensor,
                  DataType dtype, std::initializer_list<std::int64_t> shape) {
    Argument argument = tensors.take(call, name, tensor, dtype, shape);
    objects_[count_++] = nb::borrow(tensor);
    if (argument.kept.array.is_valid()) exported_.push_back(std::move(argument.kept));
    return argument.view;
  }
  TensorView take_optional(const CallTensors& tensors, const char* call, const char* name,
                           nb::handle tensor, DataType dtype,
                           std::initializer_list<std::int64_t> shape) {
    return tensor.is_none() ? TensorView{} : take(tensors, call, name, tensor, dtype, shape);
  }

 private:
  static constexpr std::size_t kMost = 6;  ///< tensors of a call

  std::array<nb::object, kMost> objects_;
  std::size_t count_ = 0;
  std::vector<Input> exported_;  ///< of tensors that torch's exchange table does not have
};

class LowLatencyGroup {
 public:
  /// bfloat16, float8, float8 with packed scales, and NVFP4.
  static constexpr std::size_t kForms = 4;

  /// The tensors of a received dispatch.
  struct Arrays {
    nb::object rows;          ///< x, or (x, scales)
    nb::object counts;        ///< int32 [local experts]
    nb::object entries;       ///< of DeepEP's handle
    const void* x = nullptr;  ///< address of the rows
    const void* counts_at = nullptr;
  };

  /// Collective. from_dlpack: torch's. stream: the current one, 0 on the host.
  LowLatencyGroup(nb::handle_t<Group> group, const nb::object& from_dlpack, std::uintptr_t stream);

  ep::Group& group() const { return *group_; }
  nb::object owner() const { return owner_; }
  const ep::GroupOptions& options() const { return options_; }
  /// The most experts of any rank.
  std::int64_t local_experts() const { return local_experts_; }
  std::int64_t rows() const { return rows_; }  ///< of each local expert in a result

  /// The arrays of a dispatch that was sent. Counts dispatches.
  Arrays arrays_of(const ep::PendingDispatch& pending, ep::Quantize quantize);
  /// The memory from which the next combine sends without a copy: a tensor.
  nb::object next_combine_buffer();
  /// Its view; undefined where a combine has used it.
  const TensorView& combine_buffer() const { return combine_buffer_; }
  void use_combine_buffer() { combine_buffer_ = {}; }
  /// Frees the memory. Collective. No result may be in use.
  void close();

 private:
  /// A dispatch without tokens.
  ep::PendingDispatch send_empty(std::size_t form);
  nb::object tensor(Tensor of) const;
  nb::object rows_of(const ep::LowLatencyReceived& received, std::size_t form) const;
  Arrays make_arrays(const ep::LowLatencyReceived& received, std::size_t form) const;

  nb::object owner_, from_dlpack_;
  ep::Group* group_;  ///< which owner_ keeps
  ep::GroupOptions options_;
  std::int64_t local_experts_, rows_;
  Stream stream_;
  std::size_t sent_ = 0;  ///< dispatches
  /// Where results do not say it before they are received: those of even and odd dispatches.
  std::array<std::array<Arrays, 2>, kForms> in_turn_;
  bool known_ = false;  ///< pending dispatches know their results
  /// The arrays of each result so far, by the addresses of rows and counts.
  std::array<std::vector<Arrays>, kForms> seen_;
  Tensor last_rows_;  ///< of the last dispatch in another form: the next result lies elsewhere
  TensorView combine_buffer_;
};

/// A dispatch that was sent. Calling it receives, once.
struct SentDispatch {
  nb::object group;  ///< LowLatencyGroup
  KeptTensors kept;
  const void* x;  ///< the address at which the rows must arrive
  ep::PendingDispatch pending{};
  ep::LowLatencyHandle handle{};  ///< set by receive

  LowLatencyGroup& of() const { return *nb::inst_ptr<LowLatencyGroup>(group); }
  void receive();
};

/// A combine that was sent. Calling it receives, once.
struct SentCombine {
  nb::object group;
  KeptTensors kept;
  ep::PendingCombine pending{};

  void receive();
};

void bind_low_latency_group(nb::module_& module);

}  // namespace shoal::python
