// Two hundred publications on this host leave every process with what it had.
#include "conformance/process/testing/endurance.h"

#include <gtest/gtest.h>

#include "tpsync/model/config.h"

namespace tpsync::conformance {
namespace {

TEST(Endurance, TwoHundredPublicationsLeaveEveryProcessWithWhatItHadAfterTheSecond) {
  // With the simulator's long timeouts: none of them is meant to pass.
  const Endured endured =
      endure({.options = {TPSYNC_TEST_RUNTIME},
              .spec = small_world(model::load_model_config(std::string(TPSYNC_SOURCE_DIR) +
                                                           "/conformance/models/tiny-tp4.json"),
                                  2),
              .publications = 200,
              .early = 2});
  expect_the_same(endured, 1 << 20);
  EXPECT_EQ(endured.early.processes.size(), 5U) << "two actors, the runtime and two workers";
}

}  // namespace
}  // namespace tpsync::conformance
