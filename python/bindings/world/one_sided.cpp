// SPDX-License-Identifier: Apache-2.0
// world/one_sided.cpp: put, get, atomics, signals and waits.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <string_view>
#include <utility>

#include "../arguments.hpp"
#include "../arrays/streams.hpp"
#include "../check.hpp"
#include "../docs.hpp"
#include "world.hpp"

namespace shoal::python {
namespace {

template <typename T, std::size_t N>
T choose(const std::array<std::pair<std::string_view, T>, N>& names, const std::string& name,
         const char* what) {
  std::string allowed;
  for (const auto& [known, value] : names) {
    if (known == name) return value;
    allowed += fmt::format("{}\"{}\"", allowed.empty() ? "" : ", ", known);
  }
  fail(Code::invalid_argument, "{} \"{}\"; allowed: {}", what, name, allowed);
}

constexpr std::array<std::pair<std::string_view, Compare>, 6> kCompares = {
    {{"==", Compare::equal},
     {"!=", Compare::not_equal},
     {">", Compare::greater},
     {">=", Compare::greater_equal},
     {"<", Compare::less},
     {"<=", Compare::less_equal}}};
constexpr std::array<std::pair<std::string_view, SignalOp>, 2> kSignals = {
    {{"set", SignalOp::set}, {"add", SignalOp::add}}};
constexpr std::array<std::pair<std::string_view, AtomicOp>, 8> kAtomics = {
    {{"fetch", AtomicOp::fetch},
     {"set", AtomicOp::set},
     {"add", AtomicOp::add},
     {"and", AtomicOp::bit_and},
     {"or", AtomicOp::bit_or},
     {"xor", AtomicOp::bit_xor},
     {"swap", AtomicOp::swap},
     {"compare_swap", AtomicOp::compare_swap}}};

const RemoteArray& remote_from(const char* call, const char* name, nb::handle value) {
  return object_from<RemoteArray>(call, name, value,
                                  "a shoal.RemoteArray, which on(pe) of a SymmetricArray returns");
}

/// Checks a local buffer for a transfer of the elements of `remote`. On a GPU, waits until its
/// values are ready, because one-sided operations run on the host, outside all streams.
Input local_buffer(const World& world, Input local, const RemoteArray& remote, const char* what) {
  require(local.view.dtype == remote.dtype, Code::invalid_argument,
          "{}: the array is {}, the elements on PE {} are {}; the dtypes must be equal", what,
          name_of(local.view.dtype), remote.pe, name_of(remote.dtype));
  require(local.view.contiguous(), Code::invalid_argument,
          "{}: the array, {}, is not contiguous; pass a contiguous copy{}", what,
          local.view.describe(),
          std::string_view(what).starts_with("get") ? ", and copy the result back" : "");
  require(
      local.view.device.kind == DeviceKind::host || world.heap().device().kind == DeviceKind::cuda,
      Code::invalid_argument,
      "{}: {} lies on a GPU, the heap of this world on the host (SHOAL_HEAP)", what,
      local.view.describe());
  const std::size_t bytes = remote.count * size_of(remote.dtype);
  require(local.view.bytes() == bytes, Code::invalid_argument,
          "{}: {} has {} bytes, the elements on PE {} have {}", what, local.view.describe(),
          local.view.bytes(), remote.pe, bytes);
  if (local.stream != kReady) {
    nb::gil_scoped_release released;
    wait_for_stream(local.stream, local.view.device.index);
  }
  return local;
}

RemoteAddress address(const RemoteArray& remote) {
  return {remote.pe, remote.offset};
}

RemoteSpan<std::uint64_t> flag_of(nb::handle given, const char* what) {
  const RemoteArray& remote = remote_from(what, "flag", given);
  require(remote.dtype == DataType::int64 && remote.count == 1, Code::invalid_argument,
          "{}: a signal is one element of int64, got {} of {}", what, remote.count,
          name_of(remote.dtype));
  return {address(remote), 1};
}

void put(const World& world, nb::handle given, nb::handle source, nb::handle dtype, bool blocking) {
  const RemoteArray& target = remote_from("put", "target", given);
  const Input local = local_buffer(
      world, input(source, "put: source", optional_dtype("put", dtype)), target, "put");
  nb::gil_scoped_release released;
  if (blocking)
    world.put_bytes(address(target), local.view.data, local.view.bytes());
  else
    world.put_bytes_nbi(address(target), local.view.data, local.view.bytes());
}

void get(const World& world, nb::handle target, nb::handle given, nb::handle dtype, bool blocking) {
  const RemoteArray& source = remote_from("get", "source", given);
  const Input local = local_buffer(
      world, writable_input(target, "get: target", optional_dtype("get", dtype)), source, "get");
  nb::gil_scoped_release released;
  if (blocking)
    world.get_bytes(local.view.data, address(source), local.view.bytes());
  else
    world.get_bytes_nbi(local.view.data, address(source), local.view.bytes());
}

void put_signal(const World& world, nb::handle given, nb::handle source, nb::handle flag,
                std::int64_t value, const std::string& op, nb::handle dtype) {
  const RemoteArray& target = remote_from("put_signal", "target", given);
  const Input local =
      local_buffer(world, input(source, "put_signal: source", optional_dtype("put_signal", dtype)),
                   target, "put_signal");
  const SignalOp kind = choose(kSignals, op, "op");
  const auto remote_flag = flag_of(flag, "put_signal");
  nb::gil_scoped_release released;
  world.put_signal_bytes(address(target), local.view.data, local.view.bytes(), remote_flag, kind,
                         static_cast<std::uint64_t>(value));
}

void signal(const World& world, nb::handle flag, std::int64_t value, const std::string& op) {
  const auto remote_flag = flag_of(flag, "signal");
  const SignalOp kind = choose(kSignals, op, "op");
  nb::gil_scoped_release released;
  world.signal(remote_flag, kind, static_cast<std::uint64_t>(value));
}

/// The element of this PE to wait for. Throws Error{invalid_argument} unless the dtype is int64 and
/// the index in range.
const std::int64_t* variable_of(const char* call, nb::handle given, std::int64_t index) {
  const SymmetricArray& array = symmetric_from(call, "array", given);
  require(array.local.dtype == DataType::int64, Code::invalid_argument,
          "{}: waits are for int64 arrays, got {}", call, array.local.describe());
  require(index >= 0 && index < array.local.size(), Code::invalid_argument,
          "{}: index is {}; allowed: 0 to {}", call, index, array.local.size() - 1);
  return array.local.as<std::int64_t>() + index;
}

std::int64_t wait_until(const World& world, nb::handle array, const std::string& compare,
                        std::int64_t value, std::int64_t index) {
  const std::int64_t* const variable = variable_of("wait_until", array, index);
  const Compare how = choose(kCompares, compare, "compare");
  nb::gil_scoped_release released;
  world.wait_until(variable, how, value);
  return static_cast<std::int64_t>(
      world.signal_fetch(reinterpret_cast<const std::uint64_t*>(variable)));
}

bool test(const World& world, nb::handle array, const std::string& compare, std::int64_t value,
          std::int64_t index) {
  return world.test(variable_of("test", array, index), choose(kCompares, compare, "compare"),
                    value);
}

std::int64_t atomic(const World& world, const std::string& op, nb::handle given,
                    std::int64_t operand, std::int64_t compare) {
  const RemoteArray& target = remote_from("atomic", "target", given);
  require(target.count == 1 && (target.dtype == DataType::int32 || target.dtype == DataType::int64),
          Code::invalid_argument, "atomic: one element of int32 or int64, got {} of {}",
          target.count, name_of(target.dtype));
  const AtomicOp kind = choose(kAtomics, op, "op");
  nb::gil_scoped_release released;
  const std::uint64_t before =
      world.atomic_word(kind, address(target), static_cast<std::uint64_t>(operand),
                        static_cast<std::uint64_t>(compare), size_of(target.dtype));
  return target.dtype == DataType::int32 ? static_cast<std::int32_t>(before)
                                         : static_cast<std::int64_t>(before);
}

void bind_copies(nb::class_<World>& world) {
  world
      .def(
          "put",
          [](const World& self, nb::handle target, nb::handle source, nb::handle dtype) {
            put(self, target, source, dtype, true);
          },
          nb::arg("target").none(), nb::arg("source") = nb::none(), nb::kw_only(),
          nb::arg("dtype") = nb::none(),
          nb::sig(
              "def put(self, target: RemoteArray, source: shoal.typing.SupportsDLPack, *, dtype: "
              "shoal.typing.DType | None = None) -> None"),
          "Copies a contiguous array to as many elements of the same dtype on another PE. Returns "
          "when `source` may be reused. dtype names the type where the array cannot (bfloat16 for "
          "uint16)."_doc)
      .def(
          "put_nbi",
          [](const World& self, nb::handle target, nb::handle source, nb::handle dtype) {
            put(self, target, source, dtype, false);
          },
          nb::arg("target").none(), nb::arg("source") = nb::none(), nb::kw_only(),
          nb::arg("dtype") = nb::none(),
          nb::sig(
              "def put_nbi(self, target: RemoteArray, source: shoal.typing.SupportsDLPack, *, dtype:"
              " shoal.typing.DType | None = None) -> None"),
          "Like put, but `source` must stay unchanged until quiet()."_doc)
      .def(
          "get",
          [](const World& self, nb::handle target, nb::handle source, nb::handle dtype) {
            get(self, target, source, dtype, true);
          },
          nb::arg("target").none(), nb::arg("source") = nb::none(), nb::kw_only(),
          nb::arg("dtype") = nb::none(),
          nb::sig(
              "def get(self, target: shoal.typing.SupportsDLPack, source: RemoteArray, *, dtype: "
              "shoal.typing.DType | None = None) -> None"),
          "Copies elements of another PE to a contiguous array of as many elements of the same "
          "dtype; dtype as for put."_doc)
      .def(
          "get_nbi",
          [](const World& self, nb::handle target, nb::handle source, nb::handle dtype) {
            get(self, target, source, dtype, false);
          },
          nb::arg("target").none(), nb::arg("source") = nb::none(), nb::kw_only(),
          nb::arg("dtype") = nb::none(),
          nb::sig(
              "def get_nbi(self, target: shoal.typing.SupportsDLPack, source: RemoteArray, *, dtype:"
              " shoal.typing.DType | None = None) -> None"),
          "Like get, but the data is valid after quiet()."_doc);
}

void bind_signals(nb::class_<World>& world) {
  world
      .def(
          "put_signal", &put_signal, nb::arg("target").none(), nb::arg("source").none(),
          nb::arg("flag").none(), nb::arg("value"), nb::arg("op") = "set", nb::kw_only(),
          nb::arg("dtype") = nb::none(),
          nb::sig(
              "def put_signal(self, target: RemoteArray, source: shoal.typing.SupportsDLPack, flag: "
              "RemoteArray, value: int, op: str = 'set', *, dtype: shoal.typing.DType | None = None)"
              " -> None"),
          "Like put; then sets or adds to an int64 flag on that PE, which becomes visible after the "
          "data."_doc)
      .def("signal", &signal, nb::arg("flag").none(), nb::arg("value"), nb::arg("op") = "set",
           nb::sig("def signal(self, flag: RemoteArray, value: int, op: str = 'set') -> None"),
           "Sets (op=\"set\") or adds to (\"add\") an int64 element of another PE."_doc)
      .def("wait_until", &wait_until, nb::arg("array").none(), nb::arg("compare"), nb::arg("value"),
           nb::arg("index") = 0,
           nb::sig(
               "def wait_until(self, array: SymmetricArray[shoal.typing.SupportsDLPack], compare: "
               "str, value: int, index: int = 0) -> int"),
           "Waits until an int64 element of this PE compares with `value` by ==, !=, >, >=, < or "
           "<=, and returns it. Raises TimeoutError after SHOAL_TIMEOUT_MS, PeerFailedError when a "
           "PE fails."_doc)
      .def("test", &test, nb::arg("array").none(), nb::arg("compare"), nb::arg("value"),
           nb::arg("index") = 0,
           nb::sig(
               "def test(self, array: SymmetricArray[shoal.typing.SupportsDLPack], compare: str, "
               "value: int, index: int = 0) -> bool"),
           "True if wait_until returns without waiting."_doc);
}

}  // namespace

void bind_one_sided(nb::class_<World>& world) {
  bind_copies(world);
  bind_signals(world);
  world
      .def("atomic", &atomic, nb::arg("op"), nb::arg("target").none(), nb::arg("operand") = 0,
           nb::arg("compare") = 0,
           nb::sig("def atomic(self, op: str, target: RemoteArray, operand: int = 0, compare: int "
                   "= 0) -> int"),
           "fetch, set, add, and, or, xor, swap or compare_swap on an int32 or int64 element. "
           "Returns the previous value."_doc)
      .def("fence", &World::fence, nb::call_guard<nb::gil_scoped_release>(),
           "Orders earlier puts and atomics before later ones to the same PE."_doc)
      .def(
          "quiet", &World::quiet, nb::call_guard<nb::gil_scoped_release>(),
          "Waits until all earlier operations of this PE are complete and visible at their targets."_doc);
}

}  // namespace shoal::python
