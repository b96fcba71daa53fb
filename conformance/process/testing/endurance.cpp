#include "conformance/process/testing/endurance.h"

#include <dirent.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "conformance/world/actor.h"

namespace tpsync::conformance {

std::string Holdings::counts() const {
  return fmt::format("{}: {} descriptors, {} threads, {} mappings", who, descriptors, threads,
                     mappings);
}

namespace {

constexpr int kTriesMax = 200'000;  // to find all processes asleep

struct Arrival {
  pid_t pid = 0;
  int rank = 0;
  std::uint64_t free_device_bytes = 0;
  std::int64_t p50_ns = 0;
  std::int64_t p99_ns = 0;
};

std::vector<std::string> entries_of(const std::string& folder) {
  std::vector<std::string> names;
  DIR* const open = opendir(folder.c_str());
  if (open == nullptr) return names;
  while (const dirent* const entry = readdir(open))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  closedir(open);
  return names;
}

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream content;
  content << file.rdbuf();
  return std::move(content).str();
}

// The fields of /proc/PID/stat after the name: state, parent, ...
std::vector<std::string> stat_of(const std::string& folder) {
  const std::string stat = content_of(folder + "/stat");
  const std::size_t name_end = stat.rfind(')');
  std::istringstream rest(name_end == std::string::npos ? "" : stat.substr(name_end + 1));
  std::vector<std::string> fields;
  for (std::string field; fields.size() < 2 && rest >> field;) fields.push_back(field);
  return fields;
}

std::vector<std::string> command_line(pid_t pid) {
  std::istringstream all(content_of(fmt::format("/proc/{}/cmdline", pid)));
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(all, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

class Observer {
 public:
  explicit Observer(const std::vector<Arrival>& actors) : actors_(actors) {}

  // Of all actors and everything below them, at a moment at which all their threads sleep.
  Look look() {
    find_processes();
    for (int tries = 0; tries < kTriesMax && !all_sleep(); ++tries) sched_yield();
    Look look;
    for (const auto& [pid, who] : names_) look.processes.push_back(holdings(pid, who));
    std::sort(look.processes.begin(), look.processes.end(),
              [](const Holdings& a, const Holdings& b) { return a.who < b.who; });
    look.world_files = static_cast<std::int64_t>(entries_of(world_folder_).size());
    return look;
  }

 private:
  void find_processes() {
    names_.clear();
    for (const Arrival& actor : actors_) names_[actor.pid] = fmt::format("actor {}", actor.rank);
    std::multimap<pid_t, pid_t> children;
    for (const std::string& name : entries_of("/proc")) {
      pid_t pid = 0;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
      if (error != std::errc()) continue;
      const auto fields = stat_of("/proc/" + name);
      if (fields.size() == 2) children.emplace(std::stoi(fields[1]), pid);
    }
    std::vector<pid_t> parents;
    for (const auto& [pid, who] : names_) parents.push_back(pid);
    while (!parents.empty()) {
      const pid_t parent = parents.back();
      parents.pop_back();
      const auto [begin, end] = children.equal_range(parent);
      for (auto child = begin; child != end; ++child) {
        names_[child->second] = name_of(child->second);
        parents.push_back(child->second);
      }
    }
  }

  // As the test runtime's arguments say: "runtime FOLDER VERSION", "worker FOLDER VERSION RANK".
  std::string name_of(pid_t pid) {
    const auto arguments = command_line(pid);
    if (arguments.size() < 4) return "unknown";
    world_folder_ = arguments[2];
    return arguments.size() > 4 ? arguments[1] + " " + arguments[4] : arguments[1];
  }

  bool all_sleep() const {
    for (const auto& [pid, who] : names_) {
      const std::string tasks = fmt::format("/proc/{}/task/", pid);
      for (const std::string& task : entries_of(tasks)) {
        const auto fields = stat_of(tasks + task);
        if (fields.empty() || fields[0] != "S") return false;
      }
    }
    return true;
  }

  static Holdings holdings(pid_t pid, const std::string& who) {
    const std::string folder = fmt::format("/proc/{}/", pid);
    Holdings found;
    found.who = who;
    found.descriptors = static_cast<std::int64_t>(entries_of(folder + "fd").size());
    found.threads = static_cast<std::int64_t>(entries_of(folder + "task").size());
    const std::string maps = content_of(folder + "maps");
    found.mappings = std::count(maps.begin(), maps.end(), '\n');
    std::istringstream rollup(content_of(folder + "smaps_rollup"));
    for (std::string word; rollup >> word;) {
      if (word != "Rss:") continue;
      rollup >> found.resident_bytes;
      found.resident_bytes *= 1024;
    }
    return found;
  }

  const std::vector<Arrival>& actors_;
  std::map<pid_t, std::string> names_;
  std::string world_folder_;
};

// Two ends of a pipe, by name.
struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  ~Pipe() {
    close_reader();
    close_writer();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_reader() { shut(ends[0]); }
  void close_writer() { shut(ends[1]); }
  static void shut(int& end) {
    if (end >= 0) ::close(std::exchange(end, -1));
  }
  // Small things, so in one piece or not at all.
  template <typename Value>
  bool take(Value& value) {
    return ::read(ends[0], &value, sizeof value) == static_cast<ssize_t>(sizeof value);
  }
  template <typename Value>
  bool give(const Value& value) {
    return ::write(ends[1], &value, sizeof value) == static_cast<ssize_t>(sizeof value);
  }
  int ends[2] = {-1, -1};
};

std::string to_lines(const Look& look) {
  std::string lines = fmt::format("{} {} {}\n", look.processes.size(), look.world_files,
                                  fmt::join(look.free_device_bytes, " "));
  for (const Holdings& h : look.processes)
    lines += fmt::format("{}\n{} {} {} {}\n", h.who, h.descriptors, h.threads, h.mappings,
                         h.resident_bytes);
  return lines;
}

Look look_from(std::istream& lines, int actors) {
  Look look;
  std::size_t count = 0;
  lines >> count >> look.world_files;
  look.free_device_bytes.resize(static_cast<std::size_t>(actors));
  for (std::uint64_t& bytes : look.free_device_bytes) lines >> bytes;
  lines >> std::ws;
  for (std::size_t i = 0; i < count && lines; ++i) {
    Holdings h;
    std::getline(lines, h.who);
    lines >> h.descriptors >> h.threads >> h.mappings >> h.resident_bytes >> std::ws;
    look.processes.push_back(std::move(h));
  }
  return look;
}

// What the observing process does: a look each time that all actors have come.
int observe(int actors_count, Pipe& arrived, Pipe& go_on, Pipe& report) {
  std::string lines;
  for (int look = 0; look < 2; ++look) {
    std::vector<Arrival> actors(static_cast<std::size_t>(actors_count));
    for (Arrival& actor : actors)
      if (!arrived.take(actor)) return 1;
    std::sort(actors.begin(), actors.end(),
              [](const Arrival& a, const Arrival& b) { return a.rank < b.rank; });
    Look seen = Observer(actors).look();
    for (const Arrival& actor : actors) seen.free_device_bytes.push_back(actor.free_device_bytes);
    lines += to_lines(seen);
    if (look == 1) lines += fmt::format("{} {}\n", actors[0].p50_ns, actors[0].p99_ns);
    for (std::size_t i = 0; i < actors.size(); ++i)
      if (!go_on.give('g')) return 1;
  }
  return ::write(report.ends[1], lines.data(), lines.size()) == static_cast<ssize_t>(lines.size())
             ? 0
             : 1;
}

std::string read_all(const Pipe& pipe) {
  std::string all;
  char bytes[4096];
  for (ssize_t got = 0; (got = ::read(pipe.ends[0], bytes, sizeof bytes)) > 0;)
    all.append(bytes, static_cast<std::size_t>(got));
  return all;
}

std::int64_t percentile(std::vector<std::int64_t> values, std::size_t percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, values.size() * percent / 100)];
}

}  // namespace

