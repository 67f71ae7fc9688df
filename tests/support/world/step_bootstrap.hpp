// SPDX-License-Identifier: Apache-2.0
// step_bootstrap.hpp: a Bootstrap that runs an action at one step of a world's startup.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "shoal/bootstrap.hpp"

namespace shoal::test {

/// Forwards all calls to `inner`. Calls `action` before the all-gather of `step`, or after it with
/// When::after. The all-gather throws what the action throws.
class StepBootstrap final : public Bootstrap {
 public:
  enum class When { before, after };

  StepBootstrap(std::shared_ptr<Bootstrap> inner, std::string step, When when,
                std::function<void()> action)
      : inner_(std::move(inner)), step_(std::move(step)), when_(when), action_(std::move(action)) {}

  std::int32_t pe() const noexcept override { return inner_->pe(); }
  std::int32_t n_pes() const noexcept override { return inner_->n_pes(); }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine,
                                                 std::string_view step) override {
    if (step == step_ && when_ == When::before) action_();
    auto all = inner_->all_gather(mine, step);
    if (step == step_ && when_ == When::after) action_();
    return all;
  }
  void barrier(std::string_view step) override { inner_->barrier(step); }
  void abort(const std::string& reason) noexcept override { inner_->abort(reason); }
  std::optional<std::string> aborted() noexcept override { return inner_->aborted(); }
  void close() noexcept override { inner_->close(); }

 private:
  std::shared_ptr<Bootstrap> inner_;
  std::string step_;
  When when_;
  std::function<void()> action_;
};

}  // namespace shoal::test
