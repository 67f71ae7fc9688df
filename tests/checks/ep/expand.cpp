// SPDX-License-Identifier: Apache-2.0
#include "checks/ep/expand.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <string_view>

#include "base/check.hpp"

namespace shoal::test {
namespace {

constexpr int kPoison = 0x5a;

Tensor make(DataType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view(nullptr, dtype, shape);
  const std::size_t bytes = std::max<std::size_t>(view.bytes(), 64);
  std::shared_ptr<void> memory(std::aligned_alloc(64, (bytes + 63) / 64 * 64), std::free);
  std::memset(memory.get(), kPoison, bytes);
  view.data = memory.get();
  return Tensor(view, memory);
}

/// The arguments on the host, and the expected results.
class Expansion {
 public:
  Expansion(const ep::Group& group, const ExpandCase& given)
      : c(given),
        top_k(group.options().top_k),
        experts(group.local_experts()),
        random_(given.seed),
        topk_idx(make(DataType::int64, {c.rows + c.unused, top_k})),
        counts(make(DataType::int32, {experts})),
        ends(make(DataType::int32, {experts})),
        row_count(make(DataType::int32, {1})) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
    std::uniform_real_distribution<> share;
    std::fill_n(counts.as<std::int32_t>(), experts, 0);
    for (std::int32_t e = 0; e < experts; ++e) order[static_cast<std::size_t>(e)] = e;
    for (std::int64_t row = 0; row < c.rows + c.unused; ++row) {
      std::shuffle(order.begin(), order.end(), random_);
      for (std::int32_t k = 0; k < top_k; ++k) {
        const bool here = k < experts && share(random_) >= c.elsewhere;
        const std::int64_t expert = here ? order[static_cast<std::size_t>(k)] : -1;
        topk_idx.as<std::int64_t>()[row * top_k + k] = expert;
        if (here && row < c.rows) ++counts.as<std::int32_t>()[expert];
      }
    }
    std::int32_t end = 0;
    for (std::int32_t e = 0; e < experts; ++e) {
      end += (counts.as<std::int32_t>()[e] + c.alignment - 1) / c.alignment * c.alignment;
      ends.as<std::int32_t>()[e] = end;
    }
    copies = end + c.spare;
    *row_count.as<std::int32_t>() = static_cast<std::int32_t>(c.rows);
    number();
    change_rows();
  }

  void change_rows() {
    x = filled(make(DataType::bfloat16, {c.rows + c.unused, c.columns}));
    weights = filled(make(DataType::float32, {c.rows + c.unused, top_k}));
    scales =
        filled(make(c.tiles ? DataType::int32 : DataType::float32, {c.rows + c.unused, c.scales}));
  }

  /// Throws unless `out`, `out_weights` and `out_scales` (row by row) are as expected.
  void compare(const TensorView& out, const TensorView& out_weights,
               const std::function<std::uint32_t(std::int64_t, std::int64_t)>& scale) const {
    const std::size_t bytes = static_cast<std::size_t>(c.columns) * 2;
    const std::vector<std::byte> empty(bytes, c.zero_padding ? std::byte{0} : std::byte{kPoison});
    for (std::int64_t to = 0; to < copies; ++to) {
      const std::int64_t slot = slot_of_[static_cast<std::size_t>(to)], row = slot / top_k;
      const std::byte* const want =
          slot < 0 ? empty.data() : x.as<std::byte>() + static_cast<std::size_t>(row) * bytes;
      require(
          std::memcmp(out.as<std::byte>() + static_cast<std::size_t>(to) * bytes, want, bytes) == 0,
          Code::mismatch, "row {} of {} differs; it is that of slot {}", to, copies, slot);
      if (c.weights) {
        const float want_weight = slot < 0 ? 0 : weights.as<float>()[slot];
        require(std::memcmp(out_weights.as<float>() + to, &want_weight, sizeof want_weight) == 0,
                Code::mismatch, "weight {} is {}, expected {}", to, out_weights.as<float>()[to],
                want_weight);
      }
      for (std::int64_t s = 0; s < c.scales; ++s) {
        const std::uint32_t none = c.zero_padding ? 0 : 0x01010101U * kPoison;
        const std::uint32_t want_scale =
            slot < 0 ? none : scales.as<std::uint32_t>()[row * c.scales + s];
        require(scale(to, s) == want_scale, Code::mismatch, "scale {} of row {} is {}, expected {}",
                s, to, scale(to, s), want_scale);
      }
    }
  }