Endured endure(const Endurance& endurance) {
  Pipe arrived;
  Pipe go_on;
  Pipe report;
  Endured endured;
  const int actors = endurance.spec.actors;
  const pid_t harness = getpid();
  const pid_t observer = fork();
  if (observer < 0) return endured;
  if (observer == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    arrived.close_writer();  // so that nobody's coming any more shows as end of file
    _exit(getppid() == harness ? observe(actors, arrived, go_on, report) : 1);
  }
  report.close_writer();

  ProcessRunner runner(endurance.options);
  endured.run = runner.run(endurance.spec, {}, [&](Actor& actor) {
    const auto expect = [&](const Outcome& outcome, const char* what) {
      actor.check(outcome.ok(), outcome.ok() ? what : to_text(*outcome.error));
    };
    std::vector<std::int64_t> times;
    expect(actor.start_engine(), "start");
    expect(actor.setup(), "setup");
    expect(actor.sleep(), "bootstrap sleep");
    expect(actor.wake_all(), "first wake-up");
    for (int publication = 1; publication <= endurance.publications; ++publication) {
      expect(actor.sleep(), "sleep");
      expect(actor.wake_weights(), "weights wake-up");
      actor.step();
      const TimePoint begin = actor.now();
      const Outcome published = actor.publish();
      times.push_back((actor.now() - begin).count());
      expect(published, "publish");
      if (!published.ok()) break;
      expect(actor.wake_all(), "full wake-up");
      expect(actor.generate(), "generate");
      if (publication != endurance.early && publication != endurance.publications) continue;
      const std::uint64_t free =
          endurance.free_device_bytes ? endurance.free_device_bytes(actor.rank()) : 0;
      char go = 0;
      actor.check(arrived.give(Arrival{getpid(), actor.rank(), free, percentile(times, 50),
                                       percentile(times, 99)}) &&
                      go_on.take(go),
                  "nobody looks at the processes");
    }
    actor.cleanup();
    actor.shutdown();
  });
  arrived.close_writer();
  std::istringstream lines(read_all(report));
  waitpid(observer, &endured.observer_status, 0);
  endured.early = look_from(lines, actors);
  endured.late = look_from(lines, actors);
  lines >> endured.p50_ns >> endured.p99_ns;
  return endured;
}

