// Two actors in one publication: what one of them can't do, both report, and nobody hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <stdexcept>

#include "core/sync/testing/publication_actor.h"
#include "tpsync/sync/ipc_weight_sync.h"

namespace tpsync::sync {
namespace {

using fakes::Actor;
using fakes::IpcWeightSyncTest;
using fakes::kDeviceBytes;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using tpsync::fakes::failure_of;

// ---- two actors

class TwoActors : public IpcWeightSyncTest {
 protected:
  using Edit = std::function<void(Actor&)>;

  struct Outcome {
    std::optional<ErrorRecord> error;
    std::int64_t version = 0;
    PublicationState state = PublicationState::kIdle;
    std::vector<std::string> steps;
  };
  // Sets up and publishes once on both ranks.
  std::vector<Outcome> publish(const Edit& edit) {
    std::vector<Outcome> outcomes(2);
    const auto thrown = fakes::run_ranks(2, [&](std::unique_ptr<fakes::ThreadGroup> group) {
      Outcome& outcome = outcomes[static_cast<std::size_t>(group->rank())];
      Actor actor(memory_, std::move(group));
      edit(actor);
      actor.sync().setup();
      try {
        outcome.version = actor.sync().sync().model_version;
      } catch (const Error& error) {
        outcome.error = error.record();
      }
      outcome.state = actor.sync().state();
      outcome.steps = actor.target.steps;
    });
    EXPECT_THAT(thrown, testing::Each(testing::Eq(std::nullopt)));
    return outcomes;
  }
};

TEST_F(TwoActors, BothReturnTheSameVersionAndOnlyRankZeroSpeaksToTheRuntime) {
  const auto outcomes = publish([](Actor&) {});
  EXPECT_EQ(outcomes[0].version, 1);
  EXPECT_EQ(outcomes[1].version, 1);
  EXPECT_THAT(outcomes[1].steps, ElementsAre());
}

TEST_F(TwoActors, AFailureOfOneIsTheSameErrorOnBoth) {
  const auto outcomes = publish([](Actor& actor) {
    if (actor.rank == 1) actor.source.failing_step = "prepare 1.0";
  });
  ASSERT_TRUE(outcomes[0].error && outcomes[1].error);
  EXPECT_EQ(*outcomes[0].error, *outcomes[1].error);
  EXPECT_EQ(outcomes[0].error->rank, 1);
  EXPECT_EQ(outcomes[0].error->phase, "native-materialize-1");
  EXPECT_EQ(outcomes[0].steps.back(), "poison");
  EXPECT_EQ(outcomes[1].state, PublicationState::kPoisoned);
}

TEST_F(TwoActors, TheNextVersionIsAboveEveryActorsCheckpoint) {
  const auto outcomes =
      publish([](Actor& actor) { actor.options.last_committed_version = actor.rank == 1 ? 7 : 4; });
  EXPECT_EQ(outcomes[0].version, 8);
  EXPECT_EQ(outcomes[1].version, 8);
}

// A call of the source on one rank throws what is no tpsync::Error.
class FailingCall : public TwoActors,
                    public testing::WithParamInterface<std::pair<const char*, const char*>> {
 protected:
  std::vector<Outcome> publish_with_failing_call(int rank, std::string_view failing) {
    return publish([=](Actor& actor) {
      actor.target.given.layouts = {wire::Layout::kRankMajor};
      actor.options.content_digest = failing == "digest_sums";
      actor.source.sums.assign(actor.source.tensors.size(), 0);
      if (actor.rank != rank) return;
      actor.source.before_call = [failing](std::string_view call) {
        if (call == failing) throw std::runtime_error("injected by the test");
      };
    });
  }
  void expect_internal(const std::vector<Outcome>& outcomes, int rank, const std::string& phase) {
    for (const Outcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.error.has_value());
      EXPECT_EQ(outcome.error->kind, ErrorKind::kInternal);
      EXPECT_EQ(outcome.error->remedy, Remedy::kRebuildRuntime);
      EXPECT_EQ(outcome.error->rank, rank);
      EXPECT_EQ(outcome.error->phase, phase);
      EXPECT_EQ(*outcome.error, *outcomes[0].error);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(OfTheSource, FailingCall,
                         testing::Values(std::pair("metadata", "expected-schema"),
                                         std::pair("layout", "expected-schema"),
                                         std::pair("begin", "native-buffer-allocation"),
                                         std::pair("group_count", "native-buffer-allocation"),
                                         std::pair("exhausted", "native-source-verify"),
                                         std::pair("digest_sums", "native-source-verify")));

TEST_P(FailingCall, OnOneRankIsTheSameErrorOnBoth) {
  const auto [call, phase] = GetParam();
  for (const int rank : {0, 1}) {
    const bool prepares = std::string_view(call) == "group_count";
    expect_internal(publish_with_failing_call(rank, call), rank,
                    prepares ? "native-materialize-0" : phase);
  }
}

// Workers cut every rank's region by the bounds that rank 0 sends.
TEST_F(TwoActors, ShardsThatAreCutElsewhereOnOneRankAreRefusedBeforeTheRuntimeIsTouched) {
  const auto outcomes = publish([](Actor& actor) {
    if (actor.rank != 1) return;
    auto& bounds = actor.source.source_layout.row_bounds;
    ASSERT_GT(bounds.size(), 2u);
    bounds[bounds.size() - 2] = 0;  // the last tensor is rank 1's
  });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->kind, ErrorKind::kMismatch);
    EXPECT_EQ(outcome.error->subject, "shards");
    EXPECT_EQ(outcome.error->rank, 1);
    EXPECT_EQ(outcome.error->phase, "expected-schema");
    EXPECT_EQ(outcome.state, PublicationState::kIdle);
  }
  EXPECT_THAT(outcomes[0].steps, testing::Not(testing::Contains("init")));
}

TEST_F(FailingCall, OfTheDrainAfterTheReleaseFailsNobody) {
  const auto outcomes = publish_with_failing_call(1, "quiesce");
  EXPECT_EQ(outcomes[0].version, 1);
  EXPECT_EQ(outcomes[1].version, 1);
}

TEST_F(TwoActors, WhatOneRankCannotReportInAnExchangeFailsBothAtItsGate) {
  const auto outcomes = publish([](Actor& actor) {
    if (actor.rank == 1) actor.end_workers();
  });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->kind, ErrorKind::kIpc);
    EXPECT_EQ(outcome.error->rank, 1);
    EXPECT_EQ(outcome.error->phase, "topology-memory-preflight");
    EXPECT_EQ(outcome.state, PublicationState::kIdle);
  }
}

