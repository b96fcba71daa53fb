// The passes of a reduction, each repeated until none of them finds anything simpler.
#include "conformance/explore/shrinker.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "conformance/explore/explorer.h"
#include "conformance/explore/minimize.h"
#include "conformance/scenarios/scripts.h"
#include "conformance/world/operations.h"
#include "faults/enumerate.h"
#include "tpsync/base/errors.h"
#include "tpsync/model/tp_layout.h"
#include "tpsync/transfer/chunk_plan.h"

namespace tpsync::conformance {

namespace {

// Where a fault's demand comes from.
enum class Origin : std::uint8_t {
  kFaultFree,  // the operations of the run without any fault
  kOthers,     // those of the run with the plan's other faults
  kGiven,      // another one than the catalogue's: it goes with the fault
  kFixed,      // not known to the catalogue at its moment, which then stays
};

struct Candidate {
  WorldSpec spec;
  SimOptions options;
  std::vector<Origin> origins;  // by fault
};

std::uint64_t chunks_of(const WorldSpec& spec) {
  const auto plan = model::plan_canonical(spec.config);
  return transfer::plan_chunks(plan.tensors, spec.sync.bucket_bytes).size();
}

bool is_possible(const WorldSpec& spec) {
  try {
    const auto plan = model::plan_canonical(spec.config);
    static_cast<void>(model::plan_tp_layout(spec.config, plan, spec.tp, 0));
    return spec.sync.bucket_bytes >= plan.largest_tensor_bytes &&
           (spec.actor_uuids.empty() ||
            spec.actor_uuids.size() == static_cast<std::size_t>(spec.actors));
  } catch (const Error&) {
    return false;
  }
}

void erase_fault(Candidate& candidate, std::size_t index) {
  const auto erase = [index](auto& list) {
    if (index < list.size()) list.erase(list.begin() + static_cast<std::ptrdiff_t>(index));
  };
  erase(candidate.options.plan.faults);
  erase(candidate.options.facts);
  erase(candidate.origins);
}

class Shrinker {
 public:
  Shrinker(SimRunner& runner, const ShrinkOptions& options)
      : runner_(runner),
        options_(options),
        script_(options.script ? options.script : publish_and_recover()) {}

  Shrunk run(const WorldSpec& spec, const SimOptions& options) {
    best_ = {spec, options, {}};
    Shrunk result;
    result.spec = spec;
    result.options = options;
    const std::vector<Symptom> symptoms = observe(best_);
    id_ = options_.id.empty() && !symptoms.empty() ? symptoms.front().id : options_.id;
    if (id_.empty() || !has_symptom(symptoms, id_)) {
      result.runs = runs_;
      return result;
    }
    free_recovery_ = options.recovery == recovery_of(options.plan);
    find_origins();
    for (bool simpler = true; simpler && !spent();) {
      simpler = false;
      simpler |= plain_schedules();
      simpler |= fewer_faults();
      simpler |= smaller_world();
      simpler |= earlier_moments();
      simpler |= fewer_deviations();
    }
    return finish();
  }

 private:
  bool spent() const { return runs_ >= options_.runs_max; }

  Run run_plain(const WorldSpec& spec, const SimOptions& options) {
    ++runs_;
    return runner_.run(spec, options, script_);
  }

  std::vector<Symptom> observe(const Candidate& candidate) {
    if (!options_.isolated) return symptoms_of(run_plain(candidate.spec, candidate.options));
    ++runs_;
    return isolated_symptoms(candidate.spec, candidate.options, script_);
  }

  // Keeps the candidate if it fails as it should.
  bool accept(Candidate candidate) {
    if (spent() || !is_possible(candidate.spec) || !derive(candidate)) return false;
    if (!has_symptom(observe(candidate), id_)) return false;
    best_ = std::move(candidate);
    return true;
  }

  static std::string recovery_of(const faults::Plan& plan) {
    const bool elsewhere = std::any_of(plan.faults.begin(), plan.faults.end(), breaks_world);
    return elsewhere ? "other-world" : "";
  }

  // ---- what faults demand ----

  std::vector<faults::Pair> single_faults(const Candidate& candidate, faults::Plan plan) {
    SimOptions options = candidate.options;
    options.plan = std::move(plan);
    options.facts.clear();
    options.deviations.clear();
    options.judge = false;
    run_plain(candidate.spec, options);
    return faults::enumerate(publication_operations(runner_.trace(), candidate.spec));
  }

  static std::optional<FaultFacts> facts_in(const std::vector<faults::Pair>& pairs,
                                            const faults::Fault& fault) {
    const auto found = std::find_if(pairs.begin(), pairs.end(),
                                    [&](const faults::Pair& pair) { return pair.fault == fault; });
    if (found == pairs.end()) return std::nullopt;
    return FaultFacts{found->demand, found->kinds};
  }

