// SPDX-License-Identifier: Apache-2.0
#include "moe/npy.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>

#include "base/check.hpp"
#include "ep/numeric/numeric.hpp"

namespace shoal::tools {

static_assert(std::endian::native == std::endian::little,
              "elements are read and written without byte swapping");

namespace {

constexpr char kMagic[] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};
constexpr std::size_t kMaxHeader = 1 << 20;
constexpr std::size_t kAlignment = 64;

struct Descriptor {
  std::string_view text;
  DataType dtype;
};
constexpr Descriptor kDescriptors[] = {
    {"<f4", DataType::float32}, {"<f2", DataType::float16}, {"<f8", DataType::float64},
    {"<i4", DataType::int32},   {"<i8", DataType::int64},
};

/// The text after "'key':" in a header, without leading blanks.
std::optional<std::string_view> value_of(std::string_view header, std::string_view key) {
  for (const char quote : {'\'', '"'}) {
    const std::size_t at = header.find(fmt::format("{0}{1}{0}:", quote, key));
    if (at == std::string_view::npos) continue;
    std::string_view rest = header.substr(at + key.size() + 3);
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    return rest;
  }
  return std::nullopt;
}

/// The extents of "(3, 4)", "(3,)" or "()"; nullopt if malformed.
std::optional<std::vector<std::int64_t>> parse_shape(std::string_view text) {
  if (text.empty() || text[0] != '(') return std::nullopt;
  const std::size_t end = text.find(')');
  if (end == std::string_view::npos) return std::nullopt;
  std::vector<std::int64_t> shape;
  for (std::string_view rest = text.substr(1, end - 1);
       rest.find_first_not_of(' ') != std::string_view::npos;) {
    rest.remove_prefix(rest.find_first_not_of(' '));
    std::int64_t extent = 0;
    const auto [next, error] = std::from_chars(rest.data(), rest.data() + rest.size(), extent);
    if (error != std::errc() || extent < 0) return std::nullopt;
    rest.remove_prefix(static_cast<std::size_t>(next - rest.data()));
    if (!rest.empty() && rest[0] == ',')
      rest.remove_prefix(1);
    else if (!rest.empty())
      return std::nullopt;
    shape.push_back(extent);
  }
  return shape;
}

/// The product of the extents from `first` on; nullopt on overflow.
std::optional<std::int64_t> product(std::span<const std::int64_t> shape) {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape)
    if (__builtin_mul_overflow(n, extent, &n) || n > std::numeric_limits<std::int64_t>::max() / 8)
      return std::nullopt;
  return n;
}

template <typename T, typename Stored>
void convert(const std::vector<char>& bytes, std::vector<T>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof stored, sizeof stored);
    if constexpr (std::is_same_v<Stored, ep::numeric::Fp16>)
      values[i] = static_cast<T>(ep::numeric::to_float(stored));
    else
      values[i] = static_cast<T>(stored);
  }
}

}  // namespace

NpyReader::NpyReader(const std::string& path) : path_(path), file_(path, std::ios::binary) {
  if (!file_) fail_errno("{}: cannot be opened", path_);
  char start[8];
  require(file_.read(start, sizeof start) && std::memcmp(start, kMagic, sizeof kMagic) == 0,
          Code::invalid_argument, "{}: not a .npy file (NumPy array)", path_);
  const int version = static_cast<unsigned char>(start[6]);
  require(version == 1 || version == 2, Code::invalid_argument,
          "{}: .npy version {}; 1 and 2 are allowed", path_, version);
  unsigned char length_bytes[4] = {};
  const std::size_t length_size = version == 1 ? 2 : 4;
  file_.read(reinterpret_cast<char*>(length_bytes), static_cast<std::streamsize>(length_size));
  std::uint32_t length = 0;
  std::memcpy(&length, length_bytes, sizeof length);
  require(file_ && length <= kMaxHeader, Code::invalid_argument, "{}: the .npy header is damaged",
          path_);
  std::string header(length, ' ');
  require(static_cast<bool>(file_.read(header.data(), length)), Code::invalid_argument,
          "{}: ends inside the .npy header", path_);
  data_offset_ = static_cast<std::streamoff>(sizeof start + length_size + length);
  parse_header(header);
}

void NpyReader::parse_header(const std::string& header) {
  const auto descriptor = value_of(header, "descr"), order = value_of(header, "fortran_order"),
             shape = value_of(header, "shape");
  const auto extents = shape ? parse_shape(*shape) : std::nullopt;
  require(descriptor && descriptor->size() > 1 && order && extents && product(*extents),
          Code::invalid_argument, "{}: the .npy header is damaged", path_);
  require(!order->starts_with("True"), Code::invalid_argument,
          "{}: the array is in Fortran order; save it with np.ascontiguousarray", path_);
  for (const Descriptor& known : kDescriptors)
    if (descriptor->substr(1).starts_with(known.text)) dtype_ = known.dtype;
  require(dtype_ != DataType::none, Code::invalid_argument,
          "{}: dtype {}; float16, float32, float64, int32 and int64 are allowed", path_,
          descriptor->substr(0, descriptor->find(',')));
  shape_ = *extents;

  file_.seekg(0, std::ios::end);
  const std::int64_t present = file_.tellg() - data_offset_;
  const std::int64_t wanted = *product(shape_) * static_cast<std::int64_t>(size_of(dtype_));
  require(present >= wanted, Code::invalid_argument, "{}: has {} bytes of data; its shape needs {}",
          describe(), present, wanted);
}

