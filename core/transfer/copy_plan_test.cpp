#include "tpsync/transfer/copy_plan.h"

#include <gtest/gtest.h>

#include "tpsync/base/errors.h"

namespace tpsync::transfer {
namespace {

struct Planned {
  model::CanonicalPlan plan;
  model::TpLayout layout;
  CopyPlan copies;
};

Planned planned(int tp, int rank, std::uint64_t bucket = 1024) {
  Planned result;
  const auto config = model::load_model_config(std::string(TPSYNC_SOURCE_DIR) +
                                               "/conformance/models/tiny-tp4.json");
  result.plan = model::plan_canonical(config);
  result.layout = model::plan_tp_layout(config, result.plan, tp, rank);
  const auto chunks = plan_chunks(result.plan.tensors, bucket);
  result.copies =
      plan_copies(result.layout, result.plan.tensors, chunks, wire::Layout::kCompact, nullptr);
  return result;
}

std::string refusal(const Planned& p) {
  try {
    check_coverage(p.layout, p.copies);
  } catch (const PeerViolation& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
    return error.record().subject + " " + error.record().detail;
  }
  return "";
}

TEST(CopyPlan, CoversEveryResidentByteOnEveryRank) {
  for (const int tp : {1, 2, 4}) {
    for (int rank = 0; rank < tp; ++rank) EXPECT_EQ(refusal(planned(tp, rank)), "");
  }
}

TEST(CopyPlan, AnyDroppedCopyIsAHoleInANamedParameter) {
  const Planned whole = planned(2, 1);
  for (std::size_t c = 0; c < whole.copies.chunks.size(); ++c) {
    for (std::size_t i = 0; i < whole.copies.chunks[c].size(); ++i) {
      Planned broken = whole;
      auto& chunk = broken.copies.chunks[c];
      chunk.erase(chunk.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_NE(refusal(broken).find("would be written by no copy"), std::string::npos);
    }
  }
}

TEST(CopyPlan, AnyDoubledCopyIsSeen) {
  const Planned whole = planned(2, 0);
  for (std::size_t c = 0; c < whole.copies.chunks.size(); ++c) {
    for (const device::TileCopy& copy : whole.copies.chunks[c]) {
      Planned broken = whole;
      broken.copies.chunks[c].push_back(copy);
      EXPECT_NE(refusal(broken).find("would be written by two copies"), std::string::npos);
    }
  }
}

TEST(CopyPlan, ACopyOutsideEveryParameterIsSeen) {
  Planned broken = planned(1, 0);
  device::TileCopy stray = broken.copies.chunks[0][0];
  stray.dst_offset = broken.layout.resident_bytes;
  stray.rows = 1;
  stray.row_bytes = stray.dst_pitch = 2;
  broken.copies.chunks[0].push_back(stray);
  EXPECT_NE(refusal(broken).find("outside every parameter"), std::string::npos);
}

// Each tensor's rows are cut evenly among as many actors as there are TP ranks.
CopyPlan resharded(const Planned& p, std::uint64_t actors, std::uint64_t bucket) {
  wire::SourceLayout source;
  source.world = actors;
  for (const auto& tensor : p.plan.tensors) {
    const std::uint64_t rows = model::rows_cols(tensor).rows;
    for (std::uint64_t r = 0; r <= actors; ++r) source.row_bounds.push_back(rows * r / actors);
  }
  return plan_copies(p.layout, p.plan.tensors, plan_chunks(p.plan.tensors, bucket),
                     wire::Layout::kRankMajor, &source, wire::Route::kReshard);
}

TEST(CopyPlan, TheReshardRouteCoversEveryByteOutOfAllActorsBuffers) {
  for (const int tp : {1, 2, 4}) {
    for (int rank = 0; rank < tp; ++rank) {
      Planned p = planned(tp, rank);
      p.copies = resharded(p, static_cast<std::uint64_t>(tp), 1024);
      EXPECT_EQ(refusal(p), "");
    }
  }
}

TEST(CopyPlan, CopiesOfTheReshardRouteTakeTurnsAndEachWorkerBeginsWithAnotherActor) {
  constexpr int kTp = 4;
  for (int rank = 0; rank < kTp; ++rank) {
    const Planned p = planned(kTp, rank);
    const CopyPlan plan = resharded(p, kTp, 1 << 20);
    ASSERT_EQ(plan.chunks.size(), 1u);
    const auto& copies = plan.chunks[0];
    std::vector<std::uint64_t> total(kTp), done(kTp);
    const auto actor_of = [](const device::TileCopy& copy) {
      return static_cast<std::size_t>(copy.src - source_binding(0));
    };
    for (const auto& copy : copies) total[actor_of(copy)] += copy.row_bytes * copy.rows;
    EXPECT_EQ(actor_of(copies[0]), static_cast<std::size_t>(rank));
    // A copy is always one of the actor whose part is the least done.
    for (const auto& copy : copies) {
      const std::size_t own = actor_of(copy);
      for (std::size_t other = 0; other < kTp; ++other) {
        if (done[other] == total[other]) continue;
        EXPECT_LE(done[own] * 1000 / total[own], done[other] * 1000 / total[other] + 1);
      }
      done[own] += copy.row_bytes * copy.rows;
    }
    EXPECT_EQ(done, total);
  }
}

}  // namespace
}  // namespace tpsync::transfer
