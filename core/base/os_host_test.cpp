#include "tpsync/base/os_host.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

// Puts an array of entries in the place of the environment, which may then hold what setenv
// refuses.
class EnvironReplaced {
 public:
  explicit EnvironReplaced(std::vector<std::string> entries) : entries_(std::move(entries)) {
    for (std::string& entry : entries_) array_.push_back(entry.data());
    array_.push_back(nullptr);
    environ = array_.data();
  }
  ~EnvironReplaced() { environ = before_; }
  EnvironReplaced(const EnvironReplaced&) = delete;
  EnvironReplaced& operator=(const EnvironReplaced&) = delete;

 private:
  char** before_ = environ;
  std::vector<std::string> entries_;
  std::vector<char*> array_;
};

TEST(OsHost, ListsAllVariablesByNameAndLeavesOutWhatIsNone) {
  OsHost host;
  const EnvironReplaced replaced({"B=2", "NO_VALUE", "A=x=y", "=C:=nameless", "", "A_EMPTY="});
  EXPECT_EQ(host.environment(), (Environment{{"A", "x=y"}, {"A_EMPTY", ""}, {"B", "2"}}));
}

TEST(OsHost, OfAVariableThatIsThereTwiceTheListHasTheOneThatTheQueryGives) {
  OsHost host;
  const EnvironReplaced replaced({"TWICE=second by order of letters", "ONCE=1", "TWICE=a"});
  EXPECT_EQ(host.environment("TWICE"), "second by order of letters");
  EXPECT_EQ(host.environment(),
            (Environment{{"ONCE", "1"}, {"TWICE", "second by order of letters"}}));
}

TEST(OsHost, AClearedEnvironmentIsAnEmptyList) {
  OsHost host;
  char** const before = environ;
  environ = nullptr;
  const Environment listed = host.environment();
  environ = before;
  EXPECT_EQ(listed, Environment{});
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
