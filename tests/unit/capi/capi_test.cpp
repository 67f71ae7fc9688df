// SPDX-License-Identifier: Apache-2.0
// The C ABI without a world: errors, settings, tensors, and structs of older and newer headers.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "shoal/ep/gate.hpp"
#include "shoal/ep/group.hpp"
#include "shoal/error.hpp"
#include "shoal/version.hpp"
#include "support/capi/capi.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

TEST(CApiErrors, AreKeptForEachThread) {
  expect_failure(shoal_world_pe(nullptr, nullptr), SHOAL_INVALID_ARGUMENT,
                 "shoal_world_pe: world is NULL");
  std::thread([] {
    EXPECT_STREQ(shoal_last_error(), "");
    expect_failure(shoal_barrier(nullptr), SHOAL_INVALID_ARGUMENT,
                   "SHOAL-N888: shoal_barrier: team is NULL");
  }).join();
  EXPECT_STREQ(shoal_last_error(), "SHOAL-N888: shoal_world_pe: world is NULL");
  ok(shoal_version(nullptr, nullptr, nullptr));
  EXPECT_STREQ(shoal_last_error(), "SHOAL-N888: shoal_world_pe: world is NULL")
      << "a success leaves the message";
}

TEST(CApiErrors, StatusesHaveTheNamesOfCodes) {
  EXPECT_STREQ(shoal_status_name(SHOAL_OK), "ok");
  for (shoal_status status = SHOAL_INVALID_ARGUMENT; status <= SHOAL_CLOSED; ++status)
    EXPECT_EQ(shoal_status_name(status), name_of(static_cast<Code>(status)));
  EXPECT_STREQ(shoal_status_name(SHOAL_INTERNAL), "internal");
  EXPECT_STREQ(shoal_status_name(-1), "unknown");
  EXPECT_STREQ(shoal_status_name(10), "unknown");
}

TEST(CApiErrors, NullOutputsAreNamed) {
  CSettings settings;
  char text[8];
  expect_failure(shoal_settings_create(nullptr), SHOAL_INVALID_ARGUMENT, "settings is NULL");
  expect_failure(shoal_settings_set(settings.get(), nullptr, "1"), SHOAL_INVALID_ARGUMENT,
                 "name is NULL");
  expect_failure(shoal_settings_get(settings.get(), "SHOAL_PE", nullptr, 8), SHOAL_INVALID_ARGUMENT,
                 "text is NULL");
  expect_failure(shoal_settings_get(nullptr, "SHOAL_PE", text, 8), SHOAL_INVALID_ARGUMENT,
                 "settings is NULL");
  expect_failure(shoal_world_open(settings.get(), nullptr), SHOAL_INVALID_ARGUMENT,
                 "world is NULL");
  expect_failure(shoal_run_threads(1, nullptr, nullptr, nullptr), SHOAL_INVALID_ARGUMENT,
                 "body is NULL");
  expect_failure(shoal_ep_routing_release(nullptr), SHOAL_INVALID_ARGUMENT,
                 "shoal_ep_routing is NULL");
}

TEST(CApiErrors, DestroyTakesNull) {
  EXPECT_EQ(shoal_settings_destroy(nullptr), SHOAL_OK);
  EXPECT_EQ(shoal_unique_id_destroy(nullptr), SHOAL_OK);
  EXPECT_EQ(shoal_world_destroy(nullptr), SHOAL_OK);
  EXPECT_EQ(shoal_team_destroy(nullptr), SHOAL_OK);
  EXPECT_EQ(shoal_ep_group_destroy(nullptr), SHOAL_OK);
  EXPECT_EQ(shoal_ep_handle_destroy(nullptr), SHOAL_OK);
  EXPECT_EQ(shoal_ep_future_destroy(nullptr), SHOAL_OK);
  EXPECT_EQ(shoal_ep_low_latency_handle_destroy(nullptr), SHOAL_OK);
  EXPECT_EQ(shoal_ep_pending_dispatch_destroy(nullptr), SHOAL_OK);
  EXPECT_EQ(shoal_ep_pending_combine_destroy(nullptr), SHOAL_OK);
}

TEST(CApiErrors, VersionIsThatOfTheHeader) {
  int32_t major = -1, minor = -1, patch = -1;
  ok(shoal_version(&major, &minor, &patch));
  EXPECT_EQ(major, SHOAL_VERSION_MAJOR);
  EXPECT_EQ(minor, SHOAL_VERSION_MINOR);
  EXPECT_EQ(patch, SHOAL_VERSION_PATCH);
  EXPECT_EQ(loaded_version(), kVersion);
  EXPECT_EQ((Version{major, minor, patch}), kVersion);
  EXPECT_LT((Version{major, minor, patch}), (Version{major, minor, patch + 1}));
}