  std::optional<FaultFacts> facts_among_others(const Candidate& candidate, std::size_t index) {
    faults::Plan others = candidate.options.plan;
    const faults::Fault fault = others.faults[index];
    others.faults.erase(others.faults.begin() + static_cast<std::ptrdiff_t>(index));
    return facts_in(single_faults(candidate, std::move(others)), fault);
  }

  void find_origins() {
    const auto& faults = best_.options.plan.faults;
    if (faults.empty()) return;
    if (options_.isolated) {
      // What ends the process does so whatever is demanded, and may do so without some faults.
      best_.origins.assign(faults.size(), Origin::kGiven);
      return;
    }
    const auto pairs = single_faults(best_, {});
    for (std::size_t i = 0; i < faults.size(); ++i) {
      const auto alone = facts_in(pairs, faults[i]);
      const auto together = faults.size() > 1 ? facts_among_others(best_, i) : alone;
      Origin origin = alone || together ? Origin::kGiven : Origin::kFixed;
      if (i >= best_.options.facts.size()) {
        origin = Origin::kFixed;
      } else if (alone && same(*alone, best_.options.facts[i])) {
        origin = Origin::kFaultFree;
      } else if (together && same(*together, best_.options.facts[i])) {
        origin = Origin::kOthers;
      }
      best_.origins.push_back(origin);
    }
  }

  static bool same(const FaultFacts& a, const FaultFacts& b) {
    return a.demand == b.demand && a.kinds == b.kinds;
  }

  // False if a fault of the candidate does not apply in its world.
  bool derive(Candidate& candidate) {
    auto& options = candidate.options;
    if (free_recovery_) options.recovery = recovery_of(options.plan);
    if (options_.isolated) return true;
    std::optional<std::vector<faults::Pair>> pairs;
    for (std::size_t i = 0; i < options.plan.faults.size(); ++i) {
      const Origin origin = candidate.origins[i];
      const faults::Fault& fault = options.plan.faults[i];
      if (origin == Origin::kFixed) {
        const auto& before = best_.options.plan.faults;
        if (std::find(before.begin(), before.end(), fault) == before.end()) return false;
        continue;
      }
      std::optional<FaultFacts> facts;
      if (origin != Origin::kOthers) {
        if (!pairs) pairs = single_faults(candidate, {});
        facts = facts_in(*pairs, fault);
      }
      if (origin == Origin::kOthers || (origin == Origin::kGiven && !facts)) {
        facts = facts_among_others(candidate, i);
      }
      if (!facts) return false;
      if (origin != Origin::kGiven) options.facts[i] = *facts;
    }
    return true;
  }

  // ---- the passes; each returns whether it found something simpler ----

  static bool is_plain(const SimOptions& options) {
    return options.deviations.empty() && options.schedule == 0 &&
           (options.policy == sim::Policy::kLastReady ||
            options.policy == sim::Policy::kFirstReady);
  }

  static void set_policy(SimOptions& options, sim::Policy policy) {
    options.policy = policy;
    options.deviations.clear();
    options.schedule = 0;
    options.priority_changes = SimOptions{}.priority_changes;
    options.priority_choices = SimOptions{}.priority_choices;
  }

  bool plain_schedules() {
    if (is_plain(best_.options)) return false;
    for (const sim::Policy policy : {sim::Policy::kLastReady, sim::Policy::kFirstReady}) {
      Candidate candidate = best_;
      set_policy(candidate.options, policy);
      if (accept(std::move(candidate))) return true;
    }
    return false;
  }

  bool fewer_faults() {
    bool any = false;
    for (std::size_t i = best_.options.plan.faults.size(); i-- > 0;) {
      Candidate candidate = best_;
      erase_fault(candidate, i);
      any |= accept(std::move(candidate));
    }
    return any;
  }

  bool earlier_moments() {
    bool any = false;
    for (std::size_t i = 0; i < best_.options.plan.faults.size(); ++i) {
      const faults::Moment now = best_.options.plan.faults[i].moment;
      const auto try_moment = [&](const faults::Moment& moment) {
        Candidate candidate = best_;
        candidate.options.plan.faults[i].moment = moment;
        return accept(std::move(candidate));
      };
      for (std::int64_t chunk = 0; chunk < now.chunk; ++chunk) {
        faults::Moment moment = now;
        moment.chunk = chunk;
        if (!try_moment(moment)) continue;
        any = true;
        break;
      }
      const faults::Moment then = best_.options.plan.faults[i].moment;
      constexpr std::uint64_t kTriedMax = 16;
      for (std::uint64_t n = 0; n < std::min(then.occurrence, kTriedMax); ++n) {
        faults::Moment moment = then;
        moment.occurrence = n;
        if (!try_moment(moment)) continue;
        any = true;
        break;
      }
    }
    return any;
  }

