// Every refusal in its order, and properties of whatever is placed.
#include "tpsync/rollout/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "tpsync/base/errors.h"

namespace tpsync::rollout {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

// What was refused: kind, subject and rank.
struct Refusal {
  ErrorKind kind = ErrorKind::kInternal;
  std::string subject;
  int rank = -1;
  friend bool operator==(const Refusal&, const Refusal&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Refusal& refusal) {
    return out << to_string(refusal.kind) << " " << refusal.subject << " of rank " << refusal.rank;
  }
};

std::optional<Refusal> refusal_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const InvalidInput& error) {
    EXPECT_FALSE(error.record().detail.empty());
    return Refusal{error.kind(), error.record().subject, error.record().rank};
  }
  return std::nullopt;
}

std::vector<WorkerLocation> one_node(std::int64_t count) {
  std::vector<WorkerLocation> workers;
  for (std::int64_t i = 0; i < count; ++i) workers.push_back({"10.0.0.1", std::to_string(i)});
  return workers;
}

RoleShape role_of(std::int64_t tp, std::int64_t pp = 1) {
  RoleShape role;
  role.given = {.tp = tp, .pp = pp};
  return role;
}

// ---- shape

TEST(ResolveShape, TakesTheLargestOfWhatCountsAndZeroAsOne) {
  RoleShape role;
  role.given = {.tp = 0, .pp = 0, .ep = 0};
  EXPECT_EQ(resolve_shape(role, 8), ParallelShape{});
  role.configured = {.tp = 4, .pp = 1, .ep = 2};
  EXPECT_EQ(resolve_shape(role, 8), ParallelShape{}) << "the role does not accept the rollout's TP";
  role.accepts_rollout_tp = true;
  EXPECT_EQ(resolve_shape(role, 8).sizes, (ParallelSizes{.tp = 4, .pp = 1, .ep = 2}));
  role.given.tp = 8;
  EXPECT_EQ(resolve_shape(role, 8).sizes, (ParallelSizes{.tp = 8, .pp = 1, .ep = 2}));
}

TEST(ResolveShape, AWeightSyncGetsTheLayoutOfTheRolloutThatItIsGivenAHandleOf) {
  RoleShape sync;
  sync.siblings = {{.tp = 1, .pp = 2, .ep = 1}, {.tp = 4, .pp = 1, .ep = 8}};
  EXPECT_EQ(resolve_shape(sync, 8).sizes, (ParallelSizes{.tp = 4, .pp = 2, .ep = 8}));
}

TEST(ResolveShape, SequenceParallelismThatDoesNotDivideTheWorldIsDroppedBeforeItIsChecked) {
  RoleShape role = role_of(2);
  role.sp = 3;
  EXPECT_EQ(resolve_shape(role, 4), (ParallelShape{{.tp = 2}, 1}));
  role.given.tp = 1;
  role.sp = 2;
  EXPECT_EQ(resolve_shape(role, 4), (ParallelShape{{}, 2}));
}

TEST(ResolveShape, ExpertParallelismDoesNotEnterTheDivisor) {
  RoleShape role = role_of(2);
  role.given.ep = 7;
  EXPECT_EQ(resolve_shape(role, 4).sizes.ep, 7);
}

TEST(ResolveShape, RefusesInTheDocumentedOrder) {
  struct Input {
    RoleShape role;
    std::int64_t world = 6;
  };
  using Edit = std::function<void(Input&)>;
  // Later edits are made before earlier ones, so that each check is seen to come before the next.
  const std::vector<std::pair<Refusal, Edit>> in_order = {
      {{ErrorKind::kInvalidConfig, "placement.world_size"}, [](auto& i) { i.world = 0; }},
      {{ErrorKind::kInvalidConfig, "placement.tp_size"}, [](auto& i) { i.role.given.tp = -1; }},
      {{ErrorKind::kInvalidConfig, "placement.pp_size"}, [](auto& i) { i.role.given.pp = -1; }},
      {{ErrorKind::kInvalidConfig, "placement.ep_size"}, [](auto& i) { i.role.given.ep = -1; }},
      {{ErrorKind::kInvalidConfig, "placement.sp_size"}, [](auto& i) { i.role.sp = -1; }},
      {{ErrorKind::kUnsupported, "placement.sp_size"},
       [](auto& i) { i.role.sp = 2, i.role.given = {.tp = 4}; }},
      {{ErrorKind::kMismatch, "placement.world_size"}, [](auto& i) { i.role.given = {.tp = 4}; }},
  };
  for (std::size_t first = 0; first < in_order.size(); ++first) {
    Input input;
    for (std::size_t i = in_order.size(); i-- > first;) in_order[i].second(input);
    EXPECT_EQ(refusal_of([&] { resolve_shape(input.role, input.world); }), in_order[first].first);
  }
}

