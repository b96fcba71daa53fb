// Every rule of the options, and that the first violated one in order is reported.
#include "tpsync/sync/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/base/testing/fake_world.h"

namespace tpsync::sync {
namespace {

using fakes::failure_of;
using testing::HasSubstr;

using Edit = std::function<void(SyncOptions&)>;

ErrorRecord refusal(const Edit& edit) {
  SyncOptions options;
  edit(options);
  const ErrorRecord record = failure_of([&] { check_options(options); });
  EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
  EXPECT_EQ(record.remedy, Remedy::kFixInput);
  return record;
}

TEST(SyncOptions, DefaultsAreTheOriginals) {
  const SyncOptions options;
  check_options(options);
  EXPECT_EQ(options.bucket_bytes, 2048 * kMiB);
  EXPECT_EQ(options.gpu_memory_headroom_bytes, 2048 * kMiB);
  EXPECT_EQ(options.control_timeout, std::chrono::seconds(900));
  EXPECT_TRUE(options.flush_cache);
  EXPECT_FALSE(options.lora_merged);
}

TEST(SyncOptions, TheFirstViolatedRuleIsReported) {
  const std::vector<std::pair<std::string, Edit>> in_order = {
      {"bucket_bytes", [](auto& o) { o.bucket_bytes = 0; }},
      {"control_timeout", [](auto& o) { o.control_timeout = Duration(0); }},
      {"route",
       [](auto& o) {
         o.route = wire::Route::kReshard;
         o.layout = wire::Layout::kCompact;
       }},
      {"adapter_name", [](auto& o) { o.adapter_name = "mine"; }},
      {"name_remap",
       [](auto& o) {
         o.name_remap = {{"none", "x.*"}};
       }},
      {"last_committed_version", [](auto& o) { o.last_committed_version = -1; }},
  };
  for (std::size_t first = 0; first < in_order.size(); ++first) {
    const ErrorRecord record = refusal([&](SyncOptions& options) {
      for (std::size_t i = first; i < in_order.size(); ++i) in_order[i].second(options);
    });
    EXPECT_EQ(record.subject, in_order[first].first);
  }
}

TEST(SyncOptions, EdgesOfTheRules) {
  SyncOptions options;
  options.bucket_bytes = 1;
  options.control_timeout = Duration(1);
  options.last_committed_version = 0;
  check_options(options);
  options.last_committed_version = INT64_MAX - 1;
  check_options(options);
  EXPECT_EQ(refusal([](auto& o) { o.last_committed_version = INT64_MAX; }).subject,
            "last_committed_version");
  EXPECT_EQ(refusal([](auto& o) { o.control_timeout = Duration(-1); }).subject, "control_timeout");
}

TEST(SyncOptions, AnotherAdapterThanTheDefaultNeedsMergedWeights) {
  SyncOptions options;
  options.adapter_name = "default";
  check_options(options);
  options.adapter_name = "mine";
  options.lora_merged = true;
  check_options(options);
  EXPECT_EQ(refusal([](auto& o) { o.adapter_name = ""; }).subject, "adapter_name");
}

TEST(SyncOptions, RemapPatternsHaveExactlyOneStarAndABareOneIsLast) {
  SyncOptions options;
  options.name_remap = {{"a.*", "b.*"}, {"c.*.d", std::nullopt}, {"*", "x.*"}};
  check_options(options);
  const auto detail = [](const std::string& pattern, std::optional<std::string> replacement) {
    return refusal([&](auto& o) { o.name_remap = {{pattern, std::move(replacement)}}; }).detail;
  };
  EXPECT_THAT(detail("a.b", "c.*"), HasSubstr("the pattern \"a.b\""));
  EXPECT_THAT(detail("a.*.*", "c.*"), HasSubstr("the pattern \"a.*.*\""));
  EXPECT_THAT(detail("a.*", "c"), HasSubstr("the replacement \"c\""));
  EXPECT_THAT(detail("a.*", "**"), HasSubstr("the replacement \"**\""));
  EXPECT_THAT(refusal([](auto& o) {
                o.name_remap = {{"*", std::nullopt}, {"a.*", "b.*"}};
              }).detail,
              HasSubstr("a bare *"));
}

TEST(SyncOptions, WireDtypesAreReadInAnyCase) {
  for (const char* text : {"bf16", "bfloat16", "BF16", "BFloat16"}) {
    EXPECT_EQ(parse_wire_dtype(text), DType::kBFloat16) << text;
  }
  for (const char* text : {"fp16", "float16", "half", "HALF"}) {
    EXPECT_EQ(parse_wire_dtype(text), DType::kFloat16) << text;
  }
  for (const char* text : {"fp32", "float32", "float", "Float"}) {
    EXPECT_EQ(parse_wire_dtype(text), DType::kFloat32) << text;
  }
  for (const char* text : {"", "int8", "torch.bfloat16", "bf16 "}) {
    const ErrorRecord record = failure_of([&] { parse_wire_dtype(text); });
    EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig) << text;
    EXPECT_EQ(record.subject, "wire_dtype");
  }
}

}  // namespace
}  // namespace tpsync::sync