std::string setting(const CSettings& settings, const char* name) {
  char text[64];
  ok(shoal_settings_get(settings.get(), name, text, sizeof text));
  return text;
}

TEST(CApiSettings, AreSetByName) {
  CSettings settings;
  EXPECT_EQ(setting(settings, "SHOAL_TIMEOUT_MS"), "30000");
  settings.set("SHOAL_TIMEOUT_MS", "500")
      .set("NVSHMEM_SYMMETRIC_SIZE", "64M")
      .set("SHOAL_UNIQUE_ID", "secret");
  EXPECT_EQ(setting(settings, "SHOAL_TIMEOUT_MS"), "500");
  EXPECT_EQ(setting(settings, "SHOAL_SYMMETRIC_SIZE"), "64M");
  EXPECT_EQ(setting(settings, "SHOAL_UNIQUE_ID"), "(set)");
}

TEST(CApiSettings, RefuseWhatTheEnvironmentRefuses) {
  CSettings settings;
  expect_failure(shoal_settings_set(settings.get(), "SHOAL_TIMEOUT_MS", "soon"),
                 SHOAL_INVALID_ARGUMENT,
                 "SHOAL_TIMEOUT_MS is \"soon\"; allowed: milliseconds from 1");
  EXPECT_EQ(setting(settings, "SHOAL_TIMEOUT_MS"), "30000");
  expect_failure(shoal_settings_set(settings.get(), "SHOAL_SPEED", "1"), SHOAL_INVALID_ARGUMENT,
                 "no setting SHOAL_SPEED");
  expect_failure(shoal_settings_set(settings.get(), "", "1"), SHOAL_INVALID_ARGUMENT, "no setting");
  char text[5];
  expect_failure(shoal_settings_get(settings.get(), "SHOAL_TIMEOUT_MS", text, sizeof text),
                 SHOAL_INVALID_ARGUMENT, "room for 5 bytes; the value of SHOAL_TIMEOUT_MS needs 6");
}

// One name of NVSHMEM may stand for several settings.
TEST(CApiSettings, NamesOfNvshmemSetAllTheirSettings) {
  CSettings settings;
  ok(shoal_settings_set(settings.get(), "NVSHMEM_IB_ENABLE_IBGDA", "1"));
  EXPECT_EQ(setting(settings, "SHOAL_GDA"), "automatic");
  EXPECT_EQ(setting(settings, "SHOAL_VERBS_INTERFACE"), "devx");
  ok(shoal_settings_set(settings.get(), "NVSHMEM_QP_DEPTH", "1024"));
  EXPECT_EQ(setting(settings, "SHOAL_VERBS_DEPTH"), "1024");
  EXPECT_EQ(setting(settings, "NVSHMEM_QP_DEPTH"), "1024");
}

TEST(CApiSettings, FromTheEnvironment) {
  ASSERT_EQ(setenv("SHOAL_SPIN", "123", 1), 0);
  shoal_settings* settings = nullptr;
  ok(shoal_settings_from_environment(&settings));
  ASSERT_EQ(unsetenv("SHOAL_SPIN"), 0);
  char text[16];
  ok(shoal_settings_get(settings, "SHOAL_SPIN", text, sizeof text));
  EXPECT_STREQ(text, "123");
  ok(shoal_settings_destroy(settings));
}

TEST(CApiTensor, InitIsRowMajor) {
  float data[24];
  const int64_t shape[3] = {2, 3, 4};
  shoal_tensor tensor;
  ok(shoal_tensor_init(&tensor, data, SHOAL_FLOAT32, 3, shape));
  EXPECT_EQ(tensor.data, data);
  EXPECT_EQ(tensor.rank, 3);
  EXPECT_EQ(tensor.dtype, SHOAL_FLOAT32);
  EXPECT_EQ(tensor.device, SHOAL_HOST);
  const int64_t strides[4] = {12, 4, 1, 0};
  EXPECT_EQ(std::memcmp(tensor.strides, strides, sizeof strides), 0);
}