  // Changes one thing about the world, faults moved along, under the same schedule and, where it
  // has deviations or is drawn, under a few others as well.
  template <typename Change>
  bool try_world(Change change) {
    Candidate candidate = best_;
    change(candidate);
    if (!is_possible(candidate.spec)) return false;
    const auto last = static_cast<std::int64_t>(chunks_of(candidate.spec)) - 1;
    for (faults::Fault& fault : candidate.options.plan.faults) {
      fault.moment.rank = std::min(fault.moment.rank, candidate.spec.tp - 1);
      fault.moment.chunk = std::min(fault.moment.chunk, std::max<std::int64_t>(last, 0));
    }
    if (accept(candidate)) return true;
    if (is_plain(best_.options)) return false;
    for (const sim::Policy policy : {sim::Policy::kLastReady, sim::Policy::kFirstReady}) {
      Candidate other = candidate;
      set_policy(other.options, policy);
      if (accept(std::move(other))) return true;
    }
    return false;
  }

  bool smaller_world() {
    bool any = fewer_ranks();
    any |= fewer_chunks();
    any |= smaller_model();
    any |= plain_world();
    const std::uint64_t seed = best_.spec.seed;
    constexpr std::uint64_t kSeedsTried = 4;
    for (std::uint64_t s = 1; s < std::min(seed, kSeedsTried + 1); ++s) {
      if (!try_world([s](Candidate& c) { c.spec.seed = s; })) continue;
      any = true;
      break;
    }
    return any;
  }

  bool fewer_ranks() {
    for (int tp = 1; tp < best_.spec.tp; ++tp) {
      const bool less = try_world([tp](Candidate& c) {
        const bool equal = c.spec.actors == c.spec.tp;
        c.spec.tp = tp;
        c.spec.actors = equal ? tp : std::min(c.spec.actors, tp);
      });
      if (less) return true;
    }
    return false;
  }

  bool fewer_chunks() {
    const std::uint64_t most = model::plan_canonical(best_.spec.config).byte_count;
    const std::uint64_t chunks = chunks_of(best_.spec);
    for (std::uint64_t bucket = most; bucket > best_.spec.sync.bucket_bytes; bucket -= bucket / 4) {
      WorldSpec smaller = best_.spec;
      smaller.sync.bucket_bytes = bucket;
      if (chunks_of(smaller) >= chunks) return false;
      if (try_world([&](Candidate& c) { c.spec = smaller; })) return true;
    }
    return false;
  }

  // The built-in model of small worlds, and of it, half of what can be halved.
  bool smaller_model() {
    model::ModelConfig tiny = best_.spec.config;
    tiny.num_hidden_layers = 1;
    tiny.num_experts = std::min<std::uint64_t>(tiny.num_experts, 4);
    tiny.hidden_size = std::min<std::uint64_t>(tiny.hidden_size, 8);
    tiny.moe_intermediate_size = std::min<std::uint64_t>(tiny.moe_intermediate_size, 8);
    tiny.vocab_size = std::min<std::uint64_t>(tiny.vocab_size, 16);
    if (tiny.num_attention_heads > 4) {
      tiny.num_attention_heads = 4;
      tiny.num_key_value_heads = 2;
    }
    tiny.head_dim = std::min<std::uint64_t>(tiny.head_dim, 4);
    if (tiny == best_.spec.config) return false;
    return try_world([&](Candidate& c) { c.spec.config = tiny; });
  }

  // Everything else as it is by default.
  bool plain_world() {
    const WorldSpec plain = small_world(best_.spec.config, best_.spec.tp);
    bool any = false;
    const auto reset = [&](auto WorldSpec::*member) {
      if (best_.spec.*member == plain.*member) return;
      any |= try_world([&](Candidate& c) { c.spec.*member = plain.*member; });
    };
    reset(&WorldSpec::storage);
    reset(&WorldSpec::stored);
    reset(&WorldSpec::uneven_shards);
    reset(&WorldSpec::lost_tensor);
    reset(&WorldSpec::base_version);
    reset(&WorldSpec::device_bytes);
    reset(&WorldSpec::kv_cache_bytes);
    if (best_.spec.config.tie_word_embeddings) {
      any |= try_world([](Candidate& c) { c.spec.config.tie_word_embeddings = false; });
    }
    if (best_.spec.sync.route != wire::Route::kGather) {
      any |= try_world([](Candidate& c) { c.spec.sync.route = wire::Route::kGather; });
    }
    if (best_.spec.sync.layout) {
      any |= try_world([](Candidate& c) { c.spec.sync.layout.reset(); });
    }
    if (!has_plain_times(plain)) {
      any |= try_world([&](Candidate& c) {
        c.spec.timeouts = plain.timeouts;
        c.spec.sync.control_timeout = plain.sync.control_timeout;
      });
    }
    any |= plain_options();
    return any;
  }

