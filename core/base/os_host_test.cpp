#include "tpsync/base/os_host.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <set>

namespace tpsync {
namespace {

TEST(OsHost, NamesTheProcessTheHostAndTheBoot) {
  OsHost host;
  EXPECT_EQ(host.pid(), getpid());
  EXPECT_FALSE(host.host_name().empty());
  EXPECT_EQ(host.boot_id().size(), 36u);  // a UUID without the line's end
  EXPECT_EQ(host.boot_id(), host.boot_id());
}

TEST(OsHost, TellsAnEmptyVariableFromAMissingOne) {
  OsHost host;
  ASSERT_EQ(setenv("TPSYNC_TEST_VARIABLE", "", 1), 0);
  EXPECT_EQ(host.environment("TPSYNC_TEST_VARIABLE"), "");
  ASSERT_EQ(unsetenv("TPSYNC_TEST_VARIABLE"), 0);
  EXPECT_EQ(host.environment("TPSYNC_TEST_VARIABLE"), std::nullopt);
}

TEST(OsRandom, FillsEveryByteAndNeverRepeats) {
  OsRandom random;
  std::set<ByteBuffer> seen;
  std::array<bool, 16> nonzero{};
  for (int i = 0; i < 64; ++i) {
    ByteBuffer bytes(16);
    random.fill(bytes);
    for (std::size_t k = 0; k < bytes.size(); ++k) nonzero[k] |= bytes[k] != std::byte{0};
    seen.insert(bytes);
  }
  EXPECT_EQ(seen.size(), 64u);
  for (const bool written : nonzero) EXPECT_TRUE(written);
}

TEST(OsRandom, FillsMoreThanTheKernelGivesAtOnceAndNothing) {
  OsRandom random;
  ByteBuffer bytes(1000);
  random.fill(bytes);
  EXPECT_NE(ByteBuffer(bytes.end() - 500, bytes.end()), ByteBuffer(500));
  random.fill({});
}

}  // namespace
}  // namespace tpsync
