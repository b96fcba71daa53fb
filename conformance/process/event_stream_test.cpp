#include "conformance/process/event_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/process/child.h"
#include "tpsync/base/errors.h"
#include "tpsync/base/testing/temporary_folder.h"

namespace tpsync::conformance {
namespace {

TEST(EventCollector, RefusesAPathThatIsTooLongForASocket) {
  try {
    EventCollector collector("/tmp/" + std::string(200, 'd') + "/events");
    FAIL() << "it listens there";
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidConfig);
    EXPECT_NE(error.record().detail.find("TMPDIR"), std::string::npos);
  }
}

TEST(EventCollector, WithoutDescriptorsEndsWhoeverAsksAndSaysWhy) {
  const TemporaryFolder folder;
  EventCollector collector(folder.path() / "events");
  const pid_t child = fork_child("child", [&] {
    EventStream stream(folder.path() / "events", {"actor", 0, 0, getpid(), getppid()});
    stream.barrier();
    return 0;
  });
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(STDERR_FILENO);  // the lowest number that is free
  ASSERT_EQ(close(next), 0);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  collector.start();
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_NE(WEXITSTATUS(status), 0) << "it was let go as if its events had been taken in";
  EXPECT_EQ(collector.failure(), "a process could not be taken in (EMFILE)");
}

}  // namespace
}  // namespace tpsync::conformance