TEST(ResolveShape, NegativeSizesAreRefusedWhereverTheyCount) {
  const Refusal tp{ErrorKind::kInvalidConfig, "placement.tp_size"};
  RoleShape role;
  role.configured.tp = -2;
  EXPECT_EQ(refusal_of([&] { resolve_shape(role, 4); }), std::nullopt);
  role.accepts_rollout_tp = true;
  EXPECT_EQ(refusal_of([&] { resolve_shape(role, 4); }), tp);
  RoleShape sync;
  sync.siblings = {{}, {.tp = -1}};
  EXPECT_EQ(refusal_of([&] { resolve_shape(sync, 4); }), tp);
}

TEST(ResolveShape, SequenceParallelismIsRefusedWithPipelineStagesToo) {
  RoleShape role = role_of(1, 2);
  role.sp = 2;
  EXPECT_EQ(refusal_of([&] { resolve_shape(role, 4); }),
            (Refusal{ErrorKind::kUnsupported, "placement.sp_size"}));
}

TEST(ResolveShape, SizesWhoseProductOverflowsAreNoDivisor) {
  const Refusal refusal{ErrorKind::kMismatch, "placement.world_size"};
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_EQ(refusal_of([&] { resolve_shape(role_of(huge, 4), 4); }), refusal);
  EXPECT_EQ(refusal_of([&] { resolve_shape(role_of(4, huge), 4); }), refusal);
  EXPECT_EQ(refusal_of([&] { resolve_shape(role_of(4, 2), 4); }), refusal);
}

TEST(ResolveShape, WorldsBeyondTheLimitAreRefused) {
  EXPECT_EQ(refusal_of([&] { resolve_shape({}, kWorldSizeMax); }), std::nullopt);
  EXPECT_EQ(refusal_of([&] { resolve_shape({}, kWorldSizeMax + 1); }),
            (Refusal{ErrorKind::kInvalidConfig, "placement.world_size"}));
}

// ---- layout

TEST(PlanLayout, TpVariesFastestThenPpThenDp) {
  const auto layout = plan_layout({{.tp = 2, .pp = 2, .ep = 3}, 1}, 8);
  ASSERT_EQ(layout.size(), 8u);
  EXPECT_EQ(layout[0], (RankLayout{0, 2, 0, 2, 0, 2, 0, 3}));
  EXPECT_EQ(layout[1], (RankLayout{0, 2, 1, 2, 0, 2, 0, 3}));
  EXPECT_EQ(layout[2], (RankLayout{0, 2, 0, 2, 1, 2, 0, 3}));
  EXPECT_EQ(layout[5], (RankLayout{1, 2, 1, 2, 0, 2, 0, 3}));
  EXPECT_EQ(layout[7], (RankLayout{1, 2, 1, 2, 1, 2, 0, 3}));
}

TEST(PlanLayout, RefusesAShapeThatDoesNotFitTheWorld) {
  EXPECT_EQ(refusal_of([] {
              plan_layout({{.tp = 4}, 1}, 6);
            }),
            (Refusal{ErrorKind::kMismatch, "placement.world_size"}));
  EXPECT_EQ(refusal_of([] {
              plan_layout({{.tp = -4}, 1}, 6);
            }),
            (Refusal{ErrorKind::kInvalidConfig, "placement.tp_size"}));
}

// ---- devices

TEST(MapDevices, EveryMemberOfAGroupGetsTheWholeListByTpRank) {
  std::vector<RankLayout> layout = plan_layout({{.tp = 2}, 1}, 4);
  std::swap(layout[0].tp_rank, layout[1].tp_rank);
  const std::vector<WorkerLocation> workers = {
      {"a", "GPU-7"}, {"a", " 3\n"}, {"b", "0"}, {"b", "MIG-1"}};
  EXPECT_THAT(map_devices(layout, workers),
              ElementsAre(ElementsAre("3", "GPU-7"), ElementsAre("3", "GPU-7"),
                          ElementsAre("0", "MIG-1"), ElementsAre("0", "MIG-1")));
}

