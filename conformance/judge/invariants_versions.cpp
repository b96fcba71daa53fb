// I2 (no torn version) and I7 (monotonic version).
#include <fmt/format.h>

#include <algorithm>

#include "conformance/judge/invariants.h"

namespace tpsync::judge {
namespace {

constexpr std::uint64_t kSearchedVersions = 64;

// What a checked lane is: the event's fields, by name.
struct Lane {
  std::uint32_t event = kNoEvent;
  std::uint64_t rank = 0;
  std::uint64_t value = 0;
  std::uint64_t version = 0;
  const char* what = "";
};

class TornVersion {
 public:
  explicit TornVersion(const Context& context)
      : facts_(context.facts), view_(context.view), lanes_(context.lanes) {}

  Verdict judge() {
    const EventLists& lists = view_.lists();
    if (!lists.found.empty()) {
      const sim::Event& event = view_.event(lists.found.front());
      return violation("I2", lists.found.front(),
                       fmt::format("worker {} holds {}", event.a, view_.text(event.text)));
    }
    if (auto verdict = check_generations()) return *verdict;
    if (lists.tokens.empty() && lists.residents.empty()) return nothing_seen();
    if (!facts_.shape) return inconclusive("I2", "the trace does not give the model's shape");
    if (!splits_evenly(*facts_.shape, facts_.tp)) {
      return inconclusive("I2", "the model's shape does not split over its ranks");
    }
    for (const std::uint32_t i : lists.tokens) {
      const sim::Event& e = view_.event(i);
      if (auto verdict = check({i, e.b, e.c, e.a, "generated from"})) return *verdict;
    }
    for (const std::uint32_t i : lists.residents) {
      const sim::Event& e = view_.event(i);
      if (auto verdict = check({i, e.a, e.b, e.c, "holds"})) return *verdict;
    }
    if (facts_.phantom && lists.residents.empty()) {
      return inconclusive("I2",
                          "tokens of a phantom world prove nothing, and nobody looked at "
                          "what is resident");
    }
    return pass("I2");
  }

 private:
  Verdict nothing_seen() const {
    for (const CallView& call : view_.calls()) {
      const bool commits = call.call == Call::kSync || call.call == Call::kFinish;
      if (commits && call.ok) {
        return inconclusive("I2", "a version was committed, and nobody looked at what is resident");
      }
    }
    return not_applicable("I2", "nothing was generated or published");
  }

  // Every generation has a lane per rank.
  std::optional<Verdict> check_generations() const {
    if (facts_.tp == 0) return std::nullopt;
    for (const CallView& call : view_.calls()) {
      if (call.call != Call::kGenerate || call.rank != 0 || !call.ok) continue;
      std::vector<bool> seen(static_cast<std::size_t>(facts_.tp), false);
      const auto& tokens = view_.lists().tokens;
      for (auto i = std::lower_bound(tokens.begin(), tokens.end(), call.begin);
           i != tokens.end() && *i < call.end; ++i) {
        const sim::Event& event = view_.event(*i);
        if (event.process == call.process && event.b < seen.size()) seen[event.b] = true;
      }
      const auto missing = std::find(seen.begin(), seen.end(), false);
      if (missing == seen.end()) continue;
      return violation(
          "I2", call.end,
          fmt::format("the generation has no lane of rank {}", missing - seen.begin()));
    }
    return std::nullopt;
  }

  std::optional<Verdict> check(const Lane& lane) {
    if (lane.rank >= static_cast<std::uint64_t>(facts_.tp)) {
      return violation("I2", lane.event, fmt::format("there is no rank {}", lane.rank));
    }
    if (!was_committed(lane)) {
      return violation("I2", lane.event,
                       fmt::format("rank {} is stamped with version {}, which was not committed by "
                                   "then",
                                   lane.rank, lane.version));
    }
    if (facts_.phantom && lane.value == 0) return std::nullopt;  // masked
    if (lanes_.lanes(lane.version)[lane.rank] == lane.value) return std::nullopt;
    return violation("I2", lane.event, describe(lane));
  }

  // The checkpoint's version, or published by the trainer and returned by rank 0 before.
  bool was_committed(const Lane& lane) const {
    if (lane.version == static_cast<std::uint64_t>(facts_.base_version)) return true;
    bool published = false;
    for (const std::uint32_t i : view_.lists().published) {
      published |= i < lane.event && view_.event(i).a == lane.version;
    }
    if (!published) return false;
    for (const CallView& call : view_.calls()) {
      if (call.begin > lane.event) break;
      const bool commits = call.call == Call::kSync || call.call == Call::kFinish;
      if (commits && call.rank == 0 && call.ok && call.end < lane.event &&
          static_cast<std::uint64_t>(call.value) == lane.version) {
        return true;
      }
    }
    return false;
  }

