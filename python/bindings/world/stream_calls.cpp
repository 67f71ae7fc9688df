// SPDX-License-Identifier: Apache-2.0
// world/stream_calls.cpp: operations on streams for deep_ep.ElasticBuffer. They take addresses as
// numbers and the stream from the caller, so that a call costs little host time.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "../docs.hpp"
#include "shoal/detail/stream_steps.hpp"
#include "world.hpp"

namespace shoal::python {
namespace {

/// (source, offset of the place in the heap array, bytes, others only)
using BlockTuple = std::tuple<std::uintptr_t, std::size_t, std::size_t, bool>;

class StreamCalls {
 public:
  StreamCalls(const Team& team, std::uintptr_t other)
      : world_(team.world()),
        team_(team),
        other_(reinterpret_cast<cuda::Stream>(other)),
        shares_gpu_(cuda::launch_context(world_).pes_on_device > 1) {}

  static bool reaches(const Team& team) { return cuda::reaches(team); }

  void check() const { cuda::check_failures(world_); }

  void barrier(std::uintptr_t stream, bool behind_other) const {
    run(stream, [&](const shoal::detail::StreamSteps& on) {
      if (behind_other && on.stream() != other_) cuda::order(world_, other_, on.stream());
      on.barrier(team_);
    });
  }

  void put_when(std::uintptr_t stream, const SymmetricArray* ready, std::size_t index,
                std::uint64_t at_least, Pe pe, const SymmetricArray& target, std::size_t offset,
                std::uintptr_t source, std::size_t bytes, const SymmetricArray& flags,
                std::size_t flag, std::uint64_t value) const {
    run(stream, [&](const shoal::detail::StreamSteps& on) {
      on.put_when(word(ready, index), at_least, {pe, target.offset + offset},
                  reinterpret_cast<const void*>(source), bytes, remote(flags, flag, pe), value);
    });
  }

  void take_when(std::uintptr_t stream, const SymmetricArray& ready, std::size_t index,
                 std::uint64_t at_least, std::uintptr_t target, const SymmetricArray& source,
                 std::size_t offset, std::size_t bytes, Pe pe, const SymmetricArray& flags,
                 std::size_t flag, std::uint64_t value) const {
    run(stream, [&](const shoal::detail::StreamSteps& on) {
      on.take_when(word(&ready, index), at_least, reinterpret_cast<void*>(target),
                   source.local.as<std::byte>() + offset, bytes, remote(flags, flag, pe), value);
    });
  }

  void put_to_all(std::uintptr_t stream, const SymmetricArray& places,
                  const std::vector<BlockTuple>& blocks, const SymmetricArray& flags,
                  std::size_t first, std::uint64_t value) const {
    std::vector<detail::StreamBlock> list;
    for (const auto& [source, offset, bytes, others_only] : blocks)
      list.push_back({places.local.as<std::byte>() + offset, reinterpret_cast<const void*>(source),
                      bytes, others_only});
    behind(stream, [&](const shoal::detail::StreamSteps& on) {
      on.put_to_all(team_, list, word(&flags, first), value);
    });
  }

  void wait_for_all(std::uintptr_t stream, const SymmetricArray& flags, std::size_t first,
                    std::uint64_t value) const {
    run(stream, [&](const shoal::detail::StreamSteps& on) {
      on.wait_for_all(team_, word(&flags, first), value);
    });
  }

  void fetch_entries(std::uintptr_t stream, const SymmetricArray& part, std::size_t entry_bytes,
                     std::int64_t entries_per_pe, std::uintptr_t indices, std::int64_t count,
                     std::int64_t per_row, std::uintptr_t target, std::uintptr_t words_table,
                     std::int64_t words, std::uintptr_t words_target, std::int64_t row_stride,
                     std::int64_t step) const {
    behind(stream, [&](const shoal::detail::StreamSteps& on) {
      on.fetch_entries({.part = part.local.data,
                        .entry_bytes = entry_bytes,
                        .entries_per_pe = entries_per_pe,
                        .indices = reinterpret_cast<const std::int32_t*>(indices),
                        .count = count,
                        .target = reinterpret_cast<void*>(target),
                        .words_table = reinterpret_cast<const std::uint32_t*>(words_table),
                        .words_target = reinterpret_cast<std::uint32_t*>(words_target),
                        .words = words,
                        .per_row = per_row,
                        .row_stride = row_stride,
                        .step = step});
    });
  }