TEST(CApiTensor, InitRefusesWhatNoTensorCanBe) {
  const int64_t shape[4] = {2, 3, 4, 5}, negative[1] = {-1};
  const int64_t large[3] = {INT64_MAX, 2, 2}, of_bytes[2] = {INT64_MAX / 4, 2}, empty[2] = {0, 7};
  shoal_tensor tensor = SHOAL_TENSOR_NONE;
  for (const int32_t dtype : {-1, 0, 10})
    expect_failure(shoal_tensor_init(&tensor, nullptr, dtype, 2, shape), SHOAL_INVALID_ARGUMENT,
                   "tensor.dtype is");
  for (const int32_t rank : {INT32_MIN, -3, 0, 5, 1 << 30, INT32_MAX})
    expect_failure(shoal_tensor_init(&tensor, nullptr, SHOAL_INT8, rank, shape),
                   SHOAL_INVALID_ARGUMENT, "allowed: 1 to 4");
  expect_failure(shoal_tensor_init(&tensor, nullptr, SHOAL_INT8, 1, negative),
                 SHOAL_INVALID_ARGUMENT, "tensor.shape[0] is -1");
  expect_failure(shoal_tensor_init(&tensor, nullptr, SHOAL_INT8, 1, nullptr),
                 SHOAL_INVALID_ARGUMENT, "shape is NULL");
  expect_failure(shoal_tensor_init(nullptr, nullptr, SHOAL_INT8, 2, shape), SHOAL_INVALID_ARGUMENT,
                 "tensor is NULL");
  expect_failure(shoal_tensor_init(&tensor, nullptr, SHOAL_INT8, 3, large), SHOAL_INVALID_ARGUMENT,
                 "tensor has more than 2^63 - 1 bytes");
  expect_failure(shoal_tensor_init(&tensor, nullptr, SHOAL_FLOAT32, 2, of_bytes),
                 SHOAL_INVALID_ARGUMENT, "tensor has more than 2^63 - 1 bytes");
  EXPECT_EQ(tensor.dtype, SHOAL_NONE) << "nothing is written by a call that fails";
  ok(shoal_tensor_init(&tensor, nullptr, SHOAL_FLOAT32, 2, empty));
  EXPECT_EQ(tensor.strides[0], 7);
}

shoal_ep_group_options some_options() {
  shoal_ep_group_options options = SHOAL_EP_GROUP_OPTIONS_INIT;
  options.max_tokens = 64;
  options.hidden = 256;
  options.top_k = 4;
  options.experts = 16;
  return options;
}

std::uint64_t total_of(const shoal_ep_group_options* options) {
  shoal_ep_sizes sizes = SHOAL_EP_SIZES_INIT;
  ok(shoal_ep_size_hint(options, 4, SHOAL_HOST, &sizes));
  EXPECT_EQ(sizes.total, sizes.control + sizes.normal + sizes.low_latency);
  return sizes.total;
}

TEST(CApiGate, ChoosesAsTheCppGate) {
  std::vector<float> logits(3 * 8), bias(8);
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>((i * 7) % 11) * 0.25F - 1;
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i % 3) * 0.1F;
  const std::int64_t shape[] = {3, 8};
  shoal_tensor c_logits, c_bias;
  ASSERT_EQ(shoal_tensor_init(&c_logits, logits.data(), SHOAL_FLOAT32, 2, shape), SHOAL_OK);
  ASSERT_EQ(shoal_tensor_init(&c_bias, bias.data(), SHOAL_FLOAT32, 1, shape + 1), SHOAL_OK);
  shoal_ep_gate_options options = SHOAL_EP_GATE_OPTIONS_INIT;
  options.experts = 8;
  options.groups = 4;
  options.groups_kept = 2;
  options.top_k = 3;
  options.routed_scaling = 2.5F;
  shoal_ep_gated gated = SHOAL_EP_GATED_INIT;
  ASSERT_EQ(shoal_ep_gate(&c_logits, &c_bias, &options, &gated), SHOAL_OK) << shoal_last_error();
  const ep::Gated wanted =
      ep::gate(TensorView(logits.data(), DataType::float32, {3, 8}),
               TensorView(bias.data(), DataType::float32, {8}),
               {.experts = 8, .groups = 4, .groups_kept = 2, .top_k = 3, .routed_scaling = 2.5F});
  ASSERT_EQ(gated.topk_idx.shape[1], 3);
  EXPECT_EQ(std::memcmp(gated.topk_idx.data, wanted.topk_idx.data, 3 * 3 * 8), 0);
  EXPECT_EQ(std::memcmp(gated.topk_weights.data, wanted.topk_weights.data, 3 * 3 * 4), 0);
  EXPECT_EQ(shoal_ep_gate(&c_logits, &c_bias, &options, &gated), SHOAL_INVALID_ARGUMENT)
      << "it holds a result";
  EXPECT_EQ(shoal_ep_gated_release(&gated), SHOAL_OK);
  EXPECT_EQ(gated.topk_idx.dtype, SHOAL_NONE);

  options.score = 2;
  EXPECT_EQ(shoal_ep_gate(&c_logits, nullptr, &options, &gated), SHOAL_INVALID_ARGUMENT);
  expect_parts(shoal_last_error(), {"shoal_ep_gate_options.score is 2"});
  options.score = SHOAL_GATE_SOFTMAX;
  options.groups = 3;
  EXPECT_EQ(shoal_ep_gate(&c_logits, nullptr, &options, &gated), SHOAL_INVALID_ARGUMENT);
  EXPECT_EQ(shoal_ep_gate(nullptr, nullptr, nullptr, &gated), SHOAL_INVALID_ARGUMENT);
}

