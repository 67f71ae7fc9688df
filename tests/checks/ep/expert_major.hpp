// SPDX-License-Identifier: Apache-2.0
// expert_major.hpp: compares the expert-major layout of a dispatch (Group::dispatch_expert_major)
// and its combine, on any backend, bit by bit with the naive reference of case.hpp. Every
// difference throws.
#pragma once

#include <functional>
#include <memory>

#include "checks/ep/case.hpp"

namespace shoal::test {

/// Moves tensors to the device of the group's memory, and back.
struct TensorMover {
  std::function<Tensor(const Tensor&)> upload;
  std::function<Tensor(const TensorView&)> download;
  std::function<void(const TensorView&, const Tensor&)> write;  ///< overwrites a tensor
  bool bulk_copies = true;  ///< false where code for sm_90 does not run
};
/// For groups on the host.
TensorMover host_tensors();

struct ExpertMajorCall {
  DataType dtype = DataType::bfloat16;
  DataType output_dtype = DataType::bfloat16;
  std::int64_t scales = 0;     ///< per row; 0: none
  bool scale_columns = false;  ///< the scales are stored by column
  bool tiles = false;          ///< the scales are bytes, and unpack puts them in tiles
  bool weights = true;
  std::int32_t alignment = 1;
  bool worst_case = false;  ///< as many rows as the case can have
  bool copy_out = false;
  int biases = 0;
  bool unsummed = false;  ///< CombineOptions::unsummed; without biases
  bool in_place = false;  ///< expert output in Dispatched::x; of the same size as its rows
  ep::Quantize combine_quantize = ep::Quantize::none;  ///< CombineOptions.quantize
  int cached = 0;  ///< further dispatches with the handle, each with its combine
  std::int32_t sms = 0;
};

/// Group options that have room for the results of the case, whatever its seed.
ep::GroupOptions expert_major_options(const EpCase& c, const ExpertMajorCall& call);

/// Dispatches and combines, each compared bit by bit. The caller may make other calls in between.
/// Rows are arbitrary bytes. The expert output depends on expert, source, token and channel and
/// differs in magnitude, so the order of additions affects the result. Rows between blocks hold
/// NaN.
class ExpertMajorRound {
 public:
  ExpertMajorRound(ep::Group& group, const EpCase& c, const ExpertMajorCall& call,
                   TensorMover tensors);
  ~ExpertMajorRound();
  ExpertMajorRound(const ExpertMajorRound&) = delete;
  ExpertMajorRound& operator=(const ExpertMajorRound&) = delete;

  /// Makes a new route, or reuses the layout of an earlier dispatch of this round.
  ep::ExpertMajorDispatched dispatch(const ep::Handle& cached = {});
  void combine(const ep::ExpertMajorDispatched& got);
  /// Changes the rows, scales, expert output and biases of the following calls.
  void change_rows(std::uint64_t salt);

 private:
  class Round;
  std::unique_ptr<Round> round_;
};

/// Runs the round that `call` describes: a dispatch and the cached dispatches of its handle, each
/// with its combine.
void check_expert_major(ep::Group& group, const EpCase& c, const ExpertMajorCall& call,
                        const TensorMover& tensors);

}  // namespace shoal::test