 private:
  /// Calls work(operations on the stream) without the GIL. The legacy default stream is refused
  /// where PEs share the GPU: the work then goes to the other stream, between two events.
  template <typename Work>
  void run(std::uintptr_t stream, Work&& work) const {
    constexpr std::uintptr_t kLegacy = 1;
    const nb::gil_scoped_release released;
    auto* const on = reinterpret_cast<cuda::Stream>(stream);
    if (stream > kLegacy || !shares_gpu_) {
      work(shoal::detail::StreamSteps(world_, on));
      return;
    }
    cuda::order(world_, on, other_);
    work(shoal::detail::StreamSteps(world_, other_));
    cuda::order(world_, other_, on);
  }

  /// Calls work(operations on the other stream), after what the stream has queued so far.
  template <typename Work>
  void behind(std::uintptr_t stream, Work&& work) const {
    const nb::gil_scoped_release released;
    auto* const before = reinterpret_cast<cuda::Stream>(stream);
    if (before != other_) cuda::order(world_, before, other_);
    work(shoal::detail::StreamSteps(world_, other_));
  }

  /// A signal of this PE's heap; nullptr for nullptr.
  static std::uint64_t* word(const SymmetricArray* array, std::size_t index) {
    return array == nullptr ? nullptr : array->local.as<std::uint64_t>() + index;
  }
  static RemoteSpan<std::uint64_t> remote(const SymmetricArray& array, std::size_t index, Pe pe) {
    return {{pe, array.offset + index * sizeof(std::uint64_t)}, 1};
  }

  World world_;
  Team team_;
  cuda::Stream other_;
  bool shares_gpu_;
};

}  // namespace

void bind_stream_calls(nb::module_& module) {
  nb::class_<StreamCalls>(
      module, "StreamCalls",
      "shoal::detail::StreamSteps with the least host time, for callers that know the stream.\n\n"
      "stream: a cudaStream_t, 1 for the legacy default stream. other: a stream of this object, "
      "which takes work that the legacy stream cannot have where PEs share a GPU. Addresses are "
      "numbers; signals are elements of int64 arrays of the heap. Failures of the GPU are raised by "
      "check() alone, so that a PE that has one does not fall out of step."_doc)
      .def(nb::init<const Team&, std::uintptr_t>(), nb::arg("team"), nb::arg("other"))
      .def_static("reaches", &StreamCalls::reaches, nb::arg("team"),
                  "True if this PE's GPU reaches the heaps of all PEs of the team."_doc)
      .def("check", &StreamCalls::check, "Raises the first failure since the last call."_doc)
      .def("barrier", &StreamCalls::barrier, nb::arg("stream"), nb::arg("behind_other"),
           "Holds the stream until the streams of all PEs are here. behind_other: also after the "
           "work queued on the other stream."_doc)
      .def("put_when", &StreamCalls::put_when, nb::arg("stream"), nb::arg("ready").none(),
           nb::arg("index"), nb::arg("at_least"), nb::arg("pe"), nb::arg("target"),
           nb::arg("offset"), nb::arg("source"), nb::arg("bytes"), nb::arg("flags"),
           nb::arg("flag"), nb::arg("value"),
           "Waits for ready[index], copies to byte `offset` of `target` on `pe`, sets flags[flag] "
           "there."_doc)
      .def("take_when", &StreamCalls::take_when, nb::arg("stream"), nb::arg("ready"),
           nb::arg("index"), nb::arg("at_least"), nb::arg("target"), nb::arg("source"),
           nb::arg("offset"), nb::arg("bytes"), nb::arg("pe"), nb::arg("flags"), nb::arg("flag"),
           nb::arg("value"),
           "Waits for ready[index], copies from byte `offset` of this PE's `source`, sets "
           "flags[flag] on `pe`."_doc)
      .def("put_to_all", &StreamCalls::put_to_all, nb::arg("stream"), nb::arg("places"),
           nb::arg("blocks"), nb::arg("flags"), nb::arg("first"), nb::arg("value"),
           "Copies blocks (source, byte of `places`, bytes, others only) to all PEs, then sets "
           "flags[first + this PE] there; on the other stream, after the work on `stream`."_doc)
      .def("wait_for_all", &StreamCalls::wait_for_all, nb::arg("stream"), nb::arg("flags"),
           nb::arg("first"), nb::arg("value"),
           "Holds the stream until flags[first + p] is at least `value` for every PE p."_doc)
      .def(
          "fetch_entries", &StreamCalls::fetch_entries, nb::arg("stream"), nb::arg("part"),
          nb::arg("entry_bytes"), nb::arg("entries_per_pe"), nb::arg("indices"), nb::arg("count"),
          nb::arg("per_row"), nb::arg("target"), nb::arg("words_table"), nb::arg("words"),
          nb::arg("words_target"), nb::arg("row_stride"), nb::arg("step"),
          "Fetches entries of a table spread over the PEs, as shoal::detail::EntryFetch says; on the "
          "other stream, after the work on `stream`."_doc);
}

}  // namespace shoal::python
