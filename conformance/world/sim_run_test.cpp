#include "conformance/world/sim_run.h"

#include <gtest/gtest.h>

#include "conformance/world/spec.h"

namespace tpsync::conformance {
namespace {

WorldSpec tiny(int tp) {
  return small_world(model::load_model_config(std::string(TPSYNC_SOURCE_DIR) +
                                              "/conformance/models/tiny-tp4.json"),
                     tp);
}

TEST(SimRun, APublicationCommitsAtTp1Tp2AndTp4) {
  SimRunner runner;
  for (const int tp : {1, 2, 4}) {
    std::vector<std::int64_t> versions(static_cast<std::size_t>(tp), 0);
    const WorldSpec spec = tiny(tp);
    const auto run = runner.run(spec, {}, [&](Actor& actor) {
      ASSERT_TRUE(actor.start_engine().ok());
      const Outcome setup = actor.setup();
      ASSERT_TRUE(setup.ok()) << to_text(*setup.error);
      actor.step();
      const Outcome outcome = actor.publish();
      ASSERT_TRUE(outcome.ok()) << to_text(*outcome.error);
      versions[static_cast<std::size_t>(actor.rank())] = outcome.version;
      EXPECT_TRUE(actor.generate().ok());
      actor.cleanup();
      actor.shutdown();
    });
    EXPECT_EQ(run.end.kind, sim::RunResult::Kind::kFinished) << run.end.detail;
    EXPECT_EQ(versions, std::vector<std::int64_t>(static_cast<std::size_t>(tp), 1));
    EXPECT_TRUE(run.judgement.ok()) << run.judgement.text();
  }
}

}  // namespace
}  // namespace tpsync::conformance
