// SPDX-License-Identifier: Apache-2.0
// capi.hpp: tests of the C ABI: PEs as threads, expected statuses, and views of the same tensor in
// C and C++.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>

#include "shoal/shoal.h"
#include "shoal/tensor.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {

/// Throws with the message of a call that failed.
inline void ok(shoal_status status) {
  if (status != SHOAL_OK) throw std::runtime_error(shoal_last_error());
}

/// Fails the test unless the call before failed with `wanted` and a message that contains `text`.
inline void expect_failure(shoal_status status, shoal_status wanted, const std::string& text) {
  EXPECT_EQ(status, wanted) << shoal_status_name(status) << ": " << shoal_last_error();
  expect_parts(shoal_last_error(), {text});
}

/// Settings that free themselves.
class CSettings {
 public:
  CSettings() { ok(shoal_settings_create(&settings_)); }
  ~CSettings() { shoal_settings_destroy(settings_); }
  CSettings(const CSettings&) = delete;
  CSettings& operator=(const CSettings&) = delete;
  CSettings& set(const char* name, const char* value) {
    ok(shoal_settings_set(settings_, name, value));
    return *this;
  }
  shoal_settings* get() const { return settings_; }

 private:
  shoal_settings* settings_ = nullptr;
};

/// A small heap, and a timeout that a loaded machine does not reach but a hung test does.
inline void run_pes(int n_pes, const std::function<void(shoal_world*)>& body) {
  CSettings settings;
  settings.set("SHOAL_SYMMETRIC_SIZE", "256M").set("SHOAL_TIMEOUT_MS", "20000");
  const shoal_status status = shoal_run_threads(
      n_pes, settings.get(),
      [](shoal_world* world, void* context) -> shoal_status {
        (*static_cast<const std::function<void(shoal_world*)>*>(context))(world);
        return SHOAL_OK;
      },
      const_cast<void*>(static_cast<const void*>(&body)));
  EXPECT_EQ(status, SHOAL_OK) << shoal_last_error();
}

inline TensorView view_of(const shoal_tensor& tensor) {
  TensorView view;
  view.data = tensor.data;
  view.dtype = static_cast<DataType>(tensor.dtype);
  view.rank = tensor.rank;
  std::copy_n(tensor.shape, 4, view.shape.begin());
  std::copy_n(tensor.strides, 4, view.strides.begin());
  return view;
}

inline shoal_tensor c_tensor(const TensorView& view) {
  shoal_tensor tensor = SHOAL_TENSOR_NONE;
  ok(shoal_tensor_init(&tensor, view.data, static_cast<std::int32_t>(view.dtype), view.rank,
                       view.shape.data()));
  return tensor;
}

}  // namespace shoal::test