void expect_the_same(const Endured& endured, std::int64_t resident_growth_bytes_max) {
  EXPECT_EQ(endured.run.end.kind, sim::RunResult::Kind::kFinished) << endured.run.end.detail;
  EXPECT_TRUE(endured.run.judgement.ok()) << endured.run.judgement.text();
  for (const std::string& failure : endured.run.log.failed_checks) ADD_FAILURE() << failure;
  ASSERT_EQ(endured.observer_status, 0) << "the observer should have looked twice";
  const Look& early = endured.early;
  const Look& late = endured.late;
  EXPECT_EQ(early.world_files, late.world_files);
  EXPECT_EQ(early.free_device_bytes, late.free_device_bytes);
  ASSERT_EQ(early.processes.size(), late.processes.size());
  for (std::size_t i = 0; i < early.processes.size(); ++i) {
    const Holdings& before = early.processes[i];
    const Holdings& after = late.processes[i];
    EXPECT_EQ(before.counts(), after.counts());
    const std::int64_t growth = after.resident_bytes - before.resident_bytes;
    EXPECT_LE(growth, resident_growth_bytes_max) << after.who;
    EXPECT_GT(before.resident_bytes, 0) << before.who;
    fmt::print("{}, {} KiB resident, {:+} KiB since the first look\n", after.counts(),
               after.resident_bytes / 1024, growth / 1024);
  }
  fmt::print("publications: median {:.2f} ms, p99 {:.2f} ms\n",
             static_cast<double>(endured.p50_ns) / 1e6, static_cast<double>(endured.p99_ns) / 1e6);
}

}  // namespace tpsync::conformance