TEST(MapDevices, WithoutTpNothingIsMappedOrChecked) {
  const std::vector<WorkerLocation> workers = {{"", "0,1"}};
  EXPECT_THAT(map_devices(plan_layout({{.pp = 2}, 1}, 4), workers), Each(IsEmpty()));
}

TEST(MapDevices, OneDeviceInTwoGroupsPassesAsItMayBeAnothersIndex) {
  const std::vector<WorkerLocation> workers = {{"a", "0"}, {"a", "1"}, {"b", "0"}, {"b", "1"}};
  EXPECT_THAT(map_devices(plan_layout({{.tp = 2}, 1}, 4), workers), Each(ElementsAre("0", "1")));
}

struct Map {
  std::vector<RankLayout> layout = plan_layout({{.tp = 3}, 1}, 6);
  std::vector<WorkerLocation> workers = one_node(6);
};

TEST(MapDevices, RefusesInTheDocumentedOrder) {
  using Edit = std::function<void(Map&)>;
  // Later edits are made before earlier ones, so that each check is seen to come before the next.
  // All are faults of the second group, ranks 3 to 5.
  const std::vector<std::pair<Refusal, Edit>> in_order = {
      {{ErrorKind::kMismatch, "placement.workers"}, [](auto& m) { m.workers.pop_back(); }},
      {{ErrorKind::kMismatch, "placement.tp_rank", 5}, [](auto& m) { m.layout[5].tp_rank = 1; }},
      {{ErrorKind::kInvalidConfig, "placement.node", 5}, [](auto& m) { m.workers[5].node = ""; }},
      {{ErrorKind::kUnsupported, "placement.node", 4}, [](auto& m) { m.workers[4].node = "b"; }},
      {{ErrorKind::kInvalidConfig, "placement.device", 5},
       [](auto& m) { m.workers[5].visible_devices = " \t"; }},
      {{ErrorKind::kUnsupported, "placement.device", 5},
       [](auto& m) { m.workers[5].visible_devices = "5,6"; }},
      {{ErrorKind::kMismatch, "placement.devices", 4},
       [](auto& m) { m.workers[4].visible_devices = m.workers[3].visible_devices; }},
  };
  for (std::size_t first = 0; first < in_order.size(); ++first) {
    Map map;
    for (std::size_t i = in_order.size(); i-- > first;) in_order[i].second(map);
    EXPECT_EQ(refusal_of([&] { map_devices(map.layout, map.workers); }), in_order[first].first);
  }
}

TEST(MapDevices, AnEarlierGroupsLastFaultComesBeforeALaterGroupsFirst) {
  Map map;
  map.workers[1].visible_devices = "0";
  map.layout[3].tp_rank = 1;
  EXPECT_EQ(refusal_of([&] { map_devices(map.layout, map.workers); }),
            (Refusal{ErrorKind::kMismatch, "placement.devices", 1}));
}

TEST(MapDevices, IncompleteOversizedAndMixedGroupsAreRefused) {
  const Refusal of_rank_0{ErrorKind::kMismatch, "placement.tp_rank", 0};
  std::vector<RankLayout> layout(1, RankLayout{.tp_size = 2});
  EXPECT_EQ(refusal_of([&] { map_devices(layout, one_node(1)); }), of_rank_0);
  layout[0].tp_rank = 1;
  EXPECT_EQ(refusal_of([&] { map_devices(layout, one_node(1)); }), of_rank_0);
  layout = {RankLayout{.tp_rank = 0, .tp_size = 2}, RankLayout{.tp_rank = 1, .tp_size = 2},
            RankLayout{.tp_rank = 2, .tp_size = 2}};
  EXPECT_EQ(refusal_of([&] { map_devices(layout, one_node(3)); }), of_rank_0);
  layout = {RankLayout{.tp_rank = 0, .tp_size = 2}, RankLayout{.tp_rank = 1, .tp_size = 3}};
  EXPECT_EQ(refusal_of([&] { map_devices(layout, one_node(2)); }),
            (Refusal{ErrorKind::kMismatch, "placement.tp_rank", 1}));
}

