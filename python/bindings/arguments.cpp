// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"

#include <cmath>

namespace shoal::python {

namespace nb = nanobind;

std::string shown(nb::handle value) {
  constexpr std::size_t kLongest = 60;
  std::string text = nb::cast<std::string>(nb::repr(value));
  if (text.size() > kLongest) text = text.substr(0, kLongest - 3) + "...";
  return text;
}

void wrong_type(std::string_view call, std::string_view name, nb::handle value,
                std::string_view allowed) {
  fail(Code::invalid_argument, "{}: {}={} has the wrong type, {}; allowed: {}", call, name,
       shown(value), nb::cast<std::string>(value.type().attr("__name__")), allowed);
}

std::string_view text_of(nb::handle str) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(str.ptr(), &size);
  if (text == nullptr) nb::raise_python_error();
  return {text, static_cast<std::size_t>(size)};
}

double seconds_of(std::string_view call, std::string_view name, nb::handle value) {
  if (nb::hasattr(value, "total_seconds")) return nb::cast<double>(value.attr("total_seconds")());
  double seconds = 0;
  if (nb::isinstance<nb::bool_>(value) || nb::isinstance<nb::str>(value) ||
      !nb::try_cast(value, seconds))
    wrong_type(call, name, value, "seconds as a number, or a datetime.timedelta");
  return seconds;
}

std::chrono::milliseconds duration_of(std::string_view call, std::string_view name,
                                      nb::handle value) {
  const double seconds = seconds_of(call, name, value);
  require(seconds >= 0 && seconds <= 1e6, Code::invalid_argument,
          "{}: {} is {} s; allowed: 0 to 1,000,000", call, name, seconds);
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(1000 * seconds)));
}

std::vector<std::int64_t> shape_of(std::string_view call, nb::handle value) {
  constexpr const char* kAllowed = "an int or a sequence of ints";
  const auto extent = [&](nb::handle one) {
    if (PyIndex_Check(one.ptr()) == 0) wrong_type(call, "shape", value, kAllowed);
    const nb::object number = nb::steal(PyNumber_Index(one.ptr()));
    if (!number.is_valid()) nb::raise_python_error();
    return argument<std::int64_t>(call, "shape", number);
  };
  // An array of NumPy is both; as a sequence it is a shape.
  if (PySequence_Check(value.ptr()) == 0) return {extent(value)};
  if (nb::isinstance<nb::str>(value)) wrong_type(call, "shape", value, kAllowed);
  std::vector<std::int64_t> extents;
  for (const nb::handle one : nb::borrow<nb::iterable>(value)) extents.push_back(extent(one));
  return extents;
}

}  // namespace shoal::python