TEST(CApiGate, RefusesTensorsWithoutMemory) {
  const std::vector<float> numbers(2 * 8);
  const int64_t shape[] = {2, 8}, none[] = {0, 8};
  shoal_tensor logits, bias, empty;
  ok(shoal_tensor_init(&logits, nullptr, SHOAL_FLOAT32, 2, shape));
  ok(shoal_tensor_init(&bias, nullptr, SHOAL_FLOAT32, 1, shape + 1));
  ok(shoal_tensor_init(&empty, nullptr, SHOAL_FLOAT32, 2, none));
  shoal_ep_gate_options options = SHOAL_EP_GATE_OPTIONS_INIT;
  options.experts = 8;
  shoal_ep_gated gated = SHOAL_EP_GATED_INIT;
  expect_failure(shoal_ep_gate(&logits, nullptr, &options, &gated), SHOAL_INVALID_ARGUMENT,
                 "shoal_ep_gate: logits.data is NULL; a tensor of this shape has 64 bytes");
  logits.data = const_cast<float*>(numbers.data());
  expect_failure(shoal_ep_gate(&logits, &bias, &options, &gated), SHOAL_INVALID_ARGUMENT,
                 "shoal_ep_gate: bias.data is NULL");
  logits.shape[0] = INT64_MAX;
  expect_failure(shoal_ep_gate(&logits, nullptr, &options, &gated), SHOAL_INVALID_ARGUMENT,
                 "logits has more than 2^63 - 1 bytes");
  EXPECT_EQ(gated.owner, nullptr);
  ok(shoal_ep_gate(&empty, nullptr, &options, &gated));
  EXPECT_EQ(gated.topk_idx.shape[0], 0) << "a tensor without elements needs no memory";
  ok(shoal_ep_gated_release(&gated));
}

TEST(CApiStructs, OptionsReachTheLibrary) {
  shoal_ep_group_options options = some_options();
  ep::GroupOptions wanted{.max_tokens = 64, .hidden = 256, .top_k = 4, .experts = 16};
  EXPECT_EQ(total_of(&options), ep::size_hint(wanted, 4).total());
  options.dtype = SHOAL_FLOAT32, options.live_results = 5, options.max_scales = 17;
  options.low_latency_max_tokens = 32, options.combine_staging = 0;
  wanted.dtype = DataType::float32, wanted.live_results = 5, wanted.max_scales = 17;
  wanted.low_latency_max_tokens = 32, wanted.combine_staging = false;
  EXPECT_EQ(total_of(&options), ep::size_hint(wanted, 4).total());
  std::uint64_t bytes = 0;
  ok(shoal_ep_low_latency_size_hint(32, 256, 4, 16, 4, SHOAL_CUDA, &bytes));
  EXPECT_EQ(bytes, ep::low_latency_size_hint(32, 256, 4, 16, 4, DeviceKind::cuda));
}

TEST(CApiStructs, AnOlderStructHasDefaultsForWhatItLacks) {
  shoal_ep_group_options options = some_options();
  const std::uint64_t wanted = total_of(&options);
  options.size = offsetof(shoal_ep_group_options, dtype);
  // The bytes after an older struct are arbitrary.
  options.dtype = 77;
  options.live_results = -5;
  options.combine_staging = 0;
  EXPECT_EQ(total_of(&options), wanted);
  options.size = sizeof options;
  shoal_ep_sizes sizes = SHOAL_EP_SIZES_INIT;
  expect_failure(shoal_ep_size_hint(&options, 4, SHOAL_HOST, &sizes), SHOAL_INVALID_ARGUMENT,
                 "shoal_ep_group_options.dtype is 77");
}