  void compare_numbers(const TensorView& rows, const TensorView& block_ends) const {
    for (std::int64_t i = 0; i < rows.size(); ++i)
      require(rows.as<std::int32_t>()[i] == numbers_[static_cast<std::size_t>(i)], Code::mismatch,
              "topk_rows[{}] is {}, expected {}", i, rows.as<std::int32_t>()[i],
              numbers_[static_cast<std::size_t>(i)]);
    for (std::int32_t e = 0; e < experts; ++e) {
      const std::int32_t want =
          (e == 0 ? 0 : ends.as<std::int32_t>()[e - 1]) + counts.as<std::int32_t>()[e];
      require(block_ends.as<std::int32_t>()[e] == want, Code::mismatch,
              "block {} ends at {}, expected {}", e, block_ends.as<std::int32_t>()[e], want);
    }
  }

  const ExpandCase c;
  const std::int32_t top_k, experts;
  std::int64_t copies = 0;

 private:
  std::mt19937_64 random_;

 public:
  Tensor topk_idx, counts, ends, row_count, x, weights, scales;

 private:
  Tensor filled(Tensor tensor) {
    for (std::size_t i = 0; i < tensor.bytes() / 2; ++i)
      tensor.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(random_());
    return tensor;
  }

  void number() {
    slot_of_.assign(static_cast<std::size_t>(copies), -1);
    std::vector<std::int32_t> next;
    for (std::int32_t e = 0; e < experts; ++e)
      next.push_back(e == 0 ? 0 : ends.as<std::int32_t>()[e - 1]);
    for (std::int64_t i = 0; i < topk_idx.size(); ++i) {
      const std::int64_t expert = i < c.rows * top_k ? topk_idx.as<std::int64_t>()[i] : -1;
      numbers_.push_back(expert < 0 ? -1 : next[static_cast<std::size_t>(expert)]++);
      if (expert >= 0) slot_of_[static_cast<std::size_t>(numbers_.back())] = i;
    }
  }

  std::vector<std::int64_t> slot_of_;  ///< by copy; -1: no token
  std::vector<std::int32_t> numbers_;  ///< by slot
};

}  // namespace

void check_expand(ep::Group& group, const ExpandCase& c, const TensorMover& tensors,
                  const ExpandCall& expand) {
  Expansion host(group, c);
  const Tensor topk_idx = tensors.upload(host.topk_idx), counts = tensors.upload(host.counts),
               ends = tensors.upload(host.ends), row_count = tensors.upload(host.row_count);
  const Tensor topk_rows = tensors.upload(make(DataType::int32, {c.rows + c.unused, host.top_k}));
  const Tensor block_ends = tensors.upload(make(DataType::int32, {host.experts}));
  for (const bool numbered : {false, true}) {
    if (numbered) host.change_rows();
    const Tensor x = tensors.upload(host.x), weights = tensors.upload(host.weights),
                 scales = tensors.upload(host.scales);
    const Tensor out = tensors.upload(make(DataType::bfloat16, {host.copies, c.columns}));
    const Tensor out_weights = tensors.upload(make(DataType::float32, {host.copies}));
    const Tensor memory =
        tensors.upload(c.tiles ? make(DataType::uint8, {(host.copies + 127) / 128, c.scales, 512})
                       : c.columns_first ? make(DataType::float32, {c.scales, host.copies})
                                         : make(DataType::float32, {host.copies, c.scales}));
    TensorView out_scales = memory;
    if (!c.tiles) {
      out_scales.shape = {host.copies, c.scales};
      out_scales.strides = {c.columns_first ? 1 : c.scales, c.columns_first ? host.copies : 1};
    }
    ep::ExpandOptions options;
    options.x = x;
    options.topk_idx = topk_idx;
    if (c.unused > 0) options.rows = row_count;
    options.tokens_per_expert = counts;
    options.expert_ends = ends;
    if (c.weights) options.weights = weights, options.out_weights = out_weights;
    if (c.scales > 0) options.scales = scales, options.out_scales = out_scales;
    options.topk_rows = topk_rows;
    options.numbered = numbered;
    options.out = out;
    if (!numbered) options.block_ends = block_ends;
    options.zero_padding = c.zero_padding;
    if (expand)
      expand(options);
    else
      group.expand(options);
    group.synchronize();
    const Tensor got_scales = tensors.download(memory);
    host.compare(tensors.download(out), tensors.download(out_weights),
                 [&](std::int64_t row, std::int64_t scale) {
                   const std::int64_t at = c.tiles           ? word_of_tiles(row, scale, c.scales)
                                           : c.columns_first ? scale * host.copies + row
                                                             : row * c.scales + scale;
                   return got_scales.as<std::uint32_t>()[at];
                 });
    host.compare_numbers(tensors.download(topk_rows), tensors.download(block_ends));
  }
}

