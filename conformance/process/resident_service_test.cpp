#include "conformance/process/resident_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "tpsync/base/errors.h"
#include "tpsync/base/testing/temporary_folder.h"

namespace tpsync::conformance {
namespace {

class ResidentServices : public testing::Test {
 protected:
  TemporaryFolder folder_{"tpsync-resident"};
  std::string path_ = folder_.path() / "resident-0";
};

TEST_F(ResidentServices, WhoeverAsksGetsTheLaneOfNow) {
  std::atomic<std::int64_t> lane{7};
  const ResidentService service(path_, [&] { return std::optional(lane.load()); });
  EXPECT_EQ(ask_resident(path_), 7);
  lane = 8;
  EXPECT_EQ(ask_resident(path_), 8);
}

TEST_F(ResidentServices, WeightsThatAreAwayHaveNoLane) {
  const ResidentService service(path_, [] { return std::optional<std::int64_t>(); });
  EXPECT_EQ(ask_resident(path_), std::nullopt);
}

TEST_F(ResidentServices, NobodyAnswersBeforeAndAfterTheService) {
  EXPECT_EQ(ask_resident(path_), std::nullopt);
  {
    const ResidentService service(path_, [] { return std::optional<std::int64_t>(1); });
  }
  EXPECT_EQ(ask_resident(path_), std::nullopt);
}

TEST_F(ResidentServices, ANewServiceTakesThePlaceOfOneThatIsGone) {
  {
    const ResidentService first(path_, [] { return std::optional<std::int64_t>(1); });
  }
  const ResidentService second(path_, [] { return std::optional<std::int64_t>(2); });
  EXPECT_EQ(ask_resident(path_), 2);
}

TEST_F(ResidentServices, ManyMayAskAtOnce) {
  const ResidentService service(path_, [] { return std::optional<std::int64_t>(3); });
  std::atomic<int> right{0};
  std::vector<std::thread> askers;
  for (int i = 0; i < 16; ++i)
    askers.emplace_back([&] { right += ask_resident(path_) == std::optional<std::int64_t>(3); });
  for (std::thread& asker : askers) asker.join();
  EXPECT_EQ(right, 16);
}

TEST_F(ResidentServices, APathThatIsTooLongIsRefusedByName) {
  const std::string path = folder_.path() / std::string(120, 'x');
  try {
    const ResidentService service(path, [] { return std::optional<std::int64_t>(1); });
    FAIL() << "no socket has such a name";
  } catch (const RuntimeBroken& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_NE(error.record().detail.find("TMPDIR"), std::string::npos);
  }
  EXPECT_EQ(ask_resident(path), std::nullopt);
}

}  // namespace
}  // namespace tpsync::conformance
