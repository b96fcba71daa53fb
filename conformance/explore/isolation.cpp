// A run in a child process: what ends that child says so of the run.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "conformance/explore/shrinker.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

// A world that never ends is one in which some code loops without asking the world for anything.
constexpr unsigned kSecondsMax = 60;

[[noreturn]] void run_as_child(int result, const WorldSpec& spec, const SimOptions& options,
                               const Script& script) {
  alarm(kSecondsMax);
  std::string text;
  {
    SimRunner runner;
    for (const Symptom& symptom : symptoms_of(runner.run(spec, options, script))) {
      text += symptom.id + "\t" + symptom.text.substr(0, symptom.text.find('\n')) + "\n";
    }
  }
  text += "end\n";
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t wrote = write(result, text.data() + at, text.size() - at);
    if (wrote < 0) break;
    at += static_cast<std::size_t>(wrote);
  }
  _exit(0);
}

std::string read_all(int from) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = read(from, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

}  // namespace

std::vector<Symptom> isolated_symptoms(const WorldSpec& spec, const SimOptions& options,
                                       const Script& script) {
  int ends[2];
  if (pipe(ends) != 0) throw_broken(ErrorKind::kIo, "pipe", "cannot be made");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw_broken(ErrorKind::kIo, "fork", "failed");
  if (child == 0) {
    close(ends[0]);
    run_as_child(ends[1], spec, options, script);
  }
  close(ends[1]);
  std::string text = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  std::vector<Symptom> symptoms;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
    return {
        {std::string(kHangSymptom), fmt::format("the run did not end within {} s", kSecondsMax)}};
  }
  if (!text.ends_with("end\n")) {
    return {{std::string(kCrashSymptom),
             WIFSIGNALED(status) ? fmt::format("the process ended by signal {}", WTERMSIG(status))
                                 : fmt::format("the process exited with {}", WEXITSTATUS(status))}};
  }
  text.resize(text.size() - 4);
  while (!text.empty()) {
    const std::size_t line = text.find('\n');
    const std::size_t tab = text.find('\t');
    symptoms.push_back({text.substr(0, tab), text.substr(tab + 1, line - tab - 1)});
    text.erase(0, line + 1);
  }
  return symptoms;
}

}  // namespace tpsync::conformance