void check_foreign_numbers(ep::Group& group, const TensorMover& tensors) {
  constexpr std::int64_t kRows = 8, kCopies = 6, kColumns = 64;
  const std::int64_t top_k = group.options().top_k;
  const Tensor x = make(DataType::bfloat16, {kRows, kColumns}),
               numbers = make(DataType::int32, {kRows, top_k}),
               counts = make(DataType::int32, {group.local_experts()});
  std::memset(x.data, 1, x.bytes());
  std::memset(counts.data, 0, counts.bytes());
  std::fill_n(numbers.as<std::int32_t>(), numbers.size(), -1);
  for (std::int32_t row = 0; row < kRows; ++row) numbers.as<std::int32_t>()[row * top_k] = row;
  const Tensor rows_on = tensors.upload(x), numbers_on = tensors.upload(numbers),
               counts_on = tensors.upload(counts),
               topk_idx = tensors.upload(make(DataType::int64, {kRows, top_k})),
               memory = tensors.upload(make(DataType::bfloat16, {kRows, kColumns}));
  ep::ExpandOptions options;
  options.x = rows_on;
  options.topk_idx = topk_idx;
  options.tokens_per_expert = options.expert_ends = counts_on;
  options.topk_rows = numbers_on;
  options.numbered = true;
  options.out = memory;
  options.out.shape[0] = kCopies;
  std::int64_t written = kCopies;
  try {
    group.expand(options);
    group.synchronize();
    require(memory.device.kind == DeviceKind::cuda, Code::mismatch, "the host accepts numbers");
  } catch (const Error& error) {
    constexpr std::string_view kText = "topk_rows[6, 0] is 6; allowed with numbered: -1 to 5";
    if (error.reason().find(kText) == std::string_view::npos) throw;
    written = 0;
  }
  const Tensor got = tensors.download(memory);
  for (std::int64_t i = 0; i < got.size(); ++i) {
    const int want = i / kColumns < written ? 0x0101 : 0x0101 * kPoison;
    require(got.as<std::uint16_t>()[i] == want, Code::mismatch, "element {} of the result is {}", i,
            got.as<std::uint16_t>()[i]);
  }
}

void check_small_expands(ep::Group& group, const TensorMover& tensors, const ExpandCall& expand) {
  const auto check = [&](const ExpandCase& c) { check_expand(group, c, tensors, expand); };
  for (const std::int32_t alignment : {1, 8, 128})
    for (const bool zero : {false, true}) {
      check({.alignment = alignment, .zero_padding = zero});
      check({.alignment = alignment,
             .spare = 9,
             .scales = 3,
             .columns_first = zero,
             .zero_padding = zero,
             .seed = 2});
    }
  for (const std::int32_t alignment : {128, 256})
    for (const bool zero : {false, true}) {
      check({.alignment = alignment,
             .spare = 37,
             .scales = 5,
             .tiles = true,
             .zero_padding = zero,
             .seed = 3});
      check({.rows = 400, .alignment = alignment, .scales = 1, .tiles = true});
    }
  check({.unused = 11, .alignment = 4, .spare = 3, .weights = false});
  check({.rows = 0, .unused = 5, .spare = 3});
  check({.rows = 1, .elsewhere = 1});
  check({.rows = 20, .elsewhere = 0});
}

}  // namespace shoal::test
