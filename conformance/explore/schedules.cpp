#include "conformance/explore/schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "conformance/explore/exploration.h"
#include "conformance/judge/content.h"
#include "conformance/judge/records.h"
#include "conformance/scenarios/scripts.h"

namespace tpsync::conformance {

namespace {

// Under each schedule the runs of a part have numbers of their own.
constexpr int kPartBits = 32;

ExploreOptions of_part(const ExploreOptions& options, std::uint64_t part) {
  ExploreOptions own = options;
  const std::uint64_t offset = part << kPartBits;
  own.left_out.clear();
  for (const std::uint64_t number : options.left_out) {
    if (number != kTwinNumber && number >> kPartBits == part) {
      own.left_out.push_back(number - offset);
    }
  }
  if (options.before) {
    own.before = [&options, offset](std::uint64_t number, const WorldSpec& spec,
                                    const SimOptions& run) {
      options.before(number == kTwinNumber ? number : number + offset, spec, run);
    };
  }
  return own;
}

ExploreReport explore_without_faults(SimRunner& runner, const WorldSpec& spec,
                                     const ExploreOptions& options) {
  Exploration exploration(runner, spec, options, "");
  Attempt attempt;
  attempt.name = fmt::format("schedule {}", options.schedule);
  attempt.rule = Attempt::Rule::kFaultFree;
  attempt.spec = &spec;
  attempt.options = exploration.scheduled();
  if (!exploration.left_out(attempt.number)) exploration.attempt(attempt);
  return exploration.finish();
}

class Bounded {
 public:
  Bounded(SimRunner& runner, Exploration& exploration, std::uint32_t preemptions)
      : runner_(runner), exploration_(exploration), preemptions_(preemptions) {}

  void run() { explore({}, 0); }

 private:
  // Sixteen candidates and 65,536 choices are more than a small world has; 20 bits hold both.
  static constexpr int kDeviationBits = 20;
  static constexpr std::uint64_t kChoicesMax = std::uint64_t{1} << 16;

  void explore(const std::vector<sim::Deviation>& deviations, std::uint64_t number) {
    const bool inner = deviations.size() < preemptions_;
    const bool own = exploration_.of_shard(judge::mix(number));
    if ((!inner && !own) || exploration_.left_out(number)) return;
    SimOptions options;
    options.policy = sim::Policy::kLastReady;
    options.deviations = deviations;
    options.latency_percent = 0;
    if (own) {
      Attempt attempt;
      attempt.number = number;
      attempt.name = name_of(deviations);
      attempt.rule = Attempt::Rule::kFaultFree;
      attempt.spec = &exploration_.spec();
      attempt.options = options;
      exploration_.attempt(attempt);
    } else {
      options.judge = false;
      exploration_.look(number, exploration_.spec(), options, publish_and_recover());
    }
    if (!inner) return;
    const std::vector<sim::Choice> choices = runner_.trace().choices;
    const auto [begin, end] = publication(runner_.trace());
    const std::size_t first = deviations.empty() ? 0 : deviations.back().choice + 1;
    for (std::size_t i = first; i < std::min<std::size_t>(choices.size(), kChoicesMax); ++i) {
      if (choices[i].at_event < begin) continue;
      if (choices[i].at_event > end) break;
      for (std::uint32_t candidate = 0; candidate < choices[i].count; ++candidate) {
        if (candidate == choices[i].chosen) continue;
        auto more = deviations;
        more.push_back({i, candidate});
        explore(more, (number << kDeviationBits) | (i << 4) | std::min(candidate + 1, 15U));
      }
    }
  }

  // The events between the first actor's first call of sync and the last actor's return from it.
  static std::pair<std::size_t, std::size_t> publication(const sim::Trace& trace) {
    std::size_t begin = SIZE_MAX;
    std::size_t end = 0;
    std::set<std::uint32_t> returned;
    for (std::size_t i = 0; i < trace.events.size(); ++i) {
      const sim::Event& event = trace.events[i];
      if (event.a != static_cast<std::uint64_t>(judge::Call::kSync)) continue;
      if (event.kind == static_cast<std::uint16_t>(judge::Record::kCallBegin)) {
        begin = std::min(begin, i);
      } else if (event.kind == static_cast<std::uint16_t>(judge::Record::kCallEnd) &&
                 returned.insert(event.process).second) {
        end = i;
      }
    }
    return {begin, end};
  }

  static std::string name_of(const std::vector<sim::Deviation>& deviations) {
    std::string name = "schedule";
    for (const sim::Deviation& d : deviations) {
      name += fmt::format(" {}:{}", d.choice, d.candidate);
    }
    return name;
  }

  SimRunner& runner_;
  Exploration& exploration_;
  const std::uint32_t preemptions_;
};

}  // namespace

ExploreReport explore_schedules(SimRunner& runner, const WorldSpec& spec,
                                const ScheduleRange& range, const ExploreOptions& options) {
  const bool priority = range.kind == DrawnSchedule::kPriority;
  SimOptions plain;
  plain.policy = sim::Policy::kLastReady;
  plain.judge = false;
  if (options.before) options.before(kTwinNumber, spec, plain);
  const Run twin = runner.run(spec, plain, publish_and_recover());
  const std::uint64_t choices = std::max<std::uint64_t>(runner.trace().choices.size(), 1);
  ExploreReport whole;
  whole.fault_free = {kTwinNumber, "", "", spec, plain, sim::to_text(twin.hash)};
  for (std::uint64_t number = range.first; number < range.first + range.count; ++number) {
    ExploreOptions own = of_part(options, number);
    own.policy = priority ? sim::Policy::kPriority : sim::Policy::kSeeded;
    own.schedule = number + 1;  // 0 is the plain draw
    own.priority_changes = priority ? range.depth - 1 : 0;
    own.priority_choices = priority ? choices : SimOptions{}.priority_choices;
    ExploreReport report;
    if (range.single_faults) {
      report = explore_single(runner, spec, own);
    } else if (number % options.shard_count == options.shard_index) {
      report = explore_without_faults(runner, spec, own);
    } else {
      continue;
    }
    for (Finding& finding : report.findings) {
      finding.number = finding.number == kTwinNumber
                           ? (number << kPartBits) | ((std::uint64_t{1} << kPartBits) - 1)
                           : finding.number + (number << kPartBits);
    }
    merge(whole, report);
  }
  whole.schedule = priority ? fmt::format("pct-{}", range.depth) : "random";
  return whole;
}

ExploreReport explore_bounded(SimRunner& runner, const WorldSpec& spec, std::uint32_t preemptions,
                              const ExploreOptions& options) {
  ExploreOptions plain = options;
  plain.policy = sim::Policy::kLastReady;
  Exploration exploration(runner, spec, plain, fmt::format("bounded-{}", preemptions));
  if (!exploration.run_twin()) return exploration.finish();
  Bounded(runner, exploration, preemptions).run();
  return exploration.finish();
}

}  // namespace tpsync::conformance