TEST(CApiStructs, ANewerStructIsTakenWhereItAsksForNothingNew) {
  struct Newer {
    shoal_ep_group_options known = some_options();
    std::int64_t unknown[2] = {0, 0};
  } newer;
  newer.known.size = sizeof newer;
  const shoal_ep_group_options equal = some_options();
  EXPECT_EQ(total_of(&newer.known), total_of(&equal));
  newer.unknown[1] = std::int64_t{1} << 56;  // the last byte alone
  shoal_ep_sizes sizes = SHOAL_EP_SIZES_INIT;
  expect_failure(
      shoal_ep_size_hint(&newer.known, 4, SHOAL_HOST, &sizes), SHOAL_INVALID_ARGUMENT,
      "shoal_ep_group_options has 128 bytes, and byte 127 is not zero; this library knows the first 112");
}

TEST(CApiStructs, SizesThatNoHeaderHadAreRefused) {
  shoal_ep_group_options options = some_options();
  shoal_ep_sizes sizes = SHOAL_EP_SIZES_INIT;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{7}, std::size_t{76}, std::size_t{1} << 40}) {
    options.size = size;
    expect_failure(shoal_ep_size_hint(&options, 4, SHOAL_HOST, &sizes), SHOAL_INVALID_ARGUMENT,
                   "shoal_ep_group_options.size is " + std::to_string(size));
  }
  options = some_options();
  sizes.size = 1;
  expect_failure(shoal_ep_size_hint(&options, 4, SHOAL_HOST, &sizes), SHOAL_INVALID_ARGUMENT,
                 "shoal_ep_sizes.size is 1");
  expect_failure(shoal_ep_size_hint(&options, 4, SHOAL_HOST, nullptr), SHOAL_INVALID_ARGUMENT,
                 "shoal_ep_sizes is NULL");
  expect_failure(shoal_ep_size_hint(nullptr, 4, SHOAL_HOST, &sizes), SHOAL_INVALID_ARGUMENT,
                 "shoal_ep_sizes.size is 1");
  sizes = SHOAL_EP_SIZES_INIT;
  expect_failure(shoal_ep_size_hint(nullptr, 4, SHOAL_HOST, &sizes), SHOAL_INVALID_ARGUMENT,
                 "options is NULL");
  expect_failure(shoal_ep_size_hint(&options, 4, 2, &sizes), SHOAL_INVALID_ARGUMENT,
                 "heap is 2; allowed: 0 to 1");
}

TEST(CApiStructs, ResultsAreWrittenAsFarAsTheStructGoes) {
  const shoal_ep_group_options options = some_options();
  shoal_ep_sizes all = SHOAL_EP_SIZES_INIT;
  ok(shoal_ep_size_hint(&options, 4, SHOAL_HOST, &all));
  shoal_ep_sizes older = {offsetof(shoal_ep_sizes, low_latency), 1, 1, 77, 77, 77};
  ok(shoal_ep_size_hint(&options, 4, SHOAL_HOST, &older));
  EXPECT_EQ(older.control, all.control);
  EXPECT_EQ(older.normal, all.normal);
  EXPECT_EQ(older.low_latency, 77u);
  EXPECT_EQ(older.total, 77u);
  struct Newer {
    shoal_ep_sizes known = {sizeof(Newer), 1, 1, 1, 1, 1};
    std::uint64_t unknown = 77, behind = 77;
  } newer;
  newer.known.size = offsetof(Newer, behind);
  ok(shoal_ep_size_hint(&options, 4, SHOAL_HOST, &newer.known));
  EXPECT_EQ(newer.known.total, all.total);
  EXPECT_EQ(newer.unknown, 0u) << "this library has no value for it";
  EXPECT_EQ(newer.behind, 77u);
}

TEST(CApiStructs, AStructThatWasNotInitialisedIsNotTakenForAResult) {
  shoal_ep_routing routing = SHOAL_EP_ROUTING_INIT;
  int32_t inside = 0;
  expect_failure(shoal_ep_is_token_in_rank(&routing, 0, 0, &inside), SHOAL_INVALID_ARGUMENT,
                 "routing holds no result");
  routing.size = 8;
  expect_failure(shoal_ep_routing_release(&routing), SHOAL_INVALID_ARGUMENT,
                 "shoal_ep_routing.size is 8");
  routing = SHOAL_EP_ROUTING_INIT;
  EXPECT_EQ(shoal_ep_routing_release(&routing), SHOAL_OK) << "empty: nothing to release";
}

}  // namespace
}  // namespace shoal::test
