// SPDX-License-Identifier: Apache-2.0
#include "startup/phases.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.hpp"
#include "pe/agreement.hpp"

namespace shoal::detail {

void PhaseRunner::keep(const char* name, const Error& error) {
  failure_ = Failure{name, error.code(), reason_of(error)};
}

PhaseRunner::Blobs PhaseRunner::gather(const char* name, std::vector<std::byte> mine) {
  if (bootstrap_ == nullptr)
    fail(failure_->code, "SHOAL-N190: this PE failed in phase {}: {}", failure_->phase,
         failure_->message);
  BlobWriter blob;
  blob.value<std::uint8_t>(failure_.has_value());
  if (failure_) {
    blob.value(failure_->code);
    blob.text(failure_->phase);
    blob.text(failure_->message);
  } else {
    blob.bytes(mine);
  }
  Blobs gathered;
  try {
    gathered = bootstrap_->all_gather(blob.take(), name);
  } catch (const std::exception& error) {
    // The other PEs do not know yet if the bootstrap failed on this PE alone.
    bootstrap_->abort(fmt::format("failed in phase {}: {}", name, reason_of(error)));
    if (failure_)
      fail(failure_->code, "SHOAL-N190: PE {} failed in phase {}: {}", bootstrap_->pe(),
           failure_->phase, failure_->message);
    throw;
  }

  Blobs all;
  std::vector<std::pair<Pe, Failure>> failures;
  for (std::size_t pe = 0; pe < gathered.size(); ++pe) {
    BlobReader reader(gathered[pe]);
    if (reader.value<std::uint8_t>() == 0) {
      all.push_back(reader.bytes());
      continue;
    }
    Failure failure;
    failure.code = reader.value<Code>();
    failure.phase = reader.text();
    failure.message = reader.text();
    failures.emplace_back(static_cast<Pe>(pe), std::move(failure));
  }
  if (!failures.empty()) throw_agreed(failures);
  return all;
}

void PhaseRunner::throw_agreed(const std::vector<std::pair<Pe, Failure>>& failures) const {
  const auto& [pe, first] = failures.front();
  const Pe n_pes = bootstrap_->n_pes();
  // All PEs find some failures alike, such as a disagreement between them. Those name no PE.
  const auto same = [&](const auto& other) { return other.second.message == first.message; };
  const bool on_all = n_pes > 1 && static_cast<Pe>(failures.size()) == n_pes &&
                      std::all_of(failures.begin(), failures.end(), same);
  const Code code = failure_ ? failure_->code : Code::peer_failed;
  if (on_all) fail(code, "SHOAL-N190: all PEs failed in phase {}: {}", first.phase, first.message);
  fail(code, "SHOAL-N190: PE {} failed in phase {}: {}", pe, first.phase, first.message);
}

}  // namespace shoal::detail
