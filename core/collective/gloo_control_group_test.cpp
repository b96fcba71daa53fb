// What control groups over Gloo know beyond the contract: who the ranks are. The contract itself is
// checked for every kind of control group together.
#include "tpsync/collective/gloo_control_group.h"

#include <gtest/gtest.h>

#include <array>

#include "tpsync/collective/testing/gloo_ranks.h"

namespace tpsync::collective {
namespace {

class GlooControl : public fakes::GlooRanks {};

TEST_F(GlooControl, RanksOfOneHostKnowThatTheyShareIt) {
  const auto outcomes = run(2, [&](GlooControlGroup& group) {
    ASSERT_EQ(group.identities().size(), 2U);
    EXPECT_TRUE(on_one_host(group.identities()));
    EXPECT_EQ(group.identities()[0], group.identities()[1]);
    EXPECT_EQ(group.identities()[0].pid, world_.world().host.pid());
    EXPECT_EQ(group.identities()[0].host_name, world_.world().host.host_name());
    EXPECT_EQ(group.identities()[0].boot_id, world_.world().host.boot_id());
  });
  expect_all_succeed(outcomes);
}

TEST(GlooIdentities, HostNameAndBootIdMustBothBeEqual) {
  const RankIdentity here{"node", "boot", 1};
  const RankIdentity also_here{"node", "boot", 2};
  const RankIdentity other_boot{"node", "another", 2};
  const RankIdentity other_name{"edon", "boot", 2};
  EXPECT_TRUE(on_one_host(std::vector{here, also_here}));
  EXPECT_FALSE(on_one_host(std::vector{here, other_boot}));
  EXPECT_FALSE(on_one_host(std::vector{here, other_name}));
  EXPECT_FALSE(on_one_host({}));
}

}  // namespace
}  // namespace tpsync::collective