  std::string describe(const Lane& lane) {
    std::uint64_t highest = static_cast<std::uint64_t>(facts_.base_version);
    for (const std::uint32_t i : view_.lists().published) {
      highest = std::max(highest, view_.event(i).a);
    }
    const std::uint64_t first = highest > kSearchedVersions ? highest - kSearchedVersions : 0;
    const std::string head = fmt::format("rank {} is stamped with version {} but {} ", lane.rank,
                                         lane.version, lane.what);
    for (std::uint64_t version = first; version <= highest; ++version) {
      const auto& expected = lanes_.lanes(version);
      for (std::size_t rank = 0; rank < expected.size(); ++rank) {
        if (expected[rank] != lane.value) continue;
        return head + (rank == lane.rank
                           ? fmt::format("version {}", version)
                           : fmt::format("rank {}'s slices of version {}", rank, version));
      }
    }
    return head + "no version: torn";
  }

  const Facts& facts_;
  const View& view_;
  ExpectedLanes& lanes_;
};

// Every worker of rank 0's engine answered a finish within the call.
std::optional<Verdict> check_attested(const View& view, const CallView& call, bool& any_worker) {
  for (std::uint32_t p = 0; p < view.processes().size(); ++p) {
    const ProcessView& process = view.processes()[p];
    if (process.role != Role::kWorker || process.engine != call.engine) continue;
    if (process.start > call.end) continue;
    any_worker = true;
    bool attested = false;
    for (const std::uint32_t i : view.lists().attestations) {
      attested |= i > call.begin && i < call.end && view.event(i).process == p;
    }
    if (attested) continue;
    return violation("I7", call.end,
                     fmt::format("{} returned version {}, {} has not attested it",
                                 View::name_of(call), call.value, view.name_of(p)));
  }
  return std::nullopt;
}

}  // namespace

// Evidence: one hash lane per rank, in generated tokens and in what is resident wherever generate
// would be accepted; in phantom worlds, what was found to differ. Inconclusive: a commit without
// any look at what is resident, or a trace that does not give the model's shape.
Verdict judge_no_torn_version(const Context& context) { return TornVersion(context).judge(); }

// Evidence: versions that syncs and finishes returned, stamps of rows, workers' answers to finish,
// starts that were accepted. Inconclusive: a commit in a trace that shows no worker's answer at
// all.
Verdict judge_monotonic(const Context& context) {
  const View& view = context.view;
  bool any = false;
  std::string missing;
  std::vector<std::int64_t> returned;                   // by rank
  std::int64_t committed = context.facts.base_version;  // by rank 0's engine, or its checkpoint's
  for (const CallView& call : view.calls()) {
    if (call.end == kNoEvent || !call.ok) continue;
    if (call.rank < 0 || call.rank > 4096) continue;
    const auto rank = static_cast<std::size_t>(call.rank);
    if (returned.size() <= rank) returned.resize(rank + 1, context.facts.base_version);
    if (call.call == Call::kStartEngine && rank == 0) {
      committed = returned[0];  // the new runtime loads what was committed last
    } else if (call.call == Call::kSync || call.call == Call::kFinish) {
      any = true;
      if (call.value <= returned[rank]) {
        return violation("I7", call.end,
                         fmt::format("{} returned version {} after {}", View::name_of(call),
                                     call.value, returned[rank]));
      }
      returned[rank] = call.value;
      if (rank != 0) continue;
      committed = call.value;
      bool any_worker = false;
      if (view.lists().attestations.empty()) {
        missing = View::name_of(call) + " committed, no worker's answer is seen";
      } else if (auto verdict = check_attested(view, call, any_worker)) {
        return *verdict;
      } else if (!any_worker) {
        missing = View::name_of(call) + " committed, no worker is seen";
      }
    } else if (call.call == Call::kStart && rank == 0 && call.value <= committed) {
      return violation("I7", call.end,
                       fmt::format("a start of version {} was accepted, {} is committed",
                                   call.value, committed));
    } else if (call.call == Call::kGenerate && rank == 0) {
      any = true;
      if (call.value != committed) {
        return violation("I7", call.end,
                         fmt::format("a generation is stamped with version {}, {} is committed",
                                     call.value, committed));
      }
    } else if (call.call == Call::kSetVersion && rank == 0) {
      committed = std::max(committed, static_cast<std::int64_t>(call.argument));
    }
  }
  std::uint64_t stamp = static_cast<std::uint64_t>(context.facts.base_version);
  for (const std::uint32_t i : view.lists().tokens) {
    const std::uint64_t version = view.event(i).a;
    if (version < stamp) {
      return violation("I7", i,
                       fmt::format("a row is stamped with version {} after {}", version, stamp));
    }
    stamp = version;
  }
  if (!any) return not_applicable("I7", "no version was returned");
  return missing.empty() ? pass("I7") : inconclusive("I7", missing);
}

}  // namespace tpsync::judge