TEST_F(TwoActors, WhatRankZeroCannotFindOutIsReportedByBoth) {
  const auto outcomes = publish([](Actor& actor) { actor.target.given.weights_awake = false; });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->kind, ErrorKind::kInvalidState);
    EXPECT_EQ(outcome.error->remedy, Remedy::kTryLater);
    EXPECT_EQ(outcome.error->rank, 0);
    EXPECT_EQ(outcome.error->phase, "topology-discovery");
  }
}

// A layout that the control group or the model contradicts would be read beyond its end.
TEST_F(TwoActors, ShardsForAnotherNumberOfActorsOrTensorsAreRefusedBeforeTheRuntimeIsTouched) {
  const std::vector<std::function<void(wire::SourceLayout&)>> edits = {
      [](wire::SourceLayout& layout) { layout.world = 3; },
      [](wire::SourceLayout& layout) { layout.row_bounds.pop_back(); },
      [](wire::SourceLayout& layout) { layout.row_bounds.front() = 1; }};
  for (const auto& edit : edits) {
    const auto outcomes = publish([&](Actor& actor) {
      if (actor.rank == 1) edit(actor.source.source_layout);
    });
    for (const Outcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.error.has_value());
      EXPECT_EQ(outcome.error->kind, ErrorKind::kMismatch);
      EXPECT_EQ(outcome.error->subject, "source_layout");
      EXPECT_EQ(outcome.error->rank, 1);
      EXPECT_EQ(outcome.error->phase, "expected-schema");
      EXPECT_EQ(outcome.state, PublicationState::kIdle);
    }
  }
}

TEST_F(TwoActors, AnotherModelOnOneRankIsFoundByTheSchemaConsensus) {
  const auto outcomes = publish([](Actor& actor) {
    if (actor.rank == 0) return;
    actor.config.num_experts = 8;
    actor.source.hold(model::plan_canonical(actor.config).tensors);
  });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->kind, ErrorKind::kMismatch);
    EXPECT_EQ(outcome.error->rank, 1);
    EXPECT_EQ(outcome.error->subject, "manifest");
    EXPECT_EQ(outcome.error->phase, "expected-schema");
    EXPECT_EQ(outcome.state, PublicationState::kIdle);
  }
}

TEST_F(TwoActors, AnOptionThatMustBeEqualIsNamedTogetherWithTheRank) {
  const std::pair<const char*, Edit> cases[] = {
      {"bucket_bytes", [](Actor& actor) { actor.options.bucket_bytes += 64; }},
      {"content_digest", [](Actor& actor) { actor.options.content_digest = true; }},
      {"overlap", [](Actor& actor) { actor.options.overlap = false; }},
      {"layout", [](Actor& actor) { actor.options.layout = wire::Layout::kCompact; }},
      {"route", [](Actor& actor) { actor.options.route = wire::Route::kReshard; }},
      {"flush_cache", [](Actor& actor) { actor.options.flush_cache = false; }},
      {"control_timeout", [](Actor& actor) { actor.options.control_timeout += seconds(1); }}};
  for (const auto& [name, edit] : cases) {
    const auto outcomes = publish([edit = edit](Actor& actor) {
      if (actor.rank == 1) edit(actor);
    });
    for (const Outcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.error.has_value()) << name;
      EXPECT_EQ(outcome.error->kind, ErrorKind::kMismatch);
      EXPECT_EQ(outcome.error->rank, 1);
      EXPECT_EQ(outcome.error->subject, name);
      EXPECT_EQ(outcome.error->phase, "expected-schema");
      EXPECT_EQ(outcome.state, PublicationState::kIdle);
    }
  }
}

TEST_F(TwoActors, APeerThatIsLostAfterTheRuntimeWasTouchedPoisons) {
  const auto outcomes = publish([](Actor& actor) {
    // Rank 1 leaves while its buffer is being allocated.
    if (actor.rank == 1) {
      actor.source.before_call = [&actor](std::string_view call) {
        if (call == "begin") actor.leave_group();
      };
    }
  });
  ASSERT_TRUE(outcomes[0].error.has_value());
  EXPECT_EQ(outcomes[0].error->kind, ErrorKind::kPeerLost);
  EXPECT_EQ(outcomes[0].error->remedy, Remedy::kRebuildRuntime);
  EXPECT_EQ(outcomes[0].error->rank, 1);
  EXPECT_EQ(outcomes[0].error->phase, "native-buffer-allocation");
  EXPECT_EQ(outcomes[0].steps.back(), "poison");
}

}  // namespace
}  // namespace tpsync::sync
