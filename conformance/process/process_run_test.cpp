// Worlds of processes in surroundings that are not as a program would wish them.
#include "conformance/process/process_run.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "conformance/process/child.h"
#include "conformance/world/actor.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {
namespace {

constexpr uid_t kNobody = 65534;

WorldSpec smallest_world() {
  WorldSpec spec = small_world(
      model::load_model_config(std::string(TPSYNC_SOURCE_DIR) + "/conformance/models/tiny.json"),
      1);
  set_real_timeouts(spec);
  return spec;
}

const Script kStartAndEnd = [](Actor& actor) {
  actor.start_engine();
  actor.shutdown();
};

TEST(ProcessRunner, EndsAlsoWhereItsStarterIgnoredTheEndsOfChildren) {
  const auto before = signal(SIGCHLD, SIG_IGN);
  ProcessRunner runner({TPSYNC_TEST_RUNTIME});
  EXPECT_TRUE(runner.run(smallest_world(), {}, kStartAndEnd).passed());
  int done = 0;
  runner.run_all({{"one", smallest_world(), {}, kStartAndEnd}},
                 [&](std::size_t, const conformance::Run& run) { done += run.passed() ? 1 : 0; });
  EXPECT_EQ(done, 1);
  signal(SIGCHLD, before);
}

TEST(ProcessRunner, WithoutRoomForProcessesSaysSoAndSignalsNobody) {
  // In a child, since the limit is one of a user, who must not be root, and stays.
  const pid_t child = fork_child("harness", [] {
    if (geteuid() == 0 && (setgid(kNobody) != 0 || setuid(kNobody) != 0)) return 2;
    const rlimit none{0, 0};
    if (setrlimit(RLIMIT_NPROC, &none) != 0) return 3;
    ProcessRunner runner({TPSYNC_TEST_RUNTIME});
    int refusals = 0;
    const auto expect_refusal = [&](std::string_view of, const auto& run) {
      try {
        run();
      } catch (const RuntimeBroken& error) {
        refusals += error.kind() == ErrorKind::kIo && error.record().subject == of ? 1 : 0;
      }
    };
    expect_refusal("actor 0", [&] { runner.run(smallest_world(), {}, kStartAndEnd); });
    expect_refusal("one", [&] {
      runner.run_all({{"one", smallest_world(), {}, kStartAndEnd}},
                     [](std::size_t, const conformance::Run&) {});
    });
    return refusals == 2 ? 0 : 1;
  });
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tpsync::conformance