TEST(MapDevices, AWorkerThatSeesNoDeviceComesBeforeAnEarlierOneThatSeesSeveral) {
  Map map;
  map.workers[3].visible_devices = "3,4";
  map.workers[5].visible_devices = "";
  EXPECT_EQ(refusal_of([&] { map_devices(map.layout, map.workers); }),
            (Refusal{ErrorKind::kInvalidConfig, "placement.device", 5}));
}

TEST(MapDevices, ACommaIsMoreThanOneDeviceEvenIfNothingFollows) {
  Map map;
  map.workers[4].visible_devices = "4,";
  EXPECT_EQ(refusal_of([&] { map_devices(map.layout, map.workers); }),
            (Refusal{ErrorKind::kUnsupported, "placement.device", 4}));
}

// ---- roles

TEST(PlaceRole, TheRanksOfAGroupShareItsDevicesAndItsFirstSpawns) {
  const auto placements = place_role(role_of(2), 4, one_node(4));
  ASSERT_EQ(placements.size(), 4u);
  EXPECT_THAT(placements[3].tp_group, ElementsAre(2, 3));
  EXPECT_THAT(placements[3].devices, ElementsAre("2", "3"));
  EXPECT_EQ(placements[3].layout.tp_rank, 1);
  EXPECT_TRUE(placements[2].spawns_runtime);
  EXPECT_FALSE(placements[3].spawns_runtime);
}

TEST(PlaceRole, AWorkerThatDidNotSayWhereItRunsIsMissed) {
  EXPECT_EQ(refusal_of([] { place_role(role_of(2), 4, one_node(3)); }),
            (Refusal{ErrorKind::kMismatch, "placement.workers"}));
}

TEST(PlaceRole, WithoutTpEveryRankIsAGroupOfItsOwnThatSpawns) {
  for (const RankPlacement& placement : place_role({}, 3, {})) {
    EXPECT_THAT(placement.tp_group, ElementsAre(placement.layout.dp_rank));
    EXPECT_TRUE(placement.spawns_runtime);
    EXPECT_THAT(placement.devices, IsEmpty());
  }
}

TEST(PlaceRole, EveryRankIsInOneGroupOfDistinctDevicesOfOneNode) {
  EXPECT_TRUE(rc::check("groups partition the ranks", [] {
    const auto tp = *rc::gen::inRange<std::int64_t>(2, 9);
    const auto pp = *rc::gen::inRange<std::int64_t>(1, 4);
    const auto dp = *rc::gen::inRange<std::int64_t>(1, 5);
    const std::int64_t world = tp * pp * dp;
    // Nodes of one or more groups; devices of a node in any order.
    const std::int64_t per_node = tp * *rc::gen::inRange<std::int64_t>(1, 4);
    const auto rotation = *rc::gen::inRange<std::int64_t>(0, per_node);
    std::vector<WorkerLocation> workers;
    for (std::int64_t rank = 0; rank < world; ++rank) {
      workers.push_back({"node-" + std::to_string(rank / per_node),
                         std::to_string((rank + rotation) % per_node)});
    }
    const auto placements = place_role(role_of(tp, pp), world, workers);
    RC_ASSERT(placements.size() == static_cast<std::size_t>(world));
    std::map<std::int64_t, std::vector<std::int64_t>> group_of;
    std::int64_t runtimes = 0;
    for (std::int64_t rank = 0; rank < world; ++rank) {
      const RankPlacement& own = placements[static_cast<std::size_t>(rank)];
      RC_ASSERT(own.tp_group.size() == static_cast<std::size_t>(tp));
      RC_ASSERT(own.tp_group[static_cast<std::size_t>(own.layout.tp_rank)] == rank);
      RC_ASSERT(own.spawns_runtime == (own.tp_group.front() == rank));
      runtimes += own.spawns_runtime ? 1 : 0;
      for (const std::int64_t member : own.tp_group) {
        const auto [entry, fresh] = group_of.emplace(member, own.tp_group);
        RC_ASSERT(fresh || entry->second == own.tp_group);
        const auto at = static_cast<std::size_t>(member);
        RC_ASSERT(workers[at].node == workers[static_cast<std::size_t>(rank)].node);
        RC_ASSERT(placements[at].devices == own.devices);
        RC_ASSERT(own.devices[static_cast<std::size_t>(placements[at].layout.tp_rank)] ==
                  workers[at].visible_devices);
      }
      RC_ASSERT(std::set<std::string>(own.devices.begin(), own.devices.end()).size() ==
                own.devices.size());
    }
    RC_ASSERT(group_of.size() == static_cast<std::size_t>(world));
    RC_ASSERT(runtimes == pp * dp);
  }));
}