  bool has_plain_times(const WorldSpec& plain) const {
    const auto same_time = [&](const auto& entry) {
      return best_.spec.timeouts.*entry.second == plain.timeouts.*entry.second;
    };
    return best_.spec.sync.control_timeout == plain.sync.control_timeout &&
           std::all_of(std::begin(kCommandTimeouts), std::end(kCommandTimeouts), same_time);
  }

  bool plain_options() {
    bool any = false;
    const SimOptions plain;
    for (std::uint64_t capacity = plain.pipe_capacity; capacity > best_.options.pipe_capacity;
         capacity /= 2) {
      if (!try_world([=](Candidate& c) { c.options.pipe_capacity = capacity; })) continue;
      any = true;
      break;
    }
    if (best_.options.latency_percent != plain.latency_percent) {
      any |= try_world([&](Candidate& c) { c.options.latency_percent = plain.latency_percent; });
    }
    return any;
  }

  // ---- deviations ----

  // The schedule of the best run as a plain policy and deviations, by the fewer of two; nullopt
  // where that gives another run.
  std::optional<Candidate> as_deviations() {
    run_plain(best_.spec, best_.options);
    const std::vector<sim::Choice> choices = runner_.trace().choices;
    std::array<std::vector<sim::Deviation>, 2> deviations;  // from the last, from the first ready
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (choices[i].chosen + 1 != choices[i].count) {
        deviations[0].push_back({i, choices[i].chosen});
      }
      if (choices[i].chosen != 0) deviations[1].push_back({i, choices[i].chosen});
    }
    const bool last = deviations[0].size() <= deviations[1].size();
    Candidate candidate = best_;
    set_policy(candidate.options, last ? sim::Policy::kLastReady : sim::Policy::kFirstReady);
    candidate.options.deviations = std::move(deviations[last ? 0 : 1]);
    if (!fails(candidate)) return std::nullopt;
    return candidate;
  }

  bool fails(const Candidate& candidate) {
    return !spent() && has_symptom(observe(candidate), id_);
  }

  bool fewer_deviations() {
    if (options_.isolated || is_plain(best_.options)) return false;
    const bool drawn = best_.options.policy != sim::Policy::kLastReady &&
                       best_.options.policy != sim::Policy::kFirstReady;
    if (drawn) {
      auto candidate = as_deviations();
      if (!candidate) return false;
      best_ = std::move(*candidate);
    }
    const std::size_t before = best_.options.deviations.size();
    best_.options.deviations =
        minimized(best_.options.deviations, [&](const std::vector<sim::Deviation>& some) {
          Candidate candidate = best_;
          candidate.options.deviations = some;
          return fails(candidate);
        });
    return drawn || best_.options.deviations.size() < before;
  }

  Shrunk finish() {
    Shrunk result;
    result.spec = best_.spec;
    result.options = best_.options;
    result.id = id_;
    result.finished = !spent();
    if (options_.isolated) {
      for (const Symptom& symptom : observe(best_)) {
        if (symptom.id == id_) result.text = symptom.text;
      }
    } else {
      const Run run = run_plain(best_.spec, best_.options);
      result.hash = sim::to_text(run.hash);
      for (const Symptom& symptom : symptoms_of(run)) {
        if (symptom.id == id_) result.text = symptom.text;
      }
    }
    result.runs = runs_;
    return result;
  }

  SimRunner& runner_;
  const ShrinkOptions& options_;
  const Script script_;
  std::string id_;
  Candidate best_;
  bool free_recovery_ = false;  // the recovery is what the faults make it
  std::uint64_t runs_ = 0;
};

std::string counted(std::uint64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

std::string Shrunk::summary() const {
  return fmt::format("{}, {}, TP {}, {}", counted(options.plan.faults.size(), "fault"),
                     counted(options.deviations.size(), "deviation"), spec.tp,
                     counted(chunks_of(spec), "chunk"));
}

Shrunk shrink(SimRunner& runner, const WorldSpec& spec, const SimOptions& options,
              const ShrinkOptions& shrink_options) {
  return Shrinker(runner, shrink_options).run(spec, options);
}

}  // namespace tpsync::conformance
