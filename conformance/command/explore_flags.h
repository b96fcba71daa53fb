// The flags of tpsync explore, what they ask for, and the explorations that they stand for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/command/jobs.h"
#include "conformance/command/world_flags.h"
#include "conformance/explore/random_plans.h"

namespace CLI {
class App;
}

namespace tpsync::conformance {

struct ExploreFlags {
  WorldFlags world;
  std::string faults = "single";
  std::string schedules = "default";
  std::optional<std::uint64_t> depth;        // 3
  std::optional<std::uint64_t> preemptions;  // 2
  std::optional<std::uint64_t> seeds;        // 1000 plans, 10 schedules
  std::optional<std::uint64_t> first;        // 0
  std::optional<std::uint64_t> budget_s;     // no limit
  bool swarm = false;
  bool draw_worlds = false;
  std::string shard = "0/1";
  std::optional<std::uint64_t> jobs;  // 1
  bool check_determinism = false;
  std::optional<std::uint64_t> shrink_runs;  // 2000
  bool coverage = false;
  bool json = false;
  std::string out;

  void add_to(CLI::App& app);
  // Throws UsageError that begins with the flag.
  void check() const;

  bool random() const { return faults == "random"; }
  RandomOptions plans() const { return {swarm, draw_worlds}; }
  // Whether nothing but random draws decides what is run: then a fault may strike nowhere.
  bool sampled() const { return faults != "single"; }
  // What the result depends on, as flags for a shell.
  std::string parameters(const WorldSpec& spec) const;
  // The same, and how it is split.
  std::string text(const WorldSpec& spec) const;
};

// One per line of the table.
std::vector<Exploring> explorations(const ExploreFlags& flags, const WorldSpec& spec);

}  // namespace tpsync::conformance
