// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/round.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal::bootstrap {
namespace {

std::string name_call(Call::Kind kind, const std::string& step) {
  return fmt::format("{}(\"{}\")", kind == Call::Kind::barrier ? "barrier" : "all_gather", step);
}

}  // namespace

std::string name_pes(std::span<const Pe> pes, std::int32_t n_pes) {
  constexpr std::size_t kShown = 16;  // PEs
  const auto shown = pes.first(std::min(pes.size(), kShown));
  return fmt::format("PE{} {}{} of {}", pes.size() == 1 ? "" : "s", fmt::join(shown, ", "),
                     pes.size() > kShown ? fmt::format(" and {} more", pes.size() - kShown) : "",
                     n_pes);
}

std::optional<Failure> Round::arrive(Pe pe, Call call) {
  if (arrived_ == 0) {
    first_ = pe;
    kind_ = call.kind;
    step_ = call.step;
  }
  if (call.kind != kind_ || call.step != step_)
    return Failure{
        Code::mismatch, -1,
        fmt::format(
            "PE {} called {} while PE {} called {}: all PEs make the same calls in the same order",
            first_, name(), pe, name_call(call.kind, call.step))};
  auto& slot = contributions_[static_cast<std::size_t>(pe)];
  if (slot)
    return Failure{Code::mismatch, pe, fmt::format("PE {} called {} twice at once", pe, name())};
  slot = std::move(call.data);
  ++arrived_;
  return std::nullopt;
}

std::string Round::name() const {
  return name_call(kind_, step_);
}

Failure Round::timed_out(std::chrono::milliseconds limit) const {
  std::vector<Pe> missing;
  for (std::size_t pe = 0; pe < contributions_.size(); ++pe)
    if (!contributions_[pe]) missing.push_back(static_cast<Pe>(pe));
  return {Code::timeout, -1,
          fmt::format("SHOAL-N129: {} did not call {} within {} ms of PE {}. Setting: "
                      "SHOAL_BOOTSTRAP_TIMEOUT_MS",
                      name_pes(missing, static_cast<std::int32_t>(contributions_.size())), name(),
                      limit.count(), first_)};
}

std::vector<Bytes> Round::take() {
  std::vector<Bytes> taken;
  for (auto& slot : contributions_) {
    taken.push_back(std::move(*slot));
    slot.reset();
  }
  arrived_ = 0;
  return taken;
}

}  // namespace shoal::bootstrap
