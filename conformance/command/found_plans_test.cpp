// What exploration found once (conformance/explore/found), and must not find again: each file is
// the reduced plan of a failure that was mended.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "conformance/command/replay_file.h"
#include "conformance/scenarios/scripts.h"

namespace tpsync::conformance {
namespace {

std::vector<std::filesystem::path> found_plans() {
  std::vector<std::filesystem::path> paths;
  const std::string folder = std::string(TPSYNC_SOURCE_DIR) + "/conformance/explore/found";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry);
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(FoundPlans, BreakNothingAnyMore) {
  SimRunner runner;
  std::size_t count = 0;
  for (const std::filesystem::path& path : found_plans()) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    const Replay replay = replay_from_json(text.str());
    const conformance::Run run = runner.run(replay.spec, replay.options, publish_and_recover());
    EXPECT_EQ(run.end.kind, sim::RunResult::Kind::kFinished) << path << run.end.detail;
    EXPECT_NE(run.judgement.worst(), judge::Status::kViolation) << path << run.judgement.text();
    EXPECT_EQ(run.faults_applied, replay.options.plan.faults.size()) << path;
    ++count;
  }
  EXPECT_GE(count, 8u);
}

}  // namespace
}  // namespace tpsync::conformance