TEST(PlaceRole, AnyOneBrokenWorkerOfAnyGroupIsRefusedByItsRank) {
  EXPECT_TRUE(rc::check("one broken worker", [] {
    const auto tp = *rc::gen::inRange<std::int64_t>(2, 6);
    const auto groups = *rc::gen::inRange<std::int64_t>(1, 5);
    const std::int64_t world = tp * groups;
    // Not the first of its group: its peers are compared to the first.
    const std::int64_t group = *rc::gen::inRange<std::int64_t>(0, groups);
    const std::int64_t rank = group * tp + *rc::gen::inRange<std::int64_t>(1, tp);
    std::vector<WorkerLocation> workers = one_node(world);
    WorkerLocation& victim = workers[static_cast<std::size_t>(rank)];
    const int fault = *rc::gen::inRange(0, 5);
    Refusal expected{ErrorKind::kInvalidConfig, "placement.node", static_cast<int>(rank)};
    if (fault == 0) {
      victim.node = "";
    } else if (fault == 1) {
      victim.node = "elsewhere";
      expected.kind = ErrorKind::kUnsupported;
    } else if (fault == 2) {
      victim.visible_devices = "";
      expected.subject = "placement.device";
    } else if (fault == 3) {
      victim.visible_devices += ",9";
      expected.subject = "placement.device";
      expected.kind = ErrorKind::kUnsupported;
    } else {
      victim.visible_devices = workers[static_cast<std::size_t>(rank - 1)].visible_devices;
      expected.subject = "placement.devices";
      expected.kind = ErrorKind::kMismatch;
    }
    RC_ASSERT(refusal_of([&] { place_role(role_of(tp), world, workers); }) == expected);
  }));
}

// ---- devices of one runtime

TEST(RuntimeDevices, OfThePlacementComeBeforeThoseOfTheProcess) {
  RankPlacement placement;
  placement.devices = {"4", "5"};
  EXPECT_THAT(runtime_devices(&placement, "7,8", 2), ElementsAre("4", "5"));
  placement.devices.clear();
  EXPECT_THAT(runtime_devices(&placement, "7,8", 2), ElementsAre("7", "8"));
}

TEST(RuntimeDevices, OfTheProcessAreTheFirstThatItSeesOrNumbersFromZero) {
  EXPECT_THAT(runtime_devices(nullptr, " 7, GPU-a ,9", 2), ElementsAre("7", "GPU-a"));
  EXPECT_THAT(runtime_devices(nullptr, std::nullopt, 3), ElementsAre("0", "1", "2"));
}

TEST(RuntimeDevices, TooFewOrTooManyAreRefused) {
  const Refusal refusal{ErrorKind::kMismatch, "placement.devices"};
  RankPlacement placement;
  placement.devices = {"4", "5"};
  EXPECT_EQ(refusal_of([&] { runtime_devices(&placement, std::nullopt, 1); }), refusal);
  EXPECT_EQ(refusal_of([&] { runtime_devices(&placement, std::nullopt, 3); }), refusal);
  EXPECT_EQ(refusal_of([] { runtime_devices(nullptr, "7", 2); }), refusal);
  EXPECT_EQ(refusal_of([] { runtime_devices(nullptr, "7,,", 2); }), refusal);
  EXPECT_EQ(refusal_of([] { runtime_devices(nullptr, "", 1); }), refusal)
      << "a variable that is set and empty hides all devices";
}

TEST(RuntimeDevices, TpSizesOutOfRangeAreRefused) {
  const Refusal refusal{ErrorKind::kInvalidConfig, "placement.tp_size"};
  EXPECT_EQ(refusal_of([] { runtime_devices(nullptr, std::nullopt, 0); }), refusal);
  EXPECT_EQ(refusal_of([] { runtime_devices(nullptr, std::nullopt, kWorldSizeMax + 1); }), refusal);
}

}  // namespace
}  // namespace tpsync::rollout