std::int64_t NpyReader::row_size() const noexcept {
  return shape_.empty() ? 1 : *product(std::span(shape_).subspan(1));
}

std::string NpyReader::describe() const {
  return fmt::format("{}: {} [{}]", path_, name_of(dtype_), fmt::join(shape_, ", "));
}

void NpyReader::require_shape(std::span<const std::int64_t> wanted,
                              std::span<const std::string_view> names) const {
  const bool fits = shape_.size() == wanted.size() &&
                    std::ranges::equal(shape_, wanted, [](std::int64_t got, std::int64_t want) {
                      return want < 0 || got == want;
                    });
  if (fits) return;
  std::vector<std::string> texts;
  texts.reserve(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    texts.push_back(wanted[i] < 0 ? std::string(names[i])
                                  : fmt::format("{} {}", names[i], wanted[i]));
  fail(Code::invalid_argument, "{}; allowed: an array [{}]", describe(), fmt::join(texts, ", "));
}

template <typename T>
std::vector<T> NpyReader::read_rows(std::int64_t first, std::int64_t count) {
  require(first >= 0 && count >= 0 && count <= rows() - std::min(first, rows()),
          Code::invalid_argument, "{}: no rows {} to {}", describe(), first, first + count);
  require(std::is_floating_point_v<T> || dtype_ == DataType::int32 || dtype_ == DataType::int64,
          Code::invalid_argument, "{}; allowed: integers", describe());
  const std::size_t row_bytes = static_cast<std::size_t>(row_size()) * size_of(dtype_);
  std::vector<char> bytes(static_cast<std::size_t>(count) * row_bytes);
  file_.clear();
  file_.seekg(data_offset_ +
              static_cast<std::streamoff>(static_cast<std::size_t>(first) * row_bytes));
  file_.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  require(static_cast<bool>(file_), Code::system, "{}: cannot be read", describe());
  std::vector<T> values(static_cast<std::size_t>(count * row_size()));
  switch (dtype_) {
    case DataType::float16:
      convert<T, ep::numeric::Fp16>(bytes, values);
      break;
    case DataType::float32:
      convert<T, float>(bytes, values);
      break;
    case DataType::float64:
      convert<T, double>(bytes, values);
      break;
    case DataType::int32:
      convert<T, std::int32_t>(bytes, values);
      break;
    default:
      convert<T, std::int64_t>(bytes, values);
      break;
  }
  return values;
}

template std::vector<float> NpyReader::read_rows<float>(std::int64_t, std::int64_t);
template std::vector<double> NpyReader::read_rows<double>(std::int64_t, std::int64_t);
template std::vector<std::int64_t> NpyReader::read_rows<std::int64_t>(std::int64_t, std::int64_t);

NpyWriter::NpyWriter(const std::string& path, DataType dtype, std::span<const std::int64_t> shape)
    : path_(path),
      file_(path, std::ios::binary | std::ios::trunc),
      dtype_(dtype),
      missing_(product(shape).value_or(0)) {
  if (!file_) fail_errno("{}: cannot be written", path_);
  const auto* descriptor = std::ranges::find(kDescriptors, dtype, &Descriptor::dtype);
  require(descriptor != std::end(kDescriptors), Code::invalid_argument,
          "{}: dtype {} has no .npy form here", path_, name_of(dtype));
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", descriptor->text,
                  fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  const std::size_t prefix = sizeof kMagic + 4;
  header.append(kAlignment - 1 - (prefix + header.size()) % kAlignment, ' ');
  header += '\n';
  const auto length = static_cast<std::uint16_t>(header.size());
  file_.write(kMagic, sizeof kMagic);
  file_.write("\x01\x00", 2);
  file_.write(reinterpret_cast<const char*>(&length), sizeof length);
  file_.write(header.data(), static_cast<std::streamsize>(header.size()));
}

void NpyWriter::append_bytes(const void* data, std::size_t count, std::size_t element_size) {
  require(element_size == size_of(dtype_), Code::invalid_argument,
          "{}: elements of {} bytes for dtype {}", path_, element_size, name_of(dtype_));
  missing_ -= static_cast<std::int64_t>(count);
  require(missing_ >= 0, Code::invalid_argument, "{}: more elements than its shape has", path_);
  file_.write(static_cast<const char*>(data), static_cast<std::streamsize>(count * element_size));
}

void NpyWriter::close() {
  require(missing_ == 0, Code::invalid_argument, "{}: {} elements fewer than its shape has", path_,
          missing_);
  file_.close();
  if (!file_) fail_errno("{}: cannot be written", path_);
}

}  // namespace shoal::tools
