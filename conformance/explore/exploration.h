// What every exploration does with one run: makes it, judges it, counts it, repeats some and
// compares, and keeps the first findings of each kind.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "conformance/explore/explorer.h"

namespace tpsync::conformance {

struct Attempt {
  // What may come of it.
  enum class Rule : std::uint8_t {
    kSingle,     // one fault, which must take effect, and every invariant must be told
    kMixed,      // several faults, or none in a drawn world: they may end the run before each other
    kFaultFree,  // nothing may fail
  };
  std::uint64_t number = 0;  // in its exploration
  std::string name;
  Rule rule = Rule::kSingle;
  const WorldSpec* spec = nullptr;  // outlives the call
  SimOptions options;
  Script script;  // empty: publish_and_recover()
};

class Exploration {
 public:
  Exploration(SimRunner& runner, const WorldSpec& spec, const ExploreOptions& options,
              std::string schedule);

  // Runs the world without faults, under options.policy, and counts what applies to it. False, with
  // a finding, if it does not even work so.
  bool run_twin();
  const sim::Trace& twin() const { return twin_; }
  const std::vector<faults::Operation>& operations() const { return operations_; }
  const std::vector<faults::Pair>& singles() const { return singles_; }

  // Of this shard, and not to be left out.
  bool wanted(std::uint64_t number) const;
  // The number that `key` stands for is of this shard.
  bool of_shard(std::uint64_t key) const {
    return key % options_.shard_count == options_.shard_index;
  }
  bool left_out(std::uint64_t number) const;

  // The runner's trace is then the run's. Counted, and of the report's identity.
  Run attempt(const Attempt& attempt);
  // A run that only tells where to go on: judged, not counted.
  Run look(std::uint64_t number, const WorldSpec& spec, const SimOptions& options,
           const Script& script);

  // With the schedule of this exploration.
  SimOptions scheduled() const;
  const WorldSpec& spec() const { return spec_; }
  ExploreReport& report() { return report_; }
  double seconds() const;
  ExploreReport finish();

 private:
  void add_finding(std::uint64_t number, std::string id, std::string what, const WorldSpec& spec,
                   const SimOptions& options);
  void fail(const Attempt& attempt, const std::string& id, const std::string& text);
  // True if a repetition was not made or gave the same trace.
  bool repeats(const Attempt& attempt, const Script& script);
  std::string held_against_demand(const SimOptions& options) const;
  void recover_elsewhere(const Attempt& attempt);

  SimRunner& runner_;
  const WorldSpec& spec_;
  const ExploreOptions& options_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  ExploreReport report_;
  sim::Trace twin_;
  std::vector<faults::Operation> operations_;
  std::vector<faults::Pair> singles_;
  ActorLog log_;
  std::map<std::pair<int, std::int64_t>, std::string>
      recovered_;  // by TP size and base version: what went wrong, or nothing
};

}  // namespace tpsync::conformance
